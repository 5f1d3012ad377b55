// SPDX-License-Identifier: Apache-2.0

//! Pinned maps as text: works while the agent is down.

mod text;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use skep_bpf_maps::{
    event::{METRICS, MetricsKey, MetricsValue, RATELIMIT, RATELIMIT_METRICS, RateLimitKey, RateLimitValue},
    lb::{
        Backend4, Backend6, BackendKey, LbMapSizes, LbMapSpecs, MaglevKey, Service4Key, Service6Key,
        ServiceFlags, ServiceValue,
    },
    node::IPCACHE,
};
use skep_bpf_sys::{
    Map, MapError, MapStore, NestedMap,
    map::{MapSpec, PerCpuMap, Plain},
};

use self::text::{Text, host_text, metrics_text, protocol, table_text, usage_text};

/// Why pinned maps cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MapsError {
    /// Are you root?
    #[error(transparent)]
    Map(#[from] MapError),
    /// Has the agent run since the machine booted, and is the BPF file system at `--bpf-root`?
    #[error("no map {map} is pinned below {} (has the agent run? see `skep map list` and --bpf-root)", directory.display())]
    NotPinned {
        /// The map's name.
        map: String,
        /// Where maps are looked for.
        directory: PathBuf,
    },
    /// Is the BPF file system mounted there?
    #[error("no maps are pinned below {} (see --bpf-root)", directory.display())]
    Directory {
        /// Where maps are looked for.
        directory: PathBuf,
        /// What the kernel said.
        #[source]
        cause: io::Error,
    },
    /// `skep map list` names the maps there are.
    #[error("map `{name}` is not one whose content skep can show")]
    Unknown {
        /// What was asked for.
        name: String,
    },
}

/// An entry of a map: text of the key, texts of the value.
pub(crate) type Entry = (String, Vec<String>);

/// The pinned maps below a BPF file system.
#[derive(Debug)]
pub(crate) struct Pinned {
    store: std::sync::Arc<MapStore>,
    specs: LbMapSpecs,
}

impl Pinned {
    /// The maps pinned below `root`.
    #[must_use]
    pub(crate) fn below(root: &Path) -> Self {
        Self {
            store: MapStore::new(root),
            specs: LbMapSpecs::new(LbMapSizes::default()),
        }
    }

    /// Names of all pinned maps, sorted.
    ///
    /// # Errors
    /// When there is no such directory.
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
    /// When it is not pinned, cannot be read, or is of a kind whose layout skep does not know.
    pub(crate) fn entries(&self, name: &str) -> Result<Vec<Entry>, MapsError> {
        let specs = &self.specs;
        match name {
            name if name == specs.services4.name() => self.dump(&specs.services4),
            name if name == specs.services6.name() => self.dump(&specs.services6),
            name if name == specs.backends4.name() => self.dump(&specs.backends4),
            name if name == specs.backends6.name() => self.dump(&specs.backends6),
            name if name == specs.reverse_nat4.name() => self.dump(&specs.reverse_nat4),
            name if name == specs.reverse_nat6.name() => self.dump(&specs.reverse_nat6),
            name if name == specs.affinity4.name() => self.dump(&specs.affinity4),
            name if name == specs.affinity6.name() => self.dump(&specs.affinity6),
            name if name == specs.affinity_match.name() => self.dump(&specs.affinity_match),
            name if name == specs.source_range4.name() => self.dump(&specs.source_range4),
            name if name == specs.source_range6.name() => self.dump(&specs.source_range6),
            name if name == specs.reverse_sk4.name() => self.dump(&specs.reverse_sk4),
            name if name == specs.reverse_sk6.name() => self.dump(&specs.reverse_sk6),
            name if name == specs.skip4.name() => self.dump(&specs.skip4),
            name if name == specs.skip6.name() => self.dump(&specs.skip6),
            name if name == IPCACHE.name() => self.dump(&IPCACHE),
            name => self.special(name),
        }
    }

