// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/config`: the configuration in force, and what a CNI plugin needs of it.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use axum::{Json, extract::State};
use hive::{Cell, Cfg, Member, Plan};
use skep_base_api::Routes;
use skep_base_api_types::{DaemonConfiguration, DaemonConfigurationStatus};
use skep_base_settings::{MtuConfig, TunnelConfig};
use skep_node_local::{Device, LocalNode};
use statedb::{Db, ReadTxn, Table};
use utoipa_axum::{router::OpenApiRouter, routes};

hive::catalogue!(cell);

/// How long an answer waits for the devices of the node, which the MTU depends on.
const DEVICES: Duration = Duration::from_secs(5);

pub(crate) fn cell() -> Cell {
    Cell::module("agent-configuration", "The configuration in force")
        .config::<PodConfig>()
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
#[derive(Debug, Default)]
pub struct Configuration(OnceLock<BTreeMap<String, String>>);

impl Configuration {
    /// Takes the settings of a plan; secrets are masked by the plan.
    pub fn fill(&self, plan: &Plan) {
        let all = plan
            .settings()
            .into_iter()
            .map(|setting| (setting.name, setting.value))
            .collect();
        // Filled by the one plan of the process.
        let _ = self.0.set(all);
    }
}

#[derive(Clone, hive::Params)]
struct ConfigurationParams {
    all: Arc<Configuration>,
    mtu: Cfg<MtuConfig>,
    tunnel: Cfg<TunnelConfig>,
    devices: Table<Device>,
    node: Table<LocalNode>,
    db: Db,
}

/// `GET /v1/config`.
fn routes(params: ConfigurationParams) -> Member<Routes> {
    Member(Routes::new(
        OpenApiRouter::new().routes(routes!(config)).with_state(params),
    ))
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
    let status = DaemonConfigurationStatus {
        device_mtu,
        route_mtu,
        chained_routes: params.mtu.chained_routes,
        path_probing: params.mtu.probing.name().to_owned(),
        daemon_configuration_map: params.all.0.get().cloned().unwrap_or_default(),
        ..DaemonConfigurationStatus::default()
    };
    Json(DaemonConfiguration {
        status,
        ..DaemonConfiguration::default()
    })
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
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings};
    use skep_k8s_types::slim::NodeAddressType;
    use skep_node_local::LocalNodeStore;
    use statedb::RwTable;

    use super::*;

    fn devices(db: Db) -> Result<(RwTable<Device>, Table<Device>), statedb::Error> {
        let table = RwTable::builder("devices").primary(Device::BY_INDEX).build(&db)?;
        let reader = table.reader();
        Ok((table, reader))
    }

    /// What the API answers on a node with devices of MTU 9000 and 1400, and another interface, with these addresses.
    async fn answer(flags: &[&'static str], addresses: &[&str]) -> serde_json::Value {
        let hive = Hive::new([
            statedb::cell(),
            skep_base_settings::cell(),
            skep_node_local::cells::local_node(),
            Cell::module("test-node", "This node")
                .provide(|| skep_base_settings::NodeName::new("n1"))
                .provide(|| Arc::new(Configuration::default()))
                .provide(devices)
                .provide(|params: ConfigurationParams| Arc::new(params)),
        ])
        .root::<Arc<ConfigurationParams>>()
        .root::<LocalNodeStore>()
        .root::<RwTable<Device>>();
        let running = hive::testing::start_with(hive, Settings::new().args(flags.iter().copied())).await;
        let params: Arc<ConfigurationParams> = running.get().unwrap();
        let local: LocalNodeStore = running.get().unwrap();
        let table: RwTable<Device> = running.get().unwrap();
        let mut txn = params.db.write(&[&table]);
        for (index, name, mtu) in [(1, "lo", 1280), (2, "eth0", 9000), (3, "eth1", 1400)] {
            let device = Device {
                index,
                name: name.to_owned(),
                mtu,
                selected: name != "lo",
                ..Device::default()
            };
            table.insert(&mut txn, device).unwrap();
        }
        txn.commit();
        let internal = |text: &&str| (NodeAddressType::InternalIp, text.parse().unwrap());
        local
            .update(|node| node.addresses = addresses.iter().map(internal).collect())
            .unwrap();

        let Json(answer) = config(State((*params).clone())).await;

        hive::testing::stop(running).await;
        serde_json::to_value(answer.status).unwrap()
    }

    #[tokio::test]
    async fn routes_of_pods_leave_room_for_the_tunnel_and_interfaces_do_not() {
        let both = ["192.0.2.1", "2001:db8::1"];
        let tunnel = "--routing-mode=tunnel";
        for (flags, addresses, expected) in [
            (&[][..], &both[..], (1400, 1400)),
            (&[tunnel][..], &both[..], (1400, 1350)),
            (&[tunnel, "--underlay-protocol=ipv6"][..], &both[..], (1400, 1330)),
            (&[tunnel][..], &both[1..], (1400, 1330)),
            (&[tunnel, "--mtu=8000"][..], &both[..], (8000, 7950)),
        ] {
            let answer = answer(flags, addresses).await;
            let found = (&answer["deviceMTU"], &answer["routeMTU"]);
            assert_eq!(found, (&expected.0.into(), &expected.1.into()), "{flags:?}");
        }
    }

    #[tokio::test]
    async fn the_cni_plugin_learns_what_to_set_in_pods() {
        let defaults = answer(&[], &[]).await;
        assert_eq!(defaults["packetizationLayerPMTUDMode"], "blackhole");
        assert_eq!(defaults.get("enableRouteMTUForCNIChaining"), None);

        let flags = [
            "--enable-route-mtu-for-cni-chaining",
            "--packetization-layer-pmtud-mode=unset",
        ];
        let set = answer(&flags, &[]).await;
        assert_eq!(set["enableRouteMTUForCNIChaining"], true);
        assert_eq!(set.get("packetizationLayerPMTUDMode"), None);
    }
}
