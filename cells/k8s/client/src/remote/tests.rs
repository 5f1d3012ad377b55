// SPDX-License-Identifier: Apache-2.0

//! The client against a scripted server.

#![expect(
    clippy::disallowed_methods,
    reason = "what runs beside the test is no job of a hive"
)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use skep_k8s_types::Resource;
use skep_k8s_types::selector::FieldSelector;
use skep_k8s_types::slim::{Pod, Service};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::connection::{ConnectError, RemoteClient, Settings};
use super::target::Target;
use crate::{
    Api, ApiError, Backoff, Client, ListerWatcher, ObjectEvent, WatchEvent, WatchOptions, WatcherEvent,
    watcher,
};

mod metrics;
mod tls;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What the server saw: method, path with query, and some headers.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    line: String,
    user_agent: String,
    authorization: String,
    body: String,
}

#[derive(Default)]
struct Script {
    answers: VecDeque<Answer>,
    seen: Vec<Seen>,
}

enum Answer {
    Json(StatusCode, &'static str),
    Stream(mpsc::UnboundedReceiver<Bytes>),
}

/// A server on the loopback address. `/healthz` and `/version` are always answered, while `healthy`.
struct Server {
    url: String,
    script: Arc<Mutex<Script>>,
    healthy: Arc<std::sync::atomic::AtomicBool>,
    /// Takes connections and requests, and answers nothing: a process that was stopped.
    frozen: Arc<std::sync::atomic::AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start() -> Self {
        Self::start_with(None).await
    }

    /// Over TLS if there is a configuration for it.
    async fn start_with(tls: Option<Arc<tls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let acceptor = tls.map(tls::TlsAcceptor::from);
        let script = Arc::new(Mutex::new(Script::default()));
        let healthy = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let frozen = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (script_in, healthy_in, frozen_in) = (script.clone(), healthy.clone(), frozen.clone());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (script, healthy) = (script_in.clone(), healthy_in.clone());
                let frozen = frozen_in.clone();
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        let (script, healthy) = (script.clone(), healthy.clone());
                        let frozen = frozen.clone();
                        async move {
                            if frozen.load(std::sync::atomic::Ordering::SeqCst) {
                                std::future::pending::<()>().await;
                            }
                            let healthy = healthy.load(std::sync::atomic::Ordering::SeqCst);
                            Ok::<_, Infallible>(answer(request, &script, healthy).await)
                        }
                    });
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = match acceptor {
                        None => builder.serve_connection(TokioIo::new(stream), service).await,
                        // A client that does not like the certificate goes away.
                        Some(acceptor) => match acceptor.accept(stream).await {
                            Ok(stream) => builder.serve_connection(TokioIo::new(stream), service).await,
                            Err(_) => Ok(()),
                        },
                    };
                });
            }
        });
        Self {
            url,
            script,
            healthy,
            frozen,
            task,
        }
    }

    fn json(&self, status: u16, body: &'static str) {
        self.script
            .lock()
            .answers
            .push_back(Answer::Json(StatusCode::from_u16(status).unwrap(), body));
    }

    fn stream(&self) -> mpsc::UnboundedSender<Bytes> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.script.lock().answers.push_back(Answer::Stream(receiver));
        sender
    }

    fn set_healthy(&self, healthy: bool) {
        self.healthy.store(healthy, std::sync::atomic::Ordering::SeqCst);
    }

    fn set_frozen(&self, frozen: bool) {
        self.frozen.store(frozen, std::sync::atomic::Ordering::SeqCst);
    }

    fn lines(&self) -> Vec<String> {
        self.script
            .lock()
            .seen
            .iter()
            .map(|seen| seen.line.clone())
            .collect()
    }

    fn client(&self) -> RemoteClient {
        RemoteClient::new(Target::Urls(vec![self.url.clone()]), Settings::default()).unwrap()
    }
}

