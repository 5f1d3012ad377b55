// SPDX-License-Identifier: Apache-2.0

//! Pinned maps as text: works while the agent is down.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

use skep_bpf::{
    Map, MapError, MapStore, NestedMap,
    event::{METRICS, MetricsKey, MetricsValue, RATELIMIT, RATELIMIT_METRICS, RateLimitKey, RateLimitValue},
    lb::{
        Affinity, Affinity4Key, Affinity6Key, AffinityMatchKey, Backend4, Backend6, BackendKey, LbMapSizes,
        LbMapSpecs, MaglevKey, ReverseNat4, ReverseNat6, ReverseNatKey, ReverseSk4, ReverseSk4Key,
        ReverseSk6, ReverseSk6Key, Scope, Service4Key, Service6Key, ServiceFlags, ServiceValue, Skip4Key,
        Skip6Key, SourceRange4Key, SourceRange6Key,
    },
    map::{PerCpuMap, Plain},
    node::{IPCACHE, IPCACHE_STATIC_BITS, IpcacheKey, IpcacheValue},
};

/// Why pinned maps cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MapsError {
    /// Is it pinned, are you root, and is the BPF file system at `--bpf-root`?
    #[error(transparent)]
    Map(#[from] MapError),
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
        let known = [
            specs.services4.name(),
            specs.services6.name(),
            specs.backends4.name(),
            specs.backends6.name(),
            specs.reverse_nat4.name(),
            specs.reverse_nat6.name(),
            specs.affinity4.name(),
            specs.affinity6.name(),
            specs.affinity_match.name(),
            specs.source_range4.name(),
            specs.source_range6.name(),
            specs.reverse_sk4.name(),
            specs.reverse_sk6.name(),
            specs.skip4.name(),
            specs.skip6.name(),
            IPCACHE.name(),
        ];
        let position = known.iter().position(|known| *known == name);
        match position {
            Some(0) => self.dump(name, frontend4, service_value),
            Some(1) => self.dump(name, frontend6, service_value),
            Some(2) => self.dump(name, backend_key, |value: &Backend4| {
                backend_text(
                    value.addr(),
                    value.port.get(),
                    value.proto,
                    value.state,
                    value.zone,
                )
            }),
            Some(3) => self.dump(name, backend_key, |value: &Backend6| {
                backend_text(
                    value.addr(),
                    value.port.get(),
                    value.proto,
                    value.state,
                    value.zone,
                )
            }),
            Some(4) => self.dump(name, reverse_key, |value: &ReverseNat4| {
                SocketAddr::new(value.addr(), value.port.get()).to_string()
            }),
            Some(5) => self.dump(name, reverse_key, |value: &ReverseNat6| {
                SocketAddr::new(value.addr(), value.port.get()).to_string()
            }),
            Some(6) => self.dump(
                name,
                |key: &Affinity4Key| {
                    let [a, b, c, d, ..] = key.client;
                    client_text(
                        key.flags,
                        key.client,
                        Ipv4Addr::new(a, b, c, d).into(),
                        key.rev_nat.get(),
                    )
                },
                affinity_value,
            ),
            Some(7) => self.dump(
                name,
                |key: &Affinity6Key| {
                    let mut cookie = [0; 8];
                    cookie.copy_from_slice(&key.client[..8]);
                    client_text(
                        key.flags,
                        cookie,
                        Ipv6Addr::from(key.client).into(),
                        key.rev_nat.get(),
                    )
                },
                affinity_value,
            ),
            Some(8) => self.dump(
                name,
                |key: &AffinityMatchKey| format!("{} {}", key.backend_id, key.rev_nat.get()),
                |_: &u8| String::new(),
            ),
            Some(9) => self.dump(
                name,
                |key: &SourceRange4Key| range_text(key.cidr(), key.rev_nat.get()),
                no_value,
            ),
            Some(10) => self.dump(
                name,
                |key: &SourceRange6Key| range_text(key.cidr(), key.rev_nat.get()),
                no_value,
            ),
            Some(11) => self.dump(
                name,
                |key: &ReverseSk4Key| {
                    socket_key(Ipv4Addr::from(key.address).into(), key.port.get(), key.cookie)
                },
                |value: &ReverseSk4| {
                    socket_value(
                        Ipv4Addr::from(value.address).into(),
                        value.port.get(),
                        value.rev_nat.get(),
                    )
                },
            ),
            Some(12) => self.dump(
                name,
                |key: &ReverseSk6Key| {
                    socket_key(Ipv6Addr::from(key.address).into(), key.port.get(), key.cookie)
                },
                |value: &ReverseSk6| {
                    socket_value(
                        Ipv6Addr::from(value.address).into(),
                        value.port.get(),
                        value.rev_nat.get(),
                    )
                },
            ),
            Some(13) => self.dump(
                name,
                |key: &Skip4Key| {
                    skip_text(
                        key.netns_cookie,
                        Ipv4Addr::from(key.address).into(),
                        key.port.get(),
                    )
                },
                no_value,
            ),
            Some(14) => self.dump(
                name,
                |key: &Skip6Key| {
                    skip_text(
                        key.netns_cookie,
                        Ipv6Addr::from(key.address).into(),
                        key.port.get(),
                    )
                },
                no_value,
            ),
            Some(_) => self.dump(name, ipcache_key, ipcache_value),
            None => self.special(name),
        }
    }

    /// Maps that are not plain keys and values.
    fn special(&self, name: &str) -> Result<Vec<Entry>, MapsError> {
        if name == METRICS.name() {
            let map = PerCpuMap::<MetricsKey, MetricsValue>::open(name, &self.store.path(name))?;
            let mut entries: Vec<Entry> = map
                .entries()?
                .into_iter()
                .map(|(key, values)| {
                    let sum = |field: fn(&MetricsValue) -> u64| values.iter().map(field).sum::<u64>();
                    let direction = match key.direction & 3 {
                        1 => "INGRESS",
                        2 => "EGRESS",
                        3 => "SERVICE",
                        _ => "UNKNOWN",
                    };
                    let text = format!("{} {direction}", reason_text(key.reason));
                    (
                        text,
                        vec![format!(
                            "{} {}",
                            sum(|value| value.count),
                            sum(|value| value.bytes)
                        )],
                    )
                })
                .collect();
            entries.sort();
            return Ok(entries);
        }
        if name == RATELIMIT.name() {
            return self.dump(
                name,
                |key: &RateLimitKey| format!("{} {}", usage_text(key.usage), key.ifindex),
                |value: &RateLimitValue| format!("{} {}", value.tokens, value.last_topup),
            );
        }
        if name == RATELIMIT_METRICS.name() {
            return self.dump(
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
        Err(MapsError::Unknown {
            name: name.to_owned(),
        })
    }

    fn tables(&self, name: &'static str) -> Result<BTreeMap<u16, Vec<u32>>, MapsError> {
        let map = NestedMap::<MaglevKey, u32>::open(name, &self.store.path(name))?;
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
        families(
            [self.specs.source_range4.name(), self.specs.source_range6.name()].map(|name| self.entries(name)),
        )
    }

    /// Reverse NAT of both families: service id and the frontend's address.
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn reverse_nat(&self) -> Result<Vec<Entry>, MapsError> {
        families(
            [self.specs.reverse_nat4.name(), self.specs.reverse_nat6.name()].map(|name| self.entries(name)),
        )
    }

    /// Backends of both families: id and `PROTO://address`, with the number of a known zone. Ports and states are
    /// shown by [`entries`](Self::entries).
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn backends(&self) -> Result<Vec<Entry>, MapsError> {
        families([
            self.dump(self.specs.backends4.name(), backend_key, |value: &Backend4| {
                host_text(value.addr(), value.proto, value.zone)
            }),
            self.dump(self.specs.backends6.name(), backend_key, |value: &Backend6| {
                host_text(value.addr(), value.proto, value.zone)
            }),
        ])
    }

    /// Service entries of both families as they are in the maps.
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn frontends(&self) -> Result<Vec<Entry>, MapsError> {
        families([self.specs.services4.name(), self.specs.services6.name()].map(|name| self.entries(name)))
    }

    /// Clients bound to a backend, of both families: the backend's id and when they last called (seconds of the
    /// monotonic clock).
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn affinities(&self) -> Result<Vec<Entry>, MapsError> {
        families([self.specs.affinity4.name(), self.specs.affinity6.name()].map(|name| self.entries(name)))
    }

    /// Sockets' namespaces that are not redirected, of both families.
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn skipped(&self) -> Result<Vec<Entry>, MapsError> {
        families([self.specs.skip4.name(), self.specs.skip6.name()].map(|name| self.entries(name)))
    }

    /// Sockets that go through a service, of both families.
    ///
    /// # Errors
    /// When neither family's map can be read.
    pub(crate) fn sockets(&self) -> Result<Vec<Entry>, MapsError> {
        families(
            [self.specs.reverse_sk4.name(), self.specs.reverse_sk6.name()].map(|name| self.entries(name)),
        )
    }

    /// Service entries with the backends that they lead to, both families.
    ///
    /// # Errors
    /// When neither family's maps can be read.
    pub(crate) fn services(&self) -> Result<Vec<Entry>, MapsError> {
        families([
            self.resolved(
                self.specs.services4.name(),
                self.specs.backends4.name(),
                frontend4,
                |backend: &Backend4| (backend.addr(), backend.port.get(), backend.proto),
                "0.0.0.0:0",
            ),
            self.resolved(
                self.specs.services6.name(),
                self.specs.backends6.name(),
                frontend6,
                |backend: &Backend6| (backend.addr(), backend.port.get(), backend.proto),
                "[::]:0",
            ),
        ])
    }

    fn resolved<K, B>(
        &self,
        services: &str,
        backends: &str,
        text: fn(&K) -> String,
        address: fn(&B) -> (IpAddr, u16, u8),
        nowhere: &str,
    ) -> Result<Vec<Entry>, MapsError>
    where
        K: Plain + Ord + Slot,
        B: Plain,
    {
        let backends: BTreeMap<u32, B> = self
            .store
            .open::<BackendKey, B>(backends)?
            .entries()?
            .into_iter()
            .map(|(key, value)| (key.id, value))
            .collect();
        let map: Map<K, ServiceValue> = self.store.open(services)?;
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
                (text(&key), vec![words])
            })
            .collect())
    }

    fn dump<K: Plain + Ord, V: Plain>(
        &self,
        name: &str,
        key_text: impl Fn(&K) -> String,
        value_text: impl Fn(&V) -> String,
    ) -> Result<Vec<Entry>, MapsError> {
        let mut entries = self.store.open::<K, V>(name)?.entries()?;
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
    let absent = |result: &Result<Vec<Entry>, MapsError>| matches!(result, Err(MapsError::Map(err)) if err.is_missing());
    match both {
        [first, second] if absent(&first) => second,
        [first, second] if absent(&second) => first,
        [first, second] => Ok([first?, second?].concat()),
    }
}

