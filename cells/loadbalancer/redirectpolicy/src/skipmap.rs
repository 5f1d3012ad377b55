// SPDX-License-Identifier: Apache-2.0

//! The skip maps: services that a network namespace reaches untranslated.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use skep_bpf_maps::lb::{SKIP4, SKIP6, Skip4Key, Skip6Key};
use skep_bpf_sys::{Map, MapError};
use skep_datapath_maps::Maps;

/// An entry of a skip map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SkipEntry {
    pub cookie: u64,
    pub ip: IpAddr,
    /// Port of the service, host order.
    pub port: u16,
}

impl fmt::Display for SkipEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "COOKIE={} IP={} PORT={}", self.cookie, self.ip, self.port)
    }
}

#[derive(Debug, Clone)]
pub struct SkipMaps {
    v4: Map<Skip4Key, u8>,
    v6: Map<Skip6Key, u8>,
}

impl SkipMaps {
    pub fn new(v4: Map<Skip4Key, u8>, v6: Map<Skip6Key, u8>) -> Self {
        Self { v4, v6 }
    }

    pub fn entries(&self) -> Result<Vec<SkipEntry>, MapError> {
        let v4 = self.v4.keys()?.into_iter().map(|key| SkipEntry {
            cookie: key.netns_cookie,
            ip: key.address.into(),
            port: key.port.get(),
        });
        let v6 = self.v6.keys()?.into_iter().map(|key| SkipEntry {
            cookie: key.netns_cookie,
            ip: key.address.into(),
            port: key.port.get(),
        });
        Ok(v4.chain(v6).collect())
    }

    /// Adds an entry; one that is there stays.
    pub fn insert(&self, entry: &SkipEntry) -> Result<(), MapError> {
        match entry.ip {
            IpAddr::V4(ip) => self.v4.update(&Skip4Key::new(entry.cookie, ip, entry.port), &0),
            IpAddr::V6(ip) => self.v6.update(&Skip6Key::new(entry.cookie, ip, entry.port), &0),
        }
    }

    /// Removes an entry; one that is not there is fine.
    pub fn remove(&self, entry: &SkipEntry) -> Result<(), MapError> {
        match entry.ip {
            IpAddr::V4(ip) => self.v4.delete(&Skip4Key::new(entry.cookie, ip, entry.port)),
            IpAddr::V6(ip) => self.v6.delete(&Skip6Key::new(entry.cookie, ip, entry.port)),
        }
        .map(drop)
    }
}

/// The maps as a value of the hive.
pub(crate) fn handles(maps: Arc<Maps>) -> Arc<SkipMaps> {
    Arc::new(SkipMaps::new(maps.handle(&SKIP4), maps.handle(&SKIP6)))
}
