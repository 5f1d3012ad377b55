// SPDX-License-Identifier: Apache-2.0

//! Which server is in use, and when to use another.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use http::header::AUTHORIZATION;
use http::{Method, Request, Response, StatusCode};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use parking_lot::Mutex;
use skep_base_limiter::TokenBucket;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tower::util::MapRequestLayer;
use tower::{BoxError, ServiceBuilder};

use super::metrics::ClientMetrics;
use super::target::{Target, TargetError};
use super::token::TokenFile;
use crate::client::ServerVersion;
use crate::error::{ApiError, Status};

/// Oldest version that works: the first with `discovery.k8s.io/v1`.
const OLDEST: (u32, u32) = (1, 21);

/// Time until the head of an answer. The own limit of the server is 60 s.
const ANSWER: Duration = Duration::from_secs(70);

/// How long a request is repeated that the server puts off.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time until the answer to a health probe.
const PROBE: Duration = Duration::from_secs(10);

/// Where the service account of a pod is mounted.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Largest answer that is not a watch: a page of a list. Bounds what a faulty server can make the client hold.
const LARGEST_BODY: usize = 512 << 20;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Address, certificates or token are not usable. Fix the configuration or the files.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The HTTP client cannot be built from certificates and keys. Fix the files.
    #[error("credentials for {server}")]
    Credentials {
        /// Address of the server.
        server: String,
        /// Cause.
        #[source]
        cause: kube::Error,
    },
    /// The server does not answer. Retried.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The server is too old. Upgrade it.
    #[error("Kubernetes {found} at {server} is too old, at least {}.{} is needed", OLDEST.0, OLDEST.1)]
    TooOld {
        /// Address of the server.
        server: String,
        /// Its version.
        found: ServerVersion,
    },
    /// No server answered in time. Check addresses, network and the server itself.
    #[error("no Kubernetes API server answered within {}s", within.as_secs())]
    Timeout {
        /// The time.
        within: Duration,
        /// Cause of the last attempt.
        #[source]
        cause: Box<ConnectError>,
    },
}

/// Settings of a [`RemoteClient`].
#[derive(Debug, Clone)]
pub struct Settings {
    /// Requests a second; 0 for no limit.
    pub qps: f64,
    /// Requests at once.
    pub burst: u32,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// Time between probes of an idle TCP connection; zero for none.
    pub keep_alive: Duration,
    /// Idle time after which the server is probed; zero for no probes.
    pub heartbeat: Duration,
    /// What the server sees as `User-Agent`.
    pub user_agent: String,
    /// Folder of the pod's service account: certificate authority and token.
    pub service_account: PathBuf,
    /// File that remembers which of several servers worked last; `None` for none.
    pub state_file: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            qps: 10.0,
            burst: 20,
            connect_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(30),
            heartbeat: Duration::from_secs(30),
            user_agent: user_agent(),
            service_account: PathBuf::from(SERVICE_ACCOUNT),
            state_file: None,
        }
    }
}

/// `skep-agent/0.1.0`, by the name of the program.
fn user_agent() -> String {
    let program = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or("skep".as_ref());
    format!("{}/{}", name.to_string_lossy(), env!("CARGO_PKG_VERSION"))
}

/// The client of a real API server. Cheap to clone.
#[derive(Clone)]
pub struct RemoteClient {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    target: Target,
    settings: Settings,
    /// Waiting requests are served in order of arrival.
    bucket: Mutex<TokenBucket>,
    pub(super) metrics: Arc<ClientMetrics>,
    /// Absent until the first use, which must be inside of the runtime.
    current: ArcSwapOption<Connection>,
    /// Index of the server in use. Held while connecting, so that one attempt is made at a time.
    server: tokio::sync::Mutex<usize>,
    /// Changes when all connections are dropped: watches end then.
    pub(super) generation: watch::Sender<u64>,
    /// Changes when a server answers again after a failed probe.
    pub(super) recoveries: watch::Sender<u64>,
    last_answer: Mutex<Instant>,
    /// Index of the server that the state file names; [`NONE`] if it is missing or names another.
    remembered: AtomicUsize,
    pub(super) suspicious: Notify,
}

/// The server did not answer its health probe while a request waited.
#[derive(Debug, thiserror::Error)]
#[error("the connection was closed because the server did not answer a health probe")]
struct Dropped;

/// A request without answer.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {}s", ANSWER.as_secs())]
struct Silent;

/// Index of no server.
const NONE: usize = usize::MAX;

