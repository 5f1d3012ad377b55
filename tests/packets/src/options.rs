// SPDX-License-Identifier: Apache-2.0

//! What the programs of the facts were loaded with: variables of their objects, and settings of the agent.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use serde_json::Value;
use skep_bpf_programs::{
    DirectReturn, DsrDispatch, EventKinds, Nat46x64, NodeOptions, PacketHash, PacketOptions, Tunnel,
    TunnelProtocol,
};

use crate::{Error, vectors::Facts};

/// Default of `nat46x64-prefix`.
const NAT46X64: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);

/// The options of the facts. Those that they do not have are as by default, but for masquerading and source addresses,
/// which a node of the recorder had.
pub(crate) fn options(facts: &Facts, see: &str) -> Result<NodeOptions, Error> {
    let defaults = PacketOptions::default();
    let variables = Variables(facts);
    let settings = Settings(facts);
    let host = &variables.host();
    let flag = |name, otherwise| variables.number(host, name).map_or(otherwise, |value| value != 0);
    let half = |name, otherwise| {
        variables
            .number(host, name)
            .map_or(otherwise, |value| value as u16)
    };
    let word = |name, otherwise| {
        variables
            .number(host, name)
            .map_or(otherwise, |value| value as u32)
    };
    let endpoint = facts
        .endpoints
        .get("host")
        .ok_or_else(|| missing("endpoint host"))?;
    let addresses = &facts.addresses;
    let rate = word("events_map_rate_limit", 0);
    let is_masquerading = settings.flag("enable_bpf_masquerade", true);
    let node = NodeOptions::default();
    Ok(NodeOptions {
        ipv4: settings.flag("enable_ipv4", true),
        ipv6: settings.flag("enable_ipv6", true),
        nodeport: settings.flag("kube_proxy_replacement", true),
        nodeport_range: (
            half("nodeport_port_min", node.nodeport_range.0),
            half("nodeport_port_max", node.nodeport_range.1),
        ),
        reject_no_endpoints: flag("enable_no_service_endpoints_routable", node.reject_no_endpoints),
        trace_aggregation: aggregation(&settings, see)?,
        packets: PacketOptions {
            ct_report_flags: report_flags(&settings)?,
            ct_report_interval: settings
                .number("monitor_aggregation_interval_s")?
                .unwrap_or(defaults.ct_report_interval),
            trace_length: word("trace_payload_len", defaults.trace_length),
            trace_length_overlay: word("trace_payload_len_overlay", defaults.trace_length_overlay),
            events_limit: (rate != 0).then(|| (rate, word("events_map_burst_limit", rate))),
            cilium_host: word("cilium_host_ifindex", 0),
            cilium_net: word("cilium_net_ifindex", 0),
            host_endpoint: endpoint.id,
            loopback4: variables
                .address(host, "service_loopback_ipv4")
                .unwrap_or(defaults.loopback4),
            loopback6: variables
                .address(host, "service_loopback_ipv6")
                .unwrap_or(defaults.loopback6),
            router6: variables
                .address(host, "router_ipv6")
                .map_or_else(|| known(&addresses.router.ipv6, Ipv6Addr::UNSPECIFIED), Ok)?,
            router4: known(&addresses.router.ipv4, Ipv4Addr::UNSPECIFIED)?,
            nodeport_source4: known(&addresses.node.ipv4, Ipv4Addr::UNSPECIFIED)?,
            nodeport_source6: known(&addresses.node.ipv6, Ipv6Addr::UNSPECIFIED)?,
            native4: known_network(&addresses.native_routing_cidr.ipv4)?,
            native6: known_network(&addresses.native_routing_cidr.ipv6)?,
            nat_ports: (half("ephemeral_min", defaults.nat_ports.0), u16::MAX),
            // Sockets of pods are translated without programs at packets, if they are at all.
            services: !settings.flag("bpf_lb_sock", false) || settings.flag("bpf_lb_sock_hostns_only", false),
            masquerade4: is_masquerading && settings.flag("enable_ipv4_masquerade", true),
            masquerade6: is_masquerading && settings.flag("enable_ipv6_masquerade", true),
            masquerade_nodes: flag("enable_remote_node_masquerade", false),
            ip_masq_agent: settings.flag("enable_ip_masq_agent", false)
                || facts.maps.keys().any(|map| map.starts_with("cilium_ipmasq")),
            fragments4: flag("enable_ipv4_fragments", defaults.fragments4),
            fragments6: flag("enable_ipv6_fragments", defaults.fragments6),
            icmp_rules: flag("enable_icmp_rule", defaults.icmp_rules),
            icmp_frag_needed: flag("allow_icmp_frag_needed", defaults.icmp_frag_needed),
            policy_accounting: flag("enable_policy_accounting", defaults.policy_accounting),
            identity_mark: flag("enable_identity_mark", defaults.identity_mark),
            arp_responder: variables
                .of_endpoints("enable_arp_responder")
                .map_or(defaults.arp_responder, |value| value != 0),
            reply_no_backend: settings.text("service_no_backend_response").unwrap_or("reject") == "reject",
            maglev: settings.text("bpf_lb_algorithm") == Some("maglev"),
            packet_hash: PacketHash {
                seeds: [
                    word("hash_init4_seed", defaults.packet_hash.seeds[0]),
                    word("hash_init6_seed", defaults.packet_hash.seeds[1]),
                ],
                table_size: settings
                    .number("bpf_lb_maglev_table_size")?
                    .unwrap_or(defaults.packet_hash.table_size),
            },
            lb_per_service: settings.flag("bpf_lb_algorithm_annotation", false),
            xdp: facts.has_xdp(),
            tunnel: tunnel(facts, &settings, &variables)?,
            dsr: direct_return(&settings)?,
            nat46x64: nat46x64(&settings, word("device_mtu", 1500) as u16)?,
            ipip_termination: flag("enable_ipip_termination", false),
            health_probes: settings.flag("bpf_lb_ipip_sock_mark", false),
            sctp: settings.flag("enable_sctp", false),
            extended_protocols: flag("enable_extended_ip_protocols", false),
            ct_accounting: flag("enable_conntrack_accounting", false),
            events: EventKinds {
                drops: settings.flag("bpf_events_drop_enabled", true),
                verdicts: settings.flag("bpf_events_policy_verdict_enabled", true),
                traces: settings.flag("bpf_events_trace_enabled", true),
                debug: settings.list("debug_verbose").any(|kind| kind == "datapath"),
            },
            all_vlans: settings.list("vlan_bpf_bypass").any(|id| id == "0"),
            vlans: settings
                .list("vlan_bpf_bypass")
                .map(|id| parse(&id, "VLAN id"))
                .collect::<Result<_, _>>()?,
            ..defaults
        },
        ..node
    })
}