    /// Maps that are not plain keys and values.
    fn special(&self, name: &str) -> Result<Vec<Entry>, MapsError> {
        if name == METRICS.name() {
            let map = PerCpuMap::<MetricsKey, MetricsValue>::open(name, &self.store.path(name));
            let map = self.pinned(name, map)?;
            let mut entries: Vec<Entry> = map
                .entries()?
                .into_iter()
                .map(|(key, values)| {
                    let sum = |field: fn(&MetricsValue) -> u64| values.iter().map(field).sum::<u64>();
                    let total = format!("{} {}", sum(|value| value.count), sum(|value| value.bytes));
                    (metrics_text(&key), vec![total])
                })
                .collect();
            entries.sort();
            return Ok(entries);
        }
        if name == RATELIMIT.name() {
            return self.dump_as(
                name,
                |key: &RateLimitKey| format!("{} {}", usage_text(key.usage), key.ifindex),
                |value: &RateLimitValue| format!("{} {}", value.tokens, value.last_topup),
            );
        }
        if name == RATELIMIT_METRICS.name() {
            return self.dump_as(
                name,
                |usage: &u32| usage_text(*usage),
                |dropped: &u64| dropped.to_string(),
            );
        }
        let (maglev4, maglev6) = (self.specs.maglev4.name(), self.specs.maglev6.name());
        if name == maglev4 || name == maglev6 {
            let name = if name == maglev4 { maglev4 } else { maglev6 };
            return Ok(self
                .tables(name)?
                .into_iter()
                .map(|(id, table)| (id.to_string(), vec![table_text(&table)]))
                .collect());
        }
        let directory = self.store.directory();
        if !directory.join(name).exists() {
            return Err(MapsError::NotPinned {
                map: name.to_owned(),
                directory,
            });
        }
        Err(MapsError::Unknown {
            name: name.to_owned(),
        })
    }

    fn tables(&self, name: &'static str) -> Result<BTreeMap<u16, Vec<u32>>, MapsError> {
        let map = NestedMap::<MaglevKey, u32>::open(name, &self.store.path(name));
        let map = self.pinned(name, map)?;
        let mut tables = BTreeMap::new();
        for key in map.keys()? {
            if let Some(table) = map.lookup(&key)? {
                tables.insert(key.rev_nat.get(), table);
            }
        }
        Ok(tables)
    }

    /// Maglev tables of both families: `[id]/v4` or `/v6`, and the table.
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn maglev(&self) -> Result<Vec<Entry>, MapsError> {
        let both = [
            (self.specs.maglev4.name(), "v4"),
            (self.specs.maglev6.name(), "v6"),
        ];
        families(both.map(|(name, family)| {
            Ok(self
                .tables(name)?
                .into_iter()
                .map(|(id, table)| (format!("[{id}]/{family}"), vec![table_text(&table)]))
                .collect())
        }))
    }

    /// Source ranges of both families with the id of their service.
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn source_ranges(&self) -> Result<Vec<Entry>, MapsError> {
        families([
            self.dump(&self.specs.source_range4),
            self.dump(&self.specs.source_range6),
        ])
    }

    /// Reverse NAT of both families: service id and the frontend's address.
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn reverse_nat(&self) -> Result<Vec<Entry>, MapsError> {
        families([
            self.dump(&self.specs.reverse_nat4),
            self.dump(&self.specs.reverse_nat6),
        ])
    }

    /// Backends of both families: id and `PROTO://address`, with the number of a known zone. Ports and states are
    /// shown by [`entries`](Self::entries).
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn backends(&self) -> Result<Vec<Entry>, MapsError> {
        families([
            self.dump_as(
                self.specs.backends4.name(),
                BackendKey::text,
                |value: &Backend4| host_text(value.addr(), value.proto, value.zone),
            ),
            self.dump_as(
                self.specs.backends6.name(),
                BackendKey::text,
                |value: &Backend6| host_text(value.addr(), value.proto, value.zone),
            ),
        ])
    }

