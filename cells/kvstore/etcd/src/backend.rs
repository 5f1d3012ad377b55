// SPDX-License-Identifier: Apache-2.0

//! etcd as a store.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    AuthClient, ConnectOptions, KvClient, LeaseClient, MaintenanceClient, WatchClient, WatchOptions,
};
use futures::future::{BoxFuture, FutureExt};
use futures::{StreamExt, stream};
use skep_kvstore_client::{
    Backend, BackendError, EndpointAnswer, EndpointStatus, Grant, LeaseId, RangeRequest, RangeResponse,
    Revision, Txn, TxnResponse, WatchRequest, WatchResponse, WatchStream,
};
use tokio::sync::OnceCell;

use crate::connector::{Connector, Resolver};
use crate::convert;
use crate::failure::{About, Failure};
use crate::file::{ConfigError, Endpoint, EtcdConfig};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportOptions {
    /// Time between two keep-alive probes of a connection.
    pub keepalive_interval: Duration,
    /// How long a probe may take before the connection is closed.
    pub keepalive_timeout: Duration,
    /// How long a request may take.
    pub request_timeout: Duration,
    /// How long a status request to one endpoint may take.
    pub status_timeout: Duration,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self {
            keepalive_interval: Duration::from_secs(15),
            keepalive_timeout: Duration::from_secs(25),
            request_timeout: Duration::from_secs(10),
            status_timeout: Duration::from_secs(10),
        }
    }
}

#[derive(Clone, Debug)]
pub enum ConfigSource {
    /// A file, read when the store is first used. As long as it, or a file that it names, is missing, operations fail as
    /// if the store could not be reached.
    File(PathBuf),
    Config(EtcdConfig),
}

/// etcd as a store. Endpoints are tried in random order; the one that answers is kept until it fails.
///
/// Nothing is connected before the first operation.
pub struct Etcd {
    source: ConfigSource,
    transport: TransportOptions,
    resolver: Option<Arc<dyn Resolver>>,
    connections: OnceCell<Connections>,
}

struct Connections {
    members: Vec<Member>,
    /// Index of the member in use.
    current: AtomicUsize,
    user: Option<(String, String)>,
}

struct Member {
    address: String,
    channel: tonic::transport::Channel,
    /// Made when first used: that authenticates the user.
    clients: OnceCell<Clients>,
}

#[derive(Clone)]
pub(crate) struct Clients {
    pub(crate) auth: AuthClient,
    kv: KvClient,
    watch: WatchClient,
    lease: LeaseClient,
    maintenance: MaintenanceClient,
}

pub(crate) type Call<T> = BoxFuture<'static, Result<T, etcd_client::Error>>;

impl Etcd {
    /// etcd at the endpoints of a configuration.
    pub fn new(source: ConfigSource, transport: TransportOptions) -> Self {
        Self {
            source,
            transport,
            resolver: None,
            connections: OnceCell::new(),
        }
    }

    /// Asks this resolver for the addresses of endpoints before DNS.
    #[must_use]
    pub fn with_resolver(mut self, resolver: Arc<dyn Resolver>) -> Self {
        self.resolver = Some(resolver);
        self
    }

    async fn connections(&self) -> Result<&Connections, Failure> {
        let connect = async {
            let config = match &self.source {
                ConfigSource::Config(config) => config.clone(),
                ConfigSource::File(path) => EtcdConfig::load(path).inspect_err(|error| {
                    if error.is_missing_file() {
                        tracing::info!(
                            error = %error, "Waiting for all etcd configuration files to be available"
                        );
                    }
                })?,
            };
            Ok(Connections::new(config, &self.transport, self.resolver.clone()))
        };
        let result: Result<&Connections, ConfigError> = self.connections.get_or_try_init(|| connect).await;
        result.map_err(|error| Failure::unavailable(&self.addresses().join(", "), Arc::new(error)))
    }

