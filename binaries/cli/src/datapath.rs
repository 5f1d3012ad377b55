// SPDX-License-Identifier: Apache-2.0

//! What pinned maps say of packets: counters, endpoints, identities, fragments, networks without
//! masquerading.

use std::{error::Error, net::IpAddr};

use clap::Subcommand;
use serde::Serialize;
use skep_bpf_maps::{
    endpoint::LXC,
    event::{METRICS, MetricsKey, MetricsValue, source_file},
    fragment::{FRAGMENTS4, FRAGMENTS6},
    ip_masq::{IP_MASQ4, IP_MASQ6},
    node::{IPCACHE, IpcacheKey, IpcacheValue, NODE_IDS, NodeIdKey, NodeIdValue},
    text::Text,
    throttle::{THROTTLE, ThrottleKey, ThrottleValue},
};
use skep_bpf_sys::map::PerCpuMap;

use crate::{
    edit::{self, IpcacheDelete, IpcacheUpdate},
    failure::{Failure, fatal, usage},
    maps::{Entry, MapsError, Pinned},
    print::{self, Format},
};

#[derive(Debug, Subcommand)]
pub(crate) enum IpcacheCommand {
    /// List all entries.
    #[command(alias = "ls")]
    List,
    /// Show the longest-prefix match of an address.
    Get {
        /// The address.
        address: Option<String>,
    },
    /// Show the entry of a prefix, or list the prefixes of an identity.
    Match {
        /// The prefix, or the identity.
        wanted: String,
    },
    /// Write an entry, for debugging; the agent may overwrite it.
    Update(IpcacheUpdate),
    /// Delete an entry, for debugging; the agent may restore it.
    Delete(IpcacheDelete),
}

#[derive(Debug, Subcommand)]
pub(crate) enum LxcCommand {
    /// List all entries.
    #[command(alias = "ls")]
    List,
    /// Delete the entry of an address, for debugging; packets to it are no longer delivered.
    Delete {
        /// The address.
        address: IpAddr,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CounterCommand {
    /// List all entries.
    #[command(alias = "ls")]
    List,
    /// Reset the counters.
    Flush,
}

const IPCACHE_TITLES: [&str; 2] = ["IP PREFIX/ADDRESS", "IDENTITY"];

/// `skep bpf ipcache`.
pub(crate) fn ipcache(
    pinned: &Pinned,
    command: &IpcacheCommand,
    format: Format,
) -> Result<String, Box<dyn Error>> {
    let entries = match command {
        IpcacheCommand::List => pinned.entries(IPCACHE.name)?,
        IpcacheCommand::Get { address } => {
            let wrong = || {
                usage(
                    "bpf ipcache get",
                    "Invalid ip address. IP address must be in dotted decimal (192.168.1.1) or IPv6 (feab::f02b) form",
                )
            };
            let address: IpAddr = address
                .as_deref()
                .and_then(|text| text.parse().ok())
                .ok_or_else(wrong)?;
            let found = ipcache_entries(pinned)?
                .into_iter()
                .filter_map(|(key, value)| Some((prefix_around(&key, address)?, key, value)))
                .max_by_key(|(bits, ..)| *bits);
            return identity_of(
                &address.to_string(),
                found.map(|(_, key, value)| entry(&key, &value)),
                format,
            );
        }
        IpcacheCommand::Match { wanted } => match wanted.parse::<u32>() {
            Ok(identity) => ipcache_entries(pinned)?
                .iter()
                .filter(|(_, value)| value.identity == identity)
                .map(|(key, value)| entry(key, value))
                .collect(),
            Err(_) => {
                let prefix = edit::prefix(wanted)
                    .ok()
                    .filter(|_| wanted.contains('/'))
                    .ok_or_else(|| fatal(format!("Invalid prefix: {wanted:?} is no network")))?;
                let key = prefix.key(0);
                let found = ipcache_entries(pinned)?
                    .into_iter()
                    .find(|(known, _)| *known == key);
                return identity_of(wanted, found.map(|(key, value)| entry(&key, &value)), format);
            }
        },
        IpcacheCommand::Update(update) => {
            edit::update_ipcache(pinned, update)?;
            return Ok(String::new());
        }
        IpcacheCommand::Delete(delete) => {
            edit::delete_ipcache(pinned, delete)?;
            return Ok(String::new());
        }
    };
    if entries.is_empty() && format == Format::Text {
        return Ok(no_entries());
    }
    Ok(print::entries(&entries, IPCACHE_TITLES, format))
}

/// The identity that an address or a network maps to.
fn identity_of(wanted: &str, found: Option<Entry>, format: Format) -> Result<String, Box<dyn Error>> {
    match (found, format) {
        (None, _) => Err(Failure::Printed(format!("{wanted} does not map to any identity")).into()),
        (Some((_, value)), Format::Text) => Ok(format!("{wanted} maps to identity {}\n", value.join(" "))),
        (Some(entry), _) => Ok(print::entries(&[entry], IPCACHE_TITLES, format)),
    }
}

fn ipcache_entries(pinned: &Pinned) -> Result<Vec<(IpcacheKey, IpcacheValue)>, MapsError> {
    let mut entries = pinned.open::<IpcacheKey, IpcacheValue>(IPCACHE.name)?.entries()?;
    entries.sort_by_key(|(key, _)| *key);
    Ok(entries)
}

fn entry(key: &IpcacheKey, value: &IpcacheValue) -> Entry {
    (key.text(), vec![value.text()])
}

/// Length of the prefix of a key, if the address is in it. Programs look addresses of other clusters up by their cluster:
/// those are not meant.
fn prefix_around(key: &IpcacheKey, address: IpAddr) -> Option<u8> {
    let (network, bits) = key.address_and_bits().filter(|_| key.cluster_id == 0)?;
    let is_inside = match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            network.to_bits() & mask == address.to_bits() & mask
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            network.to_bits() & mask == address.to_bits() & mask
        }
        _ => false,
    };
    is_inside.then_some(bits)
}

