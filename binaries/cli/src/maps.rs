// SPDX-License-Identifier: Apache-2.0

//! Pinned maps as text: works while the agent is down.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use skep_bpf_maps::{
    Dump, Family, IpFamily, MapFamily,
    flow::{FLOW_COUNTERS, FLOW_EPOCH, FLOW_STATS, FLOWS4, FLOWS6},
    lb::{
        AFFINITY4, AFFINITY6, BACKENDS4, BACKENDS6, Backend4, Backend6, BackendKey, MAGLEV4, MAGLEV6,
        REVERSE_NAT4, REVERSE_NAT6, REVERSE_SK4, REVERSE_SK6, SERVICES4, SERVICES6, SKIP4, SKIP6,
        SOURCE_RANGE4, SOURCE_RANGE6, Service4Key, Service6Key, ServiceFlags, ServiceValue, place_text,
    },
    names_of,
    text::{Text, protocol},
};
use skep_bpf_sys::{
    KernelMap, Map, MapError, MapStore,
    map::{PerCpuMap, Plain},
};

/// Why pinned maps cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MapsError {
    #[error(transparent)]
    Map(#[from] MapError),
    /// Has the agent run since the machine booted, and is the BPF file system at `--bpf-root`?
    #[error("no map {map} is pinned below {} (has the agent run? see `skep map list` and --bpf-root)", directory.display())]
    NotPinned { map: String, directory: PathBuf },
    /// Is the BPF file system mounted there?
    #[error("no maps are pinned below {} (see --bpf-root)", directory.display())]
    Directory {
        directory: PathBuf,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
    /// No entry of the map matches.
    #[error("map {map} has no entry for {key}")]
    NoEntry { map: &'static str, key: String },
    /// The entries cannot be printed in this form.
    #[error("cannot print the entries")]
    Print(#[from] serde_json::Error),
    /// `skep map list` names the maps there are.
    #[error("map `{name}` is not one whose content skep can show")]
    Unknown { name: String },
}

/// An entry of a map: text of the key, texts of the value.
pub(crate) type Entry = (String, Vec<String>);

/// The pinned maps below a BPF file system.
#[derive(Debug)]
pub(crate) struct Pinned {
    store: std::sync::Arc<MapStore>,
}

impl Pinned {
    /// The maps pinned below `root`.
    #[must_use]
    pub(crate) fn below(root: &Path) -> Self {
        Self {
            store: MapStore::new(root),
        }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.store.path(name).display().to_string()
    }

    /// Names of all pinned maps, sorted.
    pub(crate) fn names(&self) -> Result<Vec<String>, MapsError> {
        let directory = self.store.directory();
        let failed = |cause| MapsError::Directory {
            directory: directory.clone(),
            cause,
        };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&directory).map_err(failed)? {
            names.extend(entry.map_err(failed)?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    /// Entries of the map called `name`, sorted by key.
    ///
    /// # Errors
    /// When it is not pinned, cannot be read, or is of a family that is not registered.
    pub(crate) fn entries(&self, name: &str) -> Result<Vec<Entry>, MapsError> {
        let map = self.pinned(name, self.store.open_raw(name))?;
        let unknown = || MapsError::Unknown {
            name: name.to_owned(),
        };
        let family = skep_bpf_maps::find(name)
            .filter(|family| family.fits(&map))
            .ok_or_else(unknown)?;
        match family.dump(&map) {
            Ok(dump) => Ok(dump.texts().map(|(key, value)| (key, vec![value])).collect()),
            Err(error) if Dump::is_unreadable(&error) => Err(unknown()),
            Err(source) => Err(MapsError::Map(MapError::Walk {
                map: name.to_owned(),
                source,
            })),
        }
    }

    /// Recorded flows of both families.
    ///
    /// # Errors
    /// When a map cannot be read, or is missing while others of its family are pinned.
    pub(crate) fn flow_table(&self) -> Result<Vec<Entry>, MapsError> {
        self.families([self.entries(FLOWS4.name), self.entries(FLOWS6.name)])
    }

    /// Hits of the flow table, and misses by cause.
    ///
    /// # Errors
    /// When the map is not pinned or cannot be read.
    pub(crate) fn flow_counters(&self) -> Result<Vec<Entry>, MapsError> {
        let counts = self.entries(FLOW_STATS.name)?.into_iter();
        Ok(counts
            .map(|(index, count)| {
                let name = index
                    .parse::<usize>()
                    .ok()
                    .and_then(|index| FLOW_COUNTERS.get(index));
                (name.map_or(index, |name| (*name).to_owned()), count)
            })
            .collect())
    }

    /// Invalidates recorded flows.
    ///
    /// # Errors
    /// When there is no flow table.
    pub(crate) fn flush_flow_table(&self) -> Result<(), MapsError> {
        let opened = self.store.open_raw(FLOW_EPOCH.name);
        self.pinned(FLOW_EPOCH.name, opened)?;
        self.store.raise_epoch();
        Ok(())
    }

    /// Maglev tables of both families: `[id]/v4` or `/v6`, and the table.
    ///
    /// # Errors
    /// When a map cannot be read, or is missing while others of its family are pinned.
    pub(crate) fn maglev(&self) -> Result<Vec<Entry>, MapsError> {
        let tables = |family: &Family, version: &str| {
            let entries = self.entries(family.name)?.into_iter();
            Ok(entries
                .map(|(id, table)| (format!("[{id}]/{version}"), table))
                .collect())
        };
        self.families([tables(&MAGLEV4, "v4"), tables(&MAGLEV6, "v6")])
    }

    /// Source ranges of both families with the id of their service.
    ///
    /// # Errors
    /// When a map cannot be read, or is missing while others of its family are pinned.
    pub(crate) fn source_ranges(&self) -> Result<Vec<Entry>, MapsError> {
        self.families([self.entries(SOURCE_RANGE4.name), self.entries(SOURCE_RANGE6.name)])
    }

    /// Reverse NAT of both families: service id and the frontend's address.
    ///
    /// # Errors
    /// When a map cannot be read, or is missing while others of its family are pinned.
    pub(crate) fn reverse_nat(&self) -> Result<Vec<Entry>, MapsError> {
        self.families([self.entries(REVERSE_NAT4.name), self.entries(REVERSE_NAT6.name)])
    }

    /// Backends of both families: id and `PROTO://address`, with the number of a known zone. Ports and states are
    /// shown by [`entries`](Self::entries).
    ///
    /// # Errors
    /// When a map cannot be read, or is missing while others of its family are pinned.
    pub(crate) fn backends(&self) -> Result<Vec<Entry>, MapsError> {
        self.families([
            self.dump_as(BACKENDS4.name, BackendKey::text, |value: &Backend4| {
                place_text(&value.addr().to_string(), value.proto, value.zone)
            }),
            self.dump_as(BACKENDS6.name, BackendKey::text, |value: &Backend6| {
                place_text(&value.addr().to_string(), value.proto, value.zone)
            }),
        ])
    }

    /// Service entries of both families as they are in the maps.
    ///
    /// # Errors
    /// When a map cannot be read, or is missing while others of its family are pinned.
    pub(crate) fn frontends(&self) -> Result<Vec<Entry>, MapsError> {
        self.families([self.entries(SERVICES4.name), self.entries(SERVICES6.name)])
    }

    /// Clients bound to a backend, of both families: the backend's id and when they last called (seconds of the
    /// monotonic clock).
    ///
    /// # Errors
    /// When a map cannot be read, or is missing while others of its family are pinned.
    pub(crate) fn affinities(&self) -> Result<Vec<Entry>, MapsError> {
        self.families([self.entries(AFFINITY4.name), self.entries(AFFINITY6.name)])
    }

    /// Sockets' namespaces that are not redirected, of both families.
    ///
    /// # Errors
    /// When a map cannot be read, or is missing while others of its family are pinned.
    pub(crate) fn skipped(&self) -> Result<Vec<Entry>, MapsError> {
        self.families([self.entries(SKIP4.name), self.entries(SKIP6.name)])
    }

    /// Sockets that go through a service, of both families.
    ///
    /// # Errors
    /// When a map cannot be read, or is missing while others of its family are pinned.
    pub(crate) fn sockets(&self) -> Result<Vec<Entry>, MapsError> {
        self.families([self.entries(REVERSE_SK4.name), self.entries(REVERSE_SK6.name)])
    }

    /// Service entries with the backends that they lead to, both families.
    ///
    /// # Errors
    /// When a map cannot be read, or is missing while others of its family are pinned.
    pub(crate) fn services(&self) -> Result<Vec<Entry>, MapsError> {
        self.families([
            self.resolved(
                &SERVICES4,
                &BACKENDS4,
                |backend| (backend.addr(), backend.port.get(), backend.proto),
                "0.0.0.0:0",
            ),
            self.resolved(
                &SERVICES6,
                &BACKENDS6,
                |backend| (backend.addr(), backend.port.get(), backend.proto),
                "[::]:0",
            ),
        ])
    }

    fn resolved<K, B>(
        &self,
        services: &MapFamily<K, ServiceValue>,
        backends: &MapFamily<BackendKey, B>,
        address: fn(&B) -> (IpAddr, u16, u8),
        nowhere: &str,
    ) -> Result<Vec<Entry>, MapsError>
    where
        K: Plain + Ord + Text + Slot,
        B: Plain,
    {
        let backends: BTreeMap<u32, B> = self
            .open::<BackendKey, B>(backends.name)?
            .entries()?
            .into_iter()
            .map(|(key, value)| (key.id, value))
            .collect();
        let map: Map<K, ServiceValue> = self.open(services.name)?;
        let mut entries = map.entries()?;
        // All slots of a frontend together, the master first.
        entries.sort_by_key(|(key, _)| key.order());
        Ok(entries
            .into_iter()
            .map(|(key, value)| {
                let (id, flags) = (value.rev_nat.get(), value.service_flags());
                let words = if key.slot() == 0 {
                    let proxy = if flags.contains(ServiceFlags::L7_LOAD_BALANCER) {
                        format!("(L7LB Proxy Port: {})", value.l7_port())
                    } else {
                        String::new()
                    };
                    format!("{nowhere} ({id}) (0) [{flags}] {proxy}")
                } else {
                    match backends.get(&value.backend_id()) {
                        Some(backend) => {
                            let (address, port, proto) = address(backend);
                            let at = SocketAddr::new(address, port);
                            format!("{at}/{} ({id}) ({})", protocol(proto), key.slot())
                        }
                        None => format!("backend {} not found", value.backend_id()),
                    }
                };
                (key.text(), vec![words])
            })
            .collect())
    }

    /// Joins what both families have. A family that is off has no map pinned; of one that has some, none may be missing.
    pub(crate) fn families(&self, both: [Result<Vec<Entry>, MapsError>; 2]) -> Result<Vec<Entry>, MapsError> {
        let is_pinned = |name: &str| self.store.path(name).exists();
        let [first, second] = both;
        let off = |result: &Result<Vec<Entry>, MapsError>, ip: IpFamily| {
            matches!(result, Err(MapsError::NotPinned { .. })) && !names_of(ip).any(is_pinned)
        };
        match (off(&first, IpFamily::V4), off(&second, IpFamily::V6)) {
            (_, true) => first,
            (true, false) => second,
            (false, false) => Ok([first?, second?].concat()),
        }
    }

    /// Those of `wanted` whose maps are pinned, by name: maps of an address family that is off are not.
    pub(crate) fn there<T>(
        &self,
        wanted: Vec<T>,
        name: impl for<'a> Fn(&'a T) -> &'a str,
    ) -> Result<Vec<T>, MapsError> {
        let missing = wanted.first().map(|first| MapsError::NotPinned {
            map: name(first).to_owned(),
            directory: self.store.directory(),
        });
        let is_pinned = |one: &T| self.store.path(name(one)).exists();
        let there: Vec<T> = wanted.into_iter().filter(is_pinned).collect();
        match missing {
            Some(error) if there.is_empty() => Err(error),
            _ => Ok(there),
        }
    }

    pub(crate) fn store(&self) -> &MapStore {
        &self.store
    }

    /// The map called `name`, by bytes.
    pub(crate) fn open_raw(&self, name: &str) -> Result<KernelMap, MapsError> {
        self.pinned(name, self.store.open_raw(name))
    }

    /// The map called `name`.
    ///
    /// # Errors
    /// When it is not pinned, or has other keys and values.
    pub(crate) fn open<K: Plain, V: Plain>(&self, name: &str) -> Result<Map<K, V>, MapsError> {
        self.pinned(name, self.store.open(name))
    }

    /// The map called `name`, which has a value for each CPU.
    ///
    /// # Errors
    /// When it is not pinned, or has other keys and values.
    pub(crate) fn open_per_cpu<K: Plain, V: Plain>(&self, name: &str) -> Result<PerCpuMap<K, V>, MapsError> {
        self.pinned(name, PerCpuMap::open(name, &self.store.path(name)))
    }

    /// Distinguishes a missing map from one that cannot be read.
    fn pinned<M>(&self, name: &str, opened: Result<M, MapError>) -> Result<M, MapsError> {
        opened.map_err(|error| {
            if error.is_missing() {
                MapsError::NotPinned {
                    map: name.to_owned(),
                    directory: self.store.directory(),
                }
            } else {
                error.into()
            }
        })
    }

    fn dump_as<K: Plain + Ord, V: Plain>(
        &self,
        name: &str,
        key_text: impl Fn(&K) -> String,
        value_text: impl Fn(&V) -> String,
    ) -> Result<Vec<Entry>, MapsError> {
        let mut entries = self.open::<K, V>(name)?.entries()?;
        entries.sort_by_key(|(key, _)| *key);
        Ok(entries
            .iter()
            .map(|(key, value)| (key_text(key), vec![value_text(value)]))
            .collect())
    }
}

/// The frontend's part of a service key, and the number of the slot in it.
trait Slot {
    fn slot(&self) -> u16;

    /// Sorts by address, port, protocol, scope, then slot.
    fn order(&self) -> (IpAddr, u16, u8, u8, u16);
}

impl Slot for Service4Key {
    fn slot(&self) -> u16 {
        self.slot
    }

    fn order(&self) -> (IpAddr, u16, u8, u8, u16) {
        (self.addr(), self.port.get(), self.proto, self.scope, self.slot)
    }
}

impl Slot for Service6Key {
    fn slot(&self) -> u16 {
        self.slot
    }

    fn order(&self) -> (IpAddr, u16, u8, u8, u16) {
        (self.addr(), self.port.get(), self.proto, self.scope, self.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_missing_family_is_fine_and_two_are_not() {
        let here = || Ok(vec![("1".to_owned(), vec![String::new()])]);
        let pinned = Pinned::below(Path::new("/nowhere"));
        let missing = || pinned.entries("cilium_lb4_services_v2");

        assert_eq!(
            missing().unwrap_err().to_string(),
            "no map cilium_lb4_services_v2 is pinned below /nowhere/tc/globals (has the agent run? see `skep map list` and --bpf-root)"
        );
        assert_eq!(pinned.families([here(), missing()]).unwrap().len(), 1);
        assert_eq!(pinned.families([missing(), here()]).unwrap().len(), 1);
        assert!(pinned.families([missing(), missing()]).is_err());
    }

    #[test]
    fn an_unknown_map_is_named() {
        let err = Pinned::below(Path::new("/nowhere"))
            .entries("cilium_ct4_global")
            .unwrap_err();
        assert!(err.to_string().contains("cilium_ct4_global"));
    }
}
