// SPDX-License-Identifier: Apache-2.0

//! Reflectors on a scripted source.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use hive::{Cell, HealthId, HealthReport, HealthSink, Hive, Jobs};
use parking_lot::Mutex;
use skep_k8s_client::{ApiError, Backoff, ListerWatcher, ObjectEvent, Page, Status, WatchEvent, WatchStream};
use skep_k8s_types::slim::Service;
use skep_k8s_types::{DecodeError, ObjectKey};
use statedb::row::BoxError;
use statedb::{Db, Index, Row, RwTable, Table};
use tokio::sync::{mpsc, watch};

use super::Reflector;

type Events = mpsc::UnboundedSender<Result<WatchEvent<Service>, ApiError>>;

enum Step {
    List(Result<Page<Service>, ApiError>),
    Watch(Result<mpsc::UnboundedReceiver<Result<WatchEvent<Service>, ApiError>>, ApiError>),
}

/// Returns the next step of a script, and records the call.
struct Scripted {
    steps: tokio::sync::Mutex<mpsc::UnboundedReceiver<Step>>,
    asked: Mutex<Vec<String>>,
}

#[async_trait]
impl ListerWatcher<Service> for Scripted {
    async fn list(&self, continue_token: &str) -> Result<Page<Service>, ApiError> {
        self.asked
            .lock()
            .push(format!("list {continue_token}").trim().to_owned());
        match self.steps.lock().await.recv().await {
            Some(Step::List(answer)) => answer,
            Some(Step::Watch(_)) => panic!("listed, but a watch was expected"),
            None => std::future::pending().await,
        }
    }