async fn answer(request: Request<Incoming>, script: &Mutex<Script>, healthy: bool) -> Response<Body> {
    let full = |status, text: &'static str| {
        Response::builder()
            .status(status)
            .body(Full::new(Bytes::from_static(text.as_bytes())).boxed_unsync())
            .unwrap()
    };
    match request.uri().path() {
        "/healthz" if healthy => return full(StatusCode::OK, "ok"),
        "/version" if healthy => {
            return full(
                StatusCode::OK,
                r#"{"major":"1","minor":"33+","gitVersion":"v1.33.1"}"#,
            );
        }
        "/healthz" | "/version" => return full(StatusCode::INTERNAL_SERVER_ERROR, "etcd is down"),
        _ => {}
    }
    let header = |name: &str| {
        let value = request.headers().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let mut seen = Seen {
        line: format!("{} {}", request.method(), request.uri()),
        user_agent: header("user-agent"),
        authorization: header("authorization"),
        body: String::new(),
    };
    seen.body = String::from_utf8(request.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let mut script = script.lock();
    script.seen.push(seen);
    match script.answers.pop_front() {
        Some(Answer::Json(status, text)) => full(status, text),
        Some(Answer::Stream(receiver)) => {
            let frames = futures::stream::unfold(receiver, |mut receiver| async move {
                let bytes = receiver.recv().await?;
                Some((Ok::<_, Infallible>(Frame::data(bytes)), receiver))
            });
            Response::new(StreamBody::new(frames).boxed_unsync())
        }
        None => full(
            StatusCode::NOT_FOUND,
            r#"{"kind":"Status","code":404,"reason":"NotFound","message":"nothing here"}"#,
        ),
    }
}

#[tokio::test]
async fn lists_page_by_page_with_selectors() {
    let server = Server::start().await;
    server.json(
        200,
        r#"{"metadata":{"resourceVersion":"7","continue":"more=1"},"items":[{"metadata":{"name":"a"}}]}"#,
    );
    server.json(
        200,
        r#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"b"}},{"metadata":5}]}"#,
    );
    let pods = Api::<Pod>::all(Arc::new(server.client()))
        .fields(FieldSelector::equal("spec.nodeName", "n1"))
        .page(1);

    let page = pods.list_all().await.unwrap();

    assert_eq!(
        page.items
            .iter()
            .map(|pod| pod.metadata.name.as_str())
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert_eq!(page.resource_version, "7");
    assert_eq!(page.invalid[0].path, "metadata");
    assert_eq!(
        server.lines(),
        [
            "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1&limit=1",
            "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1&limit=1&continue=more%3D1",
        ]
    );
    let user_agent = server.script.lock().seen[0].user_agent.clone();
    assert!(user_agent.starts_with("skep_k8s_client"), "{user_agent}");
}

#[tokio::test]
async fn waits_as_long_as_the_server_says_and_reports_nothing() {
    let server = Server::start().await;
    let later = r#"{"kind":"Status","code":429,"reason":"TooManyRequests","message":"storage is (re)initializing","details":{"retryAfterSeconds":1}}"#;
    server.json(429, later);
    server.json(200, r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#);
    server.json(429, later);
    let _stream = server.stream();
    server.json(503, later);
    let pods = Arc::new(Api::<Pod>::all(Arc::new(server.client())));
    let began = std::time::Instant::now();

    let mut events = watcher(pods.clone(), Backoff::default());
    let first = events.next().await;
    assert!(matches!(first, Some(WatcherEvent::Replaced { .. })), "{first:?}");
    assert!(began.elapsed() >= Duration::from_secs(1));
    let next = tokio::time::timeout(Duration::from_secs(2), events.next()).await;
    assert!(next.is_err(), "{next:?}");
    assert!(
        pods.get("gone").await.unwrap_err().is_not_found(),
        "a read waits, too"
    );
    assert_eq!(server.lines().len(), 6);
}

#[tokio::test]
async fn starts_the_list_over_when_the_continue_token_has_expired() {
    let server = Server::start().await;
    let first = r#"{"metadata":{"resourceVersion":"7","continue":"x"},"items":[{"metadata":{"name":"a"}}]}"#;
    server.json(200, first);
    server.json(
        410,
        r#"{"kind":"Status","code":410,"reason":"Expired","message":"too old"}"#,
    );
    server.json(
        200,
        r#"{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"b"}}]}"#,
    );

    let page = Api::<Pod>::all(Arc::new(server.client()))
        .list_all()
        .await
        .unwrap();

    assert_eq!(page.items.len(), 1);
    assert_eq!(page.items[0].metadata.name, "b");
    assert_eq!(page.resource_version, "9");
}

/// Real servers refuse to stream lists where their etcd cannot report progress.
#[tokio::test]
async fn a_server_that_does_not_stream_lists_is_listed_and_watched() {
    let server = Server::start().await;
    let client: Arc<dyn Client> = Arc::new(server.client());
    server.json(
        500,
        r#"{"kind":"Status","code":500,"reason":"InternalError","message":"etcd does not support RequestProgress"}"#,
    );
    let streamed = WatchOptions {
        bookmarks: true,
        initial_events: true,
        ..WatchOptions::default()
    };
    let refused = client.watch(&Service::kind(), "", &streamed).await.map(drop);
    assert_eq!(refused.unwrap_err().status().unwrap().code, 500);
    server.json(
        200,
        r#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}]}"#,
    );
    let watch = server.stream();
    let object = r#"{"type":"ADDED","object":{"metadata":{"name":"b","resourceVersion":"8"}}}"#;
    watch.send(Bytes::from(format!("{object}\n"))).unwrap();

    let mut events = watcher(Arc::new(Api::<Service>::all(client)), Backoff::default());

    let Some(WatcherEvent::Replaced { items, .. }) = events.next().await else {
        panic!("no list");
    };
    assert_eq!(items[0].metadata.name, "a");
    let Some(WatcherEvent::Object(ObjectEvent::Applied(added))) = events.next().await else {
        panic!("no event");
    };
    assert_eq!(added.metadata.name, "b");
    let lines = server.lines();
    assert!(lines[0].contains("sendInitialEvents=true"), "{lines:?}");
    assert!(
        !lines[1..].iter().any(|line| line.contains("sendInitialEvents")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn watch_delivers_events_as_they_arrive_and_ends_with_the_servers_error() {
    let server = Server::start().await;
    let sender = server.stream();
    let services = Api::<Service>::all(Arc::new(server.client()));
    let mut events = services.watch("7").await.unwrap();

    // Cut in the middle of an event.
    sender
        .send(Bytes::from_static(
            br#"{"type":"ADDED","object":{"metadata":{"na"#,
        ))
        .unwrap();
    sender
        .send(Bytes::from_static(b"me\":\"web\",\"resourceVersion\":\"8\"}}}\n"))
        .unwrap();

    let Some(Ok(WatchEvent::Object(ObjectEvent::Applied(service)))) = events.next().await else {
        panic!("no event")
    };
    assert_eq!(service.metadata.name, "web");
    sender
        .send(Bytes::from_static(
            b"{\"type\":\"ERROR\",\"object\":{\"code\":410,\"reason\":\"Expired\",\"message\":\"old\"}}\n",
        ))
        .unwrap();
    assert!(events.next().await.unwrap().unwrap_err().is_expired());
    assert!(events.next().await.is_none());
    let line = &server.lines()[0];
    assert!(
        line.starts_with(
            "GET /api/v1/services?watch=true&resourceVersion=7&allowWatchBookmarks=true&timeoutSeconds="
        ),
        "{line}"
    );
}

#[tokio::test]
async fn refusals_keep_the_servers_words() {
    let server = Server::start().await;
    let services = Api::<Service>::namespaced(Arc::new(server.client()), "shop");

    let error = services.get("web").await.unwrap_err();

    assert!(error.is_not_found());
    assert_eq!(error.to_string(), "nothing here");
    assert_eq!(server.lines(), ["GET /api/v1/namespaces/shop/services/web"]);
}

#[tokio::test]
async fn requests_keep_to_the_rate() {
    let server = Server::start().await;
    let settings = Settings {
        qps: 20.0,
        burst: 1,
        ..Settings::default()
    };
    let client = RemoteClient::new(Target::Urls(vec![server.url.clone()]), settings).unwrap();
    let services = Api::<Service>::namespaced(Arc::new(client), "shop");
    let began = std::time::Instant::now();

    for _ in 0..2 {
        services.get("web").await.unwrap_err();
    }
    services.watch("1").await.map(drop).unwrap_err();

    assert_eq!(server.lines().len(), 3);
    assert!(
        began.elapsed() >= Duration::from_millis(95),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn names_cannot_change_the_path() {
    let server = Server::start().await;
    let services = Api::<Service>::namespaced(Arc::new(server.client()), "shop");

    for name in ["../nodes/n1", "a/b", "x?y", ".."] {
        assert_eq!(services.get(name).await.unwrap_err().status().unwrap().code, 400);
    }

    assert!(server.lines().is_empty());
}

#[tokio::test]
async fn writes_carry_the_object_and_the_field_manager() {
    let server = Server::start().await;
    server.json(
        201,
        r#"{"metadata":{"name":"web","namespace":"shop","resourceVersion":"3"}}"#,
    );
    server.json(200, r#"{"kind":"Status","status":"Success"}"#);
    let services = Api::<Service>::namespaced(Arc::new(server.client()), "shop");
    let mut service = Service::default();
    service.metadata_mut().name = "web".into();

    let stored = services.create(&service).await.unwrap();
    let options = crate::DeleteOptions {
        preconditions: crate::Preconditions {
            uid: "u-1".into(),
            ..Default::default()
        },
        grace_period: Some(Duration::ZERO),
        ..Default::default()
    };
    services.delete("web", &options).await.unwrap();

    assert_eq!(stored.metadata.resource_version, "3");
    let seen = server.script.lock().seen.clone();
    assert_eq!(
        seen[0].line,
        "POST /api/v1/namespaces/shop/services?fieldManager=skep"
    );
    assert!(
        seen[0].body.contains(r#""apiVersion":"v1","kind":"Service""#),
        "{}",
        seen[0].body
    );
    assert_eq!(seen[1].line, "DELETE /api/v1/namespaces/shop/services/web");
    assert_eq!(
        seen[1].body,
        r#"{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"u-1"},"gracePeriodSeconds":0}"#
    );
}

#[tokio::test]
async fn moves_to_the_next_server_drops_watches_and_remembers() {
    let (first, second) = (Server::start().await, Server::start().await);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("server");
    let settings = Settings {
        state_file: Some(file.clone()),
        ..Settings::default()
    };
    let target = Target::Urls(vec![first.url.clone(), second.url.clone()]);
    let client = RemoteClient::new(target.clone(), settings.clone()).unwrap();
    let _open = first.stream();
    let mut events = Api::<Service>::all(Arc::new(client.clone()))
        .watch("1")
        .await
        .unwrap();

    first.set_healthy(false);
    client.heartbeat(true).await.unwrap_err();

    assert!(matches!(
        events.next().await,
        Some(Err(ApiError::Unreachable { .. }))
    ));
    client.heartbeat(true).await.unwrap();
    assert_eq!(client.server().unwrap(), second.url);
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), second.url);
    let restarted = RemoteClient::new(target, settings).unwrap();
    restarted
        .wait_connected(Duration::from_secs(30), Duration::from_millis(10))
        .await
        .unwrap();
    assert_eq!(restarted.server().unwrap(), second.url);
}

#[tokio::test]
async fn busy_or_recently_heard_server_is_not_given_up() {
    let server = Server::start().await;
    let client = server.client();
    client.server_version().await.unwrap();

    server.set_healthy(false);

    client.heartbeat(false).await.unwrap();
    client.heartbeat(true).await.unwrap_err();
}

#[tokio::test]
async fn start_waits_until_a_server_answers_and_names_the_cause_if_none_does() {
    let server = Server::start().await;
    server.set_healthy(false);
    let client = server.client();

    let error = client
        .wait_connected(Duration::from_millis(50), Duration::from_millis(10))
        .await
        .unwrap_err();

    assert!(matches!(error, ConnectError::Timeout { .. }), "{error}");
    assert!(
        hive::error_chain(&error).contains("500"),
        "{}",
        hive::error_chain(&error)
    );
    server.set_healthy(true);
    let version = client
        .wait_connected(Duration::from_secs(30), Duration::from_millis(10))
        .await
        .unwrap();
    assert_eq!(
        (version.major, version.minor, version.git_version.as_str()),
        (1, 33, "v1.33.1")
    );
}

#[tokio::test]
async fn token_of_a_kubeconfig_is_read_again_after_a_refusal() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    let write = |token: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: \"{}\"}}}}]\n\
             users: [{{name: u, user: {{token: {token}}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n",
            server.url
        );
        std::fs::write(&path, text).unwrap();
    };
    write("old");
    let client =
        RemoteClient::new(Target::Kubeconfig(path.clone(), Vec::new()), Settings::default()).unwrap();
    let services = Api::<Service>::namespaced(Arc::new(client), "shop");
    server.json(
        401,
        r#"{"kind":"Status","code":401,"reason":"Unauthorized","message":"Unauthorized"}"#,
    );
    server.json(200, r#"{"metadata":{"name":"web"}}"#);

    services.get("web").await.unwrap_err();
    write("new");
    services.get("web").await.unwrap();

    let tokens: Vec<_> = server
        .script
        .lock()
        .seen
        .iter()
        .map(|seen| seen.authorization.clone())
        .collect();
    assert_eq!(tokens, ["Bearer old", "Bearer new"]);
}

#[tokio::test]
async fn discovery_lists_kinds_without_their_parts() {
    let server = Server::start().await;
    server.json(
        200,
        r#"{"resources":[{"name":"pods","kind":"Pod","namespaced":true},{"name":"pods/status","kind":"Pod"}]}"#,
    );
    server.json(
        200,
        r#"{"groups":[{"name":"discovery.k8s.io","versions":[{"version":"v1"}]},
                                   {"name":"down.example","versions":[{"version":"v1"}]}]}"#,
    );
    server.json(
        200,
        r#"{"resources":[{"name":"endpointslices","kind":"EndpointSlice","namespaced":true}]}"#,
    );
    server.json(503, "down");

    let kinds = server.client().kinds().await.unwrap();

    assert_eq!(kinds, [Pod::kind(), skep_k8s_types::slim::EndpointSlice::kind()]);
}

#[tokio::test]
async fn cell_waits_for_the_server_and_tells_where_it_is() {
    use hive::{Hive, Settings as Flags};

    let server = Server::start().await;
    let flags = Flags::new()
        .flag("k8s-api-server-urls", server.url.clone())
        .flag("k8s-heartbeat-timeout", "20ms");
    let hive = Hive::new([super::cell()]).root::<Arc<dyn Client>>();
    let running = hive::testing::start_with(hive, flags).await;

    let client = running.get::<Arc<dyn Client>>().unwrap();
    assert!(client.is_enabled());
    assert_eq!(client.server_version().await.unwrap().minor, 33);
    let connection = |running: &hive::Running| {
        let all = running.health().entries();
        let found = all
            .into_iter()
            .find(|entry| entry.id.to_string() == "k8s-client.connection");
        found.map(|entry| (entry.level, entry.message)).unwrap()
    };
    assert_eq!(
        connection(&running),
        (
            hive::Level::Ok,
            format!("Connected to {}, Kubernetes 1.33", server.url)
        )
    );

    server.set_healthy(false);
    let lost = async {
        while connection(&running).0 != hive::Level::Degraded {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), lost).await.unwrap();
    running.stop().await.unwrap();
}

/// How long it takes, by a clock that runs ahead when nothing happens, until the client of a server that answers no
/// more is degraded.
async fn time_until_degraded(server: &Server, has_request: bool) -> Duration {
    use hive::{Hive, Settings as Flags};

    let flags = Flags::new().flag("k8s-api-server-urls", server.url.clone());
    let hive = Hive::new([super::cell()]).root::<Arc<dyn Client>>();
    let running = hive::testing::start_with(hive, flags).await;
    let client = running.get::<Arc<dyn Client>>().unwrap();
    client.server_version().await.unwrap();
    server.set_frozen(true);
    tokio::time::pause();

    let begun = tokio::time::Instant::now();
    let request = has_request.then(|| tokio::spawn(async move { client.server_version().await }));
    let is_degraded = || {
        let all = running.health().entries();
        all.iter().any(|entry| {
            entry.id.to_string() == "k8s-client.connection" && entry.level == hive::Level::Degraded
        })
    };
    while !is_degraded() {
        assert!(begun.elapsed() < Duration::from_secs(600), "never degraded");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let elapsed = begun.elapsed();
    if let Some(request) = request {
        let answer = tokio::time::timeout(Duration::from_secs(1), request).await;
        let error = answer.expect("failed with the connection").unwrap().unwrap_err();
        assert!(matches!(error, ApiError::Unreachable { .. }), "{error}");
    }
    tokio::time::resume();
    server.set_frozen(false);
    running.stop().await.unwrap();
    elapsed
}

#[tokio::test]
async fn an_idle_client_notices_a_frozen_server_after_one_heartbeat() {
    let server = Server::start().await;

    let elapsed = time_until_degraded(&server, false).await;

    // 30 s of silence, and 10 s for the probe.
    assert!(elapsed <= Duration::from_secs(41), "{elapsed:?}");
}

#[tokio::test]
async fn a_waiting_request_makes_a_frozen_server_suspicious() {
    let server = Server::start().await;

    let elapsed = time_until_degraded(&server, true).await;

    // 10 s without answer, and 10 s for the probe.
    assert!(elapsed <= Duration::from_secs(21), "{elapsed:?}");
}

#[tokio::test]
async fn cell_without_cluster_gives_a_client_that_is_off() {
    use hive::{Hive, Settings as Flags};

    let flags = Flags::new().flag("enable-k8s", "false");
    let hive = Hive::new([super::cell()]).root::<Arc<dyn Client>>();
    let running = hive::testing::start_with(hive, flags).await;

    let client = running.get::<Arc<dyn Client>>().unwrap();

    assert!(!client.is_enabled());
    assert!(matches!(client.server_version().await, Err(ApiError::Disabled)));
}