/// What objects were given when they were loaded.
struct Variables<'a>(&'a Facts);

impl Variables<'_> {
    /// The object at the interface that packets of the network arrive at.
    fn host(&self) -> String {
        let own = "bpf_host on eth0";
        let objects = &self.0.load_time_config;
        let other = || {
            objects
                .keys()
                .find(|name| name.starts_with("bpf_host on ") && !name.contains("cilium_"))
        };
        if objects.contains_key(own) {
            own.to_owned()
        } else {
            other().cloned().unwrap_or_default()
        }
    }

    fn number(&self, object: &str, name: &str) -> Option<u64> {
        let bytes = self.0.variable(object, name)?;
        Some(
            bytes
                .iter()
                .take(8)
                .rev()
                .fold(0, |value, byte| value << 8 | u64::from(*byte)),
        )
    }

    fn address<const N: usize, T: From<[u8; N]>>(&self, object: &str, name: &str) -> Option<T> {
        let bytes: [u8; N] = self.0.variable(object, name)?.try_into().ok()?;
        Some(bytes.into())
    }

    /// What the objects of endpoints were given, which is the same for all.
    fn of_endpoints(&self, name: &str) -> Option<u64> {
        let mut objects = self.0.load_time_config.keys();
        let object = objects.find(|object| object.starts_with("bpf_lxc "))?;
        self.number(object, name)
    }
}

pub(crate) struct Settings<'a>(pub(crate) &'a Facts);

impl Settings<'_> {
    fn value(&self, key: &str) -> Option<&Value> {
        let options = &self.0.agent_options;
        let found = options.get(key).or_else(|| options.get(&key.replace('_', "-")))?;
        (!found.is_null()).then_some(found)
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.value(key)?.as_str()
    }

    fn flag(&self, key: &str, otherwise: bool) -> bool {
        match self.value(key) {
            Some(Value::Bool(value)) => *value,
            Some(Value::String(text)) => matches!(&**text, "true" | "on" | "yes" | "1"),
            Some(Value::Number(number)) => number.as_u64() != Some(0),
            _ => otherwise,
        }
    }

    fn number(&self, key: &str) -> Result<Option<u32>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => parse(text, key).map(Some),
            Some(value) => {
                let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
                number
                    .map(Some)
                    .ok_or_else(|| missing(format!("number in {key}: {value}")))
            }
        }
    }

    /// Items of a list, or of a text with commas.
    fn list(&self, key: &str) -> impl Iterator<Item = String> {
        let items: Vec<String> = match self.value(key) {
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| item.as_str().map_or_else(|| item.to_string(), ToOwned::to_owned))
                .collect(),
            Some(Value::String(text)) => text
                .split([',', ' '])
                .filter(|item| !item.is_empty())
                .map(ToOwned::to_owned)
                .collect(),
            Some(Value::Number(number)) => vec![number.to_string()],
            _ => Vec::new(),
        };
        items.into_iter()
    }
}

/// `monitor-aggregation`; a file of scenarios may say that theirs had none.
fn aggregation(settings: &Settings<'_>, see: &str) -> Result<u8, Error> {
    if see.contains("aggregation none") {
        return Ok(0);
    }
    match settings.text("monitor_aggregation").unwrap_or("medium") {
        "none" | "None" | "0" | "" => Ok(0),
        "lowest" | "1" => Ok(1),
        "low" | "2" => Ok(2),
        "medium" | "3" => Ok(3),
        "maximum" | "max" | "4" => Ok(4),
        other => Err(missing(format!("monitor-aggregation {other}"))),
    }
}