    async fn watch(&self, resource_version: &str) -> Result<WatchStream<Service>, ApiError> {
        self.asked.lock().push(format!("watch {resource_version}"));
        match self.steps.lock().await.recv().await {
            Some(Step::Watch(answer)) => {
                let receiver = answer?;
                let events = futures::stream::unfold(receiver, |mut receiver| async move {
                    Some((receiver.recv().await?, receiver))
                });
                Ok(events.boxed())
            }
            Some(Step::List(_)) => panic!("watched, but a list was expected"),
            None => std::future::pending().await,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Named {
    name: String,
    version: String,
    note: String,
}

const BY_NAME: Index<Named, str> = Index::new("name", |row, keys| keys.add(&row.name));
/// Versions that only one object may have.
const BY_CLAIM: Index<Named, str> = Index::unique("claim", |row, keys| {
    if row.version.starts_with('#') {
        keys.add(&row.version);
    }
});

impl Row for Named {
    fn header() -> &'static [&'static str] {
        &["Name"]
    }
    fn cells(&self) -> Vec<String> {
        vec![self.name.clone()]
    }
    fn from_yaml(_: &str) -> Result<Self, BoxError> {
        Err("not needed".into())
    }
}

/// Health as the outside sees it: the last report of each component.
#[derive(Default)]
struct Reports(watch::Sender<std::collections::BTreeMap<String, HealthReport>>);

impl HealthSink for Reports {
    fn report(&self, id: &HealthId, report: HealthReport) {
        self.0.send_modify(|all| drop(all.insert(id.to_string(), report)));
    }
    fn close(&self, id: &HealthId) {
        self.0.send_modify(|all| drop(all.remove(&id.to_string())));
    }
}

/// A reflector in a running hive.
struct Bench {
    steps: mpsc::UnboundedSender<Step>,
    source: Arc<Scripted>,
    db: Db,
    table: Table<Named>,
    write: RwTable<Named>,
    reports: Arc<Reports>,
    hive: hive::Running,
}

type Configure = fn(Reflector<Service, Named>) -> Reflector<Service, Named>;

impl Bench {
    async fn start(configure: Configure) -> Self {
        Self::start_with(configure, &[]).await
    }

    async fn start_with(configure: Configure, present: &[&str]) -> Self {
        let (steps, receiver) = mpsc::unbounded_channel();
        let source = Arc::new(Scripted {
            steps: tokio::sync::Mutex::new(receiver),
            asked: Mutex::new(Vec::new()),
        });
        let db = Db::new();
        let write = RwTable::builder("names")
            .primary(BY_NAME)
            .index(BY_CLAIM)
            .build(&db)
            .unwrap();
        let mut txn = db.write(&[&write]);
        for name in present {
            let row = Named {
                name: (*name).to_owned(),
                version: "old".into(),
                note: "present".into(),
            };
            write.insert(&mut txn, row).unwrap();
        }
        txn.commit();
        let reports = Arc::new(Reports::default());
        let (sink, job_source, job_db, job_table) =
            (reports.clone(), source.clone(), db.clone(), write.clone());
        let cells = [
            Cell::module("reports", "Reports").provide(move || sink.clone() as Arc<dyn HealthSink>),
            Cell::module("names", "Names").run(move |jobs: Jobs| {
                let transform = |service: &Arc<Service>| -> Result<Option<Named>, String> {
                    if service.metadata.name == "refused" {
                        return Err("not acceptable".to_owned());
                    }
                    Ok(Some(Named {
                        name: service.metadata.name.to_string(),
                        version: service.metadata.resource_version.to_string(),
                        note: String::new(),
                    }))
                };
                let reflector = Reflector::fallible("test", job_table.clone(), job_source.clone(), transform)
                    .backoff(Backoff {
                        first: Duration::from_millis(1),
                        longest: Duration::from_millis(5),
                    });
                configure(reflector).register(&jobs, &job_db)
            }),
        ];
        let hive = hive::testing::start(Hive::new(cells)).await;
        Self {
            steps,
            source,
            db,
            table: write.reader(),
            write,
            reports,
            hive,
        }
    }

    fn list(&self, version: &str, names: &[(&str, &str)]) {
        self.list_with(version, names, Vec::new());
    }

    fn list_with(&self, version: &str, names: &[(&str, &str)], invalid: Vec<DecodeError>) {
        let items = names
            .iter()
            .map(|(name, version)| service(name, version))
            .collect();
        let page = Page {
            items,
            invalid,
            resource_version: version.into(),
            continue_token: String::new(),
        };
        self.steps
            .send(Step::List(Ok(page)))
            .unwrap_or_else(|_| panic!("source is gone"));
    }

    fn watch(&self) -> Events {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.steps
            .send(Step::Watch(Ok(receiver)))
            .unwrap_or_else(|_| panic!("source is gone"));
        sender
    }

    fn refuse(&self, code: u16, reason: &str) {
        self.steps
            .send(Step::Watch(Err(ApiError::Status(Status::new(
                code, reason, "refused",
            )))))
            .unwrap_or_else(|_| panic!("source is gone"));
    }

    fn asked(&self) -> Vec<String> {
        self.source.asked.lock().clone()
    }

    /// Waits until the table has these rows, as `name@version`.
    #[track_caller]
    fn rows(&self, expected: &[&str]) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        let expected: Vec<String> = expected.iter().map(|row| (*row).to_owned()).collect();
        let (db, table) = (self.db.clone(), self.table.clone());
        async move {
            let wait = async {
                loop {
                    let snapshot = db.read();
                    let (rows, changed) = table.all_watch(&snapshot);
                    let rows: Vec<String> = rows.map(|row| format!("{}@{}", row.name, row.version)).collect();
                    if rows == expected {
                        return;
                    }
                    changed.closed().await;
                }
            };
            if tokio::time::timeout(Duration::from_secs(30), wait).await.is_err() {
                let snapshot = db.read();
                let rows: Vec<String> = table
                    .all(&snapshot)
                    .map(|row| format!("{}@{}", row.name, row.version))
                    .collect();
                panic!("{place}: rows {rows:?}, expected {expected:?}");
            }
        }
    }

    /// Waits until the job's health satisfies a condition.
    async fn health(&self, holds: impl Fn(&HealthReport) -> bool) -> HealthReport {
        let mut receiver = self.reports.0.subscribe();
        let find = |all: &std::collections::BTreeMap<String, HealthReport>| {
            all.get("names.job-k8s-reflector-names-test")
                .filter(|report| holds(report))
                .cloned()
        };
        let wait = async {
            loop {
                if let Some(report) = find(&receiver.borrow_and_update()) {
                    return report;
                }
                receiver.changed().await.unwrap();
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(30), wait).await;
        waited.unwrap_or_else(|_| panic!("health is {:?}", self.reports.0.borrow()))
    }

    fn initialized(&self) -> bool {
        self.table.is_initialized(&self.db.read())
    }
}

fn service(name: &str, version: &str) -> Arc<Service> {
    let mut service = Service::default();
    service.metadata.name = name.into();
    service.metadata.resource_version = version.into();
    Arc::new(service)
}

fn unreadable(name: &str) -> DecodeError {
    DecodeError {
        kind: "Service".into(),
        object: Box::new(ObjectKey {
            namespace: "".into(),
            name: name.into(),
        }),
        resource_version: "".into(),
        path: "spec".into(),
        reason: "odd".into(),
    }
}

/// An object became invalid.
fn invalid(name: &str) -> WatchEvent<Service> {
    WatchEvent::Object(ObjectEvent::Invalid(unreadable(name)))
}

fn plain(reflector: Reflector<Service, Named>) -> Reflector<Service, Named> {
    reflector
}

#[tokio::test]
async fn first_list_fills_the_table_and_marks_it_initialized() {
    let bench = Bench::start(plain).await;
    assert!(!bench.initialized());

    bench.list("7", &[("a", "1"), ("b", "2")]);

    bench.rows(&["a@1", "b@2"]).await;
    assert!(bench.initialized());
    let report = bench.health(|report| report.message.contains("total")).await;
    assert_eq!(report.message, "2 upserted, 0 deleted, 2 total objects");
    bench.hive.stop().await.unwrap();
}

#[tokio::test]
async fn changes_are_followed() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[("a", "1")]);
    let events = bench.watch();

