// SPDX-License-Identifier: Apache-2.0

//! Writing services straight into the maps, as the agent would.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicU32, Ordering},
};

use parking_lot::Mutex;

use crate::{
    lb::*,
    node::{IPCACHE, IpcacheKey, IpcacheValue},
};
use skep_bpf_sys::{
    map::{Map, MapError},
    store::MapStore,
};

/// One frontend of a service with its backends.
#[derive(Debug, Clone)]
pub struct Frontend {
    /// Virtual address; unspecified for the surrogate of node addresses.
    pub address: SocketAddr,
    pub proto: u8,
    pub scope: Scope,
    pub flags: ServiceFlags,
    pub id: u16,
    /// Affinity timeout in seconds, 0 = none; sets the flag and the match entries, too.
    pub affinity: u32,
    /// Port of the L7 proxy, 0 = none; sets the flag, too.
    pub l7_port: u16,
    pub backends: Vec<SocketAddr>,
    /// How many of them, from the last, get no new connections.
    pub inactive: u16,
}

impl Frontend {
    pub fn new(id: u16, address: SocketAddr, proto: u8, backends: &[SocketAddr]) -> Self {
        Self {
            address,
            proto,
            scope: Scope::External,
            flags: ServiceFlags::empty(),
            id,
            affinity: 0,
            l7_port: 0,
            backends: backends.to_vec(),
            inactive: 0,
        }
    }

    /// The same frontend with these flags.
    #[must_use]
    pub fn flags(self, flags: ServiceFlags) -> Self {
        Self { flags, ..self }
    }
}

/// The maps that the socket programs read, with a hand to write services.
#[derive(Debug)]
pub struct LbMaps {
    pub services4: Map<Service4Key, ServiceValue>,
    pub services6: Map<Service6Key, ServiceValue>,
    pub backends4: Map<BackendKey, Backend4>,
    pub backends6: Map<BackendKey, Backend6>,
    pub affinity4: Map<Affinity4Key, Affinity>,
    pub affinity6: Map<Affinity6Key, Affinity>,
    pub affinity_match: Map<AffinityMatchKey, u8>,
    pub reverse_sk4: Map<ReverseSk4Key, ReverseSk4>,
    pub reverse_sk6: Map<ReverseSk6Key, ReverseSk6>,
    pub skip4: Map<Skip4Key, u8>,
    pub skip6: Map<Skip6Key, u8>,
    pub ipcache: Map<IpcacheKey, IpcacheValue>,
    next_backend: AtomicU32,
    ids: Mutex<HashMap<SocketAddr, u32>>,
}

impl LbMaps {
    /// Opens or creates the maps.
    ///
    /// # Errors
    ///
    /// [`MapError`] if a map cannot be made.
    pub fn open(store: &MapStore, sizes: LbMapSizes) -> Result<Self, MapError> {
        let sizes = sizes.into();
        Ok(Self {
            services4: store.open_or_create(&SERVICES4.spec(&sizes))?,
            services6: store.open_or_create(&SERVICES6.spec(&sizes))?,
            backends4: store.open_or_create(&BACKENDS4.spec(&sizes))?,
            backends6: store.open_or_create(&BACKENDS6.spec(&sizes))?,
            affinity4: store.open_or_create(&AFFINITY4.spec(&sizes))?,
            affinity6: store.open_or_create(&AFFINITY6.spec(&sizes))?,
            affinity_match: store.open_or_create(&AFFINITY_MATCH.spec(&sizes))?,
            reverse_sk4: store.open_or_create(&REVERSE_SK4.spec(&sizes))?,
            reverse_sk6: store.open_or_create(&REVERSE_SK6.spec(&sizes))?,
            skip4: store.open_or_create(&SKIP4.spec(&sizes))?,
            skip6: store.open_or_create(&SKIP6.spec(&sizes))?,
            ipcache: store.open_or_create(&IPCACHE.spec(&sizes))?,
            next_backend: AtomicU32::new(1),
            ids: Mutex::default(),
        })
    }