pub(super) struct Connection {
    client: kube::Client,
    pub(super) server: String,
    /// Host and port of the server.
    host: String,
    number: usize,
}

impl RemoteClient {
    /// A client that connects when it is first used.
    ///
    /// # Errors
    ///
    /// [`TargetError::Url`] if an explicit address is malformed.
    pub fn new(target: Target, settings: Settings) -> Result<Self, TargetError> {
        Self::with_metrics(target, settings, Arc::default())
    }

    /// As [`new`](Self::new); requests are counted and measured by `metrics`.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new).
    pub fn with_metrics(
        target: Target,
        settings: Settings,
        metrics: Arc<ClientMetrics>,
    ) -> Result<Self, TargetError> {
        target.check()?;
        let remembered = settings
            .state_file
            .as_deref()
            .and_then(|path| std::fs::read_to_string(path).ok());
        let remembered = remembered.as_deref().map(str::trim);
        let remembered = (0..target.servers()).find(|index| target.url(*index) == remembered);
        Ok(Self {
            inner: Arc::new(Inner {
                bucket: Mutex::new(TokenBucket::new(settings.qps, settings.burst.max(1).into())),
                metrics,
                target,
                settings,
                current: ArcSwapOption::empty(),
                server: tokio::sync::Mutex::new(remembered.unwrap_or_default()),
                remembered: AtomicUsize::new(remembered.unwrap_or(NONE)),
                generation: watch::Sender::new(0),
                recoveries: watch::Sender::new(0),
                last_answer: Mutex::new(Instant::now()),
                suspicious: Notify::new(),
            }),
        })
    }

    /// Whether a cluster is configured.
    pub(super) fn target_known(&self) -> bool {
        self.inner.target != Target::Nowhere
    }

    /// Address of the server in use, once there is one.
    pub fn server(&self) -> Option<String> {
        self.inner
            .current
            .load()
            .as_ref()
            .map(|connection| connection.server.clone())
    }

    /// Time between heartbeats.
    pub fn heartbeat_interval(&self) -> Duration {
        self.inner.settings.heartbeat
    }

    /// Probes the servers, one after the other and again every `retry`, until one answers that is new enough.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: at once if the configuration is wrong or the server is too old, else after `within`.
    pub async fn wait_connected(
        &self,
        within: Duration,
        retry: Duration,
    ) -> Result<ServerVersion, ConnectError> {
        let deadline = Instant::now() + within;
        loop {
            let mut last = None;
            for _ in 0..self.inner.target.servers().max(1) {
                match self.probe_version().await {
                    Ok(version) => return Ok(version),
                    Err(
                        error @ (ConnectError::Target(TargetError::Url { .. }) | ConnectError::TooOld { .. }),
                    ) => {
                        return Err(error);
                    }
                    Err(error) => {
                        tracing::warn!(error = %hive::error_chain(&error), "API server does not respond");
                        last = Some(error);
                    }
                }
                self.next_server().await;
            }
            if Instant::now() + retry > deadline {
                let cause = last.unwrap_or(ConnectError::Api(ApiError::Disabled));
                return Err(ConnectError::Timeout {
                    within,
                    cause: Box::new(cause),
                });
            }
            tokio::time::sleep(retry).await;
        }
    }

    async fn probe_version(&self) -> Result<ServerVersion, ConnectError> {
        let connection = self.connection().await?;
        let version = self.fetch_version().await?;
        if (version.major, version.minor) < OLDEST {
            return Err(ConnectError::TooOld {
                server: connection.server.clone(),
                found: version,
            });
        }
        Ok(version)
    }

    /// One heartbeat: nothing if the server has answered within the interval, else a probe. If the probe fails, all
    /// connections are dropped and the next server is used.
    ///
    /// # Errors
    ///
    /// Why the probe failed.
    pub async fn heartbeat(&self, suspicious: bool) -> Result<(), ConnectError> {
        if !suspicious && self.idle() < self.inner.settings.heartbeat {
            return Ok(());
        }
        let result = self.healthz().await;
        if result.is_err() {
            self.next_server().await;
        }
        result
    }