    events
        .send(Ok(WatchEvent::Object(ObjectEvent::Applied(service("b", "8")))))
        .unwrap();
    bench.rows(&["a@1", "b@8"]).await;
    events
        .send(Ok(WatchEvent::Object(ObjectEvent::Applied(service("a", "9")))))
        .unwrap();
    bench.rows(&["a@9", "b@8"]).await;
    events
        .send(Ok(WatchEvent::Object(ObjectEvent::deleted(service("b", "10")))))
        .unwrap();

    bench.rows(&["a@9"]).await;
    bench
        .health(|report| report.message == "0 upserted, 1 deleted, 1 total objects")
        .await;
}

#[tokio::test]
async fn broken_watch_is_resumed_from_the_last_version_bookmarks_included() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[("a", "1")]);
    let events = bench.watch();
    events
        .send(Ok(WatchEvent::Object(ObjectEvent::Applied(service("b", "8")))))
        .unwrap();
    events
        .send(Ok(WatchEvent::Bookmark {
            resource_version: "20".into(),
            initial_events_end: false,
        }))
        .unwrap();
    let cause = std::io::Error::other("reset");
    events
        .send(Err(ApiError::Unreachable {
            server: "s".into(),
            cause: Box::new(cause),
        }))
        .unwrap();

    let events = bench.watch();
    events
        .send(Ok(WatchEvent::Object(ObjectEvent::Applied(service("c", "21")))))
        .unwrap();

    bench.rows(&["a@1", "b@8", "c@21"]).await;
    assert_eq!(bench.asked(), ["list", "watch 7", "watch 20"]);
}

#[tokio::test]
async fn event_without_a_version_does_not_lose_the_place() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[("a", "1")]);
    let events = bench.watch();
    events.send(Ok(invalid("a"))).unwrap();
    drop(events);

    let events = bench.watch();
    events
        .send(Ok(WatchEvent::Object(ObjectEvent::Applied(service("b", "8")))))
        .unwrap();

    bench.rows(&["a@1", "b@8"]).await;
    assert_eq!(bench.asked(), ["list", "watch 7", "watch 7"]);
}

