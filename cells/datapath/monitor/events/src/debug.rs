// SPDX-License-Identifier: Apache-2.0

//! Texts of debug messages, by subtype. Cilium's own tools lack number 66 and show 67 and 68 as their neighbours; here all
//! three mean what programs mean by them.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr},
};

use crate::names;

/// The text of a debug message; `interface` finds the names of interfaces.
pub fn text(subtype: u8, args: [u32; 3], interface: &dyn Fn(u32) -> Option<String>) -> String {
    let [one, two, three] = args;
    match subtype {
        1 => format!("No message, arg1={one} ({one:#x}) arg2={two} ({two:#x}) arg3={three} ({three:#x})"),
        2 => format!("Attempting local delivery for container id {one} from seclabel {two}"),
        3 => format!("Encapsulating to node {one} ({one:#x}) from seclabel {two}"),
        4 => {
            let name = interface(one).unwrap_or_else(|| one.to_string());
            format!("Local container found ifindex {name} seclabel {}", swapped(two))
        }
        5 => format!("Policy evaluation would deny packet from {one} to {two}"),
        6 => format!("CT lookup: {}", tuple(one, two)),
        7 => format!("CT reverse lookup: {}", tuple(one, two)),
        8 => format!("CT entry found lifetime={one}, {}", reverse_nat(two)),
        9 => format!("CT created 1/2: {} {}", tuple(one, two), reverse_nat(three)),
        10 => format!("CT created 2/2: {} {}", ip4(one), reverse_nat(two)),
        11 => format!("Handling ICMPv6 type={one}"),
        12 => format!("ICMPv6 echo request for router offset={one}"),
        13 => format!("ICMPv6 neighbour soliciation for address {one:x}:{two:x}"),
        14 => "Sending ICMPv6 time exceeded".to_owned(),
        15 => format!("CT verdict: {}, {}", verdict(one), reverse_nat(two)),
        16 => format!("Tunnel decap: id={one} flowlabel={two:x}"),
        17 => format!("Mapping port from={one} to={two}"),
        18 => format!("BPF function {one} returned error {two}"),
        19 => format!("Going to host, policy-skip={one}"),
        20 => format!("Going to the stack, policy-skip={one}"),
        21 => format!("Packet hash={one} ({one:#x}), selected_service={two}"),
        22..=39 => load_balancing(subtype, one, two),
        40 => format!("CT lookup address: {}", ip4(one)),
        41 => format!("RR backend slot selection hash={one} ({one:#x}), selected_service={two}"),
        42 => format!("Reverse proxy lookup {} nexthdr={three}", proxied(one, two)),
        43 => format!(
            "Reverse proxy entry found, orig-daddr={} orig-dport={two}",
            ip4(one)
        ),
        44 => format!("Reverse proxy updated {} nexthdr={three}", proxied(one, two)),
        45 => {
            let direction = if two == 0 { "egress" } else { "ingress" };
            format!("Resolved L4 policy to: {} / {direction}", swapped(one))
        }
        46 => format!("Destination is inside cluster prefix, source identity: {one}"),
        47 => format!(
            "Attempting encapsulation, lookup key: {}, identity: {two}",
            ip4(one)
        ),
        48 => format!("Conntrack lookup 1/2: {}", flow4(args)),
        49 | 52 => format!(
            "Conntrack lookup 2/2: nexthdr={} flags={} dir={two} scope={three}",
            one >> 8,
            one & 0xff
        ),
        50 => format!(
            "Conntrack create: proxy-port={} revnat={} src-identity={two} lb={}",
            one >> 16,
            swapped(one),
            ip4(three)
        ),
        51 => format!("Conntrack lookup 1/2: {}", flow6(args)),
        53 => format!(
            "Conntrack create: proxy-port={} revnat={} src-identity={two}",
            one >> 16,
            swapped(one)
        ),
        54 => format!("Skipping proxy, tc_index is set={one:x}"),
        55 => format!(
            "Matched L4 policy; creating conntrack src={one} dst={two} dport={} proto={}",
            swapped(three >> 16),
            three & 0xff
        ),
        56 => format!("Failed to map addr={} to identity", ip4(one)),
        57 => format!("Failed to map addr.p4=[::{}] to identity", ip6(one)),
        58 => format!("Successfully mapped addr={} to identity={two}", ip4(one)),
        59 => format!("Successfully mapped addr.p4=[::{}] to identity={two}", ip6(one)),
        60 => format!("Stale CT entry found stale_ct.rev_nat_id={two}, svc.rev_nat_id={one}"),
        61 => format!("Inheriting identity={one} from stack"),
        62 => format!("Socket lookup: {}", flow4(args)),
        63 => format!("Socket lookup: {}", flow6(args)),
        64 if one == 0 => "Socket assign: Success".to_owned(),
        64 => format!("Socket assign: {}", error_text(one)),
        65 => format!("L7 LB from {} to {}: proxy port {three}", ip4(one), ip4(two)),
        66 => format!("Skipping policy, arg1={one} arg2={two}"),
        67 => format!("Loopback SNAT from.p4={one:x} to.p4={two:x}"),
        68 => format!("Loopback reverse SNAT from.p4={one:x} to.p4={two:x}"),
        other => format!("Unknown message type={other} arg1={one} arg2={two}"),
    }
}

