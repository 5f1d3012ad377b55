// SPDX-License-Identifier: Apache-2.0

//! The state file, followed on disk.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Jobs, Level, MemoryHealth, Running};
use parking_lot::Mutex;
use skep_loadbalancer_model::{Source, Writer};

use super::{backends, frontends, service_json, services, slice_json, writer};
use crate::convert::Rules;
use crate::document::Format;
use crate::file::{FileSource, FileState};

struct Fixture {
    writer: Writer,
    health: Arc<MemoryHealth>,
    _running: Running,
}

/// Follows `path` in a hive of its own.
async fn follow(path: &Path) -> Fixture {
    let writer = writer();
    let source = Arc::new(FileSource {
        path: path.to_owned(),
        format: Format::of(path).unwrap(),
        settle: Duration::from_millis(20),
        writer: writer.clone(),
        rules: Rules {
            source: Source::Api,
            ..Rules::default()
        },
        initializer: writer.register_initializer("lb-state-file").unwrap(),
        state: Mutex::new(FileState::default()),
    });
    let start = move |jobs: Jobs| jobs.keep("sync", source.clone(), FileSource::follow);
    let health = Arc::new(MemoryHealth::new());
    let sink: Arc<dyn hive::HealthSink> = health.clone();
    let cells = [
        Cell::module("health", "Health").provide(move || sink.clone()),
        Cell::module("file-reflector", "File").run(start),
    ];
    let _running = hive::testing::start(Hive::new(cells)).await;
    Fixture {
        writer,
        health,
        _running,
    }
}

impl Fixture {
    /// Waits until the services are these.
    #[track_caller]
    fn wait_for<'a>(&'a self, names: &'a [&'a str]) -> impl Future<Output = ()> + 'a {
        self.wait_until(move |fixture| services(&fixture.writer) == names)
    }

    async fn wait_until(&self, holds: impl Fn(&Self) -> bool) {
        let table = self.writer.services();
        let wait = async {
            while !holds(self) {
                let watch = table.table_watch(&self.writer.db().read());
                let _ = tokio::time::timeout(Duration::from_millis(20), watch.closed()).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait)
            .await
            .expect("in time");
    }

    /// Whether health says that the file is refused, and why.
    fn reports(&self, text: &str) -> bool {
        let entry = self.health.get("file-reflector.job-sync");
        let error = entry.and_then(|entry| entry.error);
        self.is_degraded() && error.is_some_and(|error| error.contains(text))
    }

    fn is_degraded(&self) -> bool {
        self.health
            .get("file-reflector.job-sync")
            .is_some_and(|entry| entry.level == Level::Degraded)
    }
}

/// Replaces a file atomically, as writers must.
fn put(path: &Path, text: impl AsRef<str>) {
    let new = path.with_extension("new");
    std::fs::write(&new, text.as_ref()).unwrap();
    std::fs::rename(new, path).unwrap();
}

fn state(names: &[&str]) -> String {
    let services: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(i, name)| service_json(name, &format!("10.96.0.{}", i + 1)))
        .collect();
    let endpoints: Vec<_> = names
        .iter()
        .map(|name| slice_json(&format!("{name}-1"), name, &["10.1.0.1"]))
        .collect();
    serde_json::json!({"services": services, "endpoints": endpoints}).to_string()
}

#[tokio::test]
async fn follows_a_file_that_appears_changes_and_empties() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    let fixture = follow(&path).await;
    fixture
        .wait_until(|fixture| {
            fixture
                .writer
                .frontends()
                .is_initialized(&fixture.writer.db().read())
        })
        .await;

    put(&path, state(&["a", "b"]));
    fixture.wait_for(&["shop/a", "shop/b"]).await;
    assert_eq!(
        frontends(&fixture.writer),
        [
            "10.96.0.1:80/TCP shop/a [10.1.0.1:8080/TCP]",
            "10.96.0.2:80/TCP shop/b [10.1.0.1:8080/TCP]"
        ]
    );

    put(&path, state(&["b"]));
    fixture.wait_for(&["shop/b"]).await;
    assert_eq!(
        frontends(&fixture.writer),
        ["10.96.0.1:80/TCP shop/b [10.1.0.1:8080/TCP]"]
    );
    assert_eq!(backends(&fixture.writer), ["shop/b 10.1.0.1:8080/TCP"]);

    put(&path, "");
    fixture.wait_for(&[]).await;
    assert_eq!(backends(&fixture.writer), Vec::<String>::new());
}