#[tokio::test]
async fn watch_that_ends_normally_goes_on_at_once() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[]);
    let events = bench.watch();
    events
        .send(Ok(WatchEvent::Object(ObjectEvent::Applied(service("a", "8")))))
        .unwrap();
    drop(events);

    bench
        .watch()
        .send(Ok(WatchEvent::Object(ObjectEvent::Applied(service("b", "9")))))
        .unwrap();

    bench.rows(&["a@8", "b@9"]).await;
    assert_eq!(bench.asked()[..3], ["list", "watch 7", "watch 8"]);
}

#[tokio::test]
async fn after_gone_a_list_finds_deletions_in_one_transaction() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[("a", "1"), ("b", "2"), ("c", "3")]);
    bench.rows(&["a@1", "b@2", "c@3"]).await;
    let mut txn = bench.db.write(&[&bench.write]);
    let mut changes = bench.write.changes(&mut txn).unwrap();
    let snapshot = txn.commit();
    assert_eq!(changes.next(&snapshot).count(), 3);

    bench.refuse(410, "Expired");
    bench.list("30", &[("b", "25"), ("d", "26")]);

    let snapshot = tokio::time::timeout(Duration::from_secs(30), changes.wait(&bench.db))
        .await
        .unwrap();
    // All at once: two gone, one changed, one new.
    assert_eq!(changes.next(&snapshot).count(), 4);
    bench.rows(&["b@25", "d@26"]).await;
    assert_eq!(bench.asked()[..3], ["list", "watch 7", "list"]);
    bench
        .health(|report| report.message == "2 upserted, 2 deleted, 2 total objects")
        .await;
}

#[tokio::test]
async fn gone_inside_of_a_watch_lists_again() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[("a", "1")]);
    bench.rows(&["a@1"]).await;
    let events = bench.watch();
    events
        .send(Err(ApiError::Status(Status::new(410, "Expired", "too old"))))
        .unwrap();
    bench.list("9", &[]);

    bench.rows(&[]).await;
    bench
        .health(|report| report.message == "0 upserted, 1 deleted, 0 total objects")
        .await;
}

#[tokio::test]
async fn unreachable_server_degrades_health_and_keeps_the_rows() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[("a", "1")]);
    bench.refuse(503, "ServiceUnavailable");
    bench.refuse(429, "TooManyRequests");
    bench.refuse(429, "TooManyRequests");

    let report = bench.health(|report| report.level == hive::Level::Degraded).await;

    assert_eq!(report.message, "Waiting for the Kubernetes API server");
    bench.rows(&["a@1"]).await;
    let _events = bench.watch();
    bench.health(|report| report.level == hive::Level::Ok).await;
    assert_eq!(
        bench.asked(),
        ["list", "watch 7", "watch 7", "watch 7", "watch 7"]
    );
}

#[tokio::test]
async fn busy_server_is_not_degraded_for_ever() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[("a", "1")]);
    bench.rows(&["a@1"]).await;
    bench.refuse(429, "TooManyRequests");
    bench.health(|report| report.level == hive::Level::Degraded).await;

    let _events = bench.watch();

    bench.health(|report| report.level == hive::Level::Ok).await;
}

#[tokio::test]
async fn rejected_object_keeps_its_last_good_row_and_is_named() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[("a", "1")]);
    let events = bench.watch();
    events.send(Ok(invalid("a"))).unwrap();
    events
        .send(Ok(WatchEvent::Object(ObjectEvent::Applied(service(
            "refused", "9",
        )))))
        .unwrap();

    let report = bench
        .health(|report| report.message.starts_with("2 objects rejected"))
        .await;

    assert_eq!(
        report.error.as_deref(),
        Some("Service a: spec: odd; refused: not acceptable")
    );
    bench.rows(&["a@1"]).await;
    events
        .send(Ok(WatchEvent::Object(ObjectEvent::Applied(service("a", "10")))))
        .unwrap();
    events
        .send(Ok(WatchEvent::Object(ObjectEvent::deleted(service(
            "refused", "11",
        )))))
        .unwrap();
    bench.rows(&["a@10"]).await;
    bench.health(|report| report.level == hive::Level::Ok).await;
}

