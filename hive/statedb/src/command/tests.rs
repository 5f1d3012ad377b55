// SPDX-License-Identifier: Apache-2.0

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use hive_script::{Archive, Environment, Lifetime, ScriptFile, State, default_commands};

use crate::{Db, testing::TestTables};

struct Bench {
    _dir: tempfile::TempDir,
    state: State,
    log: Arc<Mutex<String>>,
}

impl Bench {
    fn new(db: &Db) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&log);
        let mut commands = default_commands();
        for command in super::commands(db) {
            commands.insert(command.spec().name().to_owned(), command);
        }
        let lifetime = Lifetime::until(tokio::time::Instant::now() + Duration::from_secs(20));
        let state = State::new(
            dir.path(),
            commands,
            Environment::new(),
            lifetime,
            Box::new(move |text| sink.lock().unwrap().push_str(text)),
        );
        Self {
            _dir: dir,
            state,
            log,
        }
    }

    async fn run(&mut self, text: &str) -> Result<(), String> {
        let script = ScriptFile::from_archive("test.txtar", Archive::parse(text));
        script.unpack(&mut self.state).map_err(|err| err.to_string())?;
        script
            .run(&mut self.state)
            .await
            .map(drop)
            .map_err(|err| err.to_string())
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }
}

const OBJECTS: &str = "-- a.yaml --
id: 1
key: web
prefix: 10.0.0.0/8
tags: [red, blue]
---
id: 2
key: api
prefix: fd00::/64
-- b.yaml --
id: 3
key: web-canary
prefix: 10.1.0.0/16
tags: [red]
";

async fn script(text: &str) -> (Result<(), String>, String, Db) {
    let db = Db::new();
    TestTables::new(&db).unwrap();
    let mut bench = Bench::new(&db);
    let result = bench.run(&format!("{text}{OBJECTS}")).await;
    let log = bench.log();
    (result, log, db)
}

#[track_caller]
fn passes((result, log, _): (Result<(), String>, String, Db)) -> String {
    assert!(result.is_ok(), "{}\n{log}", result.unwrap_err());
    log
}

#[track_caller]
fn fails((result, log, _): (Result<(), String>, String, Db), with: &str) {
    let error = result.expect_err(&log);
    assert!(error.contains(with), "{error}\n{log}");
}

#[tokio::test(start_paused = true)]
async fn inserts_shows_and_deletes() {
    passes(
        script(
            "db/empty test1 test2
db/insert test1 a.yaml b.yaml
! db/empty test1
db/show test1
cmp stdout all.txt
db/show --columns=key,ID test1
cmp stdout columns.txt
db/show -o out.txt -f json test1
empty stdout
cmp out.txt json.txt
db/show -f yaml test1
cmp stdout yaml.txt
db/delete test1 a.yaml
db/delete test1 a.yaml
db/show --columns=ID test1
cmp stdout left.txt
-- all.txt --
ID   Key          Prefix        Tags
1    web          10.0.0.0/8    blue, red
2    api          fd00::/64     
3    web-canary   10.1.0.0/16   red
-- columns.txt --
key          ID
web          1
api          2
web-canary   3
-- left.txt --
ID
3
-- json.txt --
{
  \"ID\": 1,
  \"Key\": \"web\",
  \"Prefix\": \"10.0.0.0/8\",
  \"Tags\": [
    \"blue\",
    \"red\"
  ]
}
{
  \"ID\": 2,
  \"Key\": \"api\",
  \"Prefix\": \"fd00::/64\",
  \"Tags\": []
}
{
  \"ID\": 3,
  \"Key\": \"web-canary\",
  \"Prefix\": \"10.1.0.0/16\",
  \"Tags\": [
    \"red\"
  ]
}
-- yaml.txt --
id: 1
key: web
prefix: 10.0.0.0/8
tags:
    - blue
    - red
---
id: 2
key: api
prefix: fd00::/64
tags: []
---
id: 3
key: web-canary
prefix: 10.1.0.0/16
tags:
    - red
",
        )
        .await,
    );
}