/// `skep bpf nodeid list`.
pub(crate) fn node_ids(pinned: &Pinned, format: Format) -> Result<String, MapsError> {
    #[derive(Serialize)]
    struct Row {
        id: u16,
        ip: String,
        spi: u8,
    }
    let mut entries = pinned.open::<NodeIdKey, NodeIdValue>(NODE_IDS.name)?.entries()?;
    entries.sort_by_key(|(key, value)| (value.id, *key));
    let row = |(key, value): (NodeIdKey, NodeIdValue)| Row {
        id: value.id,
        ip: key.text(),
        spi: value.spi,
    };
    let rows: Vec<Row> = entries.into_iter().map(row).collect();
    if format != Format::Text {
        return Ok(print::document(&rows, format)?);
    }
    if rows.is_empty() {
        return Ok(no_entries());
    }
    let rows = rows.into_iter();
    let rows = rows.map(|row| vec![format!("{:#x}", row.id), row.ip, row.spi.to_string()]);
    Ok(print::table(&["NODE ID", "IP ADDRESSES", "SPI"], rows))
}

/// Says that a map is empty, as Cilium's command does: what reads the table from the standard output finds none.
pub(crate) fn no_entries() -> String {
    eprintln!("No entries found.");
    String::new()
}

/// `skep bpf endpoint`.
pub(crate) fn endpoints(pinned: &Pinned, command: &LxcCommand, format: Format) -> Result<String, MapsError> {
    if let LxcCommand::Delete { address } = command {
        edit::delete_endpoint(pinned, *address)?;
        return Ok(String::new());
    }
    let entries = pinned.entries(LXC.name)?;
    if entries.is_empty() && format == Format::Text {
        return Ok(no_entries());
    }
    Ok(print::entries(
        &entries,
        ["IP ADDRESS", "LOCAL ENDPOINT INFO"],
        format,
    ))
}

/// `skep bpf frag list`.
pub(crate) fn fragments(pinned: &Pinned, format: Format) -> Result<String, MapsError> {
    let both = [pinned.entries(FRAGMENTS4.name), pinned.entries(FRAGMENTS6.name)];
    Ok(print::entries(
        &pinned.families(both)?,
        ["DATAGRAM", "PORTS"],
        format,
    ))
}

/// A rate of an endpoint.
#[derive(Debug, Serialize)]
struct Limit {
    endpoint: u32,
    direction: &'static str,
    priority: u32,
    bits: u64,
}

