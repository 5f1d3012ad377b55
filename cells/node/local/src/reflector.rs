// SPDX-License-Identifier: Apache-2.0

//! Kernel → `devices`, `routes`, `neighbors` → `node-addresses`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hive::{BoxError, Health, JobCtx, Jobs, Params};
use ipnet::IpNet;
use skep_k8s_client::Client;
use statedb::{Db, InitGuard, RwTable, Table, Watch, WriteTxn};

use crate::address::NodeAddress;
use crate::derive::{AddressRules, device_addresses, fallback_addresses};
use crate::device::{Device, DeviceAddress, DeviceFlags, HardwareAddr};
use crate::local::LocalNode;
use crate::neighbor::{Neighbor, NeighborKey};
use crate::route::{Route, RouteKey};
use crate::selection::{DeviceFilter, Surroundings, select};
use crate::source::{DeviceEvent, DeviceSource, Link, SourceError};

/// Events in one transaction.
const LARGEST_BATCH: usize = 1024;

/// Wait before a failed source is opened again.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Params)]
pub(crate) struct DeviceParams {
    pub(crate) db: Db,
    pub(crate) jobs: Jobs,
    pub(crate) table: RwTable<Device>,
    pub(crate) routes: RwTable<Route>,
    pub(crate) neighbors: RwTable<Neighbor>,
    pub(crate) source: Arc<dyn DeviceSource>,
    pub(crate) config: hive::Cfg<crate::config::DeviceConfig>,
    pub(crate) local: Option<Table<LocalNode>>,
    pub(crate) client: Option<Arc<dyn Client>>,
}

/// A device with its addresses.
#[derive(Debug, Default)]
struct Known {
    link: Option<Link>,
    addrs: BTreeMap<(IpAddr, IpNet), DeviceAddress>,
}

/// What the source has reported, and what of it is not in the tables yet.
#[derive(Debug, Default)]
struct Kernel {
    links: BTreeMap<u32, Known>,
    routes: BTreeMap<RouteKey, Route>,
    neighbors: BTreeMap<NeighborKey, Neighbor>,
    touched: BTreeSet<u32>,
    touched_routes: BTreeSet<RouteKey>,
    touched_neighbors: BTreeSet<NeighborKey>,
}

impl Known {
    fn device(&self, decide: impl FnOnce(&Device) -> Result<(), String>) -> Option<Device> {
        let link = self.link.as_ref()?;
        let mut addrs: Vec<DeviceAddress> = self.addrs.values().copied().collect();
        // Of an address that is there more than once, the best use.
        addrs.sort_by_key(|own| (own.addr, own.state, own.secondary, own.scope));
        addrs.dedup_by_key(|own| own.addr);
        addrs.sort_by_key(|own| (own.secondary, own.scope, own.addr));
        let mut device = Device {
            index: link.index,
            mtu: link.mtu,
            name: link.name.clone(),
            alt_names: link.alt_names.clone(),
            hardware_addr: HardwareAddr(link.hardware_addr.clone()),
            flags: DeviceFlags::from_linux(link.raw_flags),
            addrs,
            raw_flags: link.raw_flags,
            kind: link.kind.clone(),
            master_index: link.master_index,
            oper_status: link.oper_status.to_owned(),
            selected: false,
            not_selected_reason: String::new(),
            vlan: link.vlan,
        };
        match decide(&device) {
            Ok(()) => device.selected = true,
            Err(reason) => device.not_selected_reason = reason,
        }
        Some(device)
    }
}

impl Kernel {
    fn device(
        &self,
        index: u32,
        routes: &[&Route],
        filter: &DeviceFilter,
        node_addrs: &[IpAddr],
    ) -> Option<Device> {
        let decide = |device: &Device| {
            let master = self.links.get(&device.master_index);
            let around = Surroundings {
                routes,
                master_kind: master
                    .and_then(|master| master.link.as_ref())
                    .map(|link| &*link.kind),
                node_addrs,
            };
            select(device, &around, filter)
        };
        self.links.get(&index)?.device(decide)
    }

    fn touch_all(&mut self) {
        self.touched.extend(self.links.keys());
        self.touched_routes.extend(self.routes.keys());
        self.touched_neighbors.extend(self.neighbors.keys());
    }

    fn forget_touched(&mut self) {
        self.touched.clear();
        self.touched_routes.clear();
        self.touched_neighbors.clear();
    }

    fn add_route(&mut self, route: Route) {
        let key = route.key();
        self.touched.extend(route.links());
        self.touched_routes.insert(key);
        self.routes.insert(key, route);
    }

