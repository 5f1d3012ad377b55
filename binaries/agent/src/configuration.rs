// SPDX-License-Identifier: Apache-2.0

//! `/v1/config`: the configuration in force, what a CNI plugin needs of it, and changes of what can change while the agent
//! runs. `/v1/settings`: every setting by its name.

mod fields;
mod options;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{Json, extract::State};
use hive::{All, Cell, Cfg, Member, Plan};
use jiff::Timestamp;
use serde_json::Value;
use skep_base_api::{Routes, StatusProbe};
use skep_base_api_types::{
    DaemonConfiguration, DaemonConfigurationStatus, KvstoreConfiguration, MasqueradeProtocols,
    NodeAddressing, NodeAddressingFamily, StatusResponse,
};
use skep_base_settings::{
    AddressFamilies, AttachConfig, BandwidthConfig, MasqueradeConfig, MonitorConfig, MtuConfig, PacketConfig,
    PathProbing, StateConfig, TunnelConfig,
};
use skep_datapath_hooks::EventSwitch;
use skep_endpoint_ipam::{Family, InfrastructureAddress, NodeOwner, sources::infrastructure::NodeConfigFile};
use skep_node_local::{Device, LocalNode};
use statedb::{Db, ReadTxn, Table};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::interfaces::packet_sizes;
use options::RuntimeOptions;

hive::catalogue!(cell);

/// How long an answer waits for the devices of the node, which the MTU depends on.
const DEVICES: Duration = Duration::from_secs(5);
/// The only datapath mode.
const DATAPATH_MODE: &str = "veth";

pub(crate) fn cell() -> Cell {
    Cell::module("agent-configuration", "The configuration in force")
        .config::<PodConfig>()
        .provide(|| Arc::new(EventSwitch::default()))
        .provide(options::runtime_options)
        .provide(node_config_file)
        .provide(routes)
}

/// What the CNI plugin sets in pods.
#[derive(Debug, Clone, hive::Config)]
pub(crate) struct PodConfig {
    /// Ports that pods do not use as source ports, such as `8472,9000-9010`; `auto`: none.
    #[config(default = "auto")]
    container_ip_local_reserved_ports: String,
}

/// The configuration in force, for the API. Filled once it is known.
#[derive(Debug)]
pub struct Configuration {
    settings: OnceLock<BTreeMap<String, String>>,
    created: Timestamp,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            settings: OnceLock::new(),
            created: Timestamp::now(),
        }
    }
}

impl Configuration {
    /// Takes the settings of a plan; secrets are masked by the plan.
    pub fn fill(&self, plan: &Plan) {
        let all = plan
            .settings()
            .into_iter()
            .map(|setting| (setting.name, setting.value))
            .collect();
        // Filled by the one plan of the process.
        let _ = self.settings.set(all);
    }

    /// A setting; empty: not set.
    fn get(&self, name: &str) -> &str {
        let value = self.settings.get().and_then(|all| all.get(name));
        value.map_or("", String::as_str)
    }
}

#[derive(Clone, hive::Params)]
struct ConfigurationParams {
    all: Arc<Configuration>,
    pods: Cfg<PodConfig>,
    families: Cfg<AddressFamilies>,
    attach: Cfg<AttachConfig>,
    bandwidth: Cfg<BandwidthConfig>,
    masquerade: Cfg<MasqueradeConfig>,
    monitor: Cfg<MonitorConfig>,
    packets: Cfg<PacketConfig>,
    mtu: Cfg<MtuConfig>,
    tunnel: Cfg<TunnelConfig>,
    state: Cfg<StateConfig>,
    ipam: Cfg<skep_endpoint_ipam::Config>,
    options: Arc<RuntimeOptions>,
    devices: Table<Device>,
    node: Table<LocalNode>,
    addresses: Table<InfrastructureAddress>,
    probes: All<Arc<dyn StatusProbe>>,
    db: Db,
}

/// The file in which Cilium's agent keeps the addresses of the router.
fn node_config_file(state: Cfg<StateConfig>) -> NodeConfigFile {
    NodeConfigFile(state.directory().join("globals/node_config.h"))
}

/// `/v1/config` and `/v1/settings`.
fn routes(params: ConfigurationParams) -> Member<Routes> {
    let settings = params.all.clone();
    let changes = OpenApiRouter::new()
        .routes(routes!(options::change))
        .with_state(params.options.clone());
    let reads = OpenApiRouter::new().routes(routes!(config)).with_state(params);
    let all = OpenApiRouter::new().routes(routes!(all)).with_state(settings);
    Member(Routes::new(reads.merge(changes).merge(all)))
}

/// Returns every setting by the name of its flag, secrets masked.
#[utoipa::path(get, path = "/settings", responses((status = 200, description = "The settings", body = BTreeMap<String, String>)))]
async fn all(State(settings): State<Arc<Configuration>>) -> Json<BTreeMap<String, String>> {
    Json(settings.settings.get().cloned().unwrap_or_default())
}