/// `skep bpf bandwidth list`.
pub(crate) fn bandwidth(pinned: &Pinned, format: Format) -> Result<String, Box<dyn Error>> {
    let map = match pinned.open::<ThrottleKey, ThrottleValue>(THROTTLE.name) {
        Err(MapsError::NotPinned { .. }) => return Err(fatal("bandwidth manager not enabled").into()),
        map => map?,
    };
    let mut entries = map.entries()?;
    entries.sort_by_key(|(key, _)| (key.endpoint, key.direction));
    let limits = entries.into_iter().map(|(key, value)| Limit {
        endpoint: key.endpoint,
        direction: match key.direction {
            ThrottleKey::INGRESS => "Ingress",
            _ => "Egress",
        },
        priority: value.priority,
        bits: value.rate.saturating_mul(8),
    });
    let limits: Vec<Limit> = limits.collect();
    if format != Format::Text {
        return Ok(print::document(&limits, format)?);
    }
    if limits.is_empty() {
        return Ok(no_entries());
    }
    let rows = limits.into_iter().map(|limit| {
        vec![
            limit.endpoint.to_string(),
            limit.direction.to_owned(),
            limit.priority.to_string(),
            decimal_quantity(limit.bits),
        ]
    });
    let titles = ["IDENTITY", "DIRECTION", "PRIO", "BANDWIDTH (BitsPerSec)"];
    Ok(print::table(&titles, rows))
}

/// A quantity with the largest decimal suffix that leaves an integer.
fn decimal_quantity(mut number: u64) -> String {
    let mut suffixes = ["", "k", "M", "G", "T", "P", "E"].into_iter().peekable();
    while number > 0 && number.is_multiple_of(1000) {
        suffixes.next();
        if suffixes.peek().is_none() {
            break;
        }
        number /= 1000;
    }
    format!("{number}{}", suffixes.next().unwrap_or_default())
}

/// A network that is reached without masquerading.
#[derive(Debug, Serialize)]
struct Unmasqueraded {
    cidr: String,
}

/// `skep bpf ipmasq list`.
pub(crate) fn unmasqueraded(pinned: &Pinned, format: Format) -> Result<String, MapsError> {
    let both = [pinned.entries(IP_MASQ4.name), pinned.entries(IP_MASQ6.name)];
    let both = match pinned.families(both) {
        // The ip-masq-agent is off.
        Err(MapsError::NotPinned { .. }) => Vec::new(),
        both => both?,
    };
    let networks: Vec<Unmasqueraded> = both.into_iter().map(|(cidr, _)| Unmasqueraded { cidr }).collect();
    if format != Format::Text {
        return Ok(print::document(&networks, format)?);
    }
    if networks.is_empty() {
        return Ok(no_entries());
    }
    let rows = networks
        .into_iter()
        .map(|network| vec![network.cidr, String::new()]);
    Ok(print::table(&["IP PREFIX/ADDRESS", ""], rows))
}

#[derive(Debug, Serialize)]
struct Counter {
    reason: String,
    direction: String,
    packets: u64,
    bytes: u64,
    line: u16,
    file: String,
}

/// `skep bpf metrics`.
pub(crate) fn metrics(
    pinned: &Pinned,
    command: &CounterCommand,
    format: Format,
) -> Result<String, MapsError> {
    if let CounterCommand::Flush = command {
        return edit::flush_metrics(pinned);
    }
    let map: PerCpuMap<MetricsKey, MetricsValue> = pinned.open_per_cpu(METRICS.name)?;
    let mut entries = map.entries()?;
    entries.sort_by_key(|(key, _)| *key);
    let mut counters: Vec<Counter> = entries
        .into_iter()
        .map(|(key, values)| {
            let total = MetricsValue::total(values);
            Counter {
                reason: key.reason_text(),
                direction: key.direction_text().to_lowercase(),
                packets: total.count,
                bytes: total.bytes,
                line: key.line,
                file: source_file(key.file),
            }
        })
        .collect();
    // As text, column by column, numbers too.
    counters.sort_by_cached_key(|counter| {
        let numbers = [counter.packets, counter.bytes, counter.line.into()].map(|number| number.to_string());
        (
            counter.reason.clone(),
            counter.direction.clone(),
            numbers,
            counter.file.clone(),
        )
    });
    if format != Format::Text {
        return Ok(print::document(&counters, format)?);
    }
    if counters.is_empty() {
        return Ok(no_entries());
    }
    let rows = counters.into_iter().map(|counter| {
        vec![
            counter.reason,
            counter.direction.to_uppercase(),
            counter.packets.to_string(),
            counter.bytes.to_string(),
            counter.line.to_string(),
            counter.file,
        ]
    });
    let titles = ["REASON", "DIRECTION", "PACKETS", "BYTES", "LINE", "FILE"];
    Ok(print::table(&titles, rows))
}
