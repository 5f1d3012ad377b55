// SPDX-License-Identifier: Apache-2.0

//! Parts of the status that take more than one cell to know.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use async_trait::async_trait;
use hive::{Cell, Cfg, Member, Readiness};
use skep_base_api::StatusProbe;
use skep_base_api_types::{
    BpfMapProperties, BpfMapStatus, ClockSource, DeviceAddresses, GatewayFeature, KubeProxyReplacement,
    KubeProxyReplacementFeatures, Nat46X64Feature, NodePortFeature, Status, StatusResponse, Switch,
};
use skep_base_settings::{
    AddressFamilies, BalancingConfig, Dispatch, ForwardingConfig, MaglevConfig, MapConfig, NodeMode,
};
use skep_bpf_maps::{
    conntrack::{CT_ANY4, CT_ANY6, CT_TCP4, CT_TCP6},
    endpoint::LXC,
    event::{METRICS, RATELIMIT_METRICS},
    fragment::FRAGMENTS4,
    ip_masq::{IP_MASQ4, IP_MASQ6},
    lb::{
        AFFINITY4, AFFINITY6, BACKENDS4, BACKENDS6, REVERSE_NAT4, REVERSE_NAT6, REVERSE_SK4, REVERSE_SK6,
        SERVICES4, SERVICES6,
    },
    nat::{NAT4, NAT6},
    node::{IPCACHE, NEIGHBOURS4, NEIGHBOURS6},
    policy::{POLICY_MAX, POLICY_STATS},
};
use skep_datapath_loader::PacketDatapath;
use skep_datapath_maps::Maps;
use skep_datapath_socketlb::SocketDatapath;
use skep_loadbalancer_healthserver::NodeHealth;
use skep_node_local::{Device, LocalNodeStore, NodeAddress};
use statedb::{Db, Table};

use crate::{features, health, interfaces};

hive::catalogue!(cell);

/// What several cells know together, for the API.
pub(crate) fn cell() -> Cell {
    Cell::module("agent-status", "Parts of the status")
        .provide(health::modules)
        .provide(health::controllers)
        .provide(skep_base_metrics::provided::<health::ControllerMetrics>)
        .provide(features::status)
        .provide(replacement)
        .provide(interfaces::status)
        .provide(maps)
        .provide(clock)
        .provide(node_health)
}

/// Annotations that services may carry with the replacement on, sorted; those behind a switch of their own are
/// added when it is on.
const ANNOTATIONS: [&str; 5] = [
    "service.cilium.io/node",
    "service.cilium.io/node-selector",
    "service.cilium.io/proxy-delegation",
    "service.cilium.io/src-ranges-policy",
    "service.cilium.io/type",
];

#[derive(hive::Params)]
struct ReplacementParams {
    config: Cfg<BalancingConfig>,
    forwarding: Cfg<ForwardingConfig>,
    maglev: Cfg<MaglevConfig>,
    datapath: Arc<SocketDatapath>,
    packets: Arc<PacketDatapath>,
    addresses: Table<NodeAddress>,
    devices: Table<Device>,
    db: Db,
}

struct Replacement(ReplacementParams);

/// Part `kube-proxy-replacement`.
fn replacement(params: ReplacementParams) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Replacement(params)))
}