#[tokio::test]
async fn object_that_the_table_refuses_keeps_its_last_good_row_and_is_named() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[("a", "#1"), ("b", "2")]);
    bench.rows(&["a@#1", "b@2"]).await;
    let events = bench.watch();
    events
        .send(Ok(WatchEvent::Object(ObjectEvent::Applied(service("b", "#1")))))
        .unwrap();

    let report = bench
        .health(|report| report.message == "1 objects rejected, 2 total objects")
        .await;

    assert_eq!(
        report.error.as_deref(),
        Some("b: table `names`: index `claim`: key is taken by object `a`")
    );
    bench.rows(&["a@#1", "b@2"]).await;
    events
        .send(Ok(WatchEvent::Object(ObjectEvent::deleted(service("b", "9")))))
        .unwrap();
    bench
        .health(|report| report.message == "0 upserted, 1 deleted, 1 total objects")
        .await;
    bench.rows(&["a@#1"]).await;
}

#[tokio::test]
async fn unreadable_object_in_a_list_is_not_taken_for_deleted() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[("a", "1"), ("b", "1")]);
    bench.rows(&["a@1", "b@1"]).await;

    bench.refuse(410, "Expired");
    bench.list_with("9", &[], vec![unreadable("a")]);

    bench.rows(&["a@1"]).await;
    let events = bench.watch();
    events
        .send(Ok(WatchEvent::Object(ObjectEvent::Deleted(
            *unreadable("a").object,
            None,
        ))))
        .unwrap();
    bench.rows(&[]).await;
    bench.health(|report| report.level == hive::Level::Ok).await;
}

#[tokio::test]
async fn rejected_object_that_a_list_does_not_have_any_more_is_forgotten() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[("a", "1"), ("refused", "2")]);
    bench
        .health(|report| report.error.as_deref() == Some("refused: not acceptable"))
        .await;

    bench.refuse(410, "Expired");
    bench.list("9", &[("a", "1")]);

    let _events = bench.watch();
    bench.health(|report| report.level == hive::Level::Ok).await;
}

#[tokio::test]
async fn version_that_the_server_has_not_reached_lists_again() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[("a", "7")]);
    bench.rows(&["a@7"]).await;

    let message = "Too large resource version: 7, current: 3";
    let status = Status::new(504, "Timeout", message);
    bench
        .steps
        .send(Step::Watch(Err(ApiError::Status(status))))
        .unwrap_or_else(|_| panic!("source is gone"));
    bench.list("3", &[("a", "2")]);

    bench.rows(&["a@2"]).await;
    assert_eq!(bench.asked()[..3], ["list", "watch 7", "list"]);
}

#[tokio::test]
async fn only_own_rows_are_deleted_by_a_list() {
    let bench = Bench::start_with(plain, &["others"]).await;

    bench.list("7", &[("a", "1")]);

    bench.rows(&["a@1", "others@old"]).await;
}

#[tokio::test]
async fn rows_of_an_earlier_life_are_replaced_by_the_first_list() {
    let owning: Configure = |reflector| reflector.owns(|row| row.note == "present");
    let bench = Bench::start_with(owning, &["a", "stale"]).await;

    bench.list("7", &[("a", "1")]);

    bench.rows(&["a@1"]).await;
}

#[tokio::test]
async fn rows_that_come_after_the_first_list_are_not_of_an_earlier_life() {
    let owning: Configure = |reflector| reflector.owns(|row| row.note == "present");
    let bench = Bench::start_with(owning, &[]).await;
    bench.list("7", &[("a", "1")]);
    bench.rows(&["a@1"]).await;
    let mut txn = bench.db.write(&[&bench.write]);
    let row = Named {
        name: "others".into(),
        version: "new".into(),
        note: "present".into(),
    };
    bench.write.insert(&mut txn, row).unwrap();
    txn.commit();

    bench.refuse(410, "Expired");
    bench.list("9", &[("a", "2")]);

    bench.rows(&["a@2", "others@new"]).await;
}

