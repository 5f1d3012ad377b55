// SPDX-License-Identifier: Apache-2.0

//! `skep ip`, `skep node`, `skep nodeid`, `skep cgroups`: addresses, nodes and pods from the agent's API.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    net::IpAddr,
};

use clap::Subcommand;
use serde_json::Value;
use skep_base_api_client::Client;
use skep_base_api_types::{ClusterNode, Identity, IpListEntry, NodeId};
use skep_identity::{NumericIdentity, Reserved};

use crate::{
    agent,
    failure::{Failure, fatal, usage},
    print::{self, Format},
};

/// Commands of `skep ip`.
#[derive(Debug, Subcommand)]
pub(crate) enum IpCommand {
    /// List all addresses and networks.
    #[command(alias = "ls")]
    List {
        /// Print numeric identities.
        #[arg(short, long)]
        numeric: bool,
        /// Show tunnel endpoint and encryption key.
        #[arg(short, long)]
        verbose: bool,
    },
    /// Show the addresses in a network, or those of an identity.
    Get {
        /// The network.
        cidr: Option<String>,
        /// Labels of the identity, `source:key=value` each, comma-separated.
        #[arg(long, value_delimiter = ',')]
        labels: Vec<String>,
        /// Print numeric identities.
        #[arg(short, long)]
        numeric: bool,
        /// Show tunnel endpoint and encryption key.
        #[arg(short, long)]
        verbose: bool,
    },
}

/// More identities than that are looked up all at once.
const SINGLE_LOOKUPS: usize = 64;

/// Runs a command of `skep ip`.
pub(crate) fn run(agent: &Client, command: &IpCommand, format: Format) -> Result<String, Box<dyn Error>> {
    let failed = |error| fatal(format!("Cannot get ipcache entries. err: {error}"));
    let (found, is_numeric, is_verbose, selected): (Value, _, _, &[String]) = match command {
        IpCommand::List { numeric, verbose } => {
            let found = agent::get(agent, &agent::LIST_ADDRESSES, "");
            (found.map_err(failed)?, *numeric, *verbose, &[])
        }
        IpCommand::Get {
            cidr,
            labels,
            numeric,
            verbose,
        } => {
            let found = match (cidr, labels.as_slice()) {
                (Some(cidr), _) if !is_network(cidr) => {
                    let text = format!("Unable to parse CIDR {cidr:?}: invalid CIDR address: {cidr}");
                    return Err(fatal(text).into());
                }
                (Some(cidr), _) => agent::query(agent, &agent::LIST_ADDRESSES, "", &[("cidr", cidr)]),
                (None, []) => return Err(usage("ip get", "Missing CIDR or labels argument").into()),
                (None, labels) => agent::find(agent, &agent::LIST_ADDRESSES, &labels),
            };
            (found.map_err(failed)?, *numeric, *verbose, labels)
        }
    };
    if format != Format::Text {
        return Ok(print::api(&found, "[IPListEntry]", format));
    }
    let mut entries: Vec<IpListEntry> = serde_json::from_value(found)?;
    entries.sort_by_cached_key(|entry| sorted_by(&entry.cidr));
    if !selected.is_empty() && !is_verbose {
        return Ok(of_labels(&entries, selected));
    }
    let names = if is_numeric {
        BTreeMap::new()
    } else {
        identities(agent, &entries)
    };
    Ok(list(&entries, &names, is_verbose))
}

fn is_network(text: &str) -> bool {
    let parts = text.split_once('/');
    parts.is_some_and(
        |(address, bits)| match (address.parse::<IpAddr>(), bits.parse::<u8>()) {
            (Ok(IpAddr::V4(_)), Ok(bits)) => bits <= 32,
            (Ok(IpAddr::V6(_)), Ok(bits)) => bits <= 128,
            _ => false,
        },
    )
}

/// Length of the prefix, then the address.
fn sorted_by(cidr: &str) -> (u8, Option<IpAddr>) {
    let (address, bits) = cidr.split_once('/').unwrap_or((cidr, "0"));
    (bits.parse().unwrap_or_default(), address.parse().ok())
}

