// SPDX-License-Identifier: Apache-2.0

//! Cell: allocates the addresses of the node itself, those of the previous run if they are free: router, ingress, health.
//! Requires: [`Ipam`], the local node, the sources of addresses; optionally table `devices`, [`NodeConfigFile`].

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    sync::Arc,
};

use hive::{Cell, Cfg, JobCtx, Jobs, Params, SpawnError};
use skep_base_settings::{AttachConfig, HealthCheckConfig, NodeName};
use skep_k8s_client::Client;
use skep_k8s_types::slim::NodeAddressType;
use skep_node_local::{Device, LocalNodeStore};
use statedb::{Db, RwTable, Table};

use super::node::OwnNode;
use crate::{Config, Family, InfrastructureAddress, Ipam, IpamError, Mode, NodeOwner};

/// The device of the router.
const HOST_DEVICE: &str = "cilium_host";

/// Addresses of the node itself.
#[derive(Debug, Clone, hive::Config)]
pub struct InfrastructureConfig {
    /// Serve CiliumEnvoyConfigs. The node has an address for Ingresses.
    #[config(default = false)]
    pub enable_envoy_config: bool,
}

/// The file `node_config.h` of Cilium's agent, which names the addresses of the router.
#[derive(Debug, Clone, hive::Value)]
pub struct NodeConfigFile(pub PathBuf);

impl NodeConfigFile {
    fn router(&self, family: Family) -> Option<IpAddr> {
        router_in(&std::fs::read_to_string(&self.0).ok()?, family)
    }
}

/// Finds `cilium.v4.internal.raw 0xa, 0x1, 0x0, 0x67`.
fn router_in(text: &str, family: Family) -> Option<IpAddr> {
    let name = match family {
        Family::V4 => "cilium.v4.internal.raw ",
        Family::V6 => "cilium.v6.internal.raw ",
    };
    let (_, bytes) = text.lines().find_map(|line| line.split_once(name))?;
    let bytes: Vec<u8> = bytes
        .split(',')
        .map(|byte| u8::from_str_radix(byte.trim().strip_prefix("0x")?, 16).ok())
        .collect::<Option<_>>()?;
    match family {
        Family::V4 => <[u8; 4]>::try_from(bytes)
            .ok()
            .map(|bytes| Ipv4Addr::from(bytes).into()),
        Family::V6 => <[u8; 16]>::try_from(bytes)
            .ok()
            .map(|bytes| Ipv6Addr::from(bytes).into()),
    }
}

hive::catalogue!(cell);

#[must_use]
pub fn cell() -> Cell {
    Cell::module("ipam-infrastructure", "Allocates addresses of the node itself")
        .config::<InfrastructureConfig>()
        .provide_private(crate::infrastructure::new_table)
        .provide(statedb::read_only::<InfrastructureAddress>)
        .run(start)
}

#[derive(Params)]
struct InfrastructureParams {
    config: Cfg<InfrastructureConfig>,
    health: Cfg<HealthCheckConfig>,
    ipam_config: Cfg<Config>,
    routing: Cfg<AttachConfig>,
    ipam: Ipam,
    db: Db,
    table: RwTable<InfrastructureAddress>,
    nodes: Table<OwnNode>,
    local: LocalNodeStore,
    devices: Option<Table<Device>>,
    file: Option<NodeConfigFile>,
    name: NodeName,
    client: Arc<dyn Client>,
}

fn start(params: InfrastructureParams, jobs: Jobs) -> Result<(), SpawnError> {
    // Nothing reports pod CIDRs without Kubernetes.
    if !params.client.is_enabled() && params.ipam_config.mode != Mode::DelegatedPlugin {
        return Ok(());
    }
    jobs.keep("allocate-node-addresses", params, InfrastructureParams::run)
}

/// Why the node lacks an address.
#[derive(Debug, thiserror::Error)]
enum InfrastructureError {
    /// The pod CIDR may be too small: pods have all addresses.
    #[error("cannot allocate the {} address of `{owner}`", .family.as_str())]
    Allocate {
        owner: NodeOwner,
        family: Family,
        #[source]
        cause: IpamError,
    },
    #[error(transparent)]
    Table(#[from] statedb::Error),
}

impl InfrastructureParams {
    async fn run(&self, cx: &JobCtx) -> Result<(), InfrastructureError> {
        cx.health.starting("Waiting for pod CIDRs");
        self.ipam.ready().await;
        cx.health
            .starting("Waiting for the addresses of endpoints to be restored");
        self.ipam.restored().await;
        cx.health
            .starting("Waiting for the addresses of the previous run");
        self.nodes.wait_initialized(&self.db).await;
        if let Some(devices) = &self.devices {
            devices.wait_initialized(&self.db).await;
        }
        self.exclude_node();
        for owner in NodeOwner::ALL.into_iter().filter(|owner| self.is_wanted(*owner)) {
            for family in Family::enabled(self.ipam.families()) {
                self.allocate(owner, family)?;
            }
        }
        self.publish()?;
        self.ipam.set_node_addressed();
        cx.health.ok("The node has its addresses");
        std::future::pending().await
    }

    fn is_wanted(&self, owner: NodeOwner) -> bool {
        let is_delegated = self.ipam_config.mode == Mode::DelegatedPlugin;
        match owner {
            NodeOwner::Router => true,
            NodeOwner::Ingress => self.config.enable_envoy_config && !is_delegated,
            NodeOwner::Health => self.health.has_endpoint() && !is_delegated,
        }
    }

