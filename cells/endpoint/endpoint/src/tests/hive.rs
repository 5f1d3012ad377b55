// SPDX-License-Identifier: Apache-2.0

//! The cell in a hive with fakes.

use std::{net::IpAddr, sync::Arc, time::Duration};

use hive::{Cell, Hive, Running, Settings};
use skep_base_settings::NodeName;
use skep_bpf_maps::{
    endpoint::{LXC, LxcKey, lxc_flags},
    node::IPCACHE,
    text::Text as _,
};
use skep_datapath_hooks::{
    EndpointFlows, EndpointHooks,
    testing::{FakeFlows, FakeHooks},
};
use skep_datapath_maps::Maps;
use skep_identity::NumericIdentity;
use skep_node_local::{LocalNodeStore, NodeAddress};
use statedb::{Db, Obj, RwTable, Table};
use tempfile::TempDir;

use super::world::{FakeInterfaces, FakeRoutes, spec};
use crate::{Endpoint, EndpointRoutes, EndpointSpec, Endpoints, Interfaces};

#[derive(Clone)]
pub(crate) struct Kernel {
    folder: Arc<TempDir>,
    pub(crate) hooks: Arc<FakeHooks>,
    interfaces: Arc<FakeInterfaces>,
    pub(crate) routes: Arc<FakeRoutes>,
}

impl Kernel {
    pub(crate) fn new() -> Self {
        Self {
            folder: Arc::new(tempfile::tempdir().unwrap()),
            hooks: Arc::default(),
            interfaces: Arc::default(),
            routes: Arc::default(),
        }
    }
}

/// A running hive, and what stands for the kernel around it.
pub(crate) struct Bench {
    pub(crate) running: Running,
    pub(crate) hooks: Arc<FakeHooks>,
    flows: Arc<FakeFlows>,
    pub(crate) kernel: Kernel,
}

fn addresses(db: Db) -> Result<(RwTable<NodeAddress>, Table<NodeAddress>), statedb::Error> {
    let table = RwTable::builder("node-addresses")
        .primary(NodeAddress::BY_ID)
        .build(&db)?;
    let reader = table.reader();
    Ok((table, reader))
}

/// Address of an entry of `cilium_lxc`.
pub(crate) fn address(key: &LxcKey) -> String {
    let text = key.text();
    // A port follows that has no meaning.
    text.rsplit_once(":0")
        .map_or(text.as_str(), |(address, _)| address)
        .to_owned()
}

impl Bench {
    pub(crate) async fn start(more: Vec<Cell>) -> Self {
        Self::start_in(Kernel::new(), &[], more).await
    }

    /// A hive whose programs are loaded, and its one endpoint, which is ready.
    async fn with_endpoint(identity: NumericIdentity) -> (Self, Endpoints, Obj<Endpoint>) {
        let bench = Self::start(Vec::new()).await;
        bench.hooks.load();
        let row = bench.create(spec(7), identity).await;
        let endpoints = bench.endpoints();
        (bench, endpoints, row)
    }

    /// Creates an endpoint with its interface, and waits until it is ready.
    pub(crate) async fn create(&self, spec: EndpointSpec, identity: NumericIdentity) -> Obj<Endpoint> {
        self.plug((spec.ifindex - 100) as u8);
        let endpoints = self.endpoints();
        endpoints.restored().await;
        let row = endpoints.create(spec, None, Some(identity)).unwrap();
        endpoints.wait_ready(row.id).await.unwrap()
    }

    /// Deletes an endpoint, and waits until it is gone.
    pub(crate) async fn delete(&self, id: u16) {
        let endpoints = self.endpoints();
        assert!(endpoints.disconnect(id).unwrap());
        endpoints.wait_gone(id).await.unwrap();
    }

    pub(crate) fn errors(&self) -> Vec<String> {
        let entries = self.running.health().entries();
        entries.into_iter().filter_map(|entry| entry.error).collect()
    }

