// SPDX-License-Identifier: Apache-2.0

//! Parts of the status about programs at interfaces, in the words of Cilium's clients.

use std::sync::Arc;

use async_trait::async_trait;
use hive::{Cfg, Member};
use skep_base_api::StatusProbe;
use skep_base_api_types::{BigTcp, Masquerading, MasqueradingProtocols, Routing, Status, StatusResponse};
use skep_base_net::{Link, Netlink, packet::link::LinkAttribute};
use skep_base_settings::{Acceleration, AttachConfig, MasqueradeConfig, TunnelConfig};
use skep_datapath_loader::{Attachment, PacketDatapath};

/// The kernel's largest packet without BIG TCP.
const PACKET: u32 = 65_536;

/// The device that leads to other nodes; empty if there is none.
pub(crate) fn direct_routing_device(packets: &PacketDatapath) -> String {
    let direct = packets.status().direct_routing;
    direct.map(|direct| direct.device).unwrap_or_default()
}

/// Translation of node ports in XDP.
pub(crate) fn acceleration(packets: &PacketDatapath) -> String {
    match packets.settings().attach.acceleration {
        Acceleration::Disabled => "Disabled",
        Acceleration::Native => "Native",
        Acceleration::BestEffort => "Best-Effort",
        Acceleration::TestingOnly => "Testing-Only",
    }
    .to_owned()
}

/// Sizes of the largest GSO and GRO packets that all devices take: of IPv6, and of IPv4.
pub(crate) fn packet_sizes(devices: &[String]) -> [BigTcp; 2] {
    let links: Vec<Link> = match Netlink::open() {
        Ok(net) => devices.iter().filter_map(|name| net.link(name).ok()).collect(),
        Err(_) => Vec::new(),
    };
    let least = |size: fn(&LinkAttribute) -> Option<u32>| {
        let sizes = links
            .iter()
            .filter_map(|link| link.attributes.iter().find_map(size));
        sizes.min().unwrap_or(PACKET)
    };
    let sizes = |max_gso, max_gro| BigTcp {
        enabled: false,
        max_gro,
        max_gso,
    };
    let ipv6 = sizes(
        least(|attribute| match attribute {
            LinkAttribute::GsoMaxSize(size) => Some(*size),
            _ => None,
        }),
        least(|attribute| match attribute {
            LinkAttribute::GroMaxSize(size) => Some(*size),
            _ => None,
        }),
    );
    let ipv4 = sizes(
        least(|attribute| match attribute {
            LinkAttribute::GsoIpv4MaxSize(size) => Some(*size),
            _ => None,
        }),
        least(|attribute| match attribute {
            LinkAttribute::GroIpv4MaxSize(size) => Some(*size),
            _ => None,
        }),
    );
    [ipv6, ipv4]
}

struct Interfaces {
    packets: Arc<PacketDatapath>,
    tunnel: Cfg<TunnelConfig>,
    masquerade: Cfg<MasqueradeConfig>,
}

/// Parts `masquerading`, `routing`, `attach-mode` and `datapath-mode`.
pub(crate) fn status(
    packets: Arc<PacketDatapath>,
    tunnel: Cfg<TunnelConfig>,
    masquerade: Cfg<MasqueradeConfig>,
) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Interfaces {
        packets,
        tunnel,
        masquerade,
    }))
}

fn routing(tunnel: &TunnelConfig, attach: &AttachConfig) -> Routing {
    let (mode, protocol) = if tunnel.is_tunnelled() {
        ("Tunnel", tunnel.tunnel_protocol.to_string())
    } else {
        ("Native", String::new())
    };
    Routing {
        intra_host_routing_mode: if attach.enable_host_legacy_routing {
            "Legacy".to_owned()
        } else {
            "BPF".to_owned()
        },
        inter_host_routing_mode: mode.to_owned(),
        tunnel_protocol: protocol,
    }
}

#[async_trait]
impl StatusProbe for Interfaces {
    fn name(&self) -> &'static str {
        "masquerading"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let status = self.packets.status();
        response.routing = Some(routing(&self.tunnel, &self.packets.settings().attach));
        response.datapath_mode = "veth".to_owned();
        response.configured_datapath_mode = "veth".to_owned();
        response.attach_mode = match status.attachment {
            None => String::new(),
            Some(Attachment::Link) => "tcx".to_owned(),
            Some(Attachment::Filter { .. }) => "tc".to_owned(),
        };
        response.masquerading = Some(match status.masquerading {
            [None, None] => Masquerading {
                mode: "Disabled".to_owned(),
                ..Masquerading::default()
            },
            [ipv4, ipv6] => Masquerading {
                mode: "BPF".to_owned(),
                enabled: true,
                enabled_protocols: MasqueradingProtocols {
                    ipv4: ipv4.is_some(),
                    ipv6: ipv6.is_some(),
                },
                ip_masq_agent: self.masquerade.has_ip_masq_agent(),
                exclusion: ipv4.clone().unwrap_or_default(),
                exclusion4: ipv4.unwrap_or_default(),
                exclusion6: ipv6.unwrap_or_default(),
            },
        });
        None
    }
}

#[cfg(test)]
mod tests {
    use skep_base_settings::RoutingMode;

    use super::*;

    #[test]
    fn modes_of_routing_are_named() {
        let mut tunnel = <TunnelConfig as hive::Config>::defaults().unwrap();
        let mut attach = <AttachConfig as hive::Config>::defaults().unwrap();
        tunnel.routing_mode = RoutingMode::Native;
        let modes = |found: &Routing| {
            let Routing {
                intra_host_routing_mode: host,
                inter_host_routing_mode: network,
                tunnel_protocol: protocol,
            } = found;
            format!("{host} {network} {protocol}")
        };
        assert_eq!(modes(&routing(&tunnel, &attach)), "BPF Native ");

        tunnel.routing_mode = RoutingMode::Tunnel;
        attach.enable_host_legacy_routing = true;

        assert_eq!(modes(&routing(&tunnel, &attach)), "Legacy Tunnel vxlan");
    }
}
