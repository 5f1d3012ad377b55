// SPDX-License-Identifier: Apache-2.0

//! Kernel → `devices` → `node-addresses`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
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
use crate::selection::{DeviceFilter, Route, select};
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
    pub(crate) source: Arc<dyn DeviceSource>,
    pub(crate) config: hive::Cfg<crate::config::DeviceConfig>,
    pub(crate) local: Option<Table<LocalNode>>,
    pub(crate) client: Option<Arc<dyn Client>>,
}

/// State of one device.
#[derive(Debug, Default)]
struct Known {
    link: Option<Link>,
    addrs: BTreeMap<(IpAddr, IpNet), DeviceAddress>,
    routes: HashSet<Route>,
}

impl Known {
    fn device(&self, filter: &DeviceFilter, node_addrs: &[IpAddr]) -> Option<Device> {
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
        let routes: Vec<Route> = self.routes.iter().copied().collect();
        match select(&device, &routes, filter, node_addrs) {
            Ok(()) => device.selected = true,
            Err(reason) => device.not_selected_reason = reason,
        }
        Some(device)
    }
}

/// Registers the job that keeps `devices`.
pub(crate) fn reflect_devices(params: DeviceParams) -> Result<(), BoxError> {
    let mut txn = params.db.write(&[&params.table]);
    let initializer = params.table.register_initializer(&mut txn, "netlink")?;
    txn.commit();
    let filter = DeviceFilter::new(&params.config.devices, params.config.force_device_detection);
    let devices = Devices {
        db: params.db,
        table: params.table,
        source: params.source,
        local: params.local,
        has_cluster: params.client.is_some_and(|client| client.is_enabled()),
        filter,
        initializer,
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
    source: Arc<dyn DeviceSource>,
    local: Option<Table<LocalNode>>,
    /// The Node of the local node comes from Kubernetes.
    has_cluster: bool,
    filter: DeviceFilter,
    initializer: InitGuard,
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
        let mut known: BTreeMap<u32, Known> = BTreeMap::new();
        let mut touched: BTreeSet<u32> = BTreeSet::new();
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
                touched.extend(known.keys());
            }
            if synced {
                self.commit(&known, &touched, &node_addrs, false)?;
                touched.clear();
                // Before the node's addresses are known, devices are not selected that will be: whoever took this for
                // complete would detach programs from them.
                if has_node && !complete {
                    self.complete()?;
                    complete = true;
                }
                self.report(health, known.len());
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
                        known.clear();
                        synced = false;
                    }
                    Ok(DeviceEvent::Synced) => {
                        synced = true;
                        touched.clear();
                        self.commit(&known, &known.keys().copied().collect(), &node_addrs, true)?;
                    }
                    Ok(event) => touched.extend(apply(&mut known, event)),
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

    /// Writes changed devices; with `whole` also deletes those that the source has not reported.
    fn commit(
        &self,
        known: &BTreeMap<u32, Known>,
        touched: &BTreeSet<u32>,
        node_addrs: &[IpAddr],
        whole: bool,
    ) -> Result<(), statedb::Error> {
        if touched.is_empty() && !whole {
            return Ok(());
        }
        let mut txn = self.db.write(&[&self.table]);
        for index in touched {
            let device = known
                .get(index)
                .and_then(|known| known.device(&self.filter, node_addrs));
            self.put(&mut txn, *index, device)?;
        }
        if whole {
            let gone: Vec<u32> = self
                .table
                .all(&txn)
                .map(|device| device.index)
                .filter(|index| !known.contains_key(index))
                .collect();
            for index in gone {
                self.put(&mut txn, index, None)?;
            }
        }
        txn.commit();
        Ok(())
    }

    fn complete(&self) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        txn.initialized(&self.initializer)?;
        txn.commit();
        Ok(())
    }

    fn put(&self, txn: &mut WriteTxn, index: u32, device: Option<Device>) -> Result<(), statedb::Error> {
        let present = self.table.get(txn, Device::BY_INDEX.key(&index)).cloned();
        match (present, device) {
            (Some(present), Some(device)) if *present == device => {}
            (_, Some(device)) => drop(self.table.insert(txn, device)?),
            (Some(present), None) => drop(self.table.delete(txn, &present)?),
            (None, None) => {}
        }
        Ok(())
    }
}

/// Applies an event; returns the index of its device.
fn apply(known: &mut BTreeMap<u32, Known>, event: DeviceEvent) -> Option<u32> {
    let index = match event {
        DeviceEvent::Restart | DeviceEvent::Synced => return None,
        DeviceEvent::LinkGone(index) => {
            known.remove(&index);
            index
        }
        DeviceEvent::Link(link) => {
            let index = link.index;
            known.entry(index).or_default().link = Some(link);
            index
        }
        DeviceEvent::Address(index, address) => {
            let addrs = &mut known.entry(index).or_default().addrs;
            addrs.insert(address.key(), address.own);
            index
        }
        DeviceEvent::AddressGone(index, address) => {
            if let Some(known) = known.get_mut(&index) {
                known.addrs.remove(&address.key());
            }
            index
        }
        DeviceEvent::Route(index, route) => {
            known.entry(index).or_default().routes.insert(route);
            index
        }
        DeviceEvent::RouteGone(index, route) => {
            if let Some(known) = known.get_mut(&index) {
                known.routes.remove(&route);
            }
            index
        }
    };
    Some(index)
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