    #[cfg(feature = "api")]
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.kernel.folder.path()
    }

    pub(crate) fn local_node(&self) -> LocalNodeStore {
        self.running.get().unwrap()
    }

    pub(crate) async fn start_in(kernel: Kernel, settings: &[&str], more: Vec<Cell>) -> Self {
        let Kernel {
            folder,
            hooks,
            interfaces,
            routes,
        } = kernel.clone();
        let flows = Arc::new(FakeFlows::default());
        let (of_hooks, of_flows) = (hooks.clone(), flows.clone());
        let fakes = Cell::module("fakes", "What stands for the kernel")
            .provide(addresses)
            .provide(move || -> Arc<dyn EndpointHooks> { of_hooks.clone() })
            .provide(move || -> Arc<dyn EndpointFlows> { of_flows.clone() })
            .provide(move || -> Arc<dyn Interfaces> { interfaces.clone() })
            .provide(move || -> Arc<dyn EndpointRoutes> { routes.clone() })
            .provide(|| NodeName::new("n1"));
        let has_api = !more.is_empty();
        let cells = [
            statedb::cell(),
            skep_base_settings::cell(),
            skep_base_settings::cluster::cell(),
            skep_datapath_maps::in_memory_cell(),
            skep_ipcache::cell(),
            skep_policy_maps::cell(),
            skep_node_local::cells::local_node(),
            crate::cell(),
            fakes,
        ];
        let mut flags = vec![format!("--state-dir={}", folder.path().display())];
        flags.extend(settings.iter().map(ToString::to_string));
        if has_api {
            flags.push(format!(
                "--socket-path={}",
                folder.path().join("agent.sock").display()
            ));
            flags.push("--agent-health-port=0".to_owned());
        }
        let hive = Hive::new(cells.into_iter().chain(more))
            .root::<Endpoints>()
            .root::<Arc<Maps>>()
            .root::<RwTable<NodeAddress>>()
            .root::<LocalNodeStore>()
            .root::<Db>();
        let running = hive::testing::start_with(hive, Settings::new().args(flags)).await;
        Self {
            running,
            hooks,
            flows,
            kernel,
        }
    }

    pub(crate) fn plug(&self, number: u8) {
        self.kernel.interfaces.plug(&self.hooks, number);
    }

    /// Adds an interface.
    #[cfg(feature = "api")]
    pub(crate) fn plug_as(&self, name: &str, index: u32, mac: crate::Mac) {
        self.hooks.add_interface(name);
        self.kernel.interfaces.add(name, index, mac);
    }

    pub(crate) fn endpoints(&self) -> Endpoints {
        self.running.get().unwrap()
    }

    pub(crate) fn lxc(&self) -> Vec<(String, u16, u32)> {
        let maps: Arc<Maps> = self.running.get().unwrap();
        let mut entries: Vec<_> = maps
            .handle(&LXC)
            .entries()
            .unwrap()
            .into_iter()
            .map(|(key, value)| (address(&key), value.endpoint, value.flags))
            .collect();
        entries.sort();
        entries
    }

    /// Addresses that programs leave to the kernel.
    fn hosts(&self) -> Vec<String> {
        let entries = self.lxc().into_iter();
        let hosts = entries.filter(|(_, _, flags)| flags & lxc_flags::HOST != 0);
        hosts.map(|(address, ..)| address).collect()
    }

    fn set_node_addresses(&self, addresses: &[&str]) {
        let table: RwTable<NodeAddress> = self.running.get().unwrap();
        let db: Db = self.running.get().unwrap();
        let mut txn = db.write(&[&table]);
        table.delete_all(&mut txn).unwrap();
        for text in addresses {
            let addr: IpAddr = text.parse().unwrap();
            let row = NodeAddress {
                addr,
                node_port: true,
                primary: true,
                device_name: "eth0".to_owned(),
            };
            table.insert(&mut txn, row).unwrap();
        }
        txn.commit();
    }

    pub(crate) fn identity_of(&self, address: &str) -> Option<u32> {
        let maps: Arc<Maps> = self.running.get().unwrap();
        let prefix: skep_ipcache::Prefix = address.parse().unwrap();
        let value = maps.handle(&IPCACHE).lookup(&prefix.map_key()).unwrap();
        value.map(|value| value.identity)
    }

    pub(crate) async fn until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(10), async {
            while !is_so(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("{what}"));
    }
}

#[tokio::test]
async fn an_endpoint_is_deleted_and_health_reports_that_its_flows_are_not() {
    let (bench, endpoints, row) = Bench::with_endpoint(NumericIdentity::INIT).await;
    bench.flows.fail();

    assert!(endpoints.disconnect(row.id).unwrap());
    endpoints.wait_gone(row.id).await.unwrap();

    let errors = bench.errors();
    assert!(
        errors.iter().any(|error| error.contains("10.0.1.7, fd00::7")),
        "{errors:?}"
    );
}