    async fn healthz(&self) -> Result<(), ConnectError> {
        let connection = self.connection().await?;
        let request = self
            .builder(Method::GET, "/healthz")
            .body(Body::empty())
            .map_err(garbled("GET /healthz"))?;
        let _running = self.inner.metrics.measure(request.method(), request.uri());
        let answer = tokio::time::timeout(PROBE, self.send_on(&connection, request)).await;
        let answer = answer.unwrap_or_else(|elapsed| Err(unreachable_server(&connection.server, elapsed)));
        self.count(&connection, &Method::GET, &answer);
        match answer?.status() {
            // Rate limited or forbidden: alive in either case.
            StatusCode::TOO_MANY_REQUESTS | StatusCode::FORBIDDEN => Ok(()),
            status if status.is_success() => Ok(()),
            status => Err(ApiError::Status(Status::new(
                status.as_u16(),
                "",
                format!("{} answers {status} to a health probe", connection.server),
            ))
            .into()),
        }
    }

    /// Drops all connections and uses the next server, if there are several. Files are read again.
    async fn next_server(&self) {
        let mut server = self.inner.server.lock().await;
        *server = (*server + 1) % self.inner.target.servers().max(1);
        self.inner.current.store(None);
        self.inner.generation.send_modify(|generation| *generation += 1);
    }