    /// Does a request at the endpoint in use. If that cannot be reached, the next one is tried: at once if the request was
    /// not sent or only reads, else with the next request.
    pub(crate) async fn request<T>(
        &self,
        is_read: bool,
        about: About,
        call: impl Fn(Clients) -> Call<T> + Send + Sync,
    ) -> Result<T, BackendError> {
        let connections = self.connections().await.map_err(|failure| failure.error)?;
        let mut tries = connections.members.len();
        loop {
            tries -= 1;
            let at = connections.current.load(Ordering::Relaxed) % connections.members.len();
            let member = &connections.members[at];
            let attempt = async {
                let clients = connections.clients(member).await?;
                call(clients).await
            };
            let after = self.transport.request_timeout;
            let failure = match tokio::time::timeout(after, attempt).await {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(error)) => Failure::of(error, &member.address, about),
                Err(_) => Failure {
                    error: BackendError::Timeout { after },
                    is_endpoint: true,
                    is_unsent: false,
                },
            };
            if failure.is_endpoint {
                connections.leave(at);
            }
            if tries == 0 || !failure.is_endpoint || !(is_read || failure.is_unsent) {
                return Err(failure.error);
            }
        }
    }

    async fn status(&self, connections: &Connections, member: &Member) -> EndpointStatus {
        EndpointStatus {
            endpoint: member.address.clone(),
            answer: self.ask_status(connections, member).await,
        }
    }

    async fn ask_status(&self, connections: &Connections, member: &Member) -> Result<EndpointAnswer, String> {
        let ask = async {
            let mut clients = connections.clients(member).await?;
            clients.maintenance.status().await
        };
        let after = self.transport.status_timeout;
        match tokio::time::timeout(after, ask).await {
            Ok(Ok(status)) => {
                let header = convert::header(status.header()).map_err(|error| error.to_string())?;
                let member = status.header().map_or(0, etcd_client::ResponseHeader::member_id);
                Ok(EndpointAnswer {
                    version: status.version().to_owned(),
                    is_leader: member != 0 && member == status.leader(),
                    header,
                    alarms: convert::alarms(status.errors()),
                })
            }
            Ok(Err(error)) => {
                let failure = Failure::of(error, &member.address, About::default());
                Err(hive::error_chain(&failure.error))
            }
            Err(_) => Err(BackendError::Timeout { after }.to_string()),
        }
    }
}

impl Connections {
    fn new(config: EtcdConfig, transport: &TransportOptions, resolver: Option<Arc<dyn Resolver>>) -> Self {
        let config = Arc::new(config);
        let mut endpoints = config.endpoints.clone();
        // So that clients spread over the endpoints.
        fastrand::shuffle(&mut endpoints);
        let members = endpoints
            .into_iter()
            .map(|endpoint| Member::new(endpoint, &config, transport, resolver.clone()))
            .collect();
        Self {
            members,
            current: AtomicUsize::new(0),
            user: config.user.clone(),
        }
    }

    async fn clients(&self, member: &Member) -> Result<Clients, etcd_client::Error> {
        let connect = async {
            let mut options = ConnectOptions::new().with_require_leader(true);
            if let Some((name, password)) = &self.user {
                options = options.with_user(name, password).with_auto_token_refresh(true);
            }
            let channel = etcd_client::Channel::Tonic(member.channel.clone());
            let client = etcd_client::Client::from_channel(channel, Some(options)).await?;
            Ok::<_, etcd_client::Error>(Clients {
                auth: client.auth_client(),
                // Responses are as large as what is stored.
                kv: client.kv_client().max_decoding_message_size(usize::MAX),
                watch: client.watch_client().max_decoding_message_size(usize::MAX),
                lease: client.lease_client(),
                maintenance: client.maintenance_client(),
            })
        };
        member.clients.get_or_try_init(|| connect).await.cloned()
    }