/// Returns the configuration in force.
#[utoipa::path(get, path = "/config", responses((status = 200, description = "The configuration", body = DaemonConfiguration)))]
async fn config(State(params): State<ConfigurationParams>) -> Json<DaemonConfiguration> {
    let known = tokio::time::timeout(DEVICES, params.devices.wait_initialized(&params.db));
    // Without devices, no MTU is better than a wrong one: interfaces of pods would keep it.
    let (device_mtu, route_mtu) = match known.await {
        Ok(snapshot) => params.mtus(&snapshot),
        Err(_) => (0, 0),
    };
    let spec = params.options.spec();
    let protocols = params.masqueraded();
    let kubeconfig = params.all.get("k8s-kubeconfig-path").to_owned();
    let endpoint = if kubeconfig.is_empty() {
        params.all.get("k8s-api-server-urls")
    } else {
        ""
    };
    let ports = &params.pods.container_ip_local_reserved_ports;
    let [ipv6, ipv4] = packet_sizes(&params.device_names());
    let status = DaemonConfigurationStatus {
        device_mtu,
        route_mtu,
        chained_routes: params.mtu.chained_routes,
        path_probing: probing(params.mtu.probing).to_owned(),
        ipam_mode: params.ipam.mode.to_string(),
        addressing: Some(params.addressing()),
        datapath_mode: DATAPATH_MODE.to_owned(),
        configured_datapath_mode: DATAPATH_MODE.to_owned(),
        k8s_endpoint: endpoint.to_owned(),
        k8s_configuration: kubeconfig,
        kvstore_configuration: params.kvstore(),
        masquerade: protocols.ipv4 || protocols.ipv6,
        masquerade_protocols: protocols,
        gso_max_size: ipv6.max_gso,
        gro_max_size: ipv6.max_gro,
        gso_ipv4_max_size: ipv4.max_gso,
        gro_ipv4_max_size: ipv4.max_gro,
        ip_local_reserved_ports: if ports == "auto" {
            String::new()
        } else {
            ports.clone()
        },
        bbr_host_only: params.bandwidth.enabled && params.bandwidth.bbr_host_only,
        node_monitor: params.monitor_status().await,
        realized: Some(spec.clone()),
        daemon_configuration_map: fields::map(&params),
        ..DaemonConfigurationStatus::default()
    };
    Json(DaemonConfiguration { spec, status })
}

/// Value of the kernel's `tcp_mtu_probing`.
fn probing(mode: PathProbing) -> &'static str {
    match mode {
        PathProbing::Always => "2",
        PathProbing::Blackhole => "1",
        PathProbing::Disabled => "0",
        PathProbing::Unset => "",
    }
}

impl ConfigurationParams {
    /// MTU of interfaces of pods, and of their routes.
    fn mtus(&self, txn: &impl ReadTxn) -> (u32, u32) {
        let selected = self.devices.all(txn).filter(|device| device.selected);
        let device = self.mtu.device(selected.map(|device| device.mtu));
        let node = self.node.all(txn).next();
        let address = |is_ipv4| node.and_then(|node| node.node_ip(is_ipv4));
        let endpoint = self.tunnel.endpoint(address(true), address(false));
        (device, self.mtu.route(device, &self.tunnel, endpoint))
    }

    /// Address of the router and pod CIDR, by family.
    fn addressing(&self) -> NodeAddressing {
        let snapshot = self.db.read();
        let node = self.node.all(&snapshot).next();
        let of = |family: Family| {
            if !family.is_enabled(&self.families) {
                return NodeAddressingFamily::default();
            }
            let key = InfrastructureAddress::key(NodeOwner::Router, family);
            let router = self
                .addresses
                .get(&snapshot, InfrastructureAddress::BY_NAME.key(&key));
            let mut cidrs = node.iter().flat_map(|node| &node.pod_cidrs);
            let cidr = cidrs.find(|cidr| Family::of(cidr.addr()) == family);
            NodeAddressingFamily {
                alloc_range: cidr.map(ToString::to_string).unwrap_or_default(),
                enabled: true,
                ip: router.map(|router| router.ip.to_string()).unwrap_or_default(),
            }
        };
        NodeAddressing {
            ipv4: of(Family::V4),
            ipv6: of(Family::V6),
        }
    }

    fn masqueraded(&self) -> MasqueradeProtocols {
        MasqueradeProtocols {
            ipv4: self.families.ipv4 && self.masquerade.ipv4.unwrap_or(true),
            ipv6: self.families.ipv6 && self.masquerade.ipv6.unwrap_or(true),
        }
    }

    fn kvstore(&self) -> KvstoreConfiguration {
        let options = fields::pairs(self.all.get("kvstore-opt")).into_iter();
        let text = |value: Value| value.as_str().map(str::to_owned);
        KvstoreConfiguration {
            options: options
                .filter_map(|(name, value)| Some((name, text(value)?)))
                .collect(),
            kind: self.all.get("kvstore").to_owned(),
        }
    }

    async fn monitor_status(&self) -> Option<skep_base_api_types::MonitorStatus> {
        let mut response = StatusResponse::default();
        let mut probes = self.probes.iter();
        probes
            .find(|probe| probe.name() == "node-monitor")?
            .probe(&mut response)
            .await;
        response.node_monitor
    }

    /// Names of the devices in use, sorted.
    fn device_names(&self) -> Vec<String> {
        let snapshot = self.db.read();
        let selected = self.devices.all(&snapshot).filter(|device| device.selected);
        let mut names: Vec<String> = selected.map(|device| device.name.clone()).collect();
        names.sort();
        names
    }
}