/// Labels of the identities of these entries.
fn identities(agent: &Client, entries: &[IpListEntry]) -> BTreeMap<u32, Vec<String>> {
    let mut names = BTreeMap::new();
    let mut wanted: BTreeSet<u32> = entries.iter().map(|entry| entry.identity).collect();
    wanted.retain(|id| {
        let reserved = Reserved::ALL
            .into_iter()
            .find(|reserved| reserved.identity() == NumericIdentity::new(*id));
        if let Some(reserved) = reserved {
            names.insert(*id, vec![format!("reserved:{}", reserved.name())]);
        }
        reserved.is_none()
    });
    if wanted.len() > SINGLE_LOOKUPS
        && let Ok(all) = agent::get::<Vec<Identity>>(agent, &agent::LIST_IDENTITIES, "")
    {
        names.extend(all.into_iter().map(|identity| (identity.id, identity.labels)));
    }
    for id in wanted {
        if names.contains_key(&id) {
            continue;
        }
        match agent::get::<Identity>(agent, &agent::GET_IDENTITY, &id.to_string()) {
            Ok(identity) => {
                names.insert(id, identity.labels);
            }
            Err(error) => eprintln!("Cannot get identity for ID {id}: {error}"),
        }
    }
    for labels in names.values_mut() {
        labels.sort();
    }
    names
}

fn list(entries: &[IpListEntry], names: &BTreeMap<u32, Vec<String>>, is_verbose: bool) -> String {
    let mut table = match is_verbose {
        true => print::Table::new(["IP", "IDENTITY", "SOURCE", "HOST", "ENCRYPT_KEY"]),
        false => print::Table::new(["IP", "IDENTITY", "SOURCE"]),
    };
    for entry in entries {
        let number = entry.identity.to_string();
        let labels: Vec<&str> = match names.get(&entry.identity).map(Vec::as_slice) {
            None | Some([]) => vec![&number],
            Some(labels) => labels.iter().map(String::as_str).collect(),
        };
        let source = &*entry.metadata.source;
        match is_verbose {
            true => {
                let key = entry.encrypt_key.to_string();
                table.row([&*entry.cidr, labels[0], source, &entry.host_ip, &key]);
            }
            false => table.row([&*entry.cidr, labels[0], source]),
        }
        for label in labels.iter().skip(1) {
            table.row(["", label, ""]);
        }
    }
    table.finish()
}

/// Addresses of an identity, with their pods.
fn of_labels(entries: &[IpListEntry], labels: &[String]) -> String {
    const LINE: &str = "===========================\n";
    let or_none = |text: &str| if text.is_empty() { "N/A" } else { text }.to_owned();
    let mut table = print::Table::new(["IP", "HOST", "IDENTITY", "POD", "NAMESPACE"]);
    for entry in entries {
        table.row([
            &*entry.cidr,
            &or_none(&entry.host_ip),
            &entry.identity.to_string(),
            &or_none(&entry.metadata.name),
            &or_none(&entry.metadata.namespace),
        ]);
    }
    let labels: String = labels.iter().map(|label| format!("    {label}\n")).collect();
    format!("{LINE}Labels:\n{labels}{LINE}{}", table.finish())
}

/// `skep node list`.
pub(crate) fn nodes(agent: &Client, format: Format) -> Result<String, Box<dyn Error>> {
    let mut status: Value = agent::get(agent, &agent::LIST_NODES, "")
        .map_err(|error| Failure::Fatal(format!("Cannot get node list: {error}")))?;
    let nodes = status["nodes-added"].take();
    if format != Format::Text {
        return Ok(print::api(&nodes, "[NodeElement]", format));
    }
    let nodes: Option<Vec<ClusterNode>> = serde_json::from_value(nodes)?;
    Ok(node_table(&nodes.unwrap_or_default()))
}