/// Messages of load balancing: first IPv6's, then the same for IPv4, whose addresses fit.
fn load_balancing(subtype: u8, one: u32, two: u32) -> String {
    match subtype {
        22 => format!(
            "Frontend service lookup, addr.p4={one:x} key.dport={}",
            swapped(two)
        ),
        23 => format!("Frontend service lookup failed, addr.p2={one:x} addr.p3={two:x}"),
        24 | 32 => format!("Service backend slot lookup: slot={one}, dport={}", swapped(two)),
        25 => format!(
            "Service backend slot lookup result: target.p4={one:x} port={}",
            swapped(two)
        ),
        26 | 34 => format!(
            "Service backend slot lookup failed: slot={one}, dport={}",
            swapped(two)
        ),
        27 | 35 => format!("Backend service lookup failed: backend_id={one}"),
        28 | 36 => format!("Reverse NAT lookup, index={}", swapped(one)),
        29 => format!("Performing reverse NAT, address.p4={one:x} port={}", swapped(two)),
        30 => format!(
            "Frontend service lookup, addr={} key.dport={}",
            ip4(one),
            swapped(two)
        ),
        31 => "Frontend service lookup failed".to_owned(),
        33 => format!(
            "Service backend slot lookup result: target={} port={}",
            ip4(one),
            swapped(two)
        ),
        37 => format!(
            "Performing reverse NAT, address={} port={}",
            ip4(one),
            swapped(two)
        ),
        38 => format!("Loopback SNAT from={} to={}", ip4(one), ip4(two)),
        _ => format!("Loopback reverse SNAT from={} to={}", ip4(one), ip4(two)),
    }
}

/// The low 16 bits, which are in network byte order.
fn swapped(value: u32) -> u16 {
    u16::from_be(value as u16)
}

fn ip4(value: u32) -> Ipv4Addr {
    Ipv4Addr::from(value.to_ne_bytes())
}

/// The last 32 bits of an IPv6 address.
fn ip6(value: u32) -> String {
    let [.., high, low] = Ipv6Addr::from(u128::from(u32::from_be(value))).segments();
    format!("{high:x}:{low:x}")
}

fn tuple(ports: u32, rest: u32) -> String {
    let flags: Vec<&str> = [(1, "OUT"), (2, "RELATED")]
        .into_iter()
        .filter(|(bit, _)| rest & bit != 0)
        .map(|(_, name)| name)
        .collect();
    format!(
        "sport={} dport={} nexthdr={} flags={}",
        ports >> 16,
        ports & 0xffff,
        rest >> 8,
        flags.join(", ")
    )
}

fn reverse_nat(value: u32) -> String {
    format!("revnat={}", swapped(value))
}

fn proxied(ports: u32, address: u32) -> String {
    format!(
        "sport={} dport={} saddr={}",
        swapped(ports >> 16),
        swapped(ports),
        ip4(address)
    )
}