#[tokio::test]
async fn a_pipe_in_the_place_of_the_file_is_reported_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    put(&path, state(&["a"]));
    let fixture = follow(&path).await;
    fixture.wait_for(&["shop/a"]).await;

    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    std::fs::rename(&pipe, &path).unwrap();
    fixture.wait_until(Fixture::is_degraded).await;
    let entry = fixture.health.get("file-reflector.job-sync").unwrap();
    let error = entry.error.unwrap();
    assert!(error.ends_with("it is not a regular file"), "{error}");
    assert_eq!(services(&fixture.writer), ["shop/a"]);

    put(&path, state(&["b"]));
    fixture.wait_for(&["shop/b"]).await;
}

#[tokio::test]
async fn a_link_in_the_place_of_the_file_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.yaml");
    put(&path, state(&["c"]));
    let fixture = follow(&path).await;
    fixture.wait_for(&["shop/c"]).await;

    let other = dir.path().join("other.yaml");
    std::fs::write(&other, state(&["e"])).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&other, &path).unwrap();
    fixture.wait_for(&["shop/e"]).await;
}

#[tokio::test]
async fn keeps_the_last_good_state() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.yaml");
    put(&path, state(&["a"]));
    let fixture = follow(&path).await;
    fixture.wait_for(&["shop/a"]).await;

    for (text, error) in [
        ("services: [unclosed", "not a YAML document"),
        (
            "service: []",
            "neither `services` nor `endpoints` among the keys: `service`",
        ),
        ("services: none", "`services` is a string"),
    ] {
        put(&path, text);
        fixture.wait_until(|fixture| fixture.reports(error)).await;
        assert_eq!(services(&fixture.writer), ["shop/a"]);
    }

    std::fs::remove_file(&path).unwrap();
    fixture.wait_until(|fixture| !fixture.is_degraded()).await;
    assert_eq!(services(&fixture.writer), ["shop/a"]);

    put(&path, state(&["b"]));
    fixture.wait_for(&["shop/b"]).await;
}

#[tokio::test]
async fn unknown_keys_and_objects_of_no_use_leave_the_rest_in_force_and_are_in_the_health() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.json");
    let file = |services: &[&str], key: &str| {
        let mut value: serde_json::Value = serde_json::from_str(&state(services)).unwrap();
        value[key] = serde_json::json!("x");
        value
    };
    put(&path, file(&["a"], "note").to_string());
    let fixture = follow(&path).await;
    fixture.wait_for(&["shop/a"]).await;
    let says = |text: &'static str| {
        move |fixture: &Fixture| {
            let entry = fixture.health.get("file-reflector.job-sync");
            entry.is_some_and(|entry| entry.message.contains(text))
        }
    };
    fixture.wait_until(says("ignored keys: `note`")).await;
    assert!(!fixture.is_degraded());

    let mut with_orphan = file(&["b"], "note");
    let slices = with_orphan["endpoints"].as_array_mut().unwrap();
    slices.push(serde_json::json!({"metadata": {"namespace": "shop", "name": "orphan"}}));
    put(&path, with_orphan.to_string());
    fixture.wait_for(&["shop/b"]).await;
    fixture.wait_until(Fixture::is_degraded).await;

    put(&path, file(&["b"], "services").to_string());
    fixture
        .wait_until(|fixture| fixture.reports("`services` is a string"))
        .await;
    assert_eq!(services(&fixture.writer), ["shop/b"]);

    put(&path, "");
    fixture.wait_for(&[]).await;
}

#[tokio::test]
async fn a_broken_file_at_start_does_not_complete_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state.yaml");
    put(&path, "services: 5");
    let fixture = follow(&path).await;
    fixture.wait_until(Fixture::is_degraded).await;
    let table = fixture.writer.frontends();
    assert!(
        !table.is_initialized(&fixture.writer.db().read()),
        "maps of the previous run must not be pruned"
    );

    put(&path, state(&["a"]));
    fixture
        .wait_until(|fixture| {
            fixture
                .writer
                .frontends()
                .is_initialized(&fixture.writer.db().read())
        })
        .await;
    assert_eq!(services(&fixture.writer), ["shop/a"]);
}