#[tokio::test(start_paused = true)]
async fn queries_by_text() {
    let log = passes(
        script(
            "db/insert test1 a.yaml b.yaml
db/get test1 2 --columns=Key
cmp stdout get.txt
db/get test1 77 --columns=Key
cmp stdout none.txt
db/list -i tags --columns=ID test1 red
cmp stdout red.txt
db/prefix --index=key --columns=ID test1 web
cmp stdout red.txt
db/lowerbound test1 2 --columns=ID
cmp stdout from2.txt
db/list -i prefix test1 10.1.0.0/16 --columns=ID
stdout '^3'
db/list -i tags --delete test1 red
db/show test1 --columns=ID
cmp stdout two.txt
-- get.txt --
Key
api
-- none.txt --
Key
-- red.txt --
ID
1
3
-- from2.txt --
ID
2
3
-- two.txt --
ID
2
",
        )
        .await,
    );
    assert!(log.contains("Deleted 2 objects\n"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn compares_by_column_subset() {
    passes(
        script(
            "env KEY=web
db/insert test1 a.yaml b.yaml
db/cmp test1 full.table
db/cmp test1 subset.table
db/cmp --grep=^web test1 grep.table
! db/cmp --timeout=10ms test1 order.table
-- full.table --
ID Key        Prefix      Tags
1  $KEY        10.0.0.0/8  blue, red
2  api        fd00::/64
3  web-canary 10.1.0.0/16 red
-- subset.table --
tags         ID

blue, red    1
             2
red          3
-- grep.table --
Key          ID
web          1
web-canary   3
-- order.table --
ID
1
3
2
",
        )
        .await,
    );
    // `$KEY` is longer than its value: the rest of the line moves, as scripts know it.
}

#[tokio::test(start_paused = true)]
async fn mismatch_is_shown_after_the_timeout() {
    let (result, _, _) = script(
        "db/insert test1 a.yaml
db/cmp --timeout=50ms test1 want.table
-- want.table --
ID  Key
1   web
2   db
3   x
",
    )
    .await;
    let error = result.unwrap_err();
    assert!(
        error.ends_with("table mismatch:\n  ID  Key\n  1   web\n- 2   api\n+ 2   db\n+ 3   x\n"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn comparison_waits_for_the_table() {
    let db = Db::new();
    let tables = TestTables::new(&db).unwrap();
    let writer = {
        let db = db.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let table = db.table("test1").unwrap();
            let mut txn = db.write(&[&tables.test1]);
            table.insert_yaml(&mut txn, "id: 9").unwrap();
            txn.commit();
        })
    };
    Bench::new(&db)
        .run("db/cmp test1 want\n-- want --\nID\n9\n")
        .await
        .unwrap();
    writer.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn errors_have_their_texts() {
    for (line, text) in [
        ("db/show", "missing table name"),
        ("db/show nope", "table \"nope\" not found"),
        (
            "db/show -f xml test1",
            "unknown format \"xml\", expected table, yaml or json",
        ),
        (
            "db/show --columns=Nope test1",
            "column \"Nope\" not part of [ID Key Prefix Tags]",
        ),
        (
            "db/show --columns=ID -f json test1",
            "--columns not supported with non-table formats",
        ),
        ("db/get test1", "expected table and key"),
        ("db/get -i nope test1 1", "query: invalid index \"nope\""),
        ("db/get test1 x", "query: cannot parse `x`"),
        ("db/cmp test1", "expected table and filename"),
        ("db/insert test1", "expected table and path(s)"),
        ("db/insert test1 nope.yaml", "ReadFile(nope.yaml): "),
        (
            "db/insert test1 bad.yaml\n-- bad.yaml --\nid: {",
            "Unmarshal(bad.yaml): ",
        ),
        (
            "db/cmp test1 empty\n-- empty --\n",
            "\"empty\" missing header line, e.g. \"ID Key Prefix Tags\"",
        ),
        (
            "db/cmp test1 f\n-- f --\nID X\n",
            "column \"X\" not part of [ID Key Prefix Tags]",
        ),
        (
            "db/insert test1 a.yaml\ndb/empty test1",
            "table \"test1\" not empty, found 2 obects",
        ),
    ] {
        fails(script(&format!("{line}\n")).await, text);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_insert_changes_nothing() {
    passes(script("! db/insert test1 a.yaml bad.yaml\ndb/empty test1\n-- bad.yaml --\nid: x\n").await);
}

#[tokio::test(start_paused = true)]
async fn keys_without_a_value_are_missing() {
    passes(
        script("db/insert test1 nulls.yaml\ndb/show test1 -f yaml\ncmp stdout out.yaml\n-- nulls.yaml --\nid: 4\nkey:\nprefix: ~\ntags: null\n-- out.yaml --\nid: 4\nkey: \"\"\nprefix: \"\"\ntags: []\n").await,
    );
    fails(
        script("db/insert test1 bad.yaml\n-- bad.yaml --\nid: x\ntags: null\n").await,
        "Unmarshal(bad.yaml): invalid type: string \"x\"",
    );
}

#[tokio::test(start_paused = true)]
async fn overview_and_dump() {
    let log = passes(
        script(
            "db\ndb/insert test2 b.yaml\ndb/dump\ncmp stdout dump.txt\n-- dump.txt --
{
  \"test1\": [
  ],
  \"test2\": [
    {\"ID\":3,\"Key\":\"web-canary\",\"Prefix\":\"10.1.0.0/16\",\"Tags\":[\"red\"]}
  ]
}
",
        )
        .await,
    );
    let header = "Name    Object count   Zombie objects   Indexes                 Initializers   Go type";
    assert!(log.contains(header), "{log}");
    assert!(
        log.contains("test1   0              0                id, key, prefix, tags   []             "),
        "{log}"
    );
}

#[tokio::test(start_paused = true)]
async fn waits_for_initializers() {
    let db = Db::new();
    let tables = TestTables::new(&db).unwrap();
    let mut txn = db.write(&[&tables.test1]);
    let guard = tables.test1.register_initializer(&mut txn, "source").unwrap();
    txn.commit();
    let mut bench = Bench::new(&db);
    bench
        .run("db/initialized test2\n! db/initialized --timeout=1s\n")
        .await
        .unwrap();
    assert!(
        bench
            .log()
            .contains("Waiting for test1 to initialize ([source])...\n"),
        "{}",
        bench.log()
    );

    let mut txn = db.write(&[&tables.test1]);
    txn.initialized(&guard).unwrap();
    txn.commit();
    bench.run("db/initialized test1\n").await.unwrap();
    assert!(bench.log().contains("test1 initialized\n"));
}

#[tokio::test(start_paused = true)]
async fn watch_follows_changes_until_the_script_ends() {
    let db = Db::new();
    let tables = TestTables::new(&db).unwrap();
    let writer = {
        let db = db.clone();
        tokio::spawn(async move {
            let change = |id: &str, delete: bool| {
                let mut txn = db.write(&[&tables.test1]);
                let table = db.table("test1").unwrap();
                match delete {
                    true => drop(table.delete_yaml(&mut txn, id).unwrap()),
                    false => table.insert_yaml(&mut txn, id).unwrap(),
                }
                txn.commit();
            };
            change("id: 1", false);
            tokio::time::sleep(Duration::from_secs(1)).await;
            change("id: 1", true);
        })
    };
    let mut bench = Bench::new(&db);
    assert!(bench.run("db/watch test1\n").await.is_err());
    writer.await.unwrap();
    let log = bench.log();
    assert!(log.contains("ID   Key"), "{log}");
    assert!(
        log.contains("\u{1b}[9m1 ") && log.contains(" (deleted)\n"),
        "{log}"
    );
}
