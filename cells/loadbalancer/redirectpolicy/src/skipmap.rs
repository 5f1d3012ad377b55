// SPDX-License-Identifier: Apache-2.0

//! The skip maps: services that sockets of a network namespace reach untranslated.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use skep_bpf_maps::MapSizes;
use skep_bpf_maps::lb::{SKIP4, SKIP6, Skip4Key, Skip6Key};
use skep_bpf_sys::{Map, MapError, MapStore};

/// An entry of a skip map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SkipEntry {
    /// Cookie of the network namespace.
    pub cookie: u64,
    /// Address of the service.
    pub ip: IpAddr,
    /// Port of the service, host order.
    pub port: u16,
}

impl fmt::Display for SkipEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "COOKIE={} IP={} PORT={}", self.cookie, self.ip, self.port)
    }
}

/// Both skip maps.
pub trait SkipMaps: Send + Sync {
    /// All entries, in any order.
    fn entries(&self) -> Result<Vec<SkipEntry>, MapError>;

    /// Adds an entry; one that is there stays.
    fn insert(&self, entry: &SkipEntry) -> Result<(), MapError>;

    /// Removes an entry; one that is not there is fine.
    fn remove(&self, entry: &SkipEntry) -> Result<(), MapError>;
}

/// The pinned maps `cilium_skip_lb4` and `cilium_skip_lb6`; opened, or created and pinned, when first used.
pub struct PinnedSkipMaps {
    store: Arc<MapStore>,
    opened: Mutex<Option<Arc<Pair>>>,
}

struct Pair {
    v4: Map<Skip4Key, u8>,
    v6: Map<Skip6Key, u8>,
}

impl PinnedSkipMaps {
    /// The maps of a store.
    pub fn new(store: Arc<MapStore>) -> Self {
        Self {
            store,
            opened: Mutex::new(None),
        }
    }

    fn maps(&self) -> Result<Arc<Pair>, MapError> {
        let mut opened = self.opened.lock();
        if let Some(pair) = &*opened {
            return Ok(pair.clone());
        }
        let sizes = MapSizes::default();
        let (v4, v6) = (
            self.store.open_or_create(&SKIP4.spec(&sizes))?,
            self.store.open_or_create(&SKIP6.spec(&sizes))?,
        );
        Ok(opened.insert(Arc::new(Pair { v4, v6 })).clone())
    }
}

impl SkipMaps for PinnedSkipMaps {
    fn entries(&self) -> Result<Vec<SkipEntry>, MapError> {
        let maps = self.maps()?;
        let v4 = maps.v4.keys()?.into_iter().map(|key| SkipEntry {
            cookie: key.netns_cookie,
            ip: key.address.into(),
            port: key.port.get(),
        });
        let v6 = maps.v6.keys()?.into_iter().map(|key| SkipEntry {
            cookie: key.netns_cookie,
            ip: key.address.into(),
            port: key.port.get(),
        });
        Ok(v4.chain(v6).collect())
    }

    fn insert(&self, entry: &SkipEntry) -> Result<(), MapError> {
        let maps = self.maps()?;
        match entry.ip {
            IpAddr::V4(ip) => maps.v4.update(&Skip4Key::new(entry.cookie, ip, entry.port), &0),
            IpAddr::V6(ip) => maps.v6.update(&Skip6Key::new(entry.cookie, ip, entry.port), &0),
        }
    }

    fn remove(&self, entry: &SkipEntry) -> Result<(), MapError> {
        let maps = self.maps()?;
        match entry.ip {
            IpAddr::V4(ip) => maps
                .v4
                .delete(&Skip4Key::new(entry.cookie, ip, entry.port))
                .map(drop),
            IpAddr::V6(ip) => maps
                .v6
                .delete(&Skip6Key::new(entry.cookie, ip, entry.port))
                .map(drop),
        }
    }
}
