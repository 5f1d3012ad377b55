// SPDX-License-Identifier: Apache-2.0

//! A node without a kernel: maps in memory, hooks and interfaces that a test adds and removes.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use skep_base_net::NetError;
use skep_bpf_maps::{
    MapSizes,
    endpoint::{LXC, LxcKey, endpoint_flags},
};
use skep_bpf_sys::{
    MemoryMap, RawSpec,
    map::{Fate, FaultyMap},
};
use skep_datapath_hooks::{EndpointHooks, HookError, testing::FakeHooks};
use skep_datapath_maps::Maps;
use skep_identity::NumericIdentity;
use skep_policy_maps::{AllowAll, MapStates, PolicyMaps};
use statedb::{
    Db, Obj, RwTable,
    reconciler::{Config, NoHealth, Reconciler, Status},
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::{
    Endpoint, EndpointMaps, EndpointOps, EndpointRoutes, EndpointRouting, EndpointSpec, Endpoints,
    Interfaces, Mac, StateDir, endpoint, policies, reconciler, restore::Restore, state_dir::StateError,
};

#[derive(Debug, Default)]
pub(crate) struct FakeInterfaces(Mutex<BTreeMap<String, (u32, Mac)>>);

impl Interfaces for FakeInterfaces {
    fn index(&self, name: &str) -> io::Result<Option<u32>> {
        Ok(self.0.lock().get(name).map(|(index, _)| *index))
    }

    fn find(&self, name: &str) -> Result<Option<(u32, Mac)>, NetError> {
        Ok(self.0.lock().get(name).copied())
    }
}

impl FakeInterfaces {
    /// Adds the interface `lxc<n>`, with index 100 + n.
    pub(super) fn plug(&self, hooks: &FakeHooks, number: u8) {
        let name = format!("lxc{number}");
        hooks.add_interface(&name);
        self.add(&name, 100 + u32::from(number), Mac::default());
    }

    pub(crate) fn add(&self, name: &str, index: u32, mac: Mac) {
        self.0.lock().insert(name.to_owned(), (index, mac));
    }
}

/// How many more writes reach maps and hooks; all others fail, and with them what would follow, as if the agent had ended.
#[derive(Debug)]
pub(super) struct Budget(AtomicUsize);

impl Budget {
    fn take(&self) -> bool {
        let taken = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        taken.is_ok()
    }

    pub(super) fn set(&self, writes: usize) {
        self.0.store(writes, Ordering::SeqCst);
    }
}

/// Hooks whose writes take from the budget.
#[derive(Debug)]
struct CountedHooks(Arc<FakeHooks>, Arc<Budget>);

impl EndpointHooks for CountedHooks {
    fn attach(&self, endpoint: u16, interface: &str) -> Result<(), HookError> {
        match self.1.take() {
            true => self.0.attach(endpoint, interface),
            false => Err(HookError::NotLoaded { endpoint }),
        }
    }

    fn attach_egress(&self, endpoint: u16, interface: &str) -> Result<(), HookError> {
        match self.1.take() {
            true => self.0.attach_egress(endpoint, interface),
            false => Err(HookError::NotLoaded { endpoint }),
        }
    }

    fn detach_egress(&self, endpoint: u16, interface: &str) -> Result<(), HookError> {
        match !self.0.attached_egress().contains_key(&endpoint) || self.1.take() {
            true => self.0.detach_egress(endpoint, interface),
            false => Err(HookError::NotLoaded { endpoint }),
        }
    }

    fn detach(&self, endpoint: u16) -> Result<(), HookError> {
        match self.1.take() {
            true => self.0.detach(endpoint),
            false => Err(HookError::NotLoaded { endpoint }),
        }
    }

    fn loaded(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.0.loaded()
    }
}

/// Routes by the index of the interface, and unreachable ones.
#[derive(Debug, Default)]
pub(crate) struct FakeRoutes {
    by_interface: Mutex<BTreeMap<u32, BTreeSet<IpAddr>>>,
    unreachable: Mutex<BTreeSet<IpAddr>>,
    /// How often agents asked for routes of an interface.
    asks: AtomicUsize,
    /// No unreachable route can be added or removed.
    pub(super) is_refusing: AtomicBool,
}

impl FakeRoutes {
    pub(super) fn unreachable_addresses(&self) -> Vec<String> {
        let addresses = self.unreachable.lock();
        addresses.iter().map(ToString::to_string).collect()
    }

    fn error(&self) -> Option<io::Error> {
        let refuses = self.is_refusing.load(Ordering::SeqCst);
        refuses.then(|| io::Error::from(io::ErrorKind::PermissionDenied))
    }

    /// Addresses that are routed to the interface of this index.
    pub(super) fn to(&self, ifindex: u32) -> Vec<String> {
        let routes = self.by_interface.lock();
        let found = routes.get(&ifindex).into_iter().flatten();
        found.map(ToString::to_string).collect()
    }

    /// How often agents asked for routes.
    pub(super) fn asked(&self) -> usize {
        self.asks.load(Ordering::SeqCst)
    }
}

impl EndpointRoutes for FakeRoutes {
    fn set(&self, ifindex: u32, addresses: &[IpAddr]) -> Result<(), NetError> {
        let mut routes = self.by_interface.lock();
        match addresses {
            [] => routes.remove(&ifindex),
            addresses => routes.insert(ifindex, addresses.iter().copied().collect()),
        };
        Ok(())
    }

    fn add_unreachable(&self, address: IpAddr) -> Result<(), NetError> {
        match self.error() {
            Some(source) => Err(NetError::refused(format!("add the route to {address}"), source)),
            None => {
                self.unreachable.lock().insert(address);
                Ok(())
            }
        }
    }

    fn remove_unreachable(&self, address: IpAddr) -> Result<(), NetError> {
        match self.error() {
            Some(source) => Err(NetError::refused(
                format!("delete the route to {address}"),
                source,
            )),
            None => {
                self.unreachable.lock().remove(&address);
                Ok(())
            }
        }
    }

    fn unreachable(&self) -> Result<BTreeSet<IpAddr>, NetError> {
        Ok(self.unreachable.lock().clone())
    }
}

/// Routes whose changes take from the budget.
#[derive(Debug)]
struct CountedRoutes(Arc<FakeRoutes>, Arc<Budget>);

impl EndpointRoutes for CountedRoutes {
    fn set(&self, ifindex: u32, addresses: &[IpAddr]) -> Result<(), NetError> {
        self.0.asks.fetch_add(1, Ordering::SeqCst);
        let wanted: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        if self.0.to(ifindex) == wanted || self.1.take() {
            return self.0.set(ifindex, addresses);
        }
        Err(NetError::refused(
            "list routes",
            io::Error::other("the agent has ended"),
        ))
    }

    fn add_unreachable(&self, address: IpAddr) -> Result<(), NetError> {
        self.0.add_unreachable(address)
    }

    fn remove_unreachable(&self, address: IpAddr) -> Result<(), NetError> {
        self.0.remove_unreachable(address)
    }

    fn unreachable(&self) -> Result<BTreeSet<IpAddr>, NetError> {
        self.0.unreachable()
    }
}

/// What outlives the agent: files, maps, hooks, interfaces, routes.
pub(super) struct World {
    pub(super) folder: TempDir,
    pub(super) maps: Arc<EndpointMaps>,
    pub(super) all_maps: Arc<Maps>,
    pub(super) source: Arc<dyn MapStates>,
    pub(super) hooks: Arc<FakeHooks>,
    pub(super) interfaces: Arc<FakeInterfaces>,
    pub(super) routes: Arc<FakeRoutes>,
    pub(super) budget: Arc<Budget>,
    pub(super) routing: EndpointRouting,
}

/// `enable-endpoint-routes`
pub(super) const ENDPOINT_ROUTES: EndpointRouting = EndpointRouting {
    endpoint_routes: true,
    external: false,
    unreachable: false,
};

impl World {
    pub(super) fn new() -> Self {
        Self::with_room(u32::MAX)
    }

    /// A node whose `cilium_lxc` has room for so many entries.
    pub(super) fn with_room(lxc: u32) -> Self {
        let budget = Arc::new(Budget(AtomicUsize::new(usize::MAX)));
        let of_lxc = *LXC.spec(&MapSizes::default()).raw();
        let room = RawSpec {
            max_entries: of_lxc.max_entries.min(lxc),
            ..of_lxc
        };
        let counted = budget.clone();
        let maps = Maps::wrapped([], move |name, map| {
            let map = match name == LXC.name {
                true => Arc::new(MemoryMap::create(&room).unwrap()),
                false => map,
            };
            let budget = counted.clone();
            Arc::new(FaultyMap::decided_by(map, move |_, _| match budget.take() {
                true => Fate::Passes,
                false => Fate::Fails,
            }))
        });
        let maps = Arc::new(maps.unwrap());
        let hooks = Arc::new(FakeHooks::default());
        hooks.load();
        Self {
            folder: tempfile::tempdir().unwrap(),
            maps: Arc::new(EndpointMaps::new(&maps)),
            all_maps: maps,
            source: Arc::new(AllowAll::default()),
            hooks,
            interfaces: Arc::default(),
            routes: Arc::default(),
            budget,
            routing: EndpointRouting::default(),
        }
    }

    /// A node whose endpoints have routes of their own.
    pub(super) fn with_endpoint_routes() -> Self {
        Self {
            routing: ENDPOINT_ROUTES,
            ..Self::new()
        }
    }

    pub(super) fn files(&self) -> StateDir {
        StateDir::new(self.folder.path())
    }

    /// Adds the interface `lxc<n>`, with index 100 + n.
    pub(super) fn plug(&self, number: u8) {
        self.interfaces.plug(&self.hooks, number);
    }

    /// Removes the interface `lxc<n>`.
    pub(super) fn unplug(&self, number: u8) {
        let name = format!("lxc{number}");
        self.hooks.remove_interface(&name);
        if let Some((index, _)) = self.interfaces.0.lock().remove(&name) {
            self.routes.by_interface.lock().remove(&index);
        }
    }

    pub(super) fn hooks(&self) -> Arc<dyn EndpointHooks> {
        Arc::new(CountedHooks(self.hooks.clone(), self.budget.clone()))
    }

    /// Starts an agent: its table, its reconciler; endpoints are not restored yet.
    pub(super) fn boot(&self) -> Agent {
        let db = Db::new();
        let table: RwTable<Endpoint> = endpoint::new_table(db.clone()).unwrap();
        let timing = |config| Config {
            retry_min: Duration::from_millis(5),
            retry_max: Duration::from_millis(20),
            ..config
        };
        let source = self.source.clone();
        let settings = <skep_policy_maps::Config as hive::Config>::defaults().unwrap();
        let (policies, of_policies) =
            PolicyMaps::new(db.clone(), &self.all_maps, source, &settings, timing).unwrap();
        let endpoints = Endpoints::new(db.clone(), table.clone(), self.files(), policies.clone());
        let guard = Arc::new(endpoints.await_restore().unwrap());
        let routes = Arc::new(CountedRoutes(self.routes.clone(), self.budget.clone()));
        let ops = EndpointOps::new(
            self.maps.clone(),
            policies.clone(),
            self.hooks(),
            self.files(),
            self.interfaces.clone(),
            self.routing,
            routes,
        );
        let config = timing(reconciler::config());
        let reconciler = Arc::new(Reconciler::new(&db, table.clone(), Endpoint::STATUS, ops, config));
        let handle = reconciler.handle();
        let stop = CancellationToken::new();
        let token = stop.clone();
        let followed = endpoints.clone();
        let running = tokio::spawn(async move {
            let follow = async {
                let changes = followed.policies().table().follow(followed.db());
                policies::take_over(&followed, changes).await.unwrap();
            };
            let run = async {
                let of_policies = of_policies.run(&token, &NoHealth);
                tokio::join!(reconciler.run(&token, &NoHealth), of_policies);
            };
            tokio::select! {
                () = run => {}
                () = follow => {}
            }
        });
        let restore = Restore {
            endpoints: endpoints.clone(),
            files: self.files(),
            interfaces: self.interfaces.clone(),
            guard,
        };
        Agent {
            endpoints,
            policies,
            table,
            restore,
            handle,
            stop,
            running,
        }
    }

    /// Starts an agent, and restores the endpoints of the run before.
    pub(super) fn start(&self) -> Agent {
        let agent = self.boot();
        assert!(agent.restore().is_empty());
        agent
    }

    /// Addresses in `cilium_lxc`, with the endpoint that each leads to.
    pub(super) fn delivered(&self) -> BTreeMap<String, u16> {
        let entries = self.maps.lxc.entries().unwrap();
        entries
            .iter()
            .map(|(key, value)| (super::hive::address(key), value.endpoint))
            .collect()
    }

    /// Fails if programs follow what is not there: whoever is delivered to has a hook, facts and a policy; whoever has a
    /// hook has facts and a policy; whoever the kernel routes to has the program for it, and programs know that.
    #[track_caller]
    pub(super) fn assert_nothing_dangles(&self) {
        let entries = self.maps.facts.entries().unwrap();
        let facts: Vec<u16> = entries.iter().map(|(_, value)| value.id).collect();
        let has_flag = |flags: u8| flags & endpoint_flags::EGRESS_PROGRAM != 0;
        let delivered: BTreeSet<u16> = self.delivered().into_values().collect();
        for (_, value) in entries.iter().filter(|(_, value)| has_flag(value.flags)) {
            // The flag is read when something is delivered.
            let is_there = self.hooks.attached_egress().contains_key(&value.id);
            assert!(
                is_there || !delivered.contains(&value.id),
                "{}: no program",
                value.id
            );
        }
        for ifindex in self.routes.by_interface.lock().keys() {
            let there = entries.iter().find(|(index, _)| index == ifindex);
            assert!(
                there.is_some_and(|(_, value)| has_flag(value.flags)),
                "interface {ifindex}: a route, and no program"
            );
        }
        let policies = self.maps.policies.instances().unwrap();
        for (address, id) in self.delivered() {
            assert!(self.hooks.attached().contains_key(&id), "{address}: no hook");
        }
        for id in self.hooks.attached().keys() {
            assert!(facts.contains(id), "endpoint {id}: no facts");
            assert!(policies.contains(id), "endpoint {id}: no policy");
        }
    }

    /// Fails if anything is left of any endpoint.
    #[track_caller]
    pub(super) fn assert_empty(&self) {
        assert_eq!(self.delivered(), BTreeMap::new());
        assert!(self.hooks.attached().is_empty() && self.hooks.attached_egress().is_empty());
        assert!(self.routes.by_interface.lock().is_empty());
        assert!(self.maps.facts.entries().unwrap().is_empty());
        assert!(self.maps.policies.instances().unwrap().is_empty());
        assert_eq!(self.files().ids().unwrap(), [0; 0]);
    }

    #[track_caller]
    pub(super) fn is_delivered(&self, address: &str) -> Option<u16> {
        let address: IpAddr = address.parse().unwrap();
        let value = self.maps.lxc.lookup(&LxcKey::new(address)).unwrap();
        value.map(|value| value.endpoint)
    }
}

/// The endpoint at `lxc<n>`.
pub(crate) fn spec(number: u8) -> EndpointSpec {
    EndpointSpec {
        container_id: format!("container{number}"),
        container_interface: "eth0".to_owned(),
        interface: format!("lxc{number}"),
        ifindex: 100 + u32::from(number),
        ipv4: Some([10, 0, 1, number].into()),
        ipv6: Some(format!("fd00::{number}").parse().unwrap()),
        mac: Mac([2, 0, 0, 0, 0, number]),
        host_mac: Mac([2, 0, 0, 0, 1, number]),
        namespace: "shop".to_owned(),
        pod: format!("cart-{number}"),
        labels: "k8s:app=cart;".parse().unwrap(),
        ..EndpointSpec::default()
    }
}

pub(super) struct Agent {
    pub(super) endpoints: Endpoints,
    pub(super) policies: PolicyMaps,
    table: RwTable<Endpoint>,
    restore: Restore,
    pub(super) handle: statedb::reconciler::ReconcilerHandle,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

impl Agent {
    /// Restores endpoints; returns what is wrong with files.
    #[track_caller]
    pub(super) fn restore(&self) -> Vec<StateError> {
        self.restore.restore().unwrap().1
    }

    /// Creates the endpoint at `lxc<n>`.
    #[track_caller]
    pub(super) fn create(&self, number: u8) -> u16 {
        let created = self
            .endpoints
            .create(spec(number), None, Some(NumericIdentity::INIT));
        created.unwrap().id
    }

    /// Creates the endpoint at `lxc<n>`, and waits until it is ready.
    pub(super) async fn ready(&self, number: u8) -> Obj<Endpoint> {
        let id = self.create(number);
        self.endpoints.wait_ready(id).await.unwrap()
    }

    /// Deletes an endpoint, and waits until nothing of it is left.
    pub(super) async fn delete(&self, id: u16) {
        assert!(self.endpoints.disconnect(id).unwrap());
        self.settle().await;
        self.remove_disconnected().await;
        self.endpoints.wait_gone(id).await.unwrap();
    }

    /// Removes endpoints of which nothing else is left.
    pub(super) async fn remove_disconnected(&self) {
        let gone = self.endpoints.disconnected();
        self.policies
            .release(gone.iter().map(|row| row.id))
            .await
            .unwrap();
        self.endpoints.remove(&gone).unwrap();
    }

    /// Waits until what no endpoint stands for is removed.
    pub(super) async fn prune(&self) {
        self.handle.prune_and_wait().await.unwrap();
        self.policies.reconciler().prune_and_wait().await.unwrap();
    }

    /// Waits until all changes so far were tried.
    pub(super) async fn settle(&self) {
        let policies = self.policies.table();
        let revision = policies.revision(&self.endpoints.db().read());
        policies.wait_until_reconciled(revision).await;
        let snapshot = self.endpoints.db().read();
        self.endpoints
            .set_policies(policies.all(&snapshot).cloned())
            .unwrap();
        let revision = self.endpoints.table().revision(&self.endpoints.db().read());
        self.handle.wait_until_reconciled(revision).await;
    }

    /// An endpoint is due to be applied again.
    pub(super) fn refresh(&self, id: u16) {
        let mut row = (*self.get(id).unwrap()).clone();
        row.status = Status::refreshing_at(row.status.updated_at);
        let mut txn = self.endpoints.db().write(&[&self.table]);
        self.table.insert(&mut txn, row).unwrap();
        txn.commit();
    }

    pub(super) fn get(&self, id: u16) -> Option<Obj<Endpoint>> {
        self.endpoints.get(&self.endpoints.db().read(), id)
    }

    pub(super) async fn end(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}
