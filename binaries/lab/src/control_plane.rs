// SPDX-License-Identifier: Apache-2.0

//! The control plane of a cluster: its API server and controllers. The server is the embedded one, or a real one.

mod credentials;
mod definitions;
mod forward;
mod real;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
use hive::{Cell, Hive};
use ipnet::IpNet;
use skep_k8s_apiserver::{
    HttpOptions, HttpServer, OpenApiSchemas, endpointslice_controller_cell, garbage_collector_cell,
    namespace_controller_cell,
};
use skep_k8s_client::{
    Client,
    remote::{RemoteClient, Settings, Target, TargetError},
};
use skep_k8s_memory::{ApiServer, Gvr, Mode, Registry, Rows, Tracker, WriteOptions, in_process_client};
use skep_listen::{
    BindError, BoundTcp, Tcp,
    tls::{Tls, TlsError},
};
use statedb::Db;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    certificates,
    link::{self, LinkError},
    paths::LabPaths,
    plan::{API_PORT, Cluster},
    runtime::Runtime,
};

pub use crate::certificates::CredentialsError;
pub(crate) use forward::is_ready;
pub use real::{Assets, RealError};

/// Events that the API server keeps of each kind: a watch that lags further behind starts anew.
const HISTORY: usize = 1_000;

/// Why a cluster has no API server.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// The lab's network is not there.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No port of the loopback can be listened on.
    #[error("API server on the loopback")]
    Bind(#[from] BindError),
    /// The address on the lab's network cannot be listened on.
    #[error("cannot listen for the API on {address}")]
    Listen {
        address: SocketAddr,
        /// The error of the system call.
        #[source]
        cause: std::io::Error,
    },
    /// A range of service addresses is none.
    #[error("service range")]
    Range(#[from] ipnet::PrefixLenError),
    #[error(transparent)]
    Store(#[from] statedb::Error),
    /// Cilium's kinds cannot be defined in the embedded server.
    #[error("defining Cilium's kinds")]
    Define {
        #[source]
        cause: skep_k8s_memory::ApiError,
    },
    /// The controllers do not fit together, or do not start.
    #[error("controllers: {reason}")]
    Controllers { reason: String },
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The real API server does not run.
    #[error(transparent)]
    Real(#[from] RealError),
    /// The embedded server has no certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A file for the clients cannot be written.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// A client of the API server that a kubeconfig names, without limits of its own.
pub fn client(kubeconfig: &Path) -> Result<Arc<dyn Client>, TargetError> {
    let settings = Settings {
        qps: 0.0,
        ..Settings::default()
    };
    let target = Target::Kubeconfig(kubeconfig.to_owned(), Vec::new());
    Ok(Arc::new(RemoteClient::new(target, settings)?))
}

/// How the agents of a cluster reach its API server.
#[derive(Debug, Clone)]
pub struct Access {
    pub url: String,
    /// How they log in; not needed for the embedded server.
    pub kubeconfig: Option<PathBuf>,
}

/// The API server of a cluster with its controllers, reached over this machine's loopback and the lab's network.
pub struct ControlPlane {
    pub url: String,
    pub client: Arc<dyn Client>,
    pub access: Access,
    server: Server,
    controllers: hive::Running,
    stop: CancellationToken,
}

enum Server {
    Embedded(Vec<HttpServer>),
    /// Its processes, and what passes connections on to them.
    Real(Box<real::Server>, tokio::task::JoinHandle<()>),
}

impl ControlPlane {
    /// Starts the API server of `cluster` in the network of process `fabric`: a real one if there are `assets`. If it is for
    /// pods that log in as pods do, it has a certificate there, and the controllers of workloads. The embedded one answers once [`ControlPlane::run`] is polled; connections wait until then.
    ///
    /// # Errors
    /// When an address cannot be listened on, or the real server does not come up.
    pub async fn start(
        paths: &LabPaths,
        cluster: &Cluster,
        fabric: u32,
        assets: Option<&Assets>,
        is_for_pods: bool,
        stop: CancellationToken,
    ) -> Result<Self, ControlPlaneError> {
        let listener = Tcp::new(([127, 0, 0, 1], 0).into()).bind()?;
        let bound = listener.address();
        let inside = SocketAddr::from((cluster.api_address(), API_PORT));
        let kubeconfig = kubeconfig_in(&paths.folder, &cluster.name);
        let context = format!("{}-{}", paths.name, cluster.name);
        let Some(assets) = assets else {
            let url = format!("https://{bound}");
            // The token allows programs in pods, as root. Nodes use a listener of their own, without pods.
            let secrets = real::Server::credentials(paths, cluster)?;
            certificates::write_secret(&kubeconfig, &kubeconfig_text(&context, &url, &secrets))?;
            let api = embedded(cluster, &secrets)?;
            let tls = || {
                Tls::from_files(
                    secrets.file("server.crt").as_ref(),
                    secrets.file("server.key").as_ref(),
                )
            };
            let local = HttpOptions {
                token: secrets.token.clone(),
                tls: Some(tls()?),
                pods: Some(Arc::new(Runtime::new(paths, cluster))),
                pods_hint: format!(
                    "use `skep-lab exec --name {} NAMESPACE/POD -- COMMAND`",
                    paths.name
                ),
                ..HttpOptions::default()
            };
            let for_nodes = HttpOptions {
                tls: is_for_pods.then(tls).transpose()?,
                ..HttpOptions::default()
            };
            let doors = [
                (listener, local),
                (listen_inside(fabric, inside).await?, for_nodes),
            ];
            let servers =
                doors.map(|(listener, options)| HttpServer::with_listener(listener, api.clone(), options));
            let in_process: Arc<dyn Client> = Arc::new(in_process_client(&api));
            return Ok(Self {
                url,
                client: client(&kubeconfig)?,
                access: Access {
                    url: format!("http://{inside}"),
                    kubeconfig: None,
                },
                server: Server::Embedded(servers.into()),
                controllers: start_controllers(in_process, Some(api), is_for_pods).await?,
                stop,
            });
        };
        let url = format!("https://{bound}");
        let secrets = real::Server::credentials(paths, cluster)?;
        certificates::write_secret(&kubeconfig, &kubeconfig_text(&context, &url, &secrets))?;
        let mut server = real::Server::start(assets, paths, cluster, fabric, &secrets).await?;
        let door = tokio::spawn(forward::forward(listener, fabric, inside, stop.clone()));
        let client = client(&kubeconfig)?;
        server.ready(&client).await?;
        Ok(Self {
            url,
            access: Access {
                url: format!("https://{inside}"),
                kubeconfig: Some(kubeconfig),
            },
            server: Server::Real(Box::new(server), door),
            controllers: start_controllers(client.clone(), None, false).await?,
            client,
            stop,
        })
    }

    pub async fn run(self) {
        match self.server {
            Server::Embedded(servers) => {
                let mut tasks = JoinSet::new();
                for server in servers {
                    tasks.spawn(server.serve(self.stop.clone()));
                }
                while tasks.join_next().await.is_some() {}
            }
            Server::Real(server, door) => {
                server.run(self.stop.clone()).await;
                door.abort();
            }
        }
        if let Err(err) = self.controllers.stop().await {
            tracing::warn!(error = %err, "Controllers did not stop cleanly");
        }
    }
}

/// Where the kubeconfig of a cluster is, in the folder of its lab.
#[must_use]
pub fn kubeconfig_in(folder: &Path, cluster: &str) -> PathBuf {
    folder.join(format!("{cluster}.kubeconfig"))
}

fn kubeconfig_text(name: &str, server: &str, secrets: &credentials::Credentials) -> String {
    let authority = BASE64.encode(&secrets.authority);
    let token = &secrets.token;
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: {name}\n\
         clusters:\n- name: {name}\n  cluster:\n    server: {server}\n    certificate-authority-data: {authority}\n\
         contexts:\n- name: {name}\n  context:\n    cluster: {name}\n    user: {name}\n    namespace: default\n\
         users:\n- name: {name}\n  user: {{token: {token}}}\n"
    )
}

fn embedded(cluster: &Cluster, secrets: &credentials::Credentials) -> Result<ApiServer, ControlPlaneError> {
    let (v4, v4_bits) = cluster.service_range_v4();
    let (v6, v6_bits) = cluster.service_range_v6();
    let settings = skep_k8s_memory::Settings {
        service_networks: vec![IpNet::new(v4.into(), v4_bits)?, IpNet::new(v6.into(), v6_bits)?],
        root_ca: Some(secrets.authority.clone()),
        schemas: Some(Arc::new(OpenApiSchemas)),
        ..skep_k8s_memory::Settings::default()
    };
    let tracker = Tracker::new(Rows::new(&Db::new())?, HISTORY, false);
    let api = ApiServer::new(tracker, Registry::with_extensions(), Mode::Real(settings));
    let kind = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    for definition in definitions::all() {
        let created = api.create(&kind, "", definition, &WriteOptions::default());
        created.map_err(|cause| ControlPlaneError::Define { cause })?;
    }
    Ok(api)
}

/// Endpoint slices of services; with the embedded server also the emptying of deleted namespaces and the deletion of
/// what deleted objects own, which look into its store.
async fn start_controllers(
    client: Arc<dyn Client>,
    embedded: Option<ApiServer>,
    has_workloads: bool,
) -> Result<hive::Running, ControlPlaneError> {
    let mut cells = vec![
        Cell::module("client", "The client of the controllers").provide(move || client.clone()),
        endpointslice_controller_cell(),
    ];
    if let Some(api) = embedded.map(Arc::new) {
        cells.push(Cell::module("api", "The API server of this process").provide(move || api.clone()));
        cells.push(namespace_controller_cell());
        cells.push(garbage_collector_cell());
    }
    cells.extend(has_workloads.then(skep_lab_kubelet::workloads::cell));
    let refused = |reason: String| ControlPlaneError::Controllers { reason };
    let plan = Hive::new(cells)
        .plan(hive::Settings::new())
        .map_err(|report| refused(report.to_string()))?;
    let built = plan.build().map_err(|err| refused(err.to_string()))?;
    built.start().await.map_err(|err| refused(err.to_string()))
}

/// A socket belongs to the network namespace in which it was created.
async fn listen_inside(process: u32, address: SocketAddr) -> Result<BoundTcp, ControlPlaneError> {
    let failed = move |cause| ControlPlaneError::Listen { address, cause };
    let made = tokio::task::spawn_blocking(move || {
        link::inside(process, move |_| {
            let listener = std::net::TcpListener::bind(address);
            Ok(listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener)))
        })
    })
    .await;
    let listener = match made {
        Ok(made) => made?.map_err(failed)?,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    };
    TcpListener::from_std(listener)
        .and_then(BoundTcp::new)
        .map_err(failed)
}
