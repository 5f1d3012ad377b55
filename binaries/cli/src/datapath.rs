// SPDX-License-Identifier: Apache-2.0

//! What pinned maps say of packets: counters, endpoints, identities, policies, fragments, networks
//! without masquerading.

use std::{error::Error, net::IpAddr};

use clap::Subcommand;
use serde::Serialize;
use skep_bpf_maps::{
    endpoint::LXC,
    event::{METRICS, MetricsKey, MetricsValue, source_file},
    fragment::{FRAGMENTS4, FRAGMENTS6},
    ip_masq::{IP_MASQ4, IP_MASQ6},
    node::{IPCACHE, IpcacheKey, IpcacheValue, NODE_IDS, NodeIdKey, NodeIdValue},
    policy::{
        POLICY_STATS, PolicyEntry, PolicyKey, PolicyStats, PolicyStatsKey, endpoint_of_pin, policy_pin,
    },
    text::Text,
};
use skep_bpf_sys::map::PerCpuMap;
use skep_datapath_monitor_events::names;
use skep_identity::{NumericIdentity, Reserved};

use crate::{
    edit::{self, IpcacheDelete, IpcacheUpdate, PolicyEdit},
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

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// List the policies of all endpoints.
    #[command(alias = "ls")]
    List {
        /// Print numeric identities.
        #[arg(short, long)]
        numeric: bool,
    },
    /// Show the policy of an endpoint.
    Get {
        /// Id of the endpoint, or name or path of its map.
        #[arg(value_parser = endpoint, required_unless_present = "all", conflicts_with = "all")]
        endpoint: Option<u16>,
        /// Show the policies of all endpoints.
        #[arg(long)]
        all: bool,
        /// Print numeric identities.
        #[arg(short, long)]
        numeric: bool,
    },
    /// Add an entry to the policy of an endpoint. The agent removes it at its next reconciliation.
    Add {
        #[command(flatten)]
        entry: PolicyEdit,
        /// Deny the traffic.
        #[arg(long)]
        deny: bool,
        /// Cookie of the entry.
        #[arg(long, default_value_t = 0)]
        cookie: u32,
    },
    /// Delete an entry from the policy of an endpoint. The agent adds it again at its next reconciliation.
    Delete(PolicyEdit),
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

/// Reads the id of an endpoint, or the name or path of its map.
pub(crate) fn endpoint(text: &str) -> Result<u16, String> {
    let name = text.rsplit('/').next().unwrap_or(text);
    name.parse()
        .ok()
        .or_else(|| endpoint_of_pin(name))
        .ok_or_else(|| "neither the id of an endpoint nor a map of a policy".to_owned())
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    policy: &'static str,
    direction: &'static str,
    identity: u32,
    port: String,
    /// 0: it is not redirected.
    proxy_port: u16,
    auth_type: String,
    #[serde(flatten)]
    counted: Option<Counted>,
    prefix: u32,
    cookie: u32,
    precedence: u32,
}

/// What an entry of a policy has counted.
#[derive(Debug, Serialize)]
struct Counted {
    bytes: u64,
    packets: u64,
}

/// The policy of an endpoint, among others.
#[derive(Debug, Serialize)]
struct Policy {
    endpoint: u16,
    path: String,
    rules: Vec<Rule>,
}

/// `skep bpf policy`.
pub(crate) fn policy(
    pinned: &Pinned,
    command: &PolicyCommand,
    format: Format,
) -> Result<String, Box<dyn Error>> {
    match command {
        PolicyCommand::Get {
            endpoint: Some(endpoint),
            numeric,
            ..
        } => {
            let rules = rules(pinned, *endpoint)?;
            if format != Format::Text {
                return Ok(print::document(&rules, format)?);
            }
            Ok(rules_text(&rules, *numeric))
        }
        PolicyCommand::Add { entry, deny, cookie } => {
            edit::add_policy(pinned, entry, *deny, *cookie).map(|()| String::new())
        }
        PolicyCommand::Delete(entry) => edit::delete_policy(pinned, entry).map(|()| String::new()),
        PolicyCommand::List { numeric } | PolicyCommand::Get { numeric, .. } => {
            Ok(policies(pinned, *numeric, format)?)
        }
    }
}

fn policies(pinned: &Pinned, is_numeric: bool, format: Format) -> Result<String, MapsError> {
    let names = pinned.names()?;
    let policies = names
        .iter()
        .filter_map(|name| endpoint_of_pin(name))
        .map(|endpoint| {
            Ok(Policy {
                endpoint,
                path: pinned.path(&policy_pin(endpoint)),
                rules: rules(pinned, endpoint)?,
            })
        });
    let policies = policies.collect::<Result<Vec<_>, MapsError>>()?;
    if format != Format::Text {
        return Ok(print::document(&policies, format)?);
    }
    if policies.is_empty() {
        return Ok("no maps found\n".to_owned());
    }
    let texts = policies.iter().map(|policy| {
        let rules = rules_text(&policy.rules, is_numeric);
        format!(
            "Endpoint ID: {}\nPath: {}\n\n{rules}",
            policy.endpoint, policy.path
        )
    });
    Ok(texts.collect::<Vec<_>>().join("\n\n"))
}

/// Entries of the policy of an endpoint: those that deny first, ingress before egress, then by identity.
fn rules(pinned: &Pinned, endpoint: u16) -> Result<Vec<Rule>, MapsError> {
    let mut entries = pinned
        .open::<PolicyKey, PolicyEntry>(&policy_pin(endpoint))?
        .entries()?;
    entries.sort_by_key(|(key, entry)| {
        let number = (key.identity, key.proto, key.port, key.prefix_len);
        (!entry.is_deny(), key.direction, number)
    });
    // Without the map (policy-accounting is off) nothing was counted.
    let stats = pinned.open_per_cpu::<PolicyStatsKey, PolicyStats>(POLICY_STATS.name);
    let stats = stats.ok();
    let counted = |key: &PolicyKey| {
        let values = stats.as_ref()?.lookup(&key.stats_key(endpoint)).ok()?;
        if values.is_empty() {
            return None;
        }
        let PolicyStats { packets, bytes } = PolicyStats::total(values);
        Some(Counted { bytes, packets })
    };
    Ok(entries
        .into_iter()
        .map(|(key, entry)| Rule {
            policy: if entry.is_deny() { "Deny" } else { "Allow" },
            direction: key.direction_text(),
            identity: key.identity,
            port: key.port_text(),
            proxy_port: entry.proxy_port.get(),
            auth_type: names::auth_type(entry.auth_type()),
            counted: counted(&key),
            prefix: key.bits(),
            cookie: entry.cookie,
            precedence: entry.precedence,
        })
        .collect())
}

fn rules_text(rules: &[Rule], is_numeric: bool) -> String {
    if rules.is_empty() {
        return "Policy stats empty. Perhaps the policy enforcement is disabled?\n".to_owned();
    }
    let counter = |rule: &Rule, counter: fn(&Counted) -> u64| {
        let counted = rule.counted.as_ref().map(counter);
        counted.map_or_else(|| "-".to_owned(), |counter| counter.to_string())
    };
    let identities = if is_numeric {
        "IDENTITY"
    } else {
        "LABELS (source:key[=value])"
    };
    let titles = [
        "POLICY",
        "DIRECTION",
        identities,
        "PORT/PROTO",
        "PROXY PORT",
        "AUTH TYPE",
        "BYTES",
        "PACKETS",
        "PREFIX",
        "COOKIE",
    ];
    let rows = rules.iter().map(|rule| {
        vec![
            rule.policy.to_owned(),
            rule.direction.to_owned(),
            identity(rule.identity, is_numeric),
            rule.port.clone(),
            match rule.proxy_port {
                0 => "NONE".to_owned(),
                port => port.to_string(),
            },
            rule.auth_type.clone(),
            counter(rule, |counted| counted.bytes),
            counter(rule, |counted| counted.packets),
            rule.prefix.to_string(),
            rule.cookie.to_string(),
        ]
    });
    print::table(&titles, rows)
}

/// Labels of a reserved identity. Those of others are not in maps: they stay numbers.
fn identity(number: u32, is_numeric: bool) -> String {
    let reserved = Reserved::ALL
        .into_iter()
        .find(|reserved| reserved.identity() == NumericIdentity::new(number));
    match reserved {
        _ if is_numeric => number.to_string(),
        None if number == 0 => "ANY".to_owned(),
        None => number.to_string(),
        Some(reserved) => format!("reserved:{}", reserved.name()),
    }
}
