// SPDX-License-Identifier: Apache-2.0

//! For tests of programs: a cluster that listens.

use std::net::SocketAddr;
use std::sync::Arc;

use skep_k8s_memory::{
    in_process_client,
    testing::{TestCluster, api_server},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{HttpOptions, HttpServer};

/// A [`TestCluster`] for processes: it listens on a free port of 127.0.0.1 until it is dropped.
pub struct ServedCluster {
    cluster: TestCluster,
    address: SocketAddr,
    _stop: DropGuard,
}

impl ServedCluster {
    /// Starts to listen.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    #[expect(
        clippy::disallowed_methods,
        reason = "what runs beside the test is no job of a hive"
    )]
    pub async fn start() -> Self {
        let api = api_server();
        let server = HttpServer::bind(([127, 0, 0, 1], 0).into(), api.clone(), HttpOptions::default());
        let server = server.expect("there is a free port");
        let (address, stop) = (server.address(), CancellationToken::new());
        tokio::spawn(server.serve(stop.clone()));
        Self {
            cluster: TestCluster::of(Arc::new(in_process_client(&api))),
            address,
            _stop: stop.drop_guard(),
        }
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &TestCluster {
        &self.cluster
    }

    /// Where it listens, for HTTP.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
