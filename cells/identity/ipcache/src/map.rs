// SPDX-License-Identifier: Apache-2.0

//! The map of identities: pinned, or a fake.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use skep_bpf_maps::MapSizes;
use skep_bpf_maps::node::{IPCACHE, IPCACHE_STATIC_BITS, IpcacheKey, IpcacheValue};
use skep_bpf_sys::{Map, MapError, MapStore};

/// Why the map cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum IpcacheError {
    /// The kernel refused.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A fake that was told to fail.
    #[error("the fake map fails")]
    Fake,
}

/// Identities by address.
pub trait Ipcache: Send + Sync {
    /// Gives an address an identity.
    ///
    /// # Errors
    /// When the map is full or cannot be written.
    fn set(&self, address: IpAddr, identity: u32) -> Result<(), IpcacheError>;

    /// Removes an address; one that is not there is fine.
    ///
    /// # Errors
    /// When the map cannot be written.
    fn remove(&self, address: IpAddr) -> Result<(), IpcacheError>;

    /// Single addresses with the identities that this cell gives (host and remote node). Networks, and addresses with
    /// other identities, belong to others.
    ///
    /// # Errors
    /// When the map cannot be read.
    fn nodes(&self) -> Result<Vec<(IpAddr, u32)>, IpcacheError>;
}

/// The map pinned as `cilium_ipcache_v2`, opened when first used: the BPF file system is there by then.
#[derive(Debug)]
pub struct PinnedIpcache {
    store: Arc<MapStore>,
    map: OnceLock<Map<IpcacheKey, IpcacheValue>>,
}

impl PinnedIpcache {
    /// The map in this store.
    #[must_use]
    pub fn new(store: Arc<MapStore>) -> Self {
        Self {
            store,
            map: OnceLock::new(),
        }
    }

    fn map(&self) -> Result<&Map<IpcacheKey, IpcacheValue>, IpcacheError> {
        if let Some(map) = self.map.get() {
            return Ok(map);
        }
        let map = self.store.open_or_create(&IPCACHE.spec(&MapSizes::default()))?;
        Ok(self.map.get_or_init(|| map))
    }
}

impl Ipcache for PinnedIpcache {
    fn set(&self, address: IpAddr, identity: u32) -> Result<(), IpcacheError> {
        Ok(self
            .map()?
            .update(&IpcacheKey::host(address), &IpcacheValue::new(identity))?)
    }

    fn remove(&self, address: IpAddr) -> Result<(), IpcacheError> {
        self.map()?.delete(&IpcacheKey::host(address))?;
        Ok(())
    }

    fn nodes(&self) -> Result<Vec<(IpAddr, u32)>, IpcacheError> {
        let mut found = Vec::new();
        self.map()?.for_each(|key, value| {
            let ours = [
                skep_bpf_maps::node::IDENTITY_HOST,
                skep_bpf_maps::node::IDENTITY_REMOTE_NODE,
            ];
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

/// The pinned map as a value of the hive.
pub(crate) fn pinned(store: Arc<MapStore>) -> Arc<dyn Ipcache> {
    Arc::new(PinnedIpcache::new(store))
}

/// A map in memory that can be told to fail.
#[derive(Debug, Default)]
pub struct FakeIpcache {
    entries: Mutex<BTreeMap<IpAddr, u32>>,
    fails: Mutex<bool>,
}

impl FakeIpcache {
    /// Its content.
    pub fn entries(&self) -> BTreeMap<IpAddr, u32> {
        self.entries.lock().clone()
    }

    /// Makes every write fail, or none.
    pub fn fail(&self, fails: bool) {
        *self.fails.lock() = fails;
    }

    fn may_write(&self) -> Result<(), IpcacheError> {
        if *self.fails.lock() {
            Err(IpcacheError::Fake)
        } else {
            Ok(())
        }
    }
}

impl Ipcache for FakeIpcache {
    fn set(&self, address: IpAddr, identity: u32) -> Result<(), IpcacheError> {
        self.may_write()?;
        self.entries.lock().insert(address, identity);
        Ok(())
    }

    fn remove(&self, address: IpAddr) -> Result<(), IpcacheError> {
        self.may_write()?;
        self.entries.lock().remove(&address);
        Ok(())
    }

    fn nodes(&self) -> Result<Vec<(IpAddr, u32)>, IpcacheError> {
        Ok(self.entries().into_iter().collect())
    }
}
