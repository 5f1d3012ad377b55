// SPDX-License-Identifier: Apache-2.0

//! `skep bpf ct`: connection tracking.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
    io::Write,
    net::{IpAddr, SocketAddr},
};

use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use skep_bpf_maps::{
    collect::{BatchCollector, FlowCollector as _, FlowMap, Removal},
    conntrack::{CtEntry, CtKey4, CtKey6, key_flags},
    endpoint::{LXC, LxcKey, LxcValue},
    text::protocol,
};
use skep_bpf_sys::{clock::kernel_seconds, map::Plain};

use super::{FlowsError, Writer};
use crate::{
    maps::{MapsError, Pinned},
    print::Format,
};

/// How programs tell time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClockMode {
    /// Monotonic clock.
    Ktime,
    /// Kernel ticks.
    Jiffies,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConnectionCommand {
    /// List all entries.
    #[command(alias = "ls")]
    List {
        /// `global` (the node's maps), an endpoint id, or `cluster` and a cluster id.
        #[arg(value_name = "global | ENDPOINT | cluster ID", num_args = 0..=2)]
        which: Vec<String>,
        /// Print the remaining lifetime in seconds.
        #[arg(short = 'd', long)]
        time_diff: bool,
        /// Clock source of the entries, for --time-diff.
        #[arg(long, value_enum, default_value = "ktime")]
        time_diff_clocksource_mode: ClockMode,
        /// Kernel tick rate, for --time-diff with jiffies.
        #[arg(long, default_value_t = 250)]
        time_diff_clocksource_hz: u32,
    },
    /// Delete conntrack entries and their NAT entries.
    Flush {
        /// `global` (the node's maps) or an endpoint id.
        #[arg(default_value = "global")]
        which: String,
    },
}

/// What is meant by the words of a command.
enum Which {
    Global,
    Endpoint(u16),
    Cluster(u32),
}

