// SPDX-License-Identifier: Apache-2.0

//! Table `node-ids` → map.

use std::collections::HashSet;

use hive::{Cfg, Member};
use skep_base_settings::MapConfig;
use skep_bpf_maps::MapSizes;
use skep_bpf_maps::node::{NODE_IDS_MAX, NODE_IDS_OWNER, NodeIdKey, NodeIdValue};
use skep_bpf_sys::Map;
use skep_datapath_maps::MapOwner;
use statedb::reconciler::{Ops, Round};
use statedb::row::BoxError;
use statedb::{Obj, Revision};

use super::NodeId;

pub(crate) type NodeIdMap = Map<NodeIdKey, NodeIdValue>;

pub(crate) fn owner(config: Cfg<MapConfig>) -> Member<MapOwner> {
    let entries = u32::try_from(config.node_map_max).unwrap_or(NODE_IDS_MAX.default);
    let sizes = MapSizes::default().with(NODE_IDS_MAX, entries);
    Member(MapOwner::new(NODE_IDS_OWNER).sizes(sizes))
}

pub(crate) struct MapOps(pub(crate) NodeIdMap);

impl Ops<NodeId> for MapOps {
    fn update(&mut self, _: &Round<'_>, _: Revision, row: &mut NodeId) -> Result<(), BoxError> {
        let value = NodeIdValue::new(row.id, row.spi);
        Ok(self.0.update(&NodeIdKey::new(row.address), &value)?)
    }

    fn delete(&mut self, _: &Round<'_>, _: Revision, row: &NodeId) -> Result<(), BoxError> {
        self.0.delete(&NodeIdKey::new(row.address))?;
        Ok(())
    }

    fn prune(&mut self, _: &Round<'_>, rows: &mut dyn Iterator<Item = &Obj<NodeId>>) -> Result<(), BoxError> {
        let wanted: HashSet<NodeIdKey> = rows.map(|row| NodeIdKey::new(row.address)).collect();
        for key in self.0.keys()? {
            if !wanted.contains(&key) {
                self.0.delete(&key)?;
            }
        }
        Ok(())
    }
}
