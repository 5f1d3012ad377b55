// SPDX-License-Identifier: Apache-2.0

//! Reports, the tree, the history and the commands.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hive::{All, Built, Cell, Health, HealthSink, Hive, ModulePath, Settings};
use hive_script::{CommandHandle, Environment, Lifetime, State, default_commands, named};
use jiff::{SignedDuration, Timestamp};
use skep_base_metrics::Registry;
use statedb::clock::Clock;
use statedb::testing::FixedClock;
use statedb::{Db, Row, Table};

use crate::*;

/// Always one second after the epoch.
fn clock() -> Arc<dyn Clock> {
    Arc::new(FixedClock {
        now: Timestamp::constant(1, 0),
        age: SignedDuration::ZERO,
    })
}

/// The reports of the suite `health`.
fn report(sink: Arc<dyn HealthSink>) {
    let agent = |name| Health::new(sink.clone(), ModulePath::root().child("agent").child(name));
    agent("m0").scope("c0").ok("ok");
    let closed = agent("m2").scope("degraded-closed");
    closed.degraded("broken", &io::Error::other("err1"));
    closed.close();
    agent("m2")
        .scope("degraded")
        .degraded("broken", &io::Error::other("err2"));
    let done = agent("m3").scope("done");
    done.ok("finished");
    done.close();
    let stopped = agent("m4").scope("stopped");
    stopped.ok("ok");
    stopped.stopped("now stopped");
}

fn build(dir: &std::path::Path) -> Built {
    let cells = [
        statedb::cell(),
        skep_base_metrics::cell(),
        cell(),
        history_cell(),
        Cell::module("test", "Reports").provide(clock).run(report),
    ];
    let settings = Settings::new()
        .flag(
            "health-history-file",
            dir.join("health/history.log").to_str().unwrap(),
        )
        .flag("metrics", "+hive_status,+hive_degraded_status");
    let hive = Hive::new(cells)
        .root::<All<CommandHandle>>()
        .root::<Arc<Registry>>()
        .root::<Table<Status>>();
    hive.root::<Db>().plan(settings).unwrap().build().unwrap()
}

async fn script(built: &Built, dir: &std::path::Path, text: &str) -> Result<String, String> {
    let log = Arc::new(Mutex::new(String::new()));
    let sink = log.clone();
    let mut commands = default_commands();
    commands.extend(built.get::<All<CommandHandle>>().unwrap().into_iter().map(named));
    let sink = Box::new(move |text: &str| sink.lock().unwrap().push_str(text));
    let mut state = State::new(dir, commands, Environment::new(), Lifetime::unlimited(), sink);
    state
        .execute("test", text)
        .await
        .map_err(|error| error.to_string())?;
    let log = log.lock().unwrap().clone();
    Ok(log)
}

#[tokio::test]
async fn tree_is_aligned_by_block() {
    let dir = tempfile::tempdir().unwrap();
    let built = build(dir.path());

    let log = script(&built, dir.path(), "health -o out agent\ncat out\n")
        .await
        .unwrap();

    let expected = [
        "agent",
        "├── m0",
        "│   └── c0                                          [OK] ok (0s, x1)",
        "├── m2",
        "│   └── degraded                                    [DEGRADED] broken (0s, x1)",
        "└── m4",
        "    └── stopped                                     [STOPPED] ok (0s, x1)",
        "",
        "",
    ];
    assert!(
        log.ends_with(&format!("[stdout]\n{}", expected.join("\n"))),
        "{log}"
    );
}

#[test]
fn reports_of_inner_nodes_become_children() {
    let status = |module: &[&str], component: &[&str], message: &str| Status {
        id: StatusId {
            module: module.iter().copied().map(Arc::from).collect(),
            component: component.iter().copied().map(Arc::from).collect(),
        },
        level: LevelName::Ok,
        message: message.to_owned(),
        updated: Timestamp::from_second(100).unwrap(),
        count: 4,
        ..Status::default()
    };
    let statuses = [
        status(&["b"], &[], "alone"),
        status(&["a", "x"], &["c"], "leaf"),
        status(&["a"], &["x"], "inner"),
    ];

    let text = tree(&statuses, Timestamp::from_second(250).unwrap());

    let expected = [
        "a",
        "└── x",
        "    ├── [reporter]                                  [OK] inner (2m30s, x4)",
        "    └── c                                           [OK] leaf (2m30s, x4)",
        "b                                           [OK] alone (2m30s, x4)",
        "",
        "",
    ];
    assert_eq!(text, expected.join("\n"));
}