    /// Service entries of both families as they are in the maps.
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn frontends(&self) -> Result<Vec<Entry>, MapsError> {
        families([self.dump(&self.specs.services4), self.dump(&self.specs.services6)])
    }

    /// Clients bound to a backend, of both families: the backend's id and when they last called (seconds of the
    /// monotonic clock).
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn affinities(&self) -> Result<Vec<Entry>, MapsError> {
        families([self.dump(&self.specs.affinity4), self.dump(&self.specs.affinity6)])
    }

    /// Sockets' namespaces that are not redirected, of both families.
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn skipped(&self) -> Result<Vec<Entry>, MapsError> {
        families([self.dump(&self.specs.skip4), self.dump(&self.specs.skip6)])
    }

    /// Sockets that go through a service, of both families.
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn sockets(&self) -> Result<Vec<Entry>, MapsError> {
        families([
            self.dump(&self.specs.reverse_sk4),
            self.dump(&self.specs.reverse_sk6),
        ])
    }

    /// Service entries with the backends that they lead to, both families.
    ///
    /// # Errors
    /// When neither family's maps can be read.
    pub(crate) fn services(&self) -> Result<Vec<Entry>, MapsError> {
        families([
            self.resolved(
                &self.specs.services4,
                &self.specs.backends4,
                |backend| (backend.addr(), backend.port.get(), backend.proto),
                "0.0.0.0:0",
            ),
            self.resolved(
                &self.specs.services6,
                &self.specs.backends6,
                |backend| (backend.addr(), backend.port.get(), backend.proto),
                "[::]:0",
            ),
        ])
    }

    fn resolved<K, B>(
        &self,
        services: &MapSpec<K, ServiceValue>,
        backends: &MapSpec<BackendKey, B>,
        address: fn(&B) -> (IpAddr, u16, u8),
        nowhere: &str,
    ) -> Result<Vec<Entry>, MapsError>
    where
        K: Plain + Ord + Text + Slot,
        B: Plain,
    {
        let backends: BTreeMap<u32, B> = self
            .open::<BackendKey, B>(backends.name())?
            .entries()?
            .into_iter()
            .map(|(key, value)| (key.id, value))
            .collect();
        let map: Map<K, ServiceValue> = self.open(services.name())?;
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

    fn open<K: Plain, V: Plain>(&self, name: &str) -> Result<Map<K, V>, MapsError> {
        self.pinned(name, self.store.open(name))
    }

    /// Tells a map that is not there from one that cannot be read.
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

    fn dump<K, V>(&self, spec: &MapSpec<K, V>) -> Result<Vec<Entry>, MapsError>
    where
        K: Plain + Ord + Text,
        V: Plain + Text,
    {
        self.dump_as(spec.name(), K::text, V::text)
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

/// Joins what both families have. The maps of a disabled family are not there, which is fine unless both are
/// missing.
fn families(both: [Result<Vec<Entry>, MapsError>; 2]) -> Result<Vec<Entry>, MapsError> {
    let absent = |result: &Result<Vec<Entry>, MapsError>| matches!(result, Err(MapsError::NotPinned { .. }));
    match both {
        [first, second] if absent(&second) => first,
        [first, second] if absent(&first) => second,
        [first, second] => Ok([first?, second?].concat()),
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
        assert_eq!(families([here(), missing()]).unwrap().len(), 1);
        assert_eq!(families([missing(), here()]).unwrap().len(), 1);
        assert!(families([missing(), missing()]).is_err());
    }

    #[test]
    fn an_unknown_map_is_named() {
        let err = Pinned::below(Path::new("/nowhere"))
            .entries("cilium_ct4_global")
            .unwrap_err();
        assert!(err.to_string().contains("cilium_ct4_global"));
    }
}