#[tokio::test]
async fn merge_keeps_what_others_have_set() {
    let merging: Configure = |reflector| {
        reflector.merge(|old, mut new| {
            new.note = old.note.clone();
            new
        })
    };
    let bench = Bench::start_with(merging, &["a"]).await;

    bench.list("7", &[("a", "1")]);

    bench.rows(&["a@1"]).await;
    let snapshot = bench.db.read();
    assert_eq!(
        bench.table.get(&snapshot, BY_NAME.key("a")).unwrap().note,
        "present"
    );
}

#[tokio::test]
async fn same_rows_of_a_list_are_left_alone() {
    let skipping: Configure = |reflector| reflector.skip_same(|old, new| old == new);
    let bench = Bench::start(skipping).await;
    bench.list("7", &[("a", "1"), ("b", "1")]);
    bench.rows(&["a@1", "b@1"]).await;
    let revision = bench.table.revision(&bench.db.read());

    bench.refuse(410, "Expired");
    bench.list("9", &[("a", "1"), ("b", "8")]);

    bench.rows(&["a@1", "b@8"]).await;
    bench
        .health(|report| report.message == "2 upserted, 0 deleted, 2 total objects")
        .await;
    assert_eq!(bench.table.revision(&bench.db.read()), revision + 1);
}

#[tokio::test]
async fn stop_clears_the_rows_if_asked_to() {
    let mut bench = Bench::start(Reflector::clear_on_stop).await;
    bench.list("7", &[("a", "1")]);
    bench.rows(&["a@1"]).await;

    let stopped = bench.hive.stop().await.unwrap();

    assert!(bench.table.is_empty(&bench.db.read()));
    bench.hive = stopped.start().await.unwrap();
    bench.list("9", &[("b", "1")]);
    bench
        .health(|report| report.message == "1 upserted, 0 deleted, 1 total objects")
        .await;
}

#[tokio::test]
async fn waiting_events_share_a_transaction() {
    let bench = Bench::start(plain).await;
    bench.list("7", &[]);
    bench.health(|report| report.message.contains("0 total")).await;
    let (sender, receiver) = mpsc::unbounded_channel();
    for number in 0..1000 {
        sender
            .send(Ok(WatchEvent::Object(ObjectEvent::Applied(service(
                "same",
                &number.to_string(),
            )))))
            .unwrap();
    }

    bench
        .steps
        .send(Step::Watch(Ok(receiver)))
        .unwrap_or_else(|_| panic!("source is gone"));

    bench.rows(&["same@999"]).await;
    let transactions = bench.table.revision(&bench.db.read());
    assert!(transactions < 100, "{transactions} transactions for 1000 events");
}

#[tokio::test]
async fn late_tables_are_named() {
    let bench = Bench::start(plain).await;

    let error = statedb::readiness::wait_initialized(&bench.db, None, Duration::from_millis(20))
        .await
        .unwrap_err();

    assert_eq!(
        error.to_string(),
        "no progress for 0s, not initialized: names (waits for test)"
    );
    bench.list("7", &[]);
    statedb::readiness::wait_initialized(&bench.db, Some(&["names"]), Duration::from_secs(30))
        .await
        .unwrap();
}

#[tokio::test]
async fn an_optional_kind_that_is_not_registered_has_no_objects() {
    let bench = Bench::start(|reflector| reflector.optional_kind()).await;
    let fail = |code, reason: &str| {
        let status = ApiError::Status(Status::new(code, reason, "no"));
        bench.steps.send(Step::List(Err(status))).unwrap();
    };

    fail(503, "ServiceUnavailable");
    bench
        .health(|report| report.message == "Waiting for the Kubernetes API server")
        .await;
    assert!(!bench.initialized());
    fail(404, "NotFound");

    bench
        .health(|report| report.message == "Service is not registered")
        .await;
    assert!(bench.initialized());
}
