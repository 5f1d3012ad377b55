// SPDX-License-Identifier: Apache-2.0

//! The map of identities: what of it is this cell's.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use hive::Member;
use skep_bpf_maps::node::{
    IDENTITY_HOST, IDENTITY_REMOTE_NODE, IPCACHE, IPCACHE_STATIC_BITS, IpcacheKey, IpcacheValue, OWNER,
};
use skep_bpf_sys::{Map, MapError};
use skep_datapath_maps::{MapOwner, Maps};

/// Identities by address.
#[derive(Debug, Clone)]
pub struct Ipcache(Map<IpcacheKey, IpcacheValue>);

impl Ipcache {
    /// This map.
    #[must_use]
    pub fn new(map: Map<IpcacheKey, IpcacheValue>) -> Self {
        Self(map)
    }

    /// Gives an address an identity.
    ///
    /// # Errors
    /// When the map is full or cannot be written.
    pub fn set(&self, address: IpAddr, identity: u32) -> Result<(), MapError> {
        self.0
            .update(&IpcacheKey::host(address), &IpcacheValue::new(identity))
    }

    /// Removes an address; one that is not there is fine.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn remove(&self, address: IpAddr) -> Result<(), MapError> {
        self.0.delete(&IpcacheKey::host(address)).map(drop)
    }

    /// Single addresses with the identities that this cell gives (host and remote node). Networks, and addresses with
    /// other identities, belong to others.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn nodes(&self) -> Result<Vec<(IpAddr, u32)>, MapError> {
        let mut found = Vec::new();
        self.0.for_each(|key, value| {
            let ours = [IDENTITY_HOST, IDENTITY_REMOTE_NODE];
            if let Some(address) = single_address(&key).filter(|_| ours.contains(&value.identity)) {
                found.push((address, value.identity));
            }
        })?;
        Ok(found)
    }
}

fn single_address(key: &IpcacheKey) -> Option<IpAddr> {
    let bits = key.prefix_len.checked_sub(IPCACHE_STATIC_BITS)?;
    let [a, b, c, d, ..] = key.address;
    match (key.family, bits) {
        (1, 32) => Some(Ipv4Addr::new(a, b, c, d).into()),
        (2, 128) => Some(Ipv6Addr::from(key.address).into()),
        _ => None,
    }
}

/// The map as a value of the hive.
pub(crate) fn handle(maps: Arc<Maps>) -> Arc<Ipcache> {
    Arc::new(Ipcache::new(maps.handle(&IPCACHE)))
}

pub(crate) fn owner() -> Member<MapOwner> {
    Member(MapOwner::new(OWNER))
}
