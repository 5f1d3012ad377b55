// SPDX-License-Identifier: Apache-2.0

//! The cells of endpoints on a node, with programs that are attached by links, as the agent does it.

use std::{
    collections::BTreeMap,
    future::Future,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use hive::{Cell, Cfg, Hive, Running, Settings};
use parking_lot::Mutex;
use skep_base_settings::AttachConfig;
use skep_bpf_maps::policy::{POLICY_STATS, PolicyStats};
use skep_bpf_programs::{NodeOptions, PacketOptions, Packets};
use skep_bpf_sys::{
    MapStore,
    link::{self, InterfaceHook, InterfaceLinks, LinkError},
    map::cpu_values,
    testing::Node,
};
use skep_datapath_hooks::{EndpointHooks, HookError};
use skep_datapath_maps::Maps;
use skep_endpoint::{EndpointSpec, Endpoints, Identifier};
use skep_identity::NumericIdentity;
use skep_node_local::NodeAddress;
use statedb::{Db, RwTable, Table};

use super::node::Outcome;

const FROM_CONTAINER: &str = "cil_from_container";
const TO_CONTAINER: &str = "cil_to_container";
/// How long the kernel took for links, of all tests of this process.
pub(super) static ATTACHED: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

struct RealHooks {
    store: Arc<MapStore>,
    maps: Arc<Maps>,
    legacy_routing: bool,
    programs: OnceLock<Packets>,
}

impl RealHooks {
    fn programs(&self) -> &Packets {
        self.programs.get_or_init(|| {
            let options = NodeOptions {
                packets: PacketOptions {
                    router6: "fd00::1".parse().unwrap(),
                    legacy_routing: self.legacy_routing,
                    ..PacketOptions::default()
                },
                ..NodeOptions::default()
            };
            Packets::load(&self.store, self.maps.sizes(), &options).unwrap()
        })
    }

    fn links(&self, endpoint: u16) -> PathBuf {
        let folder = format!("cilium/endpoints/{endpoint}/links");
        self.store.root().join(folder)
    }

    fn link(&self, endpoint: u16, interface: &str, name: &str, hook: InterfaceHook) -> Result<(), HookError> {
        let program = self.programs().program(name).unwrap();
        let attached = InterfaceLinks::new(&self.links(endpoint), interface)
            .and_then(|links| links.attach(name, program, hook));
        let failed = |source: LinkError| HookError::Attach {
            endpoint,
            interface: interface.to_owned(),
            source,
        };
        attached.map(drop).map_err(failed)
    }

    fn unlink(&self, endpoint: u16, name: &str) -> Result<(), HookError> {
        let detached = link::detach(&self.links(endpoint), name);
        detached
            .map(drop)
            .map_err(|source| HookError::Detach { endpoint, source })
    }
}

impl std::fmt::Debug for RealHooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RealHooks").finish_non_exhaustive()
    }
}

impl EndpointHooks for RealHooks {
    fn attach(&self, endpoint: u16, interface: &str) -> Result<(), HookError> {
        let begun = Instant::now();
        let attached = self.link(endpoint, interface, FROM_CONTAINER, InterfaceHook::Ingress);
        ATTACHED.lock().push(begun.elapsed());
        attached
    }

    fn attach_egress(&self, endpoint: u16, interface: &str) -> Result<(), HookError> {
        self.link(endpoint, interface, TO_CONTAINER, InterfaceHook::Egress)
    }

    fn detach_egress(&self, endpoint: u16, _: &str) -> Result<(), HookError> {
        self.unlink(endpoint, TO_CONTAINER)
    }

    fn detach(&self, endpoint: u16) -> Result<(), HookError> {
        self.unlink(endpoint, TO_CONTAINER)?;
        self.unlink(endpoint, FROM_CONTAINER)
    }

    fn loaded(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            self.programs();
        })
    }
}