    /// Pods never have the addresses of the node.
    fn exclude_node(&self) {
        let Some(node) = self.local.get() else { return };
        for ip in [true, false]
            .into_iter()
            .filter_map(|is_ipv4| node.node_ip(is_ipv4))
        {
            self.ipam.exclude(ip, "node-ip", self.ipam.default_pool());
        }
    }

    /// Allocates an address, unless an earlier run of the job has.
    fn allocate(&self, owner: NodeOwner, family: Family) -> Result<(), InfrastructureError> {
        let key = InfrastructureAddress::key(owner, family);
        let key = InfrastructureAddress::BY_NAME.key(&key);
        if self.table.get(&self.db.read(), key).is_some() {
            return Ok(());
        }
        let configured = match (owner, family) {
            (NodeOwner::Router, Family::V4) => self.routing.local_router_ipv4.map(IpAddr::from),
            (NodeOwner::Router, Family::V6) => self.routing.local_router_ipv6.map(IpAddr::from),
            _ => None,
        };
        let ip = match configured {
            Some(ip) => {
                let network: Option<ipnet::IpNet> = self.ipam.network(family).parse().ok();
                if network.is_some_and(|network| network.contains(&ip)) {
                    tracing::warn!(%ip, "The router address of the settings is in the pod CIDR: a pod may have it, too");
                }
                ip
            }
            None => self
                .allocate_previous(owner, family)
                .map_err(|cause| InfrastructureError::Allocate { owner, family, cause })?,
        };
        tracing::info!(%owner, %ip, "Allocated address of the node");
        let mut txn = self.db.write(&[&self.table]);
        self.table.insert(&mut txn, InfrastructureAddress { owner, ip })?;
        txn.commit();
        Ok(())
    }

    /// Writes the addresses to the local node.
    fn publish(&self) -> Result<(), statedb::Error> {
        let snapshot = self.db.read();
        let of = |owner| -> Vec<IpAddr> {
            let keys = [Family::V4, Family::V6].map(|family| InfrastructureAddress::key(owner, family));
            let rows = keys
                .iter()
                .filter_map(|key| self.table.get(&snapshot, InfrastructureAddress::BY_NAME.key(key)));
            rows.map(|row| row.ip).collect()
        };
        let own = NodeAddressType::CiliumInternalIp;
        self.local.update(|node| {
            node.addresses.retain(|(kind, _)| *kind != own);
            let routers = of(NodeOwner::Router).into_iter();
            node.addresses.extend(routers.map(|ip| (own.clone(), ip)));
            node.health = of(NodeOwner::Health);
            node.ingress = of(NodeOwner::Ingress);
        })
    }

    /// Allocates the address of the previous run, else any.
    fn allocate_previous(&self, owner: NodeOwner, family: Family) -> Result<IpAddr, IpamError> {
        let pool = self.ipam.default_pool();
        let previous = self.previous(owner, family);
        for ip in &previous {
            match self.ipam.allocate_ip(*ip, owner.as_str(), pool) {
                Ok(_) => return Ok(*ip),
                Err(error) => tracing::warn!(
                    %owner, %ip, error = %hive::error_chain(&error),
                    "Cannot keep the address of the node: connections through it may be interrupted briefly"
                ),
            }
        }
        Ok(self.ipam.allocate(family, owner.as_str(), pool)?.ip)
    }

    /// Addresses of previous runs, the preferred one first.
    fn previous(&self, owner: NodeOwner, family: Family) -> Vec<IpAddr> {
        let mut found: Vec<IpAddr> = Vec::new();
        if owner == NodeOwner::Router {
            found.extend(self.file.as_ref().and_then(|file| file.router(family)));
            found.extend(self.host_address(family));
        }
        let known = self.known(owner, family);
        if let (Some(here), Some(known)) = (found.first(), known)
            && *here != known
        {
            tracing::warn!(%here, %known, "Router addresses of this node and of Kubernetes differ: using that of this node");
        }
        found.extend(known);
        found.dedup();
        found
    }

    /// Address of `cilium_host`.
    fn host_address(&self, family: Family) -> Option<IpAddr> {
        let devices = self.devices.as_ref()?;
        let snapshot = self.db.read();
        let device = devices.get(&snapshot, Device::BY_NAME.key(HOST_DEVICE))?;
        let mut own = device.addrs.iter().map(|address| address.addr);
        own.find(|ip| {
            let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
            Family::of(*ip) == family && !is_link_local
        })
    }

    /// Address in Kubernetes: of the CiliumNode, else of the annotations of the Node.
    fn known(&self, owner: NodeOwner, family: Family) -> Option<IpAddr> {
        let snapshot = self.db.read();
        let node = self
            .nodes
            .get(&snapshot, OwnNode::BY_NAME.key(self.name.as_str()));
        let of_node = node.and_then(|node| node.0.address(owner, family == Family::V4));
        of_node.or_else(|| {
            let suffix = match owner {
                NodeOwner::Router => "cilium-host",
                NodeOwner::Ingress => "Ingress-ip",
                NodeOwner::Health => "health-ip",
            };
            let key = format!("network.cilium.io/{}-{suffix}", family.as_str());
            self.local.get()?.annotations.get(&key)?.parse().ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_are_read_from_the_header_of_another_agent() {
        let text = "/*\n cilium.v6.internal.raw 0xfd, 0x0, 0x0, 0x10, 0x0, 0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x5c, 0xd\n \
                    cilium.v4.internal.raw 0xa, 0x1, 0x0, 0x67\n */";

        let found = Family::ALL.map(|family| router_in(text, family));

        let expected = ["fd00:10:1::5c0d", "10.1.0.103"].map(|ip| ip.parse().ok());
        assert_eq!(found, expected);
        assert_eq!(router_in("cilium.v4.internal.raw 0xa, 0x1", Family::V4), None);
    }
}