impl Which {
    fn parse(words: &[String]) -> Result<Self, FlowsError> {
        let unknown = || FlowsError::Which(words.join(" "));
        match words {
            [] => Ok(Self::Global),
            [word] if word == "global" => Ok(Self::Global),
            [word] => word.parse().map(Self::Endpoint).map_err(|_| unknown()),
            [word, id] if word == "cluster" => id.parse().map(Self::Cluster).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

/// Now, on the clock of the entries.
#[derive(Clone, Copy)]
struct Now {
    time: u64,
    /// Ticks a second, if times are ticks / 256.
    hz: Option<u32>,
}

impl Now {
    fn read(mode: ClockMode, hz: u32) -> Result<Self, FlowsError> {
        match mode {
            ClockMode::Ktime => Ok(Self {
                time: kernel_seconds()?,
                hz: None,
            }),
            ClockMode::Jiffies if hz == 0 => Err(FlowsError::Rate),
            ClockMode::Jiffies => {
                let text = std::fs::read_to_string("/proc/timer_list").unwrap_or_default();
                let ticks: Option<u64> = text
                    .lines()
                    .find_map(|line| line.trim().strip_prefix("jiffies:")?.trim().parse().ok());
                Ok(Self {
                    time: ticks.ok_or(FlowsError::Ticks)? >> 8,
                    hz: Some(hz),
                })
            }
        }
    }

    /// Seconds until then; less than 0 if it is past.
    fn until(self, lifetime: u32) -> i64 {
        let units = i64::from(lifetime) - self.time as i64;
        match self.hz {
            Some(hz) => units * 256 / i64::from(hz),
            None => units,
        }
    }
}

/// `skep bpf ct`.
pub(crate) fn connections(
    pinned: &Pinned,
    command: &ConnectionCommand,
    format: Format,
    out: &mut dyn Write,
) -> Result<(), FlowsError> {
    match command {
        ConnectionCommand::List {
            which,
            time_diff,
            time_diff_clocksource_mode,
            time_diff_clocksource_hz,
        } => {
            let now = time_diff
                .then(|| Now::read(*time_diff_clocksource_mode, *time_diff_clocksource_hz))
                .transpose()?;
            list(pinned, &Which::parse(which)?, now, format, out)
        }
        ConnectionCommand::Flush { which } => {
            let removal = match Which::parse(std::slice::from_ref(which))? {
                Which::Endpoint(id) => Removal::Addresses(addresses(pinned, id)?),
                Which::Global | Which::Cluster(_) => Removal::All,
            };
            flush(pinned, &removal, out)
        }
    }
}

/// Names of the maps of a cluster whose addresses overlap with ours, without its id.
const fn cluster_map(map: FlowMap) -> &'static str {
    match map {
        FlowMap::Tcp4 => "cilium_per_cluster_ct_tcp4",
        FlowMap::Any4 => "cilium_per_cluster_ct_any4",
        FlowMap::Tcp6 => "cilium_per_cluster_ct_tcp6",
        FlowMap::Any6 => "cilium_per_cluster_ct_any6",
    }
}

fn list(
    pinned: &Pinned,
    which: &Which,
    now: Option<Now>,
    format: Format,
    out: &mut dyn Write,
) -> Result<(), FlowsError> {
    let of = match which {
        Which::Endpoint(id) => Some(addresses(pinned, *id)?),
        Which::Global | Which::Cluster(_) => None,
    };
    let name = |map: FlowMap| match which {
        Which::Cluster(id) => format!("{}_{id}", cluster_map(map)),
        Which::Global | Which::Endpoint(_) => map.family().name.to_owned(),
    };
    let names: Vec<(FlowMap, String)> = FlowMap::ALL.into_iter().map(|map| (map, name(map))).collect();
    let there = pinned.there(names, |(_, name)| name)?;
    let mut writer = Writer::new(out, format)?;
    for (map, name) in there {
        if map.is_ipv6() {
            list_map::<CtKey6>(pinned, &name, of.as_ref(), now, &mut writer)?;
        } else {
            list_map::<CtKey4>(pinned, &name, of.as_ref(), now, &mut writer)?;
        }
    }
    Ok(writer.finish()?)
}

/// What keys of both address families have.
trait Key: Plain {
    fn flow(&self) -> Flow;
}

macro_rules! key {
    ($key:ident) => {
        impl Key for $key {
            fn flow(&self) -> Flow {
                let is_service = self.flags & key_flags::SERVICE != 0;
                let (daddr, saddr) = (IpAddr::from(self.daddr), IpAddr::from(self.saddr));
                // A key has either the addresses or the ports of the first packet exchanged.
                let (from, to) = if is_service {
                    (saddr, daddr)
                } else {
                    (daddr, saddr)
                };
                let (sport, dport) = if is_service {
                    (self.dport, self.sport)
                } else {
                    (self.sport, self.dport)
                };
                Flow {
                    source: SocketAddr::new(from, sport.get()),
                    destination: SocketAddr::new(to, dport.get()),
                    proto: self.proto,
                    flags: self.flags,
                }
            }
        }
    };
}

key!(CtKey4);
key!(CtKey6);

/// A flow, from the side that opened it to the other.
struct Flow {
    source: SocketAddr,
    destination: SocketAddr,
    proto: u8,
    flags: u8,
}

impl Flow {
    const fn direction(&self) -> &'static str {
        match self.flags {
            flags if flags & key_flags::SERVICE != 0 => "SVC",
            flags if flags & key_flags::INGRESS != 0 => "IN",
            _ => "OUT",
        }
    }

    const fn is_related(&self) -> bool {
        self.flags & key_flags::RELATED != 0
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Connection {
    protocol: &'static str,
    direction: &'static str,
    source: SocketAddr,
    destination: SocketAddr,
    related: bool,
    expires: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_seconds: Option<i64>,
    packets: u64,
    bytes: u64,
    rx_flags_seen: u8,
    last_rx_report: u32,
    tx_flags_seen: u8,
    last_tx_report: u32,
    flags: Vec<&'static str>,
    rev_nat: u16,
    source_security_id: u32,
    backend_id: u64,
    nat_port: u16,
}

fn connection(flow: &Flow, entry: &CtEntry, now: Option<Now>) -> Connection {
    Connection {
        protocol: protocol(flow.proto),
        direction: flow.direction(),
        source: flow.source,
        destination: flow.destination,
        related: flow.is_related(),
        expires: entry.lifetime,
        remaining_seconds: now.map(|now| now.until(entry.lifetime)),
        packets: entry.packets,
        bytes: entry.bytes,
        rx_flags_seen: entry.rx_flags_seen,
        last_rx_report: entry.last_rx_report,
        tx_flags_seen: entry.tx_flags_seen,
        last_tx_report: entry.last_tx_report,
        flags: entry.flag_names().collect(),
        rev_nat: entry.rev_nat.get(),
        source_security_id: entry.source_identity,
        backend_id: entry.backend_id(),
        nat_port: entry.nat_port.get(),
    }
}

fn list_map<K: Key>(
    pinned: &Pinned,
    name: &str,
    of: Option<&BTreeSet<IpAddr>>,
    now: Option<Now>,
    writer: &mut Writer<'_>,
) -> Result<(), FlowsError> {
    let map = pinned.open::<K, CtEntry>(name)?;
    let mut result = Ok(());
    map.for_each(|key, entry| {
        if result.is_err() {
            return;
        }
        let flow = key.flow();
        let is_of = |addresses: &BTreeSet<IpAddr>| {
            addresses.contains(&flow.source.ip()) || addresses.contains(&flow.destination.ip())
        };
        if of.is_none_or(is_of) {
            result = writer.entry(
                |out| line(&flow, &entry, now, out),
                || connection(&flow, &entry, now),
            );
        }
    })
    .map_err(MapsError::from)?;
    result
}

fn line(flow: &Flow, entry: &CtEntry, now: Option<Now>, out: &mut String) -> fmt::Result {
    let related = if flow.is_related() { " related" } else { "" };
    write!(
        out,
        "{} {} {} -> {}{related} expires={}",
        protocol(flow.proto),
        flow.direction(),
        flow.source,
        flow.destination,
        entry.lifetime,
    )?;
    if let Some(now) = now {
        write!(out, " (remaining: {} sec(s))", now.until(entry.lifetime))?;
    }
    entry.write_details(out)
}

/// Addresses of an endpoint of this node.
fn addresses(pinned: &Pinned, id: u16) -> Result<BTreeSet<IpAddr>, FlowsError> {
    let map = pinned.open::<LxcKey, LxcValue>(LXC.name)?;
    let entries = map.entries().map_err(MapsError::from)?;
    let found: BTreeSet<IpAddr> = entries
        .into_iter()
        .filter(|(_, value)| value.endpoint == id)
        .filter_map(|(key, _)| key.address())
        .collect();
    if found.is_empty() {
        return Err(FlowsError::NoEndpoint(id));
    }
    Ok(found)
}

fn flush(pinned: &Pinned, removal: &Removal, out: &mut dyn Write) -> Result<(), FlowsError> {
    let there = pinned.there(FlowMap::ALL.to_vec(), |map| map.family().name)?;
    // Whether an entry has expired does not matter, nor which clock its time is on.
    let clock = Box::new(|| Ok(0));
    let collector = BatchCollector::open(pinned.store(), clock).map_err(MapsError::from)?;
    for map in there {
        let done = collector.collect(map, removal)?;
        let path = pinned.path(map.family().name);
        writeln!(out, "Flushed {} entries from {path}", done.deleted)?;
    }
    Ok(())
}