fn frontend4(key: &Service4Key) -> String {
    frontend_text(key.addr(), key.port.get(), key.proto, key.scope, key.slot)
}

fn frontend6(key: &Service6Key) -> String {
    frontend_text(key.addr(), key.port.get(), key.proto, key.scope, key.slot)
}

fn frontend_text(address: IpAddr, port: u16, proto: u8, scope: u8, slot: u16) -> String {
    let scope = if scope == Scope::Internal as u8 { "/i" } else { "" };
    format!(
        "{}/{}{scope} ({slot})",
        SocketAddr::new(address, port),
        protocol(proto)
    )
}

fn service_value(value: &ServiceValue) -> String {
    format!(
        "{} {}[{}] ({}) [{:#x} {:#x}]",
        value.target,
        value.count,
        value.qcount,
        value.rev_nat.get(),
        value.flags,
        value.flags2
    )
}

fn backend_key(key: &BackendKey) -> String {
    key.id.to_string()
}

fn backend_text(address: IpAddr, port: u16, proto: u8, state: u8, zone: u8) -> String {
    let zone = if zone == 0 {
        String::new()
    } else {
        format!("[{zone}]")
    };
    let state = match state {
        0 => "",
        1 => " (terminating)",
        2 => " (quarantined)",
        _ => " (maintenance)",
    };
    format!(
        "{}://{}{zone}{state}",
        protocol(proto),
        SocketAddr::new(address, port)
    )
}

