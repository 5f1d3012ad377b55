// SPDX-License-Identifier: Apache-2.0

//! Table `desired-neighbors` → neighbours.

use std::collections::HashSet;

use hive::{Jobs, SpawnError};
use skep_base_net::{
    Neighbour, Netlink,
    packet::neighbour::{NeighbourExtFlags, NeighbourFlags, NeighbourState},
};
use statedb::{
    Db, Obj, Revision, RwTable,
    reconciler::{Config, Ops, Reconciler, Round},
    row::BoxError,
};

use super::row::DesiredNeighbor;
use crate::{causes::WithCauses, devices::PRUNE_INTERVAL};

pub(super) fn spawn(
    db: &Db,
    table: RwTable<DesiredNeighbor>,
    is_managed: bool,
    jobs: &Jobs,
) -> Result<(), SpawnError> {
    let config = Config {
        prune_interval: Some(PRUNE_INTERVAL),
        refresh_interval: None, // the refresher follows the kernel
        blocking: true,
        ..Config::default()
    };
    let ops = NeighborOps { is_managed };
    Reconciler::new(db, table, DesiredNeighbor::STATUS, WithCauses(ops), config).spawn(jobs)?;
    Ok(())
}

struct NeighborOps {
    /// The kernel keeps neighbours up to date by itself.
    is_managed: bool,
}

impl Ops<DesiredNeighbor> for NeighborOps {
    fn update(&mut self, _: &Round<'_>, _: Revision, row: &mut DesiredNeighbor) -> Result<(), BoxError> {
        let net = Netlink::open()?;
        let mut wanted = Neighbour::new(row.link, row.ip);
        if self.is_managed {
            wanted.flags = NeighbourFlags::ExtLearned;
            wanted.ext_flags = NeighbourExtFlags::Managed;
            return Ok(net.set_neighbour(&wanted)?);
        }
        // The kernel probes only what is stale. Without a hardware address it probes anyway.
        let present = net.neighbour(row.link, row.ip)?;
        if let Some(mac) = present.and_then(|present| present.mac) {
            net.set_neighbour(&Neighbour {
                mac: Some(mac),
                state: NeighbourState::Stale,
                flags: NeighbourFlags::ExtLearned,
                ..wanted.clone()
            })?;
        }
        wanted.flags = NeighbourFlags::ExtLearned | NeighbourFlags::Use;
        Ok(net.set_neighbour(&wanted)?)
    }

    fn delete(&mut self, _: &Round<'_>, _: Revision, row: &DesiredNeighbor) -> Result<(), BoxError> {
        let net = Netlink::open()?;
        if let Some(present) = net.neighbour(row.link, row.ip)?.filter(is_ours) {
            net.delete_neighbour(&present)?;
        }
        Ok(())
    }

    fn prune(
        &mut self,
        _: &Round<'_>,
        rows: &mut dyn Iterator<Item = &Obj<DesiredNeighbor>>,
    ) -> Result<(), BoxError> {
        let desired: HashSet<_> = rows.map(|row| (row.link, row.ip)).collect();
        let net = Netlink::open()?;
        for neighbour in net.neighbours()?.iter().filter(|neighbour| is_ours(neighbour)) {
            if !desired.contains(&(neighbour.device, neighbour.address)) {
                net.delete_neighbour(neighbour)?;
            }
        }
        Ok(())
    }
}

fn is_ours(neighbour: &Neighbour) -> bool {
    neighbour.flags.contains(NeighbourFlags::ExtLearned)
}