#[tokio::test]
async fn filters_select_reports() {
    let dir = tempfile::tempdir().unwrap();
    let built = build(dir.path());

    let log = script(&built, dir.path(), "health -s degraded,STOPPED\n")
        .await
        .unwrap();
    assert!(
        !log.contains("m0") && log.contains("m2") && log.contains("m4"),
        "{log}"
    );
    let log = script(&built, dir.path(), "health -m .c\n").await.unwrap();
    assert!(log.contains("c0") && !log.contains("m2"), "{log}");
    for line in ["health nope", "health -m nope"] {
        let error = script(&built, dir.path(), line).await.unwrap_err();
        assert!(
            error.ends_with(": no health status found for the filter"),
            "{error}"
        );
    }
    script(&built, dir.path(), "health -s ok\n").await.unwrap();
}

#[tokio::test]
async fn degraded_reports_fail_the_check() {
    let dir = tempfile::tempdir().unwrap();
    let built = build(dir.path());

    script(&built, dir.path(), "health/ok agent.m0\nhealth/ok -m stopped\n")
        .await
        .unwrap();
    let error = script(&built, dir.path(), "health/ok\n").await.unwrap_err();
    assert_eq!(error, "test:1: health/ok: found 1 degraded health reports");
}

#[tokio::test]
async fn history_keeps_what_was_closed() {
    let dir = tempfile::tempdir().unwrap();
    let built = build(dir.path());
    let running = built.start().await.unwrap();
    let built = running.stop().await.unwrap();

    script(
        &built,
        dir.path(),
        "health/history -o out\ngrep --count=1 m4 out\n",
    )
    .await
    .unwrap();

    let text = std::fs::read_to_string(dir.path().join("out")).unwrap();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("agent.") || line.contains("ed | 0."))
        .collect();
    assert_eq!(
        lines,
        [
            "1970-01-01T00:00:01Z | Degraded         | agent.m2.degraded-closed: broken | err1",
            "1970-01-01T00:00:01Z | Closed(Degraded) | agent.m2.degraded-closed: broken | err1",
            "1970-01-01T00:00:01Z | Degraded         | agent.m2.degraded: broken | err2",
            "1970-01-01T00:00:01Z | Closed(OK)       | agent.m3.done: finished",
            "1970-01-01T00:00:01Z | Stopped          | agent.m4.stopped: now stopped",
            "1970-01-01T00:00:01Z | Started | 0.1.0",
            "1970-01-01T00:00:01Z | Stopped | 0.1.0",
        ]
    );
}

fn with_history_in(file: &str) -> Built {
    let cells = [
        statedb::cell(),
        skep_base_metrics::cell(),
        cell(),
        history_cell(),
        Cell::module("test", "Reports").provide(clock).run(report),
    ];
    let settings = Settings::new().flag("health-history-file", file);
    let hive = Hive::new(cells).root::<Arc<History>>().root::<Table<Status>>();
    hive.root::<Db>().plan(settings).unwrap().build().unwrap()
}

fn level_of(built: &Built, id: &str) -> Option<String> {
    let (db, table) = (built.get::<Db>().unwrap(), built.get::<Table<Status>>().unwrap());
    let snapshot = db.read();
    let status = table.get(&snapshot, BY_IDENTIFIER.key(id))?;
    Some(format!("{} {}", status.level, status.error))
}

#[tokio::test]
async fn empty_path_turns_the_history_off() {
    let running = with_history_in("").start().await.unwrap();
    let built = running.stop().await.unwrap();

    assert_eq!(built.get::<Arc<History>>().unwrap().read().unwrap(), "");
    assert_eq!(level_of(&built, "health-history"), None);
}

#[tokio::test]
async fn history_that_cannot_be_written_degrades_health_and_the_hive_starts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let path = file.join("history.log");

    let running = with_history_in(path.to_str().unwrap()).start().await.unwrap();
    let built = running.stop().await.unwrap();

    let status = level_of(&built, "health-history").unwrap();
    let expected = format!("cannot write health history {}", path.display());
    assert!(
        status.starts_with("Degraded") && status.contains(&expected),
        "{status}"
    );
}

#[test]
fn full_history_is_put_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history");
    let history = History::new(&path, clock()).with_limit(100);

    for version in 0..7 {
        history.started(&version.to_string()).unwrap();
    }

    let text = history.read().unwrap();
    assert!(text.len() <= 200 && text.ends_with("| Started | 6\n"), "{text}");
    assert!(std::fs::metadata(&path).unwrap().len() <= 100);
}