    fn remove_routes(&mut self, is_gone: impl Fn(&Route) -> bool) {
        let (links, keys) = (&mut self.touched, &mut self.touched_routes);
        self.routes.retain(|key, route| {
            let stays = !is_gone(route);
            if !stays {
                links.extend(route.links());
                keys.insert(*key);
            }
            stays
        });
    }

    /// Applies an event; nothing is touched that stays as it was.
    fn apply(&mut self, event: DeviceEvent) {
        match event {
            DeviceEvent::Restart | DeviceEvent::Synced => {}
            DeviceEvent::LinkGone(index) => {
                self.links.remove(&index);
                self.touched.insert(index);
                // The kernel reports only some of what goes with it.
                self.remove_routes(|route| route.link_index == index);
                let keys = &mut self.touched_neighbors;
                self.neighbors.retain(|key, _| {
                    let stays = key.link_index != index;
                    if !stays {
                        keys.insert(*key);
                    }
                    stays
                });
            }
            DeviceEvent::Link(link) => {
                let (index, is_up) = (link.index, link.raw_flags & DeviceFlags::UP != 0);
                let known = self.links.entry(index).or_default();
                let was_up = known
                    .link
                    .as_ref()
                    .is_some_and(|link| link.raw_flags & DeviceFlags::UP != 0);
                let was_master = known.link.as_ref().is_none_or(|known| known.kind != link.kind);
                known.link = Some(link);
                self.touched.insert(index);
                if was_master {
                    let parts = self.links.iter().filter(|(_, known)| {
                        known.link.as_ref().is_some_and(|link| link.master_index == index)
                    });
                    self.touched.extend(parts.map(|(index, _)| *index));
                }
                // The kernel does not report IPv4 routes that go when an interface is set down; those to its own
                // addresses stay.
                if was_up && !is_up {
                    self.remove_routes(|route| {
                        route.link_index == index && route.dst.addr().is_ipv4() && route.scope != HOST_SCOPE
                    });
                }
            }
            DeviceEvent::Address(index, address) => {
                let addrs = &mut self.links.entry(index).or_default().addrs;
                addrs.insert(address.key(), address.own);
                self.touched.insert(index);
            }
            DeviceEvent::AddressGone(index, address) => {
                if let Some(known) = self.links.get_mut(&index) {
                    known.addrs.remove(&address.key());
                }
                self.touched.insert(index);
            }
            DeviceEvent::Route(route) => self.add_route(route),
            DeviceEvent::RouteReplaced(route) => {
                let place = |route: &Route| (route.table, route.dst, route.priority);
                let (new, key) = (place(&route), route.key());
                self.remove_routes(|route| place(route) == new && route.key() != key);
                self.add_route(route);
            }
            DeviceEvent::RouteGone(key) => {
                if let Some(route) = self.routes.remove(&key) {
                    self.touched.extend(route.links());
                    self.touched_routes.insert(key);
                }
            }
            DeviceEvent::Neighbor(neighbor) => {
                let key = neighbor.key();
                self.neighbors.insert(key, neighbor);
                self.touched_neighbors.insert(key);
            }
            DeviceEvent::NeighborGone(key) => {
                self.neighbors.remove(&key);
                self.touched_neighbors.insert(key);
            }
        }
    }
}

/// `RT_SCOPE_HOST`.
const HOST_SCOPE: u8 = 254;

/// Registers the job that keeps `devices`, `routes` and `neighbors`.
pub(crate) fn reflect_devices(params: DeviceParams) -> Result<(), BoxError> {
    let mut txn = params
        .db
        .write(&[&params.table, &params.routes, &params.neighbors]);
    let initializer = params.table.register_initializer(&mut txn, "netlink")?;
    let routes_initializer = params.routes.register_initializer(&mut txn, "netlink")?;
    let neighbors_initializer = params.neighbors.register_initializer(&mut txn, "netlink")?;
    txn.commit();
    let filter = DeviceFilter::new(&params.config.devices, params.config.force_device_detection);
    let devices = Devices {
        db: params.db,
        table: params.table,
        routes: params.routes,
        neighbors: params.neighbors,
        source: params.source,
        local: params.local,
        has_cluster: params.client.is_some_and(|client| client.is_enabled()),
        filter,
        initializer,
        kernel_initializers: [routes_initializer, neighbors_initializer],
    };
    Ok(params.jobs.keep("devices", devices, Devices::run)?)
}

/// Names in `--devices` that no device has. Correct them, or create the devices.
#[derive(Debug, thiserror::Error)]
#[error("no device matches `{0}` of --devices")]
struct NoSuchDevice(String);

struct Devices {
    db: Db,
    table: RwTable<Device>,
    routes: RwTable<Route>,
    neighbors: RwTable<Neighbor>,
    source: Arc<dyn DeviceSource>,
    local: Option<Table<LocalNode>>,
    /// The Node of the local node comes from Kubernetes.
    has_cluster: bool,
    filter: DeviceFilter,
    initializer: InitGuard,
    /// Of routes and neighbours.
    kernel_initializers: [InitGuard; 2],
}

