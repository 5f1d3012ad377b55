// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use serde_json::{Value, json};

use super::*;
use crate::testing::{TestObject, TestTables};

/// What is looked at of a [`TestObject`].
#[derive(Debug, PartialEq, Deserialize)]
struct Seen {
    #[serde(rename = "ID")]
    id: u64,
    #[serde(rename = "Key")]
    key: String,
}

struct Bench {
    db: Db,
    tables: TestTables,
    address: String,
    stop: CancellationToken,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Bench {
    /// A server at `/debug/db` that stops as the agent's does.
    async fn new() -> Self {
        let db = Db::new();
        let tables = TestTables::new(&db).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stop = CancellationToken::new();
        let router = Router::new()
            .nest("/debug/db", router(&db))
            .layer(Extension(Stop(stop.clone())));
        let stopped = stop.clone().cancelled_owned();
        let server = tokio::spawn(
            axum::serve(listener, router)
                .with_graceful_shutdown(stopped)
                .into_future(),
        );
        Self {
            db,
            tables,
            address,
            stop,
            server,
        }
    }

    fn remote(&self, table: &str) -> RemoteTable<Seen> {
        RemoteTable::new(Endpoint::Tcp(self.address.clone()), "/debug/db/", table)
    }

    fn insert(&self, ids: impl IntoIterator<Item = u64>) {
        let mut txn = self.db.write(&[&self.tables.test1]);
        for id in ids {
            let object = object(id);
            self.tables.test1.insert(&mut txn, object).unwrap();
        }
        txn.commit();
    }

    fn delete(&self, id: u64) {
        let mut txn = self.db.write(&[&self.tables.test1]);
        self.tables.test1.delete(&mut txn, &object(id)).unwrap().unwrap();
        txn.commit();
    }

    /// Status and body of an answer.
    async fn ask(&self, path: &str) -> (u16, String) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(&self.address).await.unwrap();
        let request = format!("GET /debug/db{path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

fn object(id: u64) -> TestObject {
    TestObject {
        id,
        key: format!("key-{id}"),
        tags: [if id.is_multiple_of(2) { "even" } else { "odd" }.to_owned()].into(),
        ..TestObject::default()
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("it happens in time")
}

async fn next(changes: &mut (impl Stream<Item = Result<RemoteChange<Value>, RemoteError>> + Unpin)) -> Value {
    match soon(changes.try_next())
        .await
        .unwrap()
        .expect("the stream goes on")
    {
        RemoteChange::Upsert(upsert) => json!({"upsert": upsert.object["ID"], "revision": upsert.revision}),
        RemoteChange::Delete(delete) => json!({"delete": delete.object["ID"]}),
        RemoteChange::Relist => json!("relist"),
        RemoteChange::Initialized => json!("initialized"),
    }
}

#[tokio::test]
async fn queries_give_what_the_table_itself_gives() {
    let bench = Bench::new().await;
    bench.insert(0..1000);
    let remote = bench.remote("test1");
    let ids = |objects: Vec<RemoteObject<Seen>>| -> Vec<u64> {
        objects.into_iter().map(|found| found.object.id).collect()
    };

    assert_eq!(ids(remote.all().await.unwrap()), (0..1000).collect::<Vec<_>>());
    let found = remote.get(TestObject::ID.key(&7)).await.unwrap().unwrap();
    assert_eq!((found.object.key.as_str(), found.revision), ("key-7", 8));
    assert_eq!(remote.get(TestObject::ID.key(&1000)).await.unwrap(), None);
    assert_eq!(
        ids(remote.list(TestObject::TAGS.key("odd")).await.unwrap()).len(),
        500
    );
    assert_eq!(
        ids(remote.prefix(TestObject::KEY.bytes(b"key-99")).await.unwrap()),
        [99, 990, 991, 992, 993, 994, 995, 996, 997, 998, 999]
    );
    assert_eq!(
        ids(remote.lower_bound(TestObject::ID.key(&998)).await.unwrap()),
        [998, 999]
    );
    assert_eq!(ids(bench.remote("test2").all().await.unwrap()), [0; 0]);
}

#[tokio::test]
async fn keys_can_be_given_as_text() {
    let bench = Bench::new().await;
    bench.insert(0..20);

    let (status, body) = bench.ask("/tables/test1?key=7").await;
    assert_eq!(status, 200);
    let line: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        line,
        json!({"revision": 8, "object": {"ID": 7, "Key": "key-7", "Prefix": "", "Tags": ["odd"]}})
    );

    let (_, body) = bench.ask("/tables/test1?index=key&key=key-1&match=prefix").await;
    assert_eq!(body.lines().count(), 11);
    for (query, message) in [
        ("test3", "table \"test3\" not found"),
        ("test1?index=name&key=x", "invalid index \"name\""),
        (
            "test1?key=1&match=near",
            "\"near\" is neither exact, prefix nor lower-bound",
        ),
        (
            "test1?bytes=0",
            "\"0\" is not an even number of hexadecimal digits",
        ),
        ("test1?index=key", "`index` and `match` need a `key` or `bytes`"),
    ] {
        let (status, body) = bench.ask(&format!("/tables/{query}")).await;
        assert_eq!(
            (status, body.trim_end()),
            (if query == "test3" { 404 } else { 400 }, message)
        );
    }
}

#[tokio::test]
async fn the_list_and_the_dump_show_every_table() {
    let bench = Bench::new().await;
    bench.insert([1, 2]);
    let pending = {
        let mut txn = bench.db.write(&[&bench.tables.test2]);
        let pending = bench.tables.test2.register_initializer(&mut txn, "file").unwrap();
        txn.commit();
        pending
    };

    let list: Value = serde_json::from_str(&bench.ask("/tables").await.1).unwrap();
    assert_eq!(list[0]["name"], "test1");
    assert_eq!(
        (&list[0]["objects"], &list[0]["revision"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(list[0]["indexes"], json!(["id", "key", "prefix", "tags"]));
    assert_eq!(list[1]["pending_initializers"], json!(["file"]));

    let dump: Value = serde_json::from_str(&bench.ask("/dump").await.1).unwrap();
    assert_eq!(dump["test1"][1]["Key"], "key-2");
    assert_eq!(dump["test2"], json!([]));
    drop(pending);
}

#[tokio::test]
async fn changes_follow_the_first_content() {
    let bench = Bench::new().await;
    bench.insert([1, 2]);
    let remote = RemoteTable::<Value>::new(Endpoint::Tcp(bench.address.clone()), "/debug/db", "test1");
    let mut changes = remote.changes().await.unwrap();
    assert_eq!(next(&mut changes).await, json!({"upsert": 1, "revision": 1}));
    assert_eq!(next(&mut changes).await, json!({"upsert": 2, "revision": 2}));
    assert_eq!(next(&mut changes).await, json!("initialized"));

    bench.insert([3]);
    assert_eq!(next(&mut changes).await, json!({"upsert": 3, "revision": 3}));
    bench.delete(1);
    assert_eq!(next(&mut changes).await, json!({"delete": 1}));
}

#[tokio::test]
async fn initialized_is_said_once_when_all_sources_are_in() {
    let bench = Bench::new().await;
    let mut txn = bench.db.write(&[&bench.tables.test1]);
    let guard = bench.tables.test1.register_initializer(&mut txn, "file").unwrap();
    txn.commit();
    let remote = RemoteTable::<Value>::new(Endpoint::Tcp(bench.address.clone()), "/debug/db", "test1");
    let mut changes = remote.changes().await.unwrap();
    bench.insert([1]);
    assert_eq!(next(&mut changes).await, json!({"upsert": 1, "revision": 1}));

    let mut txn = bench.db.write(&[&bench.tables.test1]);
    txn.initialized(&guard).unwrap();
    txn.commit();
    assert_eq!(next(&mut changes).await, json!("initialized"));
    bench.insert([2]);
    assert_eq!(next(&mut changes).await, json!({"upsert": 2, "revision": 2}));
}

#[tokio::test]
async fn a_stop_ends_streams_without_an_error() {
    let bench = Bench::new().await;
    let changes = bench.remote("test1").changes().await.unwrap();

    bench.stop.cancel();

    let all: Vec<_> = soon(changes.collect()).await;
    assert!(matches!(all[..], [Ok(RemoteChange::Initialized)]), "{all:?}");
    soon(bench.server).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_reader_that_goes_is_forgotten() {
    let bench = Bench::new().await;
    let changes = bench.remote("test1").changes().await.unwrap();
    let table = bench.db.table("test1").unwrap();
    assert_eq!(table.delete_trackers(), 1);

    drop(changes);

    soon(async {
        while table.delete_trackers() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn errors_name_table_and_place() {
    let bench = Bench::new().await;
    bench.insert([1]);
    let unknown = bench.remote("nothing").all().await.unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "table `nothing`: 404 Not Found: table \"nothing\" not found"
    );

    let numbers = RemoteTable::<u8>::new(Endpoint::Tcp(bench.address.clone()), "/debug/db", "test1");
    let error = numbers.all().await.unwrap_err().to_string();
    assert!(
        error.starts_with("table `test1`: cannot read `{\"revision\":1,\"object\":{"),
        "{error}"
    );

    let error = bench.remote("two words").all().await.unwrap_err();
    assert!(matches!(error, RemoteError::BadPath { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn silence_is_broken_every_half_minute() {
    let db = Db::new();
    TestTables::new(&db).unwrap();
    let table = db.table("test1").unwrap();
    let mut pieces = Box::pin(stream::changes(db, table, CancellationToken::new()));
    assert_eq!(
        pieces.next().await.unwrap().unwrap(),
        b"{\"change\":\"initialized\"}\n"
    );

    let begun = tokio::time::Instant::now();
    for _ in 0..2 {
        assert_eq!(pieces.next().await.unwrap().unwrap(), b"\n");
    }
    assert_eq!(begun.elapsed().as_secs(), 60);
}

#[test]
fn bytes_survive_the_way_through_digits() {
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(from_hex(&to_hex(&all)).unwrap(), all);
    assert_eq!(from_hex("+1"), None);
    assert_eq!(from_hex("é"), None);
}