#[tokio::test]
async fn an_endpoint_is_served_once_programs_are_loaded_and_known_by_its_addresses() {
    let bench = Bench::start(Vec::new()).await;
    bench.plug(7);
    let endpoints = bench.endpoints();
    endpoints.restored().await;
    assert!(endpoints.is_restored());

    let row = endpoints
        .create(spec(7), None, Some(NumericIdentity::INIT))
        .unwrap();
    bench
        .until("the claim", |bench| bench.identity_of("10.0.1.7") == Some(5))
        .await;
    assert!(bench.lxc().is_empty(), "not before there are programs");
    bench.hooks.load();
    endpoints.wait_ready(row.id).await.unwrap();

    assert_eq!(bench.lxc().len(), 2);
    assert!(bench.flows.forgotten().is_empty());
    assert!(endpoints.disconnect(row.id).unwrap());
    endpoints.wait_gone(row.id).await.unwrap();
    let forgotten: Vec<String> = bench.flows.forgotten().iter().map(ToString::to_string).collect();
    assert_eq!(forgotten, ["10.0.1.7", "fd00::7"]);
    bench
        .until("no claim", |bench| bench.identity_of("10.0.1.7").is_none())
        .await;
    assert!(bench.lxc().is_empty());
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn a_restart_keeps_endpoints() {
    let (bench, _, row) = Bench::with_endpoint(NumericIdentity::new(52_310)).await;
    let Bench { running, kernel, .. } = bench;
    hive::testing::stop(running).await;

    let bench = Bench::start_in(kernel, &[], Vec::new()).await;
    let endpoints = bench.endpoints();
    endpoints.restored().await;
    let again = endpoints.wait_ready(row.id).await.unwrap();

    assert_eq!((&again.spec, again.identity), (&row.spec, row.identity));
    bench
        .until("the claim", |bench| bench.identity_of("fd00::7") == Some(52_310))
        .await;
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn the_listener_of_ingresses_has_an_endpoint_at_its_addresses() {
    let bench = Bench::start(Vec::new()).await;
    bench.hooks.load();
    let addresses = ["10.0.1.99", "fd00::99"];

    let of_node = |bench: &Bench, all: &[&str]| {
        let all: Vec<IpAddr> = all.iter().map(|text| text.parse().unwrap()).collect();
        bench.local_node().update(|node| node.ingress = all).unwrap();
    };
    of_node(&bench, &addresses);
    bench.until("entries", |bench| bench.lxc().len() == 2).await;

    let id = bench.lxc()[0].1;
    assert_eq!(
        bench.lxc(),
        addresses.map(|address| (address.to_owned(), id, lxc_flags::AT_HOST_NS))
    );
    bench
        .until("the claim", |bench| bench.identity_of("10.0.1.99") == Some(8))
        .await;
    of_node(&bench, &[]);
    bench.until("no entries", |bench| bench.lxc().is_empty()).await;
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn addresses_of_the_node_are_in_the_map_beside_endpoints() {
    let (bench, ..) = Bench::with_endpoint(NumericIdentity::INIT).await;

    bench.set_node_addresses(&["172.30.1.1", "fd00:30::1", "10.0.1.7"]);
    bench
        .until("addresses", |bench| bench.hosts() == ["172.30.1.1", "fd00:30::1"])
        .await;
    bench.set_node_addresses(&["172.30.1.2"]);
    bench
        .until("another address", |bench| bench.hosts() == ["172.30.1.2"])
        .await;

    assert_eq!(bench.lxc().len(), 3, "the endpoint keeps its addresses");
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn addresses_of_the_node_that_are_lost_are_written_again() {
    let (bench, endpoints, row) = Bench::with_endpoint(NumericIdentity::INIT).await;
    bench.set_node_addresses(&["172.30.1.1", "10.0.1.7"]);
    bench
        .until("the address", |bench| bench.hosts() == ["172.30.1.1"])
        .await;
    tokio::time::pause();

    let maps: Arc<Maps> = bench.running.get().unwrap();
    let key = LxcKey::new("172.30.1.1".parse().unwrap());
    maps.handle(&LXC).delete(&key).unwrap();
    assert!(endpoints.disconnect(row.id).unwrap());
    endpoints.wait_gone(row.id).await.unwrap();
    assert!(bench.lxc().is_empty());
    tokio::time::sleep(Duration::from_secs(61)).await;

    assert_eq!(bench.hosts(), ["10.0.1.7", "172.30.1.1"]);
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn options_are_those_of_the_settings_unless_they_are_kept() {
    let kernel = Kernel::new();
    let flags = ["--monitor-aggregation=medium", "--bpf-events-drop-enabled=false"];
    let bench = Bench::start_in(kernel.clone(), &flags, Vec::new()).await;
    bench.hooks.load();
    let row = bench.create(spec(7), NumericIdentity::HEALTH).await;
    let texts = row.options.texts();
    assert_eq!(
        [&texts["MonitorAggregationLevel"], &texts["DropNotification"]],
        ["Medium", "Disabled"]
    );
    let (debug, on) = ("Debug".to_owned(), "Enabled".to_owned());
    let options = row.options.with([(&debug, &on)]).unwrap();
    let endpoints = bench.endpoints();
    endpoints.set_options(row.id, options).unwrap();
    endpoints.wait_ready(row.id).await.unwrap();
    bench.running.stop().await.unwrap();

    for (flags, expected) in [(&["--keep-config"][..], "Enabled"), (&[], "Disabled")] {
        let bench = Bench::start_in(kernel.clone(), flags, Vec::new()).await;
        bench.hooks.load();
        let endpoints = bench.endpoints();
        endpoints.restored().await;
        let row = endpoints.wait_ready(row.id).await.unwrap();
        assert_eq!(row.options.texts()["Debug"], expected);
        bench.running.stop().await.unwrap();
    }
}