    /// Id of the backend at `address`, written to the backends map when first asked for.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the map cannot be written.
    pub fn backend(&self, address: SocketAddr, proto: u8) -> Result<u32, MapError> {
        if let Some(id) = self.ids.lock().get(&address) {
            return Ok(*id);
        }
        let id = self.next_backend.fetch_add(1, Ordering::Relaxed);
        let key = BackendKey::new(id);
        match address.ip() {
            IpAddr::V4(ip) => self
                .backends4
                .update(&key, &Backend4::new(ip, address.port(), proto))?,
            IpAddr::V6(ip) => self
                .backends6
                .update(&key, &Backend6::new(ip, address.port(), proto))?,
        }
        self.ids.lock().insert(address, id);
        Ok(id)
    }

    /// Says what an address is: see [`crate::node`] for identities.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the map cannot be written.
    pub fn identify(&self, address: IpAddr, identity: u32) -> Result<(), MapError> {
        self.ipcache
            .update(&IpcacheKey::host(address), &IpcacheValue::new(identity))
    }

    /// The network namespace with this cookie reaches `service` untranslated from now on.
    ///
    /// # Errors
    ///
    /// [`MapError`] if the map cannot be written.
    pub fn skip(&self, cookie: u64, service: SocketAddr) -> Result<(), MapError> {
        match service.ip() {
            IpAddr::V4(ip) => self.skip4.update(&Skip4Key::new(cookie, ip, service.port()), &0),
            IpAddr::V6(ip) => self.skip6.update(&Skip6Key::new(cookie, ip, service.port()), &0),
        }
    }

    /// Writes a frontend: backends, slots, then the master entry.
    ///
    /// # Errors
    ///
    /// [`MapError`] if a map cannot be written.
    pub fn upsert(&self, frontend: &Frontend) -> Result<(), MapError> {
        let flags = frontend
            .flags
            .with(ServiceFlags::AFFINITY, frontend.affinity > 0)
            .with(ServiceFlags::L7_LOAD_BALANCER, frontend.l7_port > 0);
        for (slot, backend) in (1..).zip(&frontend.backends) {
            let id = self.backend(*backend, frontend.proto)?;
            self.write(frontend, slot, ServiceValue::slot(id, frontend.id, flags))?;
            if frontend.affinity > 0 {
                self.affinity_match
                    .update(&AffinityMatchKey::new(id, frontend.id), &0)?;
            }
        }
        let active = frontend.backends.len() as u16 - frontend.inactive;
        let mut master = ServiceValue::master(active, frontend.inactive, frontend.id, flags);
        if frontend.l7_port > 0 {
            master = master.with_l7_port(frontend.l7_port);
        } else {
            master.target = frontend.affinity & MAX_AFFINITY_TIMEOUT;
        }
        self.write(frontend, 0, master)
    }

    /// Deletes the master entry and the slots of a frontend.
    ///
    /// # Errors
    ///
    /// [`MapError`] if a map cannot be written.
    pub fn delete(&self, frontend: &Frontend) -> Result<(), MapError> {
        for slot in 0..=frontend.backends.len() as u16 {
            let (port, proto, scope) = (frontend.address.port(), frontend.proto, frontend.scope);
            match frontend.address.ip() {
                IpAddr::V4(ip) => self
                    .services4
                    .delete(&Service4Key::new(ip, port, proto, scope).at(slot))?,
                IpAddr::V6(ip) => self
                    .services6
                    .delete(&Service6Key::new(ip, port, proto, scope).at(slot))?,
            };
        }
        Ok(())
    }

    fn write(&self, frontend: &Frontend, slot: u16, value: ServiceValue) -> Result<(), MapError> {
        let (port, proto, scope) = (frontend.address.port(), frontend.proto, frontend.scope);
        match frontend.address.ip() {
            IpAddr::V4(ip) => self
                .services4
                .update(&Service4Key::new(ip, port, proto, scope).at(slot), &value),
            IpAddr::V6(ip) => self
                .services6
                .update(&Service6Key::new(ip, port, proto, scope).at(slot), &value),
        }
    }
}