fn table() -> (Db, Table<Status>, Health) {
    let db = Db::new();
    let health = HealthTable::new(db.clone()).unwrap();
    let table = health.table();
    (
        db,
        table,
        Health::new(Arc::new(health), ModulePath::root().child("m")),
    )
}

fn get(db: &Db, table: &Table<Status>, id: &str) -> Option<Status> {
    table
        .get(&db.read(), BY_IDENTIFIER.key(id))
        .map(|status| Status::clone(status))
}

#[test]
fn equal_reports_are_counted() {
    let (db, table, health) = table();
    let job = health.scope("job");

    job.ok("fine");
    job.ok("fine");
    let status = get(&db, &table, "m.job").unwrap();
    assert_eq!((status.count, status.last_ok == status.updated), (2, true));

    job.degraded("bad", &io::Error::other("why"));
    let status = get(&db, &table, "m.job").unwrap();
    assert_eq!(
        (status.count, status.error.as_str(), status.message.as_str()),
        (1, "why", "bad")
    );
    assert!(status.last_ok <= status.updated && status.last_ok != never());

    job.stopped("end");
    let status = get(&db, &table, "m.job").unwrap();
    assert_eq!(
        (
            status.message.as_str(),
            status.final_message.as_str(),
            status.count
        ),
        ("bad", "end", 1)
    );
    assert_ne!(status.stopped, never());

    job.ok("again");
    assert_eq!(get(&db, &table, "m.job").unwrap().stopped, never());
}

/// Removing by the start of the text would take `job-10` along with `job-1`.
#[test]
fn closing_removes_whole_parts_only() {
    let (db, table, health) = table();
    for name in ["job-1", "job-10"] {
        health.scope(name).ok("");
        health.scope(name).scope("inner").ok("");
    }

    health.scope("job-1").close();

    let left: Vec<String> = table
        .all(&db.read())
        .map(|status| status.id.to_string())
        .collect();
    assert_eq!(left, ["m.job-10", "m.job-10.inner"]);
}

#[test]
fn rows_can_be_shown_and_inserted() {
    let yaml = "id:\n    module: [agent, demo]\n    component: [worker]\nlevel: Degraded\nmessage: cannot reach peer\nerror: timeout\nlastok: 2026-01-02T03:04:05Z\nupdated: 2026-01-02T03:05:05Z\nstopped: 0001-01-01T00:00:00Z\nfinal: \"\"\ncount: 2\n";

    let status = Status::from_yaml(yaml).unwrap();

    assert_eq!(
        status.cells(),
        [
            "agent.demo",
            "worker",
            "Degraded",
            "cannot reach peer",
            "timeout",
            "2026-01-02T03:04:05Z",
            "2026-01-02T03:05:05Z",
            "2"
        ]
    );
    let again = serde_json::to_string(&status.to_yaml().unwrap()).unwrap();
    assert_eq!(
        again,
        r#"{"id":{"module":["agent","demo"],"component":["worker"]},"level":"Degraded","message":"cannot reach peer","error":"timeout","lastok":"2026-01-02T03:04:05Z","updated":"2026-01-02T03:05:05Z","stopped":"0001-01-01T00:00:00Z","final":"","count":2}"#
    );
    assert_eq!(Status::from_yaml("").unwrap().cells()[5], "0001-01-01T00:00:00Z");
}

#[tokio::test]
async fn table_is_found_by_commands() {
    let dir = tempfile::tempdir().unwrap();
    let built = build(dir.path());

    script(
        &built,
        dir.path(),
        "db/list -i level health Degraded\nstdout err2\n! stdout c0\ndb/prefix health agent.m\nstdout stopped\n",
    )
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn levels_are_counted_at_most_every_15_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let running = build(dir.path()).start().await.unwrap();
    let registry: Arc<Registry> = running.get().unwrap();
    let text = || skep_base_metrics::exposition(&registry);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        text().contains("cilium_hive_degraded_status{module=\"agent.m2\"} 1\n"),
        "{}",
        text()
    );
    assert!(text().contains("cilium_hive_status{status=\"degraded\"} 1\n"));

    let sink: Arc<dyn HealthSink> = running.get().unwrap();
    Health::new(sink, ModulePath::root().child("new")).degraded("x", &io::Error::other("y"));

    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(text().contains("cilium_hive_status{status=\"degraded\"} 1\n"));
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(text().contains("cilium_hive_status{status=\"degraded\"} 2\n"));
    running.stop().await.unwrap();
}