impl Devices {
    async fn run(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        loop {
            let error = self.watch(&cx.health).await?;
            cx.health.degraded("Cannot watch devices", &error);
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Watches the source until it fails.
    async fn watch(&self, health: &Health) -> Result<SourceError, statedb::Error> {
        let mut events = self.source.events().ready_chunks(LARGEST_BATCH);
        let mut kernel = Kernel::default();
        let (mut synced, mut complete) = (false, false);
        let mut node_addrs: Vec<IpAddr> = Vec::new();
        loop {
            let snapshot = self.db.read();
            let node_changed = self.local.as_ref().map(|local| local.table_watch(&snapshot));
            let (has_node, node_complete) = match &self.local {
                Some(local) if self.has_cluster => {
                    let (has_node, completed) = local.initialized_watch(&snapshot);
                    (has_node, (!has_node).then_some(completed))
                }
                _ => (true, None),
            };
            let addrs_now = cluster_addrs(self.local.as_ref(), &snapshot);
            // The node may also have changed while events were handled, when no watch was open.
            if addrs_now != node_addrs {
                node_addrs = addrs_now;
                kernel.touched.extend(kernel.links.keys());
            }
            if synced {
                self.commit(&mut kernel, &node_addrs, false)?;
                // Before the node's addresses are known, devices are not selected that will be: whoever took this for
                // complete would detach programs from them.
                if has_node && !complete {
                    self.complete()?;
                    complete = true;
                }
                self.report(health, kernel.links.len());
            }
            let chunk = tokio::select! {
                biased;
                () = closed(node_changed.as_ref()) => continue,
                () = closed(node_complete.as_ref()) => continue,
                chunk = events.next() => chunk,
            };
            let Some(chunk) = chunk else {
                return Ok(SourceError::Ended);
            };
            for event in chunk {
                match event {
                    Err(error) => return Ok(error),
                    Ok(DeviceEvent::Restart) => {
                        kernel = Kernel::default();
                        synced = false;
                    }
                    Ok(DeviceEvent::Synced) => {
                        synced = true;
                        kernel.touch_all();
                        self.commit(&mut kernel, &node_addrs, true)?;
                    }
                    Ok(event) => kernel.apply(event),
                }
            }
        }
    }

    /// Reports how many devices there are, and names in `--devices` that none has. The agent works with the others, as
    /// Cilium's does: a device may come later.
    fn report(&self, health: &Health, devices: usize) {
        let snapshot = self.db.read();
        let rows: Vec<_> = self.table.all(&snapshot).collect();
        let unmatched = self.filter.unmatched(rows.iter().map(|row| &***row));
        if unmatched.is_empty() {
            health.ok(format!("{devices} devices"));
        } else {
            let error = NoSuchDevice(unmatched.join("`, `"));
            health.degraded(
                format!("{devices} devices, some of --devices are missing"),
                &error,
            );
        }
    }

    /// Writes what has changed; with `whole` also deletes what the source has not reported.
    fn commit(&self, kernel: &mut Kernel, node_addrs: &[IpAddr], whole: bool) -> Result<(), statedb::Error> {
        let is_same = kernel.touched.is_empty()
            && kernel.touched_routes.is_empty()
            && kernel.touched_neighbors.is_empty();
        if is_same && !whole {
            return Ok(());
        }
        let mut txn = self.db.write(&[&self.table, &self.routes, &self.neighbors]);
        if whole {
            let routes = self.routes.all(&txn).map(|route| route.key());
            kernel.touched_routes.extend(routes);
            let neighbors = self.neighbors.all(&txn).map(|neighbor| neighbor.key());
            kernel.touched_neighbors.extend(neighbors);
            kernel
                .touched
                .extend(self.table.all(&txn).map(|device| device.index));
            for initializer in &self.kernel_initializers {
                txn.initialized(initializer)?;
            }
        }
        for key in &kernel.touched_routes {
            let query = Route::BY_ID.key(key);
            write(&self.routes, &mut txn, query, kernel.routes.get(key).cloned())?;
        }
        for key in &kernel.touched_neighbors {
            let query = Neighbor::BY_ID.key(key);
            write(
                &self.neighbors,
                &mut txn,
                query,
                kernel.neighbors.get(key).cloned(),
            )?;
        }
        for index in &kernel.touched {
            let routes: Vec<_> = self
                .routes
                .list(&txn, Route::BY_LINK.key(index))
                .cloned()
                .collect();
            let routes: Vec<&Route> = routes.iter().map(|route| &**route).collect();
            let device = kernel.device(*index, &routes, &self.filter, node_addrs);
            write(&self.table, &mut txn, Device::BY_INDEX.key(index), device)?;
        }
        kernel.forget_touched();
        txn.commit();
        Ok(())
    }

    fn complete(&self) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        txn.initialized(&self.initializer)?;
        txn.commit();
        Ok(())
    }
}

/// Replaces the row of a key, if it differs.
fn write<T: PartialEq + Send + Sync + 'static>(
    table: &RwTable<T>,
    txn: &mut WriteTxn,
    key: statedb::Query<T>,
    row: Option<T>,
) -> Result<(), statedb::Error> {
    let present = table.get(txn, key).cloned();
    match (present, row) {
        (Some(present), Some(row)) if *present == row => {}
        (_, Some(row)) => drop(table.insert(txn, row)?),
        (Some(present), None) => drop(table.delete(txn, &present)?),
        (None, None) => {}
    }
    Ok(())
}