#[async_trait]
impl StatusProbe for Replacement {
    fn name(&self) -> &'static str {
        "kube-proxy-replacement"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let ReplacementParams {
            config,
            forwarding,
            maglev,
            datapath,
            packets,
            addresses,
            devices: interfaces,
            db,
        } = &self.0;
        let snapshot = db.read();
        let mut devices: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        for row in addresses.all(&snapshot).filter(|row| row.node_port) {
            devices.entry(row.device_name.clone()).or_default();
        }
        for device in interfaces.all(&snapshot) {
            if let Some(ips) = devices.get_mut(&*device.name) {
                ips.extend(device.addrs.iter().map(|address| address.addr));
            }
        }
        let device_list = devices.iter().map(|(name, ips)| DeviceAddresses {
            name: name.clone(),
            ip: ips.iter().map(IpAddr::to_string).collect(),
        });
        let (settings, sockets) = (datapath.settings(), datapath.status());
        let on = settings.replacement.enabled;
        let algorithm = config.algorithm.to_string();
        let is_maglev = algorithm.eq_ignore_ascii_case("maglev");
        let mut annotations: Vec<&str> = if on { ANNOTATIONS.to_vec() } else { Vec::new() };
        let optional = [
            (config.algorithm_annotation, "service.cilium.io/lb-algorithm"),
            (forwarding.mode_annotation, "service.cilium.io/forwarding-mode"),
        ];
        annotations.extend(
            optional
                .into_iter()
                .filter(|(is_on, _)| on && *is_on)
                .map(|(_, name)| name),
        );
        annotations.sort_unstable();
        let switch = |enabled: bool| Switch { enabled };
        response.kube_proxy_replacement = Some(KubeProxyReplacement {
            mode: if on { "True" } else { "False" }.to_owned(),
            devices: devices.keys().cloned().collect(),
            device_list: device_list.collect(),
            direct_routing_device: interfaces::direct_routing_device(packets),
            features: KubeProxyReplacementFeatures {
                node_port: NodePortFeature {
                    enabled: on,
                    mode: mode(forwarding.mode),
                    dsr_mode: dsr_mode(forwarding),
                    algorithm: if is_maglev { "Maglev" } else { "Random" }.to_owned(),
                    lut_size: if is_maglev {
                        maglev.table_size.get().into()
                    } else {
                        0
                    },
                    acceleration: interfaces::acceleration(packets),
                    port_min: settings.node_ports.range.first(),
                    port_max: settings.node_ports.range.last(),
                },
                host_port: switch(on),
                external_ips: switch(on),
                socket_lb: switch(sockets.is_enabled),
                socket_lb_tracing: switch(sockets.is_enabled && settings.sockets.trace),
                session_affinity: switch(true),
                nat46_x64: nat46_x64(forwarding, &settings.families),
                bpf_socket_lb_hostns_only: settings.sockets.host_only,
                annotations: annotations.into_iter().map(str::to_owned).collect(),
            },
        });
        None
    }
}

/// A mode of node ports as Cilium's clients know it.
fn mode(configured: NodeMode) -> String {
    match configured {
        NodeMode::Hybrid => "Hybrid".to_owned(),
        other => other.to_string().to_uppercase(),
    }
}

/// Translation between the address families, which requires both.
fn nat46_x64(forwarding: &ForwardingConfig, families: &AddressFamilies) -> Nat46X64Feature {
    let network = forwarding
        .nat46x64_network()
        .filter(|_| families.ipv4 && families.ipv6);
    let Some(network) = network else {
        return Nat46X64Feature::default();
    };
    Nat46X64Feature {
        enabled: true,
        gateway: GatewayFeature {
            enabled: forwarding.nat46x64_gateway,
            prefixes: vec![network.to_string()],
        },
        service: Switch {
            enabled: forwarding.nat46x64_services,
        },
    }
}

/// Returns the DSR dispatch mode by Cilium's name, whatever the forwarding mode.
fn dsr_mode(forwarding: &ForwardingConfig) -> String {
    match forwarding.dispatch {
        Dispatch::Opt => "IP Option/Extension",
        Dispatch::Ipip => "IPIP",
        Dispatch::Geneve => "Geneve",
    }
    .to_owned()
}

struct Clock(Arc<SocketDatapath>);

/// Part `clock-source`: what programs tell time by.
fn clock(datapath: Arc<SocketDatapath>) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Clock(datapath)))
}

#[async_trait]
impl StatusProbe for Clock {
    fn name(&self) -> &'static str {
        "clock-source"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let (mode, hertz) = match self.0.status().tick {
            Some(hertz) => ("jiffies", hertz.into()),
            None => ("ktime", 0),
        };
        response.clock_source = Some(ClockSource {
            mode: mode.to_owned(),
            hertz,
        });
        None
    }
}

