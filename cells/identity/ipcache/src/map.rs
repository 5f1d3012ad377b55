// SPDX-License-Identifier: Apache-2.0

//! The map: `cilium_ipcache_v2`.

use std::sync::Arc;

use hive::Member;
use skep_bpf_maps::node::{IPCACHE, IpcacheKey, IpcacheValue, OWNER};
use skep_bpf_sys::Map;
use skep_datapath_maps::{MapOwner, Maps};

/// Identities and tunnel endpoints by prefix.
pub type IpcacheMap = Map<IpcacheKey, IpcacheValue>;

/// The map as a value of the hive.
pub(crate) fn handle(maps: Arc<Maps>) -> Arc<IpcacheMap> {
    Arc::new(maps.handle(&IPCACHE))
}

pub(crate) fn owner() -> Member<MapOwner> {
    Member(MapOwner::new(OWNER))
}
