// SPDX-License-Identifier: Apache-2.0

//! The control plane of a cluster: its API server and controllers.

use std::{net::SocketAddr, sync::Arc};

use hive::{Cell, Hive};
use ipnet::IpNet;
use skep_k8s::{
    Client,
    remote::{RemoteClient, Settings, Target, TargetError},
};
use skep_k8s_apiserver::{
    ApiServer, HttpOptions, HttpServer, Manner, Registry, Rows, Tracker, endpointslice_controller_cell,
    in_process_client, namespace_controller_cell,
};
use statedb::Db;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    link::{self, LinkError},
    plan::{API_PORT, Cluster},
};

/// Events that the API server keeps of each kind: a watch that lags further behind starts anew.
const HISTORY: usize = 10_000;

/// Why a cluster has no API server.
#[derive(Debug, thiserror::Error)]
pub enum ControlPlaneError {
    /// The lab's network is not there.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// An address cannot be listened on.
    #[error("listening for the API on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        #[source]
        cause: std::io::Error,
    },
    /// A range of service addresses is none.
    #[error("service range")]
    Range(#[from] ipnet::PrefixLenError),
    /// The store cannot be made.
    #[error(transparent)]
    Store(#[from] statedb::Error),
    /// The controllers do not fit together, or do not start.
    #[error("controllers: {reason}")]
    Controllers {
        /// What is wrong.
        reason: String,
    },
    /// The client's address is none.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// A client of the API server at `url`, without limits of its own.
///
/// # Errors
/// When `url` is none.
pub fn client(url: &str) -> Result<Arc<dyn Client>, TargetError> {
    let settings = Settings {
        qps: 0.0,
        ..Settings::default()
    };
    Ok(Arc::new(RemoteClient::new(
        Target::Urls(vec![url.to_owned()]),
        settings,
    )?))
}

/// The API server of a cluster, listening on this machine's loopback and on the lab's network.
pub struct ControlPlane {
    /// URL on the loopback.
    pub url: String,
    /// A client of it.
    pub client: Arc<dyn Client>,
    servers: Vec<HttpServer>,
    controllers: hive::Running,
    stop: CancellationToken,
}

impl ControlPlane {
    /// Makes the server. It answers once [`ControlPlane::run`] is polled; connections wait until then.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub async fn start(
        cluster: &Cluster,
        fabric: u32,
        stop: CancellationToken,
    ) -> Result<Self, ControlPlaneError> {
        let (v4, v4_bits) = cluster.service_range_v4();
        let (v6, v6_bits) = cluster.service_range_v6();
        let settings = skep_k8s_apiserver::Settings {
            service_networks: vec![IpNet::new(v4.into(), v4_bits)?, IpNet::new(v6.into(), v6_bits)?],
            ..skep_k8s_apiserver::Settings::default()
        };
        let tracker = Tracker::new(Rows::new(&Db::new())?, HISTORY, false);
        let api = ApiServer::new(tracker, Registry::with_extensions(), Manner::Real(settings));

        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = TcpListener::bind(local)
            .await
            .map_err(|cause| ControlPlaneError::Listen {
                address: local,
                cause,
            })?;
        let bound = listener.local_addr().map_err(|cause| ControlPlaneError::Listen {
            address: local,
            cause,
        })?;
        let inside = SocketAddr::from((cluster.api_address(), API_PORT));
        let servers = [listener, listen_inside(fabric, inside).await?]
            .map(|listener| HttpServer::with_listener(listener, api.clone(), HttpOptions::default()))
            .into();
        let url = format!("http://{bound}");
        let client = client(&url)?;
        let controllers = start_controllers(&api).await?;
        Ok(Self {
            url,
            client,
            servers,
            controllers,
            stop,
        })
    }

    /// Serves until stopped.
    pub async fn run(self) {
        let mut tasks = JoinSet::new();
        for server in self.servers {
            tasks.spawn(server.serve(self.stop.clone()));
        }
        while tasks.join_next().await.is_some() {}
        if let Err(err) = self.controllers.stop().await {
            tracing::warn!(error = %err, "controllers did not stop well");
        }
    }
}

/// Endpoint slices of services, and the emptying of deleted namespaces.
async fn start_controllers(api: &ApiServer) -> Result<hive::Running, ControlPlaneError> {
    let (client, server): (Arc<dyn Client>, _) = (Arc::new(in_process_client(api)), Arc::new(api.clone()));
    let cells = [
        Cell::module("api", "The API server of this process")
            .provide(move || client.clone())
            .provide(move || server.clone()),
        endpointslice_controller_cell(),
        namespace_controller_cell(),
    ];
    let refused = |reason: String| ControlPlaneError::Controllers { reason };
    let plan = Hive::new(cells)
        .plan(hive::Settings::new())
        .map_err(|report| refused(report.to_string()))?;
    let built = plan.build().map_err(|err| refused(err.to_string()))?;
    built.start().await.map_err(|err| refused(err.to_string()))
}

/// A socket belongs to the network namespace in which it was made, whoever uses it later.
async fn listen_inside(process: u32, address: SocketAddr) -> Result<TcpListener, ControlPlaneError> {
    let failed = move |cause| ControlPlaneError::Listen { address, cause };
    let made = tokio::task::spawn_blocking(move || {
        link::inside(process, async move |_| {
            let listener = std::net::TcpListener::bind(address);
            Ok(listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener)))
        })
    })
    .await;
    let listener = match made {
        Ok(made) => made?.map_err(failed)?,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    };
    TcpListener::from_std(listener).map_err(failed)
}
