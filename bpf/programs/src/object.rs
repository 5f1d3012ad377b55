// SPDX-License-Identifier: Apache-2.0

//! What loading any object needs: maps that are already there, and the verifier's words when it fails.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    sync::Once,
};

use libbpf_rs::{Object, OpenObject, PrintLevel};
use parking_lot::Mutex;

use skep_bpf_maps::{Family, IpFamily, MapSizes};
use skep_bpf_sys::{KernelMap, MapStore, RawMap};

use super::{error::LoadError, options::NodeOptions};

/// Address families and features whose maps exist.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IpFamilies {
    pub(crate) ipv4: bool,
    pub(crate) ipv6: bool,
    pub(crate) ip_masq_agent: bool,
    pub(crate) health_probes: bool,
    pub(crate) bandwidth: bool,
}

impl IpFamilies {
    pub(crate) fn of(options: &NodeOptions) -> Self {
        Self {
            ipv4: options.ipv4,
            ipv6: options.ipv6,
            ip_masq_agent: options.packets.ip_masq_agent,
            health_probes: options.packets.health_probes,
            bandwidth: options.packets.bandwidth,
        }
    }

    fn has(self, family: &Family) -> bool {
        if family.owner == skep_bpf_maps::ip_masq::OWNER && !self.ip_masq_agent {
            return false;
        }
        if family.owner == skep_bpf_maps::lb::HEALTH_OWNER && !self.health_probes {
            return false;
        }
        if family.owner == skep_bpf_maps::throttle::OWNER && !self.bandwidth {
            return false;
        }
        match family.ip {
            None => true,
            Some(IpFamily::V4) => self.ipv4,
            Some(IpFamily::V6) => self.ipv6,
        }
    }
}

/// Replaces the object's maps of registered families by the pinned ones, which are made if they are missing. Those of an
/// address family that is off (referenced by code that the verifier removes) become private with one entry.
pub(crate) fn share(
    object_name: &'static str,
    object: &mut OpenObject,
    store: &MapStore,
    sizes: &MapSizes,
    ip: IpFamilies,
) -> Result<(), LoadError> {
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let result = match skep_bpf_maps::find(&name) {
            Some(family) if ip.has(family) => {
                let pinned = provide(object_name, store, family, sizes)?;
                pinned.fd().map_or(Ok(()), |fd| map.reuse_fd(fd))
            }
            // Its kind may require flags (a trie is never preallocated).
            Some(family) => map
                .set_map_flags(family.spec(sizes).flags.bits())
                .and_then(|()| map.set_max_entries(1)),
            None => Ok(()),
        };
        result.map_err(|source| LoadError::Reuse {
            object: object_name,
            map: name,
            source,
        })?;
    }
    Ok(())
}

/// Opens or makes the maps that [`share`] would use.
pub(crate) fn prepare(
    object_name: &'static str,
    object: &OpenObject,
    store: &MapStore,
    sizes: &MapSizes,
    ip: IpFamilies,
) -> Result<(), LoadError> {
    let names = object.maps().map(|map| map.name().to_string_lossy().into_owned());
    for family in names.filter_map(|name| skep_bpf_maps::find(&name)) {
        if ip.has(family) {
            provide(object_name, store, family, sizes)?;
        }
    }
    Ok(())
}

fn provide(
    object: &'static str,
    store: &MapStore,
    family: &Family,
    sizes: &MapSizes,
) -> Result<KernelMap, LoadError> {
    store
        .provide(&family.spec(sizes))
        .map_err(|source| LoadError::Map { object, source })
}

/// A descriptor of a loaded program that outlives its object.
pub(crate) fn keep(
    object_name: &'static str,
    object: &Object,
    program: &'static str,
) -> Result<OwnedFd, LoadError> {
    let found = object
        .progs()
        .find(|found| found.name() == program)
        .ok_or(LoadError::NoProgram {
            object: object_name,
            program,
        })?;
    found
        .as_fd()
        .try_clone_to_owned()
        .map_err(|source| LoadError::Keep {
            object: object_name,
            program,
            source,
        })
}

static LOG: Mutex<Option<String>> = Mutex::new(None);
static LOADING: Mutex<()> = Mutex::new(());
const LOG_LIMIT: usize = 64 * 1024;

fn print(level: PrintLevel, message: String) {
    match LOG.lock().as_mut() {
        Some(log) if level != PrintLevel::Debug && log.len() < LOG_LIMIT => log.push_str(&message),
        _ => tracing::debug!(message = message.trim_end(), "libbpf"),
    }
}

/// Runs `load` and, if it fails, returns what libbpf printed with the error.
pub(crate) fn logged<T>(
    object: &'static str,
    load: impl FnOnce() -> libbpf_rs::Result<T>,
) -> Result<T, LoadError> {
    static PRINT: Once = Once::new();
    PRINT.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Info, print)));
    });
    // One log: loads of different objects take turns.
    let _turn = LOADING.lock();
    *LOG.lock() = Some(String::new());
    let result = load();
    let log = LOG.lock().take().unwrap_or_default();
    result.map_err(|source| LoadError::Load {
        object,
        log: log.trim().to_owned(),
        source,
    })
}
