// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;

use super::*;
use crate::testing::{TestObject, TestTables};

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

    /// A connection that has asked for something. In version 1.0, so that the answer is not in chunks.
    async fn request(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let request = format!("GET /debug/db{path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// Status and body of an answer.
    async fn ask(&self, path: &str) -> (u16, String) {
        let mut answer = String::new();
        self.request(path)
            .await
            .read_to_string(&mut answer)
            .await
            .unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Ids and revisions of the objects of an answer.
    async fn objects(&self, path: &str) -> Vec<(u64, u64)> {
        let (status, body) = self.ask(path).await;
        assert_eq!(status, 200, "{body}");
        body.lines()
            .map(|line| {
                let line: Value = serde_json::from_str(line).unwrap();
                let id = line["object"]["ID"].as_u64().unwrap();
                (id, line["revision"].as_u64().unwrap())
            })
            .collect()
    }

    async fn ids(&self, path: &str) -> Vec<u64> {
        self.objects(path).await.into_iter().map(|(id, _)| id).collect()
    }

    /// The changes of table `test1`.
    async fn changes(&self) -> ChangeLines {
        let stream = self.request("/tables/test1/changes").await;
        let mut lines = BufReader::new(stream).lines();
        while !soon(lines.next_line()).await.unwrap().unwrap().is_empty() {}
        ChangeLines(lines)
    }
}

/// An answer of changes, behind its header.
struct ChangeLines(Lines<BufReader<TcpStream>>);

impl ChangeLines {
    /// The next change in short, or `None` at the end of the answer.
    async fn next(&mut self) -> Option<Value> {
        let line: Value = serde_json::from_str(&soon(self.0.next_line()).await.unwrap()?).unwrap();
        let id = &line["object"]["ID"];
        Some(match line["change"].as_str().unwrap() {
            "upsert" => json!({"upsert": id, "revision": line["revision"]}),
            "delete" => json!({"delete": id}),
            other => json!(other),
        })
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

#[tokio::test]
async fn queries_return_what_the_table_itself_returns() {
    let bench = Bench::new().await;
    bench.insert(0..1000);

    assert_eq!(bench.ids("/tables/test1").await, (0..1000).collect::<Vec<_>>());
    assert_eq!(bench.objects("/tables/test1?key=7").await, [(7, 8)]);
    assert_eq!(bench.ids("/tables/test1?key=1000").await, [0; 0]);
    assert_eq!(bench.ids("/tables/test1?index=tags&key=odd").await.len(), 500);
    assert_eq!(
        bench.ids("/tables/test1?index=key&key=key-99&match=prefix").await,
        [99, 990, 991, 992, 993, 994, 995, 996, 997, 998, 999]
    );
    assert_eq!(
        bench.ids("/tables/test1?key=998&match=lower-bound").await,
        [998, 999]
    );
    assert_eq!(bench.ids("/tables/test2").await, [0; 0]);
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
        ("test1?index=key", "`index` and `match` need a `key`"),
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
    let mut changes = bench.changes().await;
    assert_eq!(changes.next().await, Some(json!({"upsert": 1, "revision": 1})));
    assert_eq!(changes.next().await, Some(json!({"upsert": 2, "revision": 2})));
    assert_eq!(changes.next().await, Some(json!("initialized")));

    bench.insert([3]);
    assert_eq!(changes.next().await, Some(json!({"upsert": 3, "revision": 3})));
    bench.delete(1);
    assert_eq!(changes.next().await, Some(json!({"delete": 1})));
}

#[tokio::test]
async fn initialized_is_said_once_when_all_sources_are_in() {
    let bench = Bench::new().await;
    let mut txn = bench.db.write(&[&bench.tables.test1]);
    let guard = bench.tables.test1.register_initializer(&mut txn, "file").unwrap();
    txn.commit();
    let mut changes = bench.changes().await;
    bench.insert([1]);
    assert_eq!(changes.next().await, Some(json!({"upsert": 1, "revision": 1})));

    let mut txn = bench.db.write(&[&bench.tables.test1]);
    txn.initialized(&guard).unwrap();
    txn.commit();
    assert_eq!(changes.next().await, Some(json!("initialized")));
    bench.insert([2]);
    assert_eq!(changes.next().await, Some(json!({"upsert": 2, "revision": 2})));
}

#[tokio::test]
async fn a_stop_ends_streams_without_an_error() {
    let bench = Bench::new().await;
    let mut changes = bench.changes().await;

    bench.stop.cancel();

    assert_eq!(changes.next().await, Some(json!("initialized")));
    assert_eq!(changes.next().await, None);
    soon(bench.server).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_reader_that_goes_is_forgotten() {
    let bench = Bench::new().await;
    let changes = bench.changes().await;
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
