// SPDX-License-Identifier: Apache-2.0

//! Answers the probes of other nodes.

use std::{
    future::pending,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use axum::{Router, routing::get};
use hive::{Cfg, JobCtx};
use skep_base_settings::AddressFamilies;
use skep_k8s_types::slim::NodeAddressType;
use skep_listen::{
    BindError, BoundTcp, Server, Tcp,
    http::{Http1, TowerToHyperService},
};
use skep_node_local::LocalNode;
use statedb::{Db, Table};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const PORT: &str = "cluster-health-port";
/// Time between two attempts to listen at an address that the node does not have yet.
const RETRY: Duration = Duration::from_secs(1);

/// Serves `GET /hello` until `stop`.
pub async fn hello(listener: BoundTcp, stop: CancellationToken) {
    let router = Router::new().route("/hello", get(|| async {}));
    let server = Server::new("hello", listener);
    Http1::new()
        .serve_all(server, TowerToHyperService::new(router), stop)
        .await;
}

/// Serves at the addresses of this node.
pub(crate) struct Responder {
    pub(crate) db: Db,
    pub(crate) local: Table<LocalNode>,
    pub(crate) families: Cfg<AddressFamilies>,
    pub(crate) port: u16,
}

impl Responder {
    pub(crate) async fn run(&self, cx: &JobCtx) -> Result<(), BindError> {
        self.local.wait_initialized(&self.db).await;
        let mut watch = self.watch();
        loop {
            let addresses = self.addresses();
            let serve = self.serve(&addresses, cx);
            tokio::pin!(serve);
            loop {
                tokio::select! {
                    () = &mut serve => {}
                    () = watch.closed() => {
                        watch = self.watch();
                        if self.addresses() != addresses { break; }
                    }
                }
            }
        }
    }

    fn watch(&self) -> statedb::Watch {
        self.local.table_watch(&self.db.read())
    }

    /// The internal addresses of the node; all addresses if it has none of an enabled family.
    fn addresses(&self) -> Vec<SocketAddr> {
        let node = self.local.all(&self.db.read()).next().cloned();
        let internal = node.iter().flat_map(|node| &node.addresses);
        let internal: Vec<IpAddr> = internal
            .filter(|(kind, address)| {
                let is_enabled = match address {
                    IpAddr::V4(_) => self.families.ipv4,
                    IpAddr::V6(_) => self.families.ipv6,
                };
                *kind == NodeAddressType::InternalIp && is_enabled
            })
            .map(|(_, address)| *address)
            .collect();
        let lacks = |is_enabled: bool, is_ipv4: bool| {
            is_enabled && !internal.iter().any(|address| address.is_ipv4() == is_ipv4)
        };
        let all: IpAddr = match self.families.ipv6 {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        let chosen = match lacks(self.families.ipv4, true) || lacks(self.families.ipv6, false) {
            true => vec![all],
            false => internal,
        };
        chosen
            .into_iter()
            .map(|address| SocketAddr::new(address, self.port))
            .collect()
    }

    /// Never ends; servers end when it is dropped.
    async fn serve(&self, addresses: &[SocketAddr], cx: &JobCtx) {
        let mut servers = JoinSet::new();
        let stop = CancellationToken::new();
        let _guard = stop.clone().drop_guard();
        for address in addresses {
            let listener = loop {
                match Tcp::new(*address).setting(PORT).bind() {
                    Ok(listener) => break listener,
                    Err(error) => cx.health.degraded("Cannot answer probes", &error),
                }
                tokio::time::sleep(RETRY).await;
            };
            servers.spawn(hello(listener, stop.clone()));
        }
        cx.health
            .ok(format!("Answering probes at {} addresses", addresses.len()));
        pending::<()>().await;
    }
}