fn hooks(store: Arc<MapStore>, maps: Arc<Maps>, config: Cfg<AttachConfig>) -> Arc<dyn EndpointHooks> {
    Arc::new(RealHooks {
        store,
        maps,
        legacy_routing: config.enable_host_legacy_routing,
        programs: OnceLock::new(),
    })
}

fn addresses(db: Db) -> Result<Table<NodeAddress>, statedb::Error> {
    let table: RwTable<NodeAddress> = RwTable::builder("node-addresses")
        .primary(NodeAddress::BY_ID)
        .build(&db)?;
    Ok(table.reader())
}

pub(super) struct Agent {
    running: Running,
    endpoints: Endpoints,
    maps: Arc<Maps>,
}

/// Starts the agent of a node.
pub(super) async fn start(node: &Node) -> Outcome<Agent> {
    start_with(node, &[]).await
}

/// As [`start`], with these settings.
pub(super) async fn start_with(node: &Node, settings: &[&str]) -> Outcome<Agent> {
    let cells = [
        statedb::cell(),
        skep_base_settings::cell(),
        skep_base_settings::cluster::cell(),
        skep_datapath_maps::cell(),
        skep_ipcache::cell(),
        skep_policy_maps::cell(),
        skep_endpoint::cell(),
        Cell::module("test-node", "This node")
            .provide(addresses)
            .provide(hooks),
    ];
    let mut flags = vec![
        format!("--state-dir={}", node.directory().display()),
        format!("--bpf-root={}", node.bpf_root().display()),
    ];
    flags.extend(settings.iter().map(ToString::to_string));
    let settings = Settings::new().args(flags);
    let hive = Hive::new(cells).root::<Endpoints>().root::<Arc<Maps>>();
    let running = hive::testing::start_with(hive, settings).await;
    let endpoints: Endpoints = running.get().unwrap();
    endpoints.restored().await;
    Ok(Agent {
        maps: running.get().unwrap(),
        endpoints,
        running,
    })
}

impl Agent {
    pub(super) async fn create(&self, spec: &EndpointSpec) -> Outcome<u16> {
        let row = self
            .endpoints
            .create(spec.clone(), None, Some(NumericIdentity::INIT))?;
        Ok(self.endpoints.wait_ready(row.id).await?.id)
    }

    pub(super) async fn ready(&self, spec: &EndpointSpec) -> Outcome {
        self.endpoints.wait_ready(self.id_of(spec)).await?;
        Ok(())
    }

    pub(super) async fn delete(&self, spec: &EndpointSpec) -> Outcome {
        let id = self.id_of(spec);
        self.endpoints.disconnect(id)?;
        Ok(self.endpoints.wait_gone(id).await?)
    }

    #[track_caller]
    pub(super) fn id_of(&self, spec: &EndpointSpec) -> u16 {
        let name = Identifier::Container(spec.container_id.clone());
        let found = self.endpoints.find(&self.endpoints.db().read(), &name);
        found[0].id
    }

    pub(super) fn pinned(&self) -> Vec<u16> {
        let pins = self.maps.store().unwrap().pins("cilium_policy_v2_").unwrap();
        let ids = pins
            .iter()
            .filter_map(|name| name.rsplit('_').next()?.parse().ok());
        ids.collect()
    }

    /// Packets that policies have let pass, by endpoint and direction.
    pub(super) fn counted(&self) -> BTreeMap<(u16, u8), u64> {
        let store = self.maps.store().unwrap();
        let map = store.open_raw(POLICY_STATS.name).unwrap();
        let dump = POLICY_STATS.dump(&map).unwrap();
        let entries = dump.iter().map(|(key, value)| {
            let endpoint = u16::from_ne_bytes([key[0], key[1]]);
            let total = PolicyStats::total(cpu_values(value));
            ((endpoint, key[8] & 1), total.packets)
        });
        entries.collect()
    }

    pub(super) async fn stop(self) -> Outcome {
        hive::testing::stop(self.running).await;
        Ok(())
    }
}