/// `monitor-aggregation-flags`, by their names or all of them.
fn report_flags(settings: &Settings<'_>) -> Result<u8, Error> {
    let text = settings.text("monitor_aggregation_flags").unwrap_or("all");
    if text.starts_with("all") {
        return Ok(0xff);
    }
    let names = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];
    settings
        .list("monitor_aggregation_flags")
        .try_fold(0, |flags, name| {
            let bit = names.iter().position(|known| name.eq_ignore_ascii_case(known));
            let bit = bit.ok_or_else(|| missing(format!("TCP flag {name}")))?;
            Ok(flags | 1 << bit)
        })
}

fn tunnel(
    facts: &Facts,
    settings: &Settings<'_>,
    variables: &Variables<'_>,
) -> Result<Option<Tunnel>, Error> {
    let host = variables.host();
    let protocol = match variables.number(&host, "tunnel_protocol").unwrap_or(0) {
        0 if settings.text("routing_mode") == Some("tunnel") => {
            match settings.text("tunnel_protocol").unwrap_or("vxlan") {
                "vxlan" => TunnelProtocol::Vxlan,
                "geneve" => TunnelProtocol::Geneve,
                other => return Err(missing(format!("tunnel-protocol {other}"))),
            }
        }
        0 => return Ok(None),
        1 => TunnelProtocol::Vxlan,
        2 => TunnelProtocol::Geneve,
        other => return Err(missing(format!("tunnel protocol {other}"))),
    };
    let name = match protocol {
        TunnelProtocol::Vxlan => "cilium_vxlan",
        TunnelProtocol::Geneve => "cilium_geneve",
    };
    let device = facts
        .devices
        .get(name)
        .ok_or_else(|| missing(format!("device {name}")))?;
    let port = match variables.number(&host, "tunnel_port").unwrap_or(0) as u16 {
        0 => match protocol {
            TunnelProtocol::Vxlan => 8472,
            TunnelProtocol::Geneve => 6081,
        },
        port => port,
    };
    Ok(Some(Tunnel {
        protocol,
        port,
        device: device.ifindex,
        source_ports: (32_768, 60_999),
    }))
}

fn direct_return(settings: &Settings<'_>) -> Result<Option<DirectReturn>, Error> {
    let annotated = settings.flag("bpf_lb_mode_annotation", false);
    let all_services = match settings.text("bpf_lb_mode").unwrap_or("snat") {
        "snat" if annotated => false,
        "snat" => return Ok(None),
        "dsr" => !annotated,
        "hybrid" => false,
        other => return Err(missing(format!("bpf-lb-mode {other}"))),
    };
    let dispatch = match settings.text("bpf_lb_dsr_dispatch").unwrap_or("opt") {
        "opt" => DsrDispatch::IpOption,
        "ipip" => DsrDispatch::Ipip {
            source4: known_network(settings.text("bpf_lb_rss_ipv4_src_cidr").unwrap_or_default())?,
            source6: known_network(settings.text("bpf_lb_rss_ipv6_src_cidr").unwrap_or_default())?,
        },
        other => return Err(missing(format!("bpf-lb-dsr-dispatch {other}"))),
    };
    Ok(Some(DirectReturn {
        dispatch,
        all_services,
        icmp_errors: settings.flag("enable_pmtu_discovery", false),
    }))
}

fn nat46x64(settings: &Settings<'_>, mtu: u16) -> Result<Option<Nat46x64>, Error> {
    let services = settings.flag("bpf_lb_nat46x64", false);
    let gateway = settings.flag("enable_nat46x64_gateway", false);
    let prefix = known_network(settings.text("nat46x64_prefix").unwrap_or_default())?;
    Ok((services || gateway).then(|| Nat46x64 {
        services,
        gateway,
        prefix: prefix.map_or(NAT46X64, |(prefix, _)| prefix),
        mtu,
    }))
}

pub(crate) fn missing(what: impl Into<String>) -> Error {
    Error::Facts { what: what.into() }
}

fn parse<T: FromStr>(text: &str, what: &str) -> Result<T, Error> {
    text.parse().map_err(|_| missing(format!("{what} {text}")))
}

pub(crate) fn address<T: FromStr>(text: &str) -> Result<T, Error> {
    parse(text, "address")
}

/// An address that may be missing.
fn known<T: FromStr>(text: &str, otherwise: T) -> Result<T, Error> {
    if text.is_empty() {
        Ok(otherwise)
    } else {
        address(text)
    }
}

pub(crate) fn network_of<T: FromStr>(text: &str) -> Result<(T, u8), Error> {
    let (network, bits) = text
        .split_once('/')
        .ok_or_else(|| missing(format!("network {text}")))?;
    Ok((address(network)?, address(bits)?))
}

/// A network that may be missing.
fn known_network<T: FromStr>(text: &str) -> Result<Option<(T, u8)>, Error> {
    if text.is_empty() {
        Ok(None)
    } else {
        network_of(text).map(Some)
    }
}