    /// The connection in use.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, ConnectError> {
        if let Some(connection) = self.inner.current.load_full() {
            return Ok(connection);
        }
        let server = self.inner.server.lock().await;
        if let Some(connection) = self.inner.current.load_full() {
            return Ok(connection);
        }
        let mut config = self
            .inner
            .target
            .load(*server, &self.inner.settings.service_account)
            .await?
            .ok_or(ApiError::Disabled)?;
        let name = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let host = config.cluster_url.authority().map(ToString::to_string);
        let token = config.auth_info.token_file.take().map(PathBuf::from);
        let token = token.map(TokenFile::open).transpose()?;
        let client = self
            .build(config, token)
            .map_err(|cause| ConnectError::Credentials {
                server: name.clone(),
                cause,
            })?;
        let connection = Arc::new(Connection {
            client,
            server: name,
            host: host.unwrap_or_default(),
            number: *server,
        });
        self.inner.current.store(Some(connection.clone()));
        Ok(connection)
    }

    fn build(&self, config: kube::Config, token: Option<TokenFile>) -> Result<kube::Client, kube::Error> {
        let settings = &self.inner.settings;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(settings.connect_timeout));
        connector.set_keepalive((!settings.keep_alive.is_zero()).then_some(settings.keep_alive));
        let connector = config.rustls_https_connector_with_connector(connector)?;
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer()?)
            .option_layer(token.map(Arc::new).map(|token| {
                MapRequestLayer::new(move |mut request: Request<Body>| {
                    request.headers_mut().insert(AUTHORIZATION, token.header());
                    request
                })
            }))
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(hyper_util::client::legacy::Builder::new(TokioExecutor::new()).build(connector));
        Ok(kube::Client::new(service, config.default_namespace))
    }

    pub(super) fn builder(&self, method: Method, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::USER_AGENT, self.inner.settings.user_agent.as_str())
            .header(http::header::ACCEPT, "application/json")
    }

    /// Sends a request and waits for the head of the answer, whatever its status.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
    ) -> Result<(Response<Body>, Arc<Connection>), ApiError> {
        let connection = self.connection().await.map_err(into_api_error)?;
        match self.answer_of(&connection, request).await {
            Ok(response) => Ok((response, connection)),
            Err(error) => {
                self.inner.suspicious.notify_one();
                Err(error)
            }
        }
    }

    /// Waits for the answer to a request; fails if the connections are dropped meanwhile. After a long silence it wakes
    /// the heartbeat, which probes the server.
    async fn answer_of(
        &self,
        connection: &Connection,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let mut generation = self.inner.generation.subscribe();
        let method = request.method().clone();
        let mut answer = pin!(self.send_on(connection, request));
        let suspect = async {
            tokio::time::sleep(PROBE).await;
            if self.idle() >= PROBE {
                self.inner.suspicious.notify_one();
            }
            tokio::time::sleep(ANSWER.saturating_sub(PROBE)).await;
        };
        let answer = tokio::select! {
            answer = &mut answer => answer,
            _ = generation.changed() => Err(unreachable_server(&connection.server, Dropped)),
            () = suspect => Err(unreachable_server(&connection.server, Silent)),
        };
        self.count(connection, &method, &answer);
        answer
    }

    fn count(&self, connection: &Connection, method: &Method, answer: &Result<Response<Body>, ApiError>) {
        let status = answer.as_ref().map(Response::status);
        self.inner.metrics.count(&connection.host, method, status);
    }

    /// Waits until the rate allows a request.
    pub(super) async fn admit(&self, method: &Method, uri: &str) {
        let _waiting = self.inner.metrics.measure_wait(method, uri);
        let wait = {
            let mut bucket = self.inner.bucket.lock();
            let wait = bucket.wait(Instant::now());
            bucket.take();
            wait
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Time since the server last answered anything.
    fn idle(&self) -> Duration {
        self.inner.last_answer.lock().elapsed()
    }

    /// Time until the server has been silent for a heartbeat's interval.
    pub(super) fn until_heartbeat(&self) -> Duration {
        self.inner.settings.heartbeat.saturating_sub(self.idle())
    }

    async fn send_on(
        &self,
        connection: &Connection,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let result = connection.client.send(request).await;
        let response = result.map_err(|error| unreachable_server(&connection.server, error))?;
        self.answered(connection);
        if response.status() == StatusCode::UNAUTHORIZED {
            // Certificates and tokens may have been replaced: read them again for the next request.
            self.inner.current.store(None);
        }
        Ok(response)
    }

    /// Records that the server in use is alive.
    pub(super) fn answered(&self, connection: &Connection) {
        *self.inner.last_answer.lock() = Instant::now();
        self.remember(connection.number);
    }

    /// Writes the address of the working server to the state file.
    fn remember(&self, number: usize) {
        let (Some(path), Some(url)) = (&self.inner.settings.state_file, self.inner.target.url(number)) else {
            return;
        };
        // Called for every part of every answer: the file is only written when the server changes.
        if self.inner.remembered.swap(number, Ordering::Relaxed) == number {
            return;
        }
        // Written beside and renamed: a crash leaves the old content or the new.
        let beside = path.with_extension("new");
        let written =
            std::fs::write(&beside, format!("{url}\n")).and_then(|()| std::fs::rename(&beside, path));
        if let Err(error) = written {
            tracing::warn!(file = %path.display(), %error, "Cannot write state file of API server");
        }
    }

    /// The whole body of an answer, or the server's status if it is an error.
    pub(super) async fn whole(&self, request: Request<Body>) -> Result<bytes::Bytes, ApiError> {
        let name = format!("{} {}", request.method(), request.uri());
        let _running = self.inner.metrics.measure(request.method(), request.uri());
        let (response, connection) = self.send(request).await?;
        let (head, body) = response.into_parts();
        let body = http_body_util::Limited::new(body, LARGEST_BODY);
        let body = tokio::time::timeout(ANSWER, http_body_util::BodyExt::collect(body))
            .await
            .map_err(|elapsed| unreachable_server(&connection.server, elapsed))?
            .map_err(|error| unreachable_server(&connection.server, error))?
            .to_bytes();
        if head.status.is_success() {
            return Ok(body);
        }
        Err(ApiError::Status(read_status(&head, &body, &name)))
    }
}

/// Waits before a request is repeated that the server has not served, for as long as it says: its storage of a kind is being
/// initialized, or it has too much to do. Returns whether to repeat it.
pub(super) async fn put_off(failure: Option<&ApiError>, began: Instant) -> bool {
    let wait = match failure {
        Some(ApiError::Status(status)) if status.code == 429 || status.code >= 500 => {
            Duration::from_secs(status.details.retry_after_seconds)
        }
        _ => return false,
    };
    if wait.is_zero() || began.elapsed() + wait > PATIENCE {
        return false;
    }
    tokio::time::sleep(wait).await;
    true
}

/// The server's status, or one made from the head of the answer if there is none in the body.
pub(super) fn read_status(head: &http::response::Parts, body: &[u8], request: &str) -> Status {
    let code = head.status;
    let mut status: Status = serde_json::from_slice(body).unwrap_or_default();
    let retry_after = head.headers.get(http::header::RETRY_AFTER);
    if let Some(seconds) = retry_after.and_then(|value| value.to_str().ok()?.parse().ok()) {
        status.details.retry_after_seconds = seconds;
    }
    if status.code == 0 {
        status.code = code.as_u16();
    }
    if status.message.is_empty() {
        status.message = format!("{request}: {code}");
    }
    status
}

fn garbled(request: &str) -> impl Fn(http::Error) -> ApiError {
    move |error| ApiError::Garbled {
        request: request.to_owned(),
        reason: error.to_string(),
    }
}

pub(super) fn unreachable_server(server: &str, cause: impl Into<BoxError>) -> ApiError {
    ApiError::Unreachable {
        server: server.to_owned(),
        cause: cause.into(),
    }
}

fn into_api_error(error: ConnectError) -> ApiError {
    match error {
        ConnectError::Api(error) => error,
        other => ApiError::Unreachable {
            server: "the API server".to_owned(),
            cause: Box::new(other),
        },
    }
}
