// SPDX-License-Identifier: Apache-2.0

//! Table `desired-routes` → routes.

use std::collections::HashSet;

use hive::{Cfg, Jobs, SpawnError};
use skep_base_net::{NetError, Netlink, RouteFilter, packet::route::RouteProtocol};
use skep_base_settings::StateConfig;
use statedb::{
    Db, Obj, Revision, RwTable, Table,
    reconciler::{Config, Ops, Reconciler, Round},
    row::BoxError,
};

use super::{
    refresher::Refresher,
    row::{DesiredRoute, Place, TablePrefix, kernel_priority},
};
use crate::{causes::WithCauses, devices::PRUNE_INTERVAL, wal::Wal};

/// Name of the log.
const LOG: &str = "route-reconciler.wal";

/// Registers the reconciler, and the job that repairs routes.
pub(crate) fn start(
    db: Db,
    table: RwTable<DesiredRoute>,
    kernel: Table<skep_node_local::Route>,
    state: Cfg<StateConfig>,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    let ops = RouteOps {
        table: table.reader(),
        log: Wal::new(state.directory().join(LOG)),
    };
    let config = Config {
        prune_interval: Some(PRUNE_INTERVAL),
        blocking: true,
        ..Config::default()
    };
    Reconciler::new(&db, table.clone(), DesiredRoute::STATUS, WithCauses(ops), config).spawn(&jobs)?;
    jobs.keep(
        "desired-route-refresher",
        Refresher { db, table, kernel },
        Refresher::run,
    )
}

/// Key of a route in the log.
fn log_key((table, prefix, priority): &Place) -> String {
    format!("{table} {prefix} {priority}")
}

fn parse_log_key(key: &str) -> Option<Place> {
    let mut parts = key.split(' ');
    let place = (
        parts.next()?.parse().ok()?,
        parts.next()?.parse().ok()?,
        parts.next()?.parse().ok()?,
    );
    parts.next().is_none().then_some(place)
}

/// Deletes what the kernel has in a place, of the protocol of desired routes.
fn clear(net: &Netlink, place: &Place) -> Result<(), NetError> {
    let filter = RouteFilter {
        table: u8::try_from(place.0).ok(),
        protocol: Some(RouteProtocol::Kernel),
        ..RouteFilter::default()
    };
    let (table, prefix, _) = *place;
    for route in net.routes(&filter)? {
        let metric = route.metric.unwrap_or_default();
        if route.table == table && route.destination == prefix && metric == kernel_priority(place) {
            net.delete_route(&route)?;
        }
    }
    Ok(())
}

struct RouteOps {
    table: Table<DesiredRoute>,
    log: Wal,
}

impl Ops<DesiredRoute> for RouteOps {
    fn update(&mut self, _: &Round<'_>, _: Revision, route: &mut DesiredRoute) -> Result<(), BoxError> {
        if !route.selected {
            return Ok(());
        }
        self.log.add(&log_key(&route.place()))?;
        Ok(Netlink::open()?.replace_route(&route.kernel_route())?)
    }

    /// Deletes a route, unless another one has replaced it.
    fn delete(&mut self, round: &Round<'_>, _: Revision, route: &DesiredRoute) -> Result<(), BoxError> {
        let place = route.place();
        let query = DesiredRoute::BY_TABLE_PREFIX.key(&TablePrefix::new(place.0, place.1));
        let mut others = self.table.list(round.snapshot, query);
        if !route.selected || others.any(|other| other.selected && other.place() == place) {
            return Ok(());
        }
        let net = Netlink::open()?;
        if !net.delete_route(&route.kernel_route())? {
            // Not as desired: an update had failed, or was overtaken.
            clear(&net, &place)?;
        }
        Ok(self.log.remove(&log_key(&place))?)
    }

    fn prune(
        &mut self,
        _: &Round<'_>,
        routes: &mut dyn Iterator<Item = &Obj<DesiredRoute>>,
    ) -> Result<(), BoxError> {
        let desired: HashSet<String> = routes.map(|route| log_key(&route.place())).collect();
        let net = Netlink::open()?;
        for key in self.log.keys()?.into_iter().filter(|key| !desired.contains(key)) {
            if let Some(place) = parse_log_key(&key) {
                clear(&net, &place)?;
            }
            self.log.remove(&key)?;
        }
        Ok(self.log.compact()?)
    }
}