fn host_text(address: IpAddr, proto: u8, zone: u8) -> String {
    let zone = if zone == 0 {
        String::new()
    } else {
        format!("[{zone}]")
    };
    format!("{}://{address}{zone}", protocol(proto))
}

fn reverse_key(key: &ReverseNatKey) -> String {
    key.rev_nat.get().to_string()
}

fn client_text(flags: u8, cookie: [u8; 8], address: IpAddr, id: u16) -> String {
    if flags & skep_bpf::lb::AFFINITY_NETNS_COOKIE == 0 {
        format!("{address} ({id})")
    } else {
        format!("netns:{} ({id})", u64::from_ne_bytes(cookie))
    }
}

fn affinity_value(value: &Affinity) -> String {
    format!("{} {}", value.backend_id, value.last_used)
}

fn range_text((network, bits): (IpAddr, u8), id: u16) -> String {
    format!("{network}/{bits} ({id})")
}

fn socket_key(address: IpAddr, port: u16, cookie: u64) -> String {
    format!("{} -> {cookie}", SocketAddr::new(address, port))
}

fn socket_value(address: IpAddr, port: u16, id: u16) -> String {
    format!("{} (revnat={id})", SocketAddr::new(address, port))
}

fn skip_text(cookie: u64, address: IpAddr, port: u16) -> String {
    format!("COOKIE={cookie} IP={address} PORT={port}")
}

