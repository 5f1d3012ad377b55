// SPDX-License-Identifier: Apache-2.0

//! Source files of programs, by the numbers that counters and events have.

/// The name of a source file, as Cilium's tools show it: `unknown(6)` if the number has none.
pub fn source_file(number: u8) -> String {
    let name = match number {
        1 => "bpf_host.c",
        2 => "bpf_lxc.c",
        3 => "bpf_overlay.c",
        4 => "bpf_xdp.c",
        5 => "bpf_sock.c",
        7 => "bpf_wireguard.c",
        101 => "drop.h",
        102 => "srv6.h",
        103 => "icmp6.h",
        104 => "nodeport.h",
        105 => "lb.h",
        106 => "mcast.h",
        107 => "ipv4.h",
        108 => "conntrack.h",
        109 => "local_delivery.h",
        110 => "trace.h",
        111 => "encap.h",
        112 => "host_firewall.h",
        113 => "nodeport_egress.h",
        114 => "ipv6.h",
        115 => "classifiers.h",
        other => return format!("unknown({other})"),
    };
    name.to_owned()
}
