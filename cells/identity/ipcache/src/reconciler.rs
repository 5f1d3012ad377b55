// SPDX-License-Identifier: Apache-2.0

//! Table → map. Where sources disagree about an address, this node's own word counts most.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use hive::Jobs;
use statedb::{
    Db, Obj, Revision, RwTable,
    reconciler::{Config, Ops, Reconciler, Round},
    row::BoxError,
};

use crate::{map::Ipcache, table::NodeIdentity};

pub(crate) fn start(
    db: Db,
    table: RwTable<NodeIdentity>,
    map: Arc<Ipcache>,
    jobs: Jobs,
) -> Result<(), hive::SpawnError> {
    let ops = MapOps {
        table: table.clone(),
        map,
    };
    Reconciler::new(&db, table, NodeIdentity::STATUS, ops, Config::default()).spawn(&jobs)?;
    Ok(())
}

pub(crate) struct MapOps {
    pub(crate) table: RwTable<NodeIdentity>,
    pub(crate) map: Arc<Ipcache>,
}

impl MapOps {
    /// The identity that all sources together give an address: the smallest, so that host wins.
    fn identity(&self, round: &Round<'_>, address: IpAddr) -> Option<u32> {
        self.table
            .list(round.snapshot, NodeIdentity::BY_ADDRESS.key(&address))
            .map(|row| row.identity)
            .min()
    }
}

impl Ops<NodeIdentity> for MapOps {
    fn update(&mut self, round: &Round<'_>, _: Revision, row: &mut NodeIdentity) -> Result<(), BoxError> {
        let identity = self.identity(round, row.address).unwrap_or(row.identity);
        Ok(self.map.set(row.address, identity)?)
    }

    fn delete(&mut self, round: &Round<'_>, _: Revision, row: &NodeIdentity) -> Result<(), BoxError> {
        match self.identity(round, row.address) {
            Some(identity) => self.map.set(row.address, identity)?,
            None => self.map.remove(row.address)?,
        }
        Ok(())
    }

    fn prune(
        &mut self,
        _: &Round<'_>,
        rows: &mut dyn Iterator<Item = &Obj<NodeIdentity>>,
    ) -> Result<(), BoxError> {
        let wanted: BTreeSet<IpAddr> = rows.map(|row| row.address).collect();
        for (address, _) in self.map.nodes()? {
            if !wanted.contains(&address) {
                self.map.remove(address)?;
            }
        }
        Ok(())
    }
}
