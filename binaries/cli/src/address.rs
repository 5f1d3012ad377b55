// SPDX-License-Identifier: Apache-2.0

//! `skep ip`, `skep node`, `skep nodeid`: addresses and nodes from the agent's API.

use std::net::IpAddr;

use skep_base_api_types::{ClusterNode, IpListEntry, NodeId};

use crate::print;

/// The text of an address or network.
pub(crate) fn parse(text: &str) -> Result<String, String> {
    let (address, bits) = text.split_once('/').unwrap_or((text, "0"));
    match (address.parse::<IpAddr>(), bits.parse::<u8>()) {
        (Ok(_), Ok(_)) => Ok(text.to_owned()),
        _ => Err("no address or network".to_owned()),
    }
}

pub(crate) fn list(entries: &[IpListEntry], is_verbose: bool) -> String {
    if !is_verbose {
        let mut table = print::Table::new(["IP", "IDENTITY", "SOURCE"]);
        for entry in entries {
            table.row([&*entry.cidr, &entry.identity.to_string(), &entry.metadata.source]);
        }
        return table.finish();
    }
    let mut table = print::Table::new(["IP", "IDENTITY", "SOURCE", "HOST", "ENCRYPT_KEY"]);
    for entry in entries {
        table.row([
            &*entry.cidr,
            &entry.identity.to_string(),
            &entry.metadata.source,
            &entry.host_ip,
            &entry.encrypt_key.to_string(),
        ]);
    }
    table.finish()
}

/// Ids in columns; a line for each address.
pub(crate) fn ids(nodes: &[NodeId]) -> String {
    let mut table = print::Table::new(["NODE ID", "IP ADDRESSES"]);
    for node in nodes {
        let mut id = node.id.to_string();
        for address in &node.ips {
            table.row([&*id, address]);
            id.clear();
        }
    }
    table.finish()
}

/// Nodes in columns, sorted as text; nothing if there are none.
pub(crate) fn nodes(nodes: &[ClusterNode]) -> String {
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

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn lists_addresses_with_identity_and_source() {
        let entries: Vec<IpListEntry> = from_value(json!([
            {"cidr": "10.0.2.8/32", "identity": 52311, "hostIP": "192.168.5.12", "encryptKey": 3,
                "metadata": {"source": "clustermesh", "namespace": "shop", "name": "cart-0"}},
            {"cidr": "0.0.0.0/0", "identity": 2, "metadata": {"source": "local"}},
        ]))
        .unwrap();

        let expected = [
            "IP            IDENTITY   SOURCE",
            "10.0.2.8/32   52311      clustermesh",
            "0.0.0.0/0     2          local",
            "",
        ];
        let found: Vec<String> = list(&entries, false)
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        assert_eq!(found.join("\n") + "\n", expected.join("\n"));
        let expected = [
            "IP            IDENTITY   SOURCE        HOST           ENCRYPT_KEY",
            "10.0.2.8/32   52311      clustermesh   192.168.5.12   3",
            "0.0.0.0/0     2          local                        0",
            "",
        ];
        let found: Vec<String> = list(&entries, true)
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        assert_eq!(found.join("\n") + "\n", expected.join("\n"));
    }

    #[test]
    fn only_addresses_and_networks_are_asked_for() {
        for text in ["10.0.2.8", "10.0.0.0/8", "fd00::/64"] {
            assert_eq!(parse(text).as_deref(), Ok(text));
        }
        for text in ["", "x", "10.0.0.0/x", "10.0.0.0 /8", "10.0.0.0/8&x"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lists_nodes_as_cilium_does() {
        let found: Vec<ClusterNode> = from_value(json!([
            {"name": "n2", "source": "custom-resource", "primary-address": {
                "ipv4": {"enabled": true, "ip": "172.30.40.2", "alloc-range": "10.2.0.0/29"},
                "ipv6": {"enabled": true, "ip": "fd00:30:40::2", "alloc-range": "fd00:10:2::/125"}}},
            {"name": "n1", "source": "local", "primary-address": {
                "ipv4": {"enabled": true, "ip": "172.30.40.1", "alloc-range": "10.1.0.0/24"}, "ipv6": null}},
        ]))
        .unwrap();

        let expected = "\
            Name   IPv4 Address   Endpoint CIDR   IPv6 Address    Endpoint CIDR     Source\n\
            n1     172.30.40.1    10.1.0.0/24                                       local\n\
            n2     172.30.40.2    10.2.0.0/29     fd00:30:40::2   fd00:10:2::/125   custom-resource\n";
        assert_eq!(nodes(&found), expected);
        assert_eq!(nodes(&[]), "");
    }

    #[test]
    fn lists_ids_with_all_addresses() {
        let nodes: Vec<NodeId> = from_value(json!([
            {"id": 1, "ips": ["172.30.1.2", "fd00::2"]}, {"id": 4660, "ips": ["172.30.1.3"]}
        ]))
        .unwrap();

        let found: Vec<String> = ids(&nodes)
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        assert_eq!(
            found,
            [
                "NODE ID   IP ADDRESSES",
                "1         172.30.1.2",
                "          fd00::2",
                "4660      172.30.1.3"
            ]
        );
    }
}
