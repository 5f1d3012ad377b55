// SPDX-License-Identifier: Apache-2.0

//! Forwardable addresses × selected devices → `desired-neighbors`.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use hive::JobCtx;
use skep_base_net::{NetError, Netlink, Route as FoundRoute, packet::route::RouteType};
use skep_node_local::{Device, Route};
use statedb::{Db, InitGuard, Revision, RwTable, Table, reconciler::Status};
use tokio::time::Instant;

use super::{
    forwardable::ForwardableIp,
    row::{DesiredNeighbor, DesiredNeighborKey},
};

/// Interval of computations without changes.
const RECOMPUTE: Duration = Duration::from_secs(5 * 60);

pub(super) struct Calculator {
    pub(super) db: Db,
    pub(super) interval: Duration,
    pub(super) forwardable: Table<ForwardableIp>,
    pub(super) desired: RwTable<DesiredNeighbor>,
    pub(super) devices: Table<Device>,
    pub(super) routes: Table<Route>,
    pub(super) initializer: InitGuard,
}

/// What the next hops follow from.
#[derive(Debug, Default)]
struct Inputs {
    ips: BTreeSet<IpAddr>,
    devices: Vec<u32>,
    /// Revision of the table.
    routes: Revision,
    /// Time of the last computation for all addresses.
    computed: Option<Instant>,
}

impl Inputs {
    /// The new addresses, if nothing else has changed.
    fn only_added(&self, last: &Self) -> Option<BTreeSet<IpAddr>> {
        let is_recent = last
            .computed
            .is_some_and(|computed| computed.elapsed() < RECOMPUTE);
        let is_same = self.devices == last.devices && self.routes == last.routes;
        (is_recent && is_same && last.ips.is_subset(&self.ips))
            .then(|| self.ips.difference(&last.ips).copied().collect())
    }
}

/// Why the next hops could not be computed. Retried.
#[derive(Debug, thiserror::Error)]
pub(super) enum CalculatorError {
    #[error("cannot look up next hops")]
    Netlink(#[from] NetError),
    #[error(transparent)]
    Table(#[from] statedb::Error),
}

impl Calculator {
    pub(super) async fn run(&self, cx: &JobCtx) -> Result<(), CalculatorError> {
        let mut last = Inputs::default();
        loop {
            let started = Instant::now();
            let snapshot = self.db.read();
            let (has_ips, ips_complete) = self.forwardable.initialized_watch(&snapshot);
            let (has_devices, devices_complete) = self.devices.initialized_watch(&snapshot);
            let ips_changed = self.forwardable.table_watch(&snapshot);
            let routes_changed = self.routes.table_watch(&snapshot);
            let (selected, devices_changed) =
                self.devices.list_watch(&snapshot, Device::BY_SELECTED.key(&true));
            let devices: Vec<u32> = selected
                .filter(|device| !device.hardware_addr.0.is_empty())
                .map(|device| device.index)
                .collect();
            let now = Inputs {
                ips: self.forwardable.all(&snapshot).map(|row| row.ip).collect(),
                devices,
                routes: self.routes.revision(&snapshot),
                computed: Some(started),
            };
            drop(snapshot);
            let is_complete = has_ips && has_devices;
            let added = now.only_added(&last);
            let is_whole = added.is_none();
            let (ips, devices) = (added.unwrap_or_else(|| now.ips.clone()), now.devices.clone());
            let wanted = tokio::task::spawn_blocking(move || compute(&ips, &devices)).await;
            let wanted = wanted.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
            self.write(wanted, is_whole, is_complete)?;
            cx.health.ok(format!("Next hops of {} addresses", now.ips.len()));
            last = Inputs {
                computed: if is_whole { now.computed } else { last.computed },
                ..now
            };
            tokio::select! {
                () = ips_complete.closed(), if !has_ips => {}
                () = devices_complete.closed(), if !has_devices => {}
                () = ips_changed.closed() => {}
                () = routes_changed.closed() => {}
                () = devices_changed.closed() => {}
                () = tokio::time::sleep(RECOMPUTE) => {}
            }
            tokio::time::sleep_until(started + self.interval).await;
        }
    }

    /// Adds rows, with `is_whole` also deletes others. Those that are there keep their status.
    fn write(
        &self,
        mut wanted: BTreeSet<DesiredNeighborKey>,
        is_whole: bool,
        is_complete: bool,
    ) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.desired]);
        let stale: Vec<_> = self
            .desired
            .all(&txn)
            .filter(|row| !wanted.remove(&row.key()) && is_whole)
            .cloned()
            .collect();
        for row in stale {
            self.desired.delete(&mut txn, &row)?;
        }
        for DesiredNeighborKey { link, ip } in wanted {
            let status = Status::pending();
            self.desired
                .insert(&mut txn, DesiredNeighbor { ip, link, status })?;
        }
        if is_complete {
            txn.initialized(&self.initializer)?;
        }
        txn.commit();
        Ok(())
    }
}

/// The next hops of addresses through devices.
fn compute(ips: &BTreeSet<IpAddr>, devices: &[u32]) -> Result<BTreeSet<DesiredNeighborKey>, NetError> {
    let net = Netlink::open()?;
    let mut wanted = BTreeSet::new();
    for device in devices {
        for ip in ips {
            match net.route_through(*ip, *device) {
                Ok(Some(route)) if route.kind == RouteType::Unicast => {
                    let hops = next_hops(&route, *device, *ip);
                    wanted.extend(hops.map(|ip| DesiredNeighborKey { link: *device, ip }));
                }
                // An address of this node, or one that is not to be reached.
                Ok(_) => {}
                // There is no route: the code depends on the family and on rules.
                Err(NetError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(wanted)
}

/// Next hops of a route through a device: gateways, or the address itself.
fn next_hops(route: &FoundRoute, device: u32, ip: IpAddr) -> impl Iterator<Item = IpAddr> {
    let one = route.hops.is_empty().then_some(route.gateway);
    let several = route.hops.iter().filter(move |hop| hop.device == Some(device));
    one.into_iter()
        .chain(several.map(|hop| hop.gateway))
        .map(move |gateway| gateway.unwrap_or(ip))
}