/// Returns when a watch is closed; never without one.
async fn closed(watch: Option<&Watch>) {
    match watch {
        Some(watch) => watch.closed().await,
        None => std::future::pending().await,
    }
}

/// Addresses by which the cluster knows the node.
fn cluster_addrs(local: Option<&Table<LocalNode>>, snapshot: &statedb::Snapshot) -> Vec<IpAddr> {
    let nodes = local.into_iter().flat_map(|local| local.all(snapshot));
    nodes
        .flat_map(|node| node.cluster_addrs().collect::<Vec<_>>())
        .collect()
}

#[derive(Params)]
pub(crate) struct AddressParams {
    pub(crate) db: Db,
    pub(crate) jobs: Jobs,
    pub(crate) table: RwTable<NodeAddress>,
    pub(crate) devices: Table<Device>,
    pub(crate) config: hive::Cfg<crate::config::AddressConfig>,
    pub(crate) local: Option<Table<LocalNode>>,
}

/// Registers the job that keeps `node-addresses`.
pub(crate) fn reflect_addresses(params: AddressParams) -> Result<(), BoxError> {
    let mut txn = params.db.write(&[&params.table]);
    let initializer = params.table.register_initializer(&mut txn, "devices")?;
    txn.commit();
    let work = Arc::new(Addresses {
        node_ports: params.config.node_port_networks(),
        excluded: params.config.excluded_networks(),
        db: params.db,
        table: params.table,
        devices: params.devices,
        local: params.local,
        initializer,
    });
    Ok(params.jobs.keep("node-address-update", work, Addresses::run)?)
}

struct Addresses {
    db: Db,
    table: RwTable<NodeAddress>,
    devices: Table<Device>,
    local: Option<Table<LocalNode>>,
    node_ports: Vec<IpNet>,
    excluded: Vec<IpNet>,
    initializer: InitGuard,
}

impl Addresses {
    async fn run(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        loop {
            let snapshot = self.db.read();
            let (complete, complete_changed) = self.devices.initialized_watch(&snapshot);
            let devices_changed = self.devices.table_watch(&snapshot);
            let node_changed = self.local.as_ref().map(|local| local.table_watch(&snapshot));
            let rules = AddressRules {
                node_port_networks: self.node_ports.clone(),
                excluded: self.excluded.clone(),
                node_addrs: cluster_addrs(self.local.as_ref(), &snapshot),
                ipv4: true,
                ipv6: true,
            };
            let mut wanted: Vec<NodeAddress> = self
                .devices
                .all(&snapshot)
                .flat_map(|device| device_addresses(device, &rules))
                .collect();
            wanted.extend(fallback_addresses(
                self.devices.all(&snapshot).map(|device| &**device),
                &rules,
            ));
            let total = wanted.len();
            self.replace(wanted, complete)?;
            cx.health.ok(format!("{total} addresses"));
            tokio::select! {
                () = complete_changed.closed(), if !complete => {}
                () = devices_changed.closed() => {}
                () = closed(node_changed.as_ref()) => {}
            }
        }
    }

    /// Replaces the rows of the table, writing only what differs.
    fn replace(&self, wanted: Vec<NodeAddress>, complete: bool) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        let mut stale: Vec<NodeAddress> = self.table.all(&txn).map(|row| (**row).clone()).collect();
        for row in wanted {
            let identity =
                |other: &NodeAddress| other.addr == row.addr && other.device_name == row.device_name;
            let same = stale.contains(&row);
            stale.retain(|other| !identity(other));
            if !same {
                self.table.insert(&mut txn, row)?;
            }
        }
        for row in stale {
            self.table.delete(&mut txn, &row)?;
        }
        if complete {
            txn.initialized(&self.initializer)?;
        }
        txn.commit();
        Ok(())
    }
}
