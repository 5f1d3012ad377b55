// SPDX-License-Identifier: Apache-2.0

//! The same services by nftables: verdict maps, DNAT and connection tracking, in the shape that kube-proxy's mode of that
//! name has.

use std::fmt::Write as _;

use super::network::{NODE, POD_NETWORK, Service};

/// The ruleset of these services. It replaces the one before.
pub(super) fn ruleset(services: &[Service]) -> String {
    let mut text = String::from("table ip services\ndelete table ip services\ntable ip services {\n");
    let mut element = |map: &str, keys: &[String]| {
        let _ = writeln!(
            text,
            "  map {map} {{ type {}; elements = {{ {} }}\n  }}",
            if map == "cluster-ips" {
                "ipv4_addr . inet_proto . inet_service : verdict"
            } else {
                "inet_proto . inet_service : verdict"
            },
            keys.join(", ")
        );
    };
    let cluster_ips: Vec<String> = (0..)
        .zip(services)
        .map(|(n, service)| {
            let at = service.cluster_ip.frontend;
            format!("{} . tcp . {} : goto service-{n}", at.ip(), at.port())
        })
        .collect();
    let node_ports: Vec<String> = (0..)
        .zip(services)
        .filter_map(|(n, service)| {
            let port = service.node_port?.frontend.port();
            Some(format!("tcp . {port} : goto external-{n}"))
        })
        .collect();
    element("cluster-ips", &cluster_ips);
    element("node-ports", &node_ports);
    text.push_str(&format!(
        "  set node-addresses {{ type ipv4_addr; elements = {{ {NODE} }}\n  }}\n{CHAINS}"
    ));
    for (n, service) in (0..).zip(services) {
        let at = service.cluster_ip.frontend;
        let (ip, port, backend) = (at.ip(), at.port(), service.cluster_ip.backend);
        let _ = write!(
            text,
            "  chain endpoint-{n} {{\n    ip saddr {pod} jump mark-for-masquerade\n    meta l4proto tcp dnat to \
             {backend}\n  }}\n  chain service-{n} {{\n    ip daddr {ip} tcp dport {port} ip saddr != \
             {POD_NETWORK} jump mark-for-masquerade\n    numgen random mod 1 vmap {{ 0 : goto endpoint-{n} }}\n  }}\n",
            pod = backend.ip(),
        );
        if let Some(node_port) = service.node_port {
            let backend = node_port.backend;
            let _ = write!(
                text,
                "  chain outside-{n} {{\n    meta l4proto tcp dnat to {backend}\n  }}\n  chain external-{n} {{\n    jump \
                 mark-for-masquerade\n    numgen random mod 1 vmap {{ 0 : goto outside-{n} }}\n  }}\n"
            );
        }
    }
    text.push_str(HOOKS);
    text
}

const CHAINS: &str = "  chain mark-for-masquerade {
    meta mark set meta mark or 0x4000
  }
";

const HOOKS: &str = "  chain services {
    ip daddr . meta l4proto . th dport vmap @cluster-ips
    ip daddr @node-addresses meta l4proto . th dport vmap @node-ports
  }
  chain prerouting {
    type nat hook prerouting priority dstnat;
    jump services
  }
  chain output {
    type nat hook output priority -100;
    jump services
  }
  chain postrouting {
    type nat hook postrouting priority srcnat;
    meta mark and 0x4000 == 0 return
    meta mark set meta mark xor 0x4000
    masquerade fully-random
  }
}
";