/// Maps with the names that Cilium's clients know them by, in their order.
static MAPS: [(&str, &[&str]); 20] = [
    (
        "Non-TCP connection tracking",
        &[CT_ANY4.family.name, CT_ANY6.family.name],
    ),
    (
        "TCP connection tracking",
        &[CT_TCP4.family.name, CT_TCP6.family.name],
    ),
    ("Endpoints", &[LXC.family.name]),
    ("IP cache", &[IPCACHE.family.name]),
    ("IPv4 masquerading agent", &[IP_MASQ4.family.name]),
    ("IPv6 masquerading agent", &[IP_MASQ6.family.name]),
    ("IPv4 fragmentation", &[FRAGMENTS4.family.name]),
    ("IPv4 service", &[SERVICES4.family.name]),
    ("IPv6 service", &[SERVICES6.family.name]),
    ("IPv4 service backend", &[BACKENDS4.family.name]),
    ("IPv6 service backend", &[BACKENDS6.family.name]),
    ("IPv4 service reverse NAT", &[REVERSE_NAT4.family.name]),
    ("IPv6 service reverse NAT", &[REVERSE_NAT6.family.name]),
    ("Metrics", &[METRICS.family.name]),
    ("Ratelimit metrics", &[RATELIMIT_METRICS.family.name]),
    ("NAT", &[NAT4.family.name, NAT6.family.name]),
    (
        "Neighbor table",
        &[NEIGHBOURS4.family.name, NEIGHBOURS6.family.name],
    ),
    ("Policy stats", &[POLICY_STATS.family.name]),
    (
        "Session affinity",
        &[AFFINITY4.family.name, AFFINITY6.family.name],
    ),
    (
        "Sock reverse NAT",
        &[REVERSE_SK4.family.name, REVERSE_SK6.family.name],
    ),
];

struct MapTable {
    maps: Arc<Maps>,
    config: Cfg<MapConfig>,
}

/// Part `bpf-maps`: sizes of the maps.
fn maps(maps: Arc<Maps>, config: Cfg<MapConfig>) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(MapTable { maps, config }))
}

#[async_trait]
impl StatusProbe for MapTable {
    fn name(&self) -> &'static str {
        "bpf-maps"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let size = |names: &[&str]| {
            let map = names.iter().find_map(|name| self.maps.get(name))?;
            Some(map.raw().info().max_entries)
        };
        let found = MAPS
            .iter()
            .filter_map(|(name, names)| Some((*name, size(names)?)));
        let mut maps: Vec<BpfMapProperties> = found
            .map(|(name, size)| BpfMapProperties {
                name: name.to_owned(),
                size: size.into(),
            })
            .collect();
        let policy = BpfMapProperties {
            name: "Endpoint policy".to_owned(),
            size: self.maps.sizes().get(POLICY_MAX).into(),
        };
        let before = maps.iter().position(|map| map.name == "Policy stats");
        maps.insert(before.unwrap_or(maps.len()), policy);
        response.bpf_maps = Some(BpfMapStatus {
            dynamic_size_ratio: self.config.dynamic_size_ratio,
            maps,
        });
        None
    }
}

struct Ready {
    readiness: Readiness,
    local: LocalNodeStore,
}

impl NodeHealth for Ready {
    fn agent_is_healthy(&self) -> bool {
        self.readiness.is_ready()
    }

    /// By the Node as it was read last: an API server that is away changes nothing.
    fn is_leaving(&self) -> bool {
        self.local.get().is_some_and(|node| node.is_leaving)
    }
}

/// What kube-proxy's health answer goes by: whether everything the agent waits for at start has come, and whether the node
/// stays.
fn node_health(readiness: Readiness, local: LocalNodeStore) -> Arc<dyn NodeHealth> {
    Arc::new(Ready { readiness, local })
}

#[cfg(test)]
mod tests {
    use hive::Hive;
    use skep_base_settings::NodeName;

    use super::*;

    #[tokio::test]
    async fn a_node_that_is_removed_is_leaving() {
        let node = Cell::module("node", "Node")
            .provide(Db::new)
            .provide(|| NodeName::new("n1"))
            .provide(node_health);
        let hive = Hive::new([node, skep_node_local::cells::local_node()])
            .root::<Arc<dyn NodeHealth>>()
            .root::<LocalNodeStore>();
        let running = hive::testing::start(hive).await;
        let health: Arc<dyn NodeHealth> = running.get().unwrap();
        let local: LocalNodeStore = running.get().unwrap();
        assert!(!health.is_leaving());

        local.update(|node| node.is_leaving = true).unwrap();

        assert!(health.is_leaving());
        running.stop().await.unwrap();
    }
}
