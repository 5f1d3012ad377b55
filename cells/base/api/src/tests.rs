// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hive::{Cell, Hive, Member, Readiness, Settings};
use serde_json::{Value, json};
use skep_base_api_types::{State, Status, StatusResponse};
use statedb::{Db, Index, RwTable};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::StatusProbe;

struct Part(State);

#[async_trait]
impl StatusProbe for Part {
    fn name(&self) -> &'static str {
        "kvstore"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let part = Status {
            state: self.0,
            msg: "as the test says".to_owned(),
        };
        response.kvstore = Some(part.clone());
        Some(part)
    }
}

fn well() -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Part(State::Ok)))
}

fn ill() -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Part(State::Failure)))
}

/// Sends a request over the socket; the status line and the body.
async fn ask(socket: &std::path::Path, path: &str, header: &str) -> (String, Value) {
    let mut stream = tokio::net::UnixStream::connect(socket).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (
        head.lines().next().unwrap().to_owned(),
        serde_json::from_str(body).unwrap_or_default(),
    )
}

fn settings(socket: &std::path::Path) -> Settings {
    Settings::new().args([
        format!("--socket-path={}", socket.display()),
        "--agent-health-port=0".to_owned(),
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_is_ok_only_if_every_required_part_is() {
    let folder = tempfile::tempdir().unwrap();
    for (part, state) in [
        (well as fn() -> Member<Arc<dyn StatusProbe>>, "Ok"),
        (ill, "Failure"),
    ] {
        let socket = folder.path().join("run/agent.sock");
        let cells = [crate::cell(), Cell::module("part", "A part").provide(part)];
        let running = hive::testing::start_with(Hive::new(cells), settings(&socket)).await;

        let (head, whole) = ask(&socket, "/v1/healthz", "").await;
        let (_, brief) = ask(&socket, "/v1/healthz", "brief: true\r\n").await;
        let (_, openapi) = ask(&socket, "/v1/openapi.json", "").await;
        let (missing, why) = ask(&socket, "/v1/nothing", "").await;
        let (trailing, _) = ask(&socket, "/v1/healthz/", "brief: true\r\n").await;
        let (_, why_trailing) = ask(&socket, "/v1/nothing/", "").await;
        let (double, _) = ask(&socket, "//v1//healthz", "").await;
        let (unacceptable, _) = ask(&socket, "/v1/healthz", "accept: text/plain\r\n").await;

        assert_eq!(head, "HTTP/1.1 200 OK");
        assert_eq!(whole["cilium"]["state"], state, "{whole}");
        if state == "Failure" {
            let message = &whole["cilium"]["msg"];
            assert_eq!(message, "Kvstore service is not ready: as the test says");
        }
        assert_eq!(whole["kubernetes"]["state"], "Disabled");
        assert_eq!(brief.as_object().unwrap().len(), 1);
        let answer =
            &openapi["paths"]["/v1/healthz"]["get"]["responses"]["200"]["content"]["application/json"];
        assert_eq!(
            answer["schema"]["$ref"], "#/components/schemas/StatusResponse",
            "{openapi}"
        );
        let schemas = &openapi["components"]["schemas"];
        assert!(schemas["KubeProxyReplacement"].is_object(), "{schemas}");
        assert_eq!(missing, "HTTP/1.1 404 Not Found");
        assert_eq!(
            why,
            json!({"code": 404, "message": "path /v1/nothing was not found"})
        );
        assert_eq!(trailing, "HTTP/1.1 200 OK");
        assert_eq!(why_trailing["message"], "path /v1/nothing/ was not found");
        assert_eq!(double, "HTTP/1.1 307 Temporary Redirect");
        assert_eq!(unacceptable, "HTTP/1.1 406 Not Acceptable");
        running.stop().await.unwrap();
        assert!(!socket.exists(), "the socket stays");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_is_a_warning_until_everything_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let guards = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let keep = guards.clone();
    let holder = Cell::module("slow", "Takes its time")
        .run(move |readiness: Readiness| keep.lock().push(readiness.guard("first list")));
    let running = hive::testing::start_with(Hive::new([crate::cell(), holder]), settings(&socket)).await;

    let (_, before) = ask(&socket, "/v1/healthz", "").await;
    guards.lock().clear();
    let (_, after) = ask(&socket, "/v1/healthz", "").await;

    assert_eq!(before["cilium"]["state"], "Warning");
    assert!(
        before["cilium"]["msg"].as_str().unwrap().contains("first list"),
        "{before}"
    );
    assert_eq!(after["cilium"]["state"], "Ok");
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_is_refused_and_the_first_keeps_its_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let start = || async {
        Hive::new([crate::cell()])
            .plan(settings(&socket))
            .unwrap()
            .build()
            .unwrap()
            .start()
            .await
    };
    let first = start().await.unwrap();

    let refused = start().await;

    let text = format!("{:?}", refused.err().unwrap());
    assert!(text.contains("InUse"), "{text}");
    assert_eq!(ask(&socket, "/v1/healthz", "").await.1["cilium"]["state"], "Ok");
    first.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_socket_is_taken_over_and_a_file_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let start = || async {
        Hive::new([crate::cell()])
            .plan(settings(&socket))
            .unwrap()
            .build()
            .unwrap()
            .start()
            .await
    };

    start().await.unwrap().stop().await.unwrap();
    std::fs::write(&socket, "precious").unwrap();
    let refused = start().await;

    assert!(format!("{:?}", refused.err().unwrap()).contains("NotSocket"));
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "precious");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_running_hive_can_be_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let running = hive::testing::start_with(Hive::new([crate::cell()]), settings(&socket)).await;

    let (head, state) = ask(&socket, "/v1/debug/hive", "").await;
    assert_eq!(
        (head.as_str(), &state["state"]),
        ("HTTP/1.1 200 OK", &json!("running"))
    );
    let hooks = state["hooks"].as_array().unwrap();
    assert!(
        hooks
            .iter()
            .any(|hook| hook["name"] == "listen" && hook["state"] == "started"),
        "{hooks:?}"
    );
    let (head, graph) = ask(
        &socket,
        "/v1/debug/hive/graph?format=json&module=agent-api&depth=0",
        "",
    )
    .await;
    assert_eq!(head, "HTTP/1.1 200 OK");
    assert!(!graph["functions"].as_array().unwrap().is_empty());
    assert_eq!(ask(&socket, "/v1/debug/hive/tree", "").await.0, "HTTP/1.1 200 OK");
    assert_eq!(
        ask(&socket, "/v1/debug/hive/graph?format=png", "").await.0,
        "HTTP/1.1 400 Bad Request"
    );

    hive::testing::stop(running).await;
}

#[derive(serde::Serialize)]
struct Route(u32);

impl statedb::Row for Route {
    fn header() -> &'static [&'static str] {
        &["Number"]
    }
    fn cells(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }
    fn to_json(&self) -> Result<Value, statedb::row::BoxError> {
        statedb::row::to_json(self)
    }
}

const NUMBER: Index<Route, u32> = Index::new("number", |route, keys| keys.add(&route.0));

fn routes(db: Db) -> Result<RwTable<Route>, statedb::Error> {
    RwTable::builder("routes").primary(NUMBER).build(&db)
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_can_be_followed_until_the_agent_stops() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let cells = [
        crate::cell(),
        statedb::cell(),
        Cell::module("routes", "Routes").provide(routes),
    ];
    let hive = Hive::new(cells).root::<Db>().root::<RwTable<Route>>();
    let running = hive::testing::start_with(hive, settings(&socket)).await;
    let (db, table) = (
        running.get::<Db>().unwrap(),
        running.get::<RwTable<Route>>().unwrap(),
    );
    let mut stream = tokio::net::UnixStream::connect(&socket).await.unwrap();
    let request = "GET /v1/debug/db/tables/routes/changes HTTP/1.0\r\nhost: localhost\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(stream).lines();
    while !lines.next_line().await.unwrap().unwrap().is_empty() {}
    let initialized = lines.next_line().await.unwrap();
    assert_eq!(initialized.as_deref(), Some(r#"{"change":"initialized"}"#));

    let mut txn = db.write(&[&table]);
    table.insert(&mut txn, Route(7)).unwrap();
    txn.commit();

    assert_eq!(
        lines.next_line().await.unwrap().as_deref(),
        Some(r#"{"change":"upsert","revision":1,"object":7}"#)
    );
    let begun = std::time::Instant::now();
    hive::testing::stop(running).await;
    assert_eq!(lines.next_line().await.unwrap(), None);
    assert!(begun.elapsed().as_secs() < 10, "the stop waits for the reader");
}

/// A part whose probe has waited this many seconds for its answer.
struct Waiting(std::sync::atomic::AtomicU64);

#[async_trait]
impl StatusProbe for Waiting {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    async fn probe(&self, _response: &mut StatusResponse) -> Option<Status> {
        None
    }

    fn pending(&self) -> Option<Duration> {
        Some(Duration::from_secs(
            self.0.load(std::sync::atomic::Ordering::SeqCst),
        ))
    }
}

#[tokio::test]
async fn a_part_is_stale_when_its_probe_waits_too_long() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let part = Arc::new(Waiting(15.into()));
    let probe: Arc<dyn StatusProbe> = part.clone();
    let cells = [
        crate::cell(),
        Cell::module("part", "A part").provide(move || Member(probe.clone())),
    ];
    let running = hive::testing::start_with(Hive::new(cells), settings(&socket)).await;

    let (_, before) = ask(&socket, "/v1/healthz", "").await;
    part.0.store(16, std::sync::atomic::Ordering::SeqCst);
    let (_, whole) = ask(&socket, "/v1/healthz", "").await;
    let (_, brief) = ask(&socket, "/v1/healthz", "brief: true\r\n").await;

    assert_eq!(before["cilium"]["state"], "Ok", "{before}");
    assert_eq!(before.get("stale"), None);
    for status in [whole, brief] {
        assert_eq!(
            status["cilium"],
            json!({"state": "Warning", "msg": "Stale status data"})
        );
        let since = status["stale"]["kubernetes"].as_str().unwrap();
        assert!(since.ends_with('Z'), "{since}");
    }
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_part_without_an_answer_for_a_minute_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let part = Arc::new(Silent(false.into()));
    let probe: Arc<dyn StatusProbe> = part.clone();
    let cells = [
        crate::cell(),
        Cell::module("part", "A part").provide(move || Member(probe.clone())),
    ];
    let hive = Hive::new(cells).root::<crate::StatusCollector>();
    let running = hive::testing::start_with(hive, settings(&folder.path().join("agent.sock"))).await;
    let collector: crate::StatusCollector = running.get().unwrap();
    assert_eq!(collector.document(false, true).await.cilium.state, State::Ok);

    part.0.store(true, std::sync::atomic::Ordering::SeqCst);
    let first = collector.document(false, true).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    let later = collector.document(false, true).await;
    part.0.store(false, std::sync::atomic::Ordering::SeqCst);
    let answered = collector.document(false, true).await;

    assert!(first.stale.contains_key("kvstore"));
    assert_eq!(first.kvstore, Some(Status::default()));
    assert_eq!(later.cilium.msg, "Stale status data");
    let failure = later.kvstore.unwrap();
    assert_eq!(failure.state, State::Failure);
    assert_eq!(failure.msg, "no response from kvstore probe within 60 seconds");
    assert_eq!(answered.cilium.state, State::Ok);
    hive::testing::stop(running).await;
}

/// A part whose probe may not answer.
struct Silent(std::sync::atomic::AtomicBool);

#[async_trait]
impl StatusProbe for Silent {
    fn name(&self) -> &'static str {
        "kvstore"
    }

    async fn probe(&self, _: &mut StatusResponse) -> Option<Status> {
        if self.0.load(std::sync::atomic::Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        None
    }

    fn fail(&self, response: &mut StatusResponse, failure: Status) {
        response.kvstore = Some(failure);
    }
}

#[tokio::test]
async fn other_methods_are_refused_as_by_ciliums_server() {
    use tower::ServiceExt as _;

    let get = axum::routing::get(|| async { "read" }).put(|| async { "written" });
    let router = crate::with_errors(axum::Router::new().route("/v1/thing", get));
    for method in ["POST", "HEAD"] {
        let request = axum::http::Request::builder().method(method).uri("/v1/thing");
        let answer = router
            .clone()
            .oneshot(request.body(axum::body::Body::empty()).unwrap())
            .await
            .unwrap();

        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["allow"]),
            (405, &"GET,PUT".parse().unwrap())
        );
        let body = axum::body::to_bytes(answer.into_body(), 4096).await.unwrap();
        if method == "POST" {
            let message = "method POST is not allowed, but [GET,PUT] are";
            let body: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body, json!({"code": 405, "message": message}));
        }
    }
}

/// A part whose probe waits against its contract.
struct Hanging;

#[async_trait]
impl StatusProbe for Hanging {
    fn name(&self) -> &'static str {
        "hubble"
    }

    async fn probe(&self, _response: &mut StatusResponse) -> Option<Status> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_probe_that_hangs_makes_its_part_stale_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let probe: Arc<dyn StatusProbe> = Arc::new(Hanging);
    let cells = [
        crate::cell(),
        Cell::module("part", "A part").provide(move || Member(probe.clone())),
    ];
    let running = hive::testing::start_with(Hive::new(cells), settings(&socket)).await;

    let (_, status) = ask(&socket, "/v1/healthz", "").await;

    assert_eq!(status["cilium"]["msg"], "Stale status data");
    assert!(status["stale"]["hubble"].is_string(), "{status}");
    hive::testing::stop(running).await;
}