    /// Goes to the next member, unless another request has done so.
    fn leave(&self, at: usize) {
        let current = self.current.load(Ordering::Relaxed);
        if current % self.members.len() == at {
            let next = (at + 1) % self.members.len();
            let _ = self
                .current
                .compare_exchange(current, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Member {
    fn new(
        endpoint: Endpoint,
        config: &Arc<EtcdConfig>,
        transport: &TransportOptions,
        resolver: Option<Arc<dyn Resolver>>,
    ) -> Self {
        let address = endpoint.address.clone();
        // TLS is the connector's.
        let uri = http::Uri::builder()
            .scheme("http")
            .authority(endpoint.authority())
            .path_and_query("/")
            .build()
            .expect("a parsed endpoint is a valid authority");
        let connector = Connector {
            endpoint: Arc::new(endpoint),
            config: config.clone(),
            resolver,
        };
        let channel = tonic::transport::Endpoint::from(uri)
            .http2_keep_alive_interval(transport.keepalive_interval)
            .keep_alive_timeout(transport.keepalive_timeout)
            .keep_alive_while_idle(true)
            .connect_with_connector_lazy(connector);
        Self {
            address,
            channel,
            clients: OnceCell::new(),
        }
    }
}

#[async_trait]
impl Backend for Etcd {
    fn kind(&self) -> &'static str {
        "etcd"
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, BackendError> {
        let about = About {
            revision: request.revision,
            ..About::default()
        };
        let call = |mut clients: Clients| {
            let (start, options) = (request.range.start().to_vec(), convert::get_options(&request));
            async move { clients.kv.get(start, Some(options)).await }.boxed()
        };
        let response = self.request(true, about, call).await?;
        let header = convert::header(response.header())?;
        Ok(convert::range_response(header, request.order, response))
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, BackendError> {
        let about = About {
            lease: lease_of(&txn),
            ..About::default()
        };
        let call = |mut clients: Clients| {
            let request = convert::txn(&txn);
            async move { clients.kv.txn(request).await }.boxed()
        };
        let response = self.request(false, about, call).await?;
        convert::txn_response(&txn, &response)
    }

    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, BackendError> {
        let about = About {
            revision: request.start,
            ..About::default()
        };
        let call = |mut clients: Clients| {
            let mut options = WatchOptions::new().with_start_revision(request.start.0);
            if !request.range.end().is_empty() {
                options = options.with_range(request.range.end().to_vec());
            }
            let start = request.range.start().to_vec();
            async move { clients.watch.watch(start, Some(options)).await }.boxed()
        };
        let responses = self.request(true, about, call).await?;
        let endpoint = self.addresses().join(", ");
        let watch = Watch {
            responses,
            endpoint,
            about,
        };
        let responses = stream::unfold(Some(watch), |watch| async move {
            let mut watch = watch?;
            match watch.next().await? {
                Ok(response) => Some((Ok(response), Some(watch))),
                // The last.
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(responses.boxed())
    }

    async fn compact(&self, revision: Revision) -> Result<(), BackendError> {
        let about = About {
            revision,
            ..About::default()
        };
        let call = |mut clients: Clients| async move { clients.kv.compact(revision.0, None).await }.boxed();
        self.request(false, about, call).await.map(drop)
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Grant, BackendError> {
        let ttl = convert::seconds(ttl);
        let call = |mut clients: Clients| async move { clients.lease.grant(ttl, None).await }.boxed();
        let response = self.request(false, About::default(), call).await?;
        Ok(Grant {
            header: convert::header(response.header())?,
            id: LeaseId(response.id()),
            ttl: Duration::from_secs(u64::try_from(response.ttl()).unwrap_or_default()),
        })
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<Duration, BackendError> {
        let about = About {
            lease,
            ..About::default()
        };
        let call = |mut clients: Clients| {
            async move {
                let (mut keeper, mut answers) = clients.lease.keep_alive(lease.0).await?;
                // The first answer is not returned; it only says that the lease exists.
                keeper.keep_alive().await?;
                answers.message().await
            }
            .boxed()
        };
        // To renew twice is no harm.
        let answer = self.request(true, about, call).await?;
        match answer.map(|answer| answer.ttl()) {
            Some(ttl) if ttl > 0 => Ok(Duration::from_secs(ttl.unsigned_abs())),
            _ => Err(BackendError::LeaseNotFound { lease }),
        }
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), BackendError> {
        let about = About {
            lease,
            ..About::default()
        };
        let call = |mut clients: Clients| async move { clients.lease.revoke(lease.0).await }.boxed();
        self.request(false, about, call).await.map(drop)
    }

    async fn endpoints(&self) -> Vec<EndpointStatus> {
        match self.connections().await {
            Ok(connections) => {
                let mut asked = Vec::new();
                for member in &connections.members {
                    asked.push(self.status(connections, member));
                }
                futures::future::join_all(asked).await
            }
            Err(failure) => self
                .addresses()
                .into_iter()
                .map(|endpoint| EndpointStatus {
                    endpoint,
                    answer: Err(hive::error_chain(&failure.error)),
                })
                .collect(),
        }
    }

    fn addresses(&self) -> Vec<String> {
        match (self.connections.get(), &self.source) {
            (Some(connections), _) => connections
                .members
                .iter()
                .map(|member| member.address.clone())
                .collect(),
            (None, ConfigSource::Config(config)) => config
                .endpoints
                .iter()
                .map(|endpoint| endpoint.address.clone())
                .collect(),
            (None, ConfigSource::File(path)) => vec![path.display().to_string()],
        }
    }
}

struct Watch {
    responses: etcd_client::WatchStream,
    endpoint: String,
    about: About,
}

impl Watch {
    async fn next(&mut self) -> Option<Result<WatchResponse, BackendError>> {
        let response = match self.responses.message().await {
            Ok(response) => response?,
            Err(error) => return Some(Err(Failure::of(error, &self.endpoint, self.about).error)),
        };
        if response.canceled() {
            return Some(Err(self.cancelled(&response)));
        }
        let header = match convert::header(response.header()) {
            Ok(header) => header,
            Err(error) => return Some(Err(error)),
        };
        let events = response.events().iter().filter_map(convert::change).collect();
        Some(Ok(WatchResponse { header, events }))
    }

    fn cancelled(&self, response: &etcd_client::WatchResponse) -> BackendError {
        let reason = response.cancel_reason();
        if response.compact_revision() > 0 {
            BackendError::Compacted {
                requested: self.about.revision,
                oldest: Revision(response.compact_revision()),
            }
        } else if reason.contains("no leader") {
            BackendError::NoLeader
        } else if reason.contains("permission denied") {
            BackendError::Denied {
                reason: reason.to_owned(),
            }
        } else {
            BackendError::Failed {
                code: "Cancelled".to_owned(),
                reason: reason.to_owned(),
            }
        }
    }
}

/// The lease that a transaction attaches keys to.
fn lease_of(txn: &Txn) -> LeaseId {
    txn.then
        .iter()
        .chain(&txn.otherwise)
        .find_map(|op| match op {
            skep_kvstore_client::Op::Put { lease, .. } if *lease != LeaseId::NONE => Some(*lease),
            _ => None,
        })
        .unwrap_or(LeaseId::NONE)
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd")
            .field("endpoints", &self.addresses())
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}