fn no_value(_: &u8) -> String {
    String::new()
}

fn ipcache_key(key: &IpcacheKey) -> String {
    let bits = key.prefix_len.saturating_sub(IPCACHE_STATIC_BITS);
    let [a, b, c, d, ..] = key.address;
    let address: IpAddr = if key.family == 1 {
        Ipv4Addr::new(a, b, c, d).into()
    } else {
        Ipv6Addr::from(key.address).into()
    };
    format!("{address}/{bits}")
}

fn ipcache_value(value: &IpcacheValue) -> String {
    let [a, b, c, d, ..] = value.tunnel_endpoint;
    let tunnel: IpAddr = if value.flags & 4 == 0 {
        Ipv4Addr::new(a, b, c, d).into()
    } else {
        Ipv6Addr::from(value.tunnel_endpoint).into()
    };
    let words = [
        (1, "skiptunnel"),
        (2, "hastunnel"),
        (4, "ipv6tunnel"),
        (8, "remotecluster"),
    ];
    let flags: Vec<&str> = words
        .into_iter()
        .filter(|(bit, _)| value.flags & bit != 0)
        .map(|(_, word)| word)
        .collect();
    let flags = if flags.is_empty() {
        "<none>".to_owned()
    } else {
        flags.join(",")
    };
    format!(
        "identity={} encryptkey={} tunnelendpoint={tunnel} flags={flags}",
        value.identity, value.encrypt_key
    )
}

fn reason_text(reason: u8) -> String {
    use skep_bpf::event::reason::{
        LB_NO_BACKEND, LB_NO_BACKEND_SLOT, LB_REVERSE_DELETE, LB_REVERSE_STALE, LB_REVERSE_UPDATE,
    };
    let text = match reason {
        LB_NO_BACKEND_SLOT => "LB: no backend slot entry found",
        LB_NO_BACKEND => "LB: no backend entry found",
        LB_REVERSE_UPDATE => "LB: reverse entry update failed",
        LB_REVERSE_STALE => "LB: reverse entry stale",
        LB_REVERSE_DELETE => "LB: reverse entry deleted",
        other => return format!("reason {other}"),
    };
    text.to_owned()
}

fn usage_text(usage: u32) -> String {
    match usage {
        1 => "icmpv6".to_owned(),
        2 => "events".to_owned(),
        3 => "socket-events".to_owned(),
        other => format!("usage {other}"),
    }
}

fn table_text(table: &[u32]) -> String {
    let ids: Vec<String> = table.iter().map(u32::to_string).collect();
    format!("[{}]", ids.join(" "))
}

fn protocol(number: u8) -> &'static str {
    match number {
        6 => "TCP",
        17 => "UDP",
        132 => "SCTP",
        0 => "ANY",
        _ => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frontends_carry_scope_and_slot() {
        let key = Service4Key::new([10, 96, 0, 10].into(), 53, 17, Scope::Internal).at(2);
        assert_eq!(frontend4(&key), "10.96.0.10:53/UDP/i (2)");
        assert_eq!(
            frontend6(&Service6Key::wildcard(Ipv6Addr::LOCALHOST)),
            "[::1]:0/ANY (0)"
        );
    }

    #[test]
    fn backends_are_told_by_address_and_zone() {
        assert_eq!(host_text([10, 244, 1, 7].into(), 6, 0), "TCP://10.244.1.7");
        assert_eq!(host_text([10, 244, 1, 7].into(), 17, 3), "UDP://10.244.1.7[3]");
    }

    #[test]
    fn frontends_show_their_raw_entry() {
        let flags = ServiceFlags::from_bits(0x2142);
        let value = ServiceValue::master(2, 1, 7, flags)
            .with_affinity_timeout(600)
            .unwrap();
        assert_eq!(service_value(&value), "600 2[1] (7) [0x42 0x21]");
    }

    #[test]
    fn one_missing_family_is_fine_and_two_are_not() {
        let here = || Ok(vec![("1".to_owned(), vec![String::new()])]);
        let pinned = Pinned::below(Path::new("/nowhere"));
        let missing = || pinned.entries("cilium_lb4_services_v2");

        assert!(missing().is_err());
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