/// Nodes in columns, sorted as text; nothing if there are none.
fn node_table(nodes: &[ClusterNode]) -> String {
    let mut rows: Vec<[&str; 6]> = Vec::new();
    for node in nodes {
        let (ipv4, ipv6) = (&node.primary_address.ipv4, &node.primary_address.ipv6);
        rows.push([
            &node.name,
            &ipv4.ip,
            &ipv4.alloc_range,
            &ipv6.ip,
            &ipv6.alloc_range,
            &node.source,
        ]);
    }
    if rows.is_empty() {
        return String::new();
    }
    rows.sort_by_cached_key(|row| row.join("\t"));
    let mut table = print::Table::new([
        "Name",
        "IPv4 Address",
        "Endpoint CIDR",
        "IPv6 Address",
        "Endpoint CIDR",
        "Source",
    ]);
    rows.into_iter().for_each(|row| table.row(row));
    table.finish()
}

/// `skep nodeid list`.
pub(crate) fn node_ids(agent: &Client, format: Format) -> Result<String, Box<dyn Error>> {
    let found: Value = agent::get(agent, &agent::LIST_NODE_IDS, "")
        .map_err(|error| fatal(format!("Failed to list node IDs: {error}")))?;
    if format != Format::Text {
        return Ok(print::api(&found, "[NodeID]", format));
    }
    let nodes: Vec<NodeId> = serde_json::from_value(found)?;
    let mut table = print::Table::new(["NODE ID", "IP ADDRESSES", "SPI"]);
    for node in &nodes {
        let mut id = format!("{:#x}", node.id);
        for address in &node.ips {
            table.row([&*id, address]);
            id.clear();
        }
    }
    Ok(table.finish())
}

/// `skep cgroups list`.
pub(crate) fn cgroups(agent: &Client, format: Format) -> Result<String, Box<dyn Error>> {
    let mut found: Value = agent::get(agent, &agent::GET_CGROUPS, "")
        .map_err(|error| fatal(format!("Cannot get cgroup metadata: {error}")))?;
    let pods = found["pod-metadatas"].take();
    if format != Format::Text {
        return Ok(print::api(&pods, "[CgroupPodMetadata]", format));
    }
    let mut table = print::Table::default();
    table.padded(["POD NAME", "POD NAMESPACE", "CGROUP IDS"]);
    for pod in pods.as_array().into_iter().flatten() {
        let text = |name| pod[name].as_str().unwrap_or_default();
        let mut head = [text("name"), text("namespace")];
        let containers = pod["containers"].as_array().into_iter().flatten();
        let mut ids: Vec<String> = containers
            .map(|container| container["cgroup-id"].to_string())
            .collect();
        if ids.is_empty() {
            ids.push(String::new());
        }
        for id in ids {
            let [name, namespace] = std::mem::take(&mut head);
            table.padded([name, namespace, &*id]);
        }
    }
    Ok(table.finish())
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn only_networks_are_asked_for() {
        for text in ["10.0.0.0/8", "fd00::/64", "10.0.2.8/32"] {
            assert!(is_network(text), "{text}");
        }
        for text in ["", "x", "10.0.2.8", "10.0.0.0/33", "10.0.0.0 /8", "10.0.0.0/8&x"] {
            assert!(!is_network(text), "{text}");
        }
    }

    #[test]
    fn addresses_of_labels_are_shown_with_their_pods() {
        let entries: Vec<IpListEntry> = from_value(json!([
            {"cidr": "10.0.2.8/32", "identity": 300, "metadata": {"name": "cart-0", "namespace": "shop", "source": "k8s"}},
            {"cidr": "10.0.2.9/32", "identity": 300, "hostIP": "192.168.5.12"},
        ]))
        .unwrap();

        let expected = "\
            ===========================\nLabels:\n    k8s:app=cart\n===========================\n\
            IP            HOST           IDENTITY   POD      NAMESPACE\n\
            10.0.2.8/32   N/A            300        cart-0   shop\n\
            10.0.2.9/32   192.168.5.12   300        N/A      N/A\n";
        assert_eq!(of_labels(&entries, &["k8s:app=cart".to_owned()]), expected);
    }

    #[test]
    fn no_nodes_are_no_table() {
        assert_eq!(node_table(&[]), "");
    }
}