fn flow4([source, destination, ports]: [u32; 3]) -> String {
    format!(
        "src={}:{} dst={}:{}",
        ip4(source),
        ports & 0xffff,
        ip4(destination),
        ports >> 16
    )
}

fn flow6([source, destination, ports]: [u32; 3]) -> String {
    format!(
        "src=[::{}]:{} dst=[::{}]:{}",
        ip6(source),
        ports & 0xffff,
        ip6(destination),
        ports >> 16
    )
}

fn verdict(value: u32) -> String {
    match value {
        0 => "New".to_owned(),
        1 => "Established".to_owned(),
        2 => "Reply".to_owned(),
        3 => "Related".to_owned(),
        other => names::drop_reason(other as u8, 0),
    }
}

/// The text of an error number, which programs send negated.
fn error_text(value: u32) -> String {
    let number = value.cast_signed().checked_abs().unwrap_or(i32::MAX);
    let text = io::Error::from_raw_os_error(number).to_string();
    match text.split_once(" (os error") {
        Some((text, _)) => text.to_ascii_lowercase(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(subtype: u8, args: [u32; 3]) -> String {
        text(subtype, args, &|index| (index == 7).then(|| "lxc7".to_owned()))
    }

    fn address(text: &str) -> u32 {
        u32::from_ne_bytes(text.parse::<Ipv4Addr>().unwrap().octets())
    }

    fn port(number: u16) -> u32 {
        u32::from(number.to_be())
    }

    #[test]
    fn messages_have_the_texts_of_cilium() {
        let (from, to) = (address("10.1.0.7"), address("10.1.2.9"));
        for (subtype, args, expected) in [
            (
                1,
                [10, 255, 0],
                "No message, arg1=10 (0xa) arg2=255 (0xff) arg3=0 (0x0)",
            ),
            (
                4,
                [7, port(812), 0],
                "Local container found ifindex lxc7 seclabel 812",
            ),
            (
                4,
                [8, port(812), 0],
                "Local container found ifindex 8 seclabel 812",
            ),
            (
                6,
                [80 << 16 | 443, 6 << 8 | 3, 0],
                "CT lookup: sport=80 dport=443 nexthdr=6 flags=OUT, RELATED",
            ),
            (
                9,
                [80 << 16 | 443, 6 << 8, port(5)],
                "CT created 1/2: sport=80 dport=443 nexthdr=6 flags= revnat=5",
            ),
            (
                13,
                [0xfd00, 1, 0],
                "ICMPv6 neighbour soliciation for address fd00:1",
            ),
            (15, [0, 0, 0], "CT verdict: New, revnat=0"),
            (15, [137, 0, 0], "CT verdict: CT: Unknown L4 protocol, revnat=0"),
            (
                30,
                [to, port(53), 0],
                "Frontend service lookup, addr=10.1.2.9 key.dport=53",
            ),
            (38, [from, to, 0], "Loopback SNAT from=10.1.0.7 to=10.1.2.9"),
            (45, [port(80), 0, 0], "Resolved L4 policy to: 80 / egress"),
            (
                48,
                [from, to, 443 << 16 | 4000],
                "Conntrack lookup 1/2: src=10.1.0.7:4000 dst=10.1.2.9:443",
            ),
            (
                57,
                [0x0001_a02c_u32.to_be(), 0, 0],
                "Failed to map addr.p4=[::1:a02c] to identity",
            ),
            (64, [0, 0, 0], "Socket assign: Success"),
            (
                64,
                [(-2_i32).cast_unsigned(), 0, 0],
                "Socket assign: no such file or directory",
            ),
            (68, [1, 2, 0], "Loopback reverse SNAT from.p4=1 to.p4=2"),
            (69, [1, 2, 0], "Unknown message type=69 arg1=1 arg2=2"),
        ] {
            assert_eq!(text_of(subtype, args), expected);
        }
    }

    #[test]
    fn every_number_has_a_text() {
        for subtype in 0..=u8::MAX {
            for args in [[0; 3], [u32::MAX; 3], [1 << 31; 3]] {
                assert!(!text_of(subtype, args).is_empty());
            }
        }
    }
}
