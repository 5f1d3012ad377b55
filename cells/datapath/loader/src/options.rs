// SPDX-License-Identifier: Apache-2.0

//! Settings and addresses → options of the programs.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use hive::{Cfg, Params};
use skep_bpf_maps::lb::LbMapSizes;
use skep_bpf_programs::{DirectReturn, DsrDispatch, NodeOptions, PacketHash, PacketOptions};
use skep_datapath_config::{
    Acceleration, AddressFamilies, AttachConfig, ConntrackConfig, Dispatch, ForwardingConfig,
    KubeProxyReplacement, MasqueradeConfig, MonitorConfig, NoBackend, NodePorts, PacketConfig, ServiceConfig,
    SocketLbConfig, whole_seconds,
};
use skep_loadbalancer_model::{Config as LbConfig, LbAlgorithm};
use skep_maglev::Maglev;

use crate::{desired::Desired, pair::Pair};

/// Settings that decide which programs are attached to interfaces, and what they do.
#[derive(Debug, Clone, Params)]
pub struct PacketSettings {
    /// Address families in use.
    pub families: Cfg<AddressFamilies>,
    /// Node ports are served.
    pub replacement: Cfg<KubeProxyReplacement>,
    /// Ports of NodePort services.
    pub node_ports: Cfg<NodePorts>,
    /// Whether sockets of pods are translated.
    pub sockets: Cfg<SocketLbConfig>,
    /// Aggregation of events.
    pub monitor: Cfg<MonitorConfig>,
    /// Timeouts of connections.
    pub conntrack: Cfg<ConntrackConfig>,
    /// Events and unusual packets.
    pub packets: Cfg<PacketConfig>,
    /// How programs are attached.
    pub attach: Cfg<AttachConfig>,
    /// Masquerading.
    pub masquerade: Cfg<MasqueradeConfig>,
    /// How packets reach backends on other nodes.
    pub forwarding: Cfg<ForwardingConfig>,
    /// How services are served.
    pub services: Cfg<ServiceConfig>,
    /// How backends are picked.
    pub balancing: Cfg<LbConfig>,
    /// Lookup tables of backends.
    pub maglev: Maglev,
    /// Sizes of the maps of services.
    pub sizes: Arc<LbMapSizes>,
}

impl PacketSettings {
    /// A program for what leaves the node is wanted: something is translated there.
    pub fn has_egress(&self) -> bool {
        self.replacement.enabled || self.masquerade.bpf
    }

    /// The XDP program is wanted.
    pub fn has_xdp(&self) -> bool {
        self.attach.acceleration != Acceleration::Disabled
    }

    /// Options of the programs; `base` has those that they share with the programs of sockets.
    pub(crate) fn options(&self, base: NodeOptions, desired: &Desired, pair: Pair) -> NodeOptions {
        let sockets_translated = self.sockets.enabled || self.replacement.enabled;
        let direct = desired.direct_routing.as_ref();
        let packets = PacketOptions {
            cilium_host: pair.host,
            cilium_net: pair.net,
            router6: desired.pair.router6.unwrap_or(Ipv6Addr::UNSPECIFIED),
            nodeport_source4: direct
                .and_then(|direct| direct.ipv4)
                .unwrap_or(Ipv4Addr::UNSPECIFIED),
            nodeport_source6: direct
                .and_then(|direct| direct.ipv6)
                .unwrap_or(Ipv6Addr::UNSPECIFIED),
            native4: self
                .masquerade
                .native4
                .or(desired.pod_cidr4)
                .map(|network| (network.network(), network.prefix_len())),
            native6: self
                .masquerade
                .native6
                .or(desired.pod_cidr6)
                .map(|network| (network.network(), network.prefix_len())),
            nat_ports: (self.node_ports.range.last().saturating_add(1), u16::MAX),
            // Programs of sockets do not translate SCTP.
            services: !sockets_translated || self.sockets.host_only || self.services.sctp,
            dsr: self.direct_return(),
            sctp: self.services.sctp,
            masquerade4: self.families.ipv4 && self.masquerade.masquerades4(),
            masquerade6: self.families.ipv6 && self.masquerade.masquerades6(),
            masquerade_nodes: self.masquerade.remote_nodes,
            maglev: self.balancing.algorithm.0 == LbAlgorithm::Maglev,
            lb_per_service: self.balancing.algorithm_annotation,
            packet_hash: PacketHash {
                table_size: self.sizes.maglev_table,
                seeds: self.maglev.seed().jhash,
            },
            xdp: self.has_xdp(),
            ..self.unchanging()
        };
        NodeOptions { packets, ..base }
    }

    /// Direct server return, if a service may have it.
    fn direct_return(&self) -> Option<DirectReturn> {
        let forwarding = &self.forwarding;
        if !forwarding.may_return_directly() {
            return None;
        }
        let dispatch = match forwarding.dispatch {
            Dispatch::Opt => DsrDispatch::IpOption,
            Dispatch::Ipip => DsrDispatch::Ipip {
                source4: forwarding.source_network4(),
                source6: forwarding.source_network6(),
            },
            // Refused by the validation of the settings.
            Dispatch::Geneve => return None,
        };
        Some(DirectReturn {
            dispatch,
            all_services: forwarding.always_returns_directly(),
            icmp_errors: forwarding.pmtu_discovery,
        })
    }

    /// Options that only settings decide.
    fn unchanging(&self) -> PacketOptions {
        let (conntrack, packets) = (&self.conntrack, &self.packets);
        PacketOptions {
            ct_tcp: whole_seconds(conntrack.tcp),
            ct_any: whole_seconds(conntrack.any),
            ct_service_tcp: whole_seconds(conntrack.service_tcp),
            ct_service_any: whole_seconds(conntrack.service_any),
            ct_service_grace: whole_seconds(conntrack.service_tcp_grace),
            ct_tcp_syn: whole_seconds(conntrack.tcp_syn),
            ct_tcp_fin: whole_seconds(conntrack.tcp_fin),
            ct_report_interval: whole_seconds(self.monitor.interval),
            ct_report_flags: packets.report_flags.bits(),
            trace_length: packets.trace_length,
            events_limit: packets.events_limit(),
            loopback4: packets.loopback4,
            loopback6: packets.loopback6,
            fragments4: packets.fragments4,
            fragments6: packets.fragments6,
            icmp_rules: packets.icmp_rules,
            icmp_frag_needed: packets.icmp_frag_needed,
            policy_accounting: packets.policy_accounting,
            identity_mark: packets.identity_mark,
            reply_no_backend: packets.no_backend == NoBackend::Reject,
            vlans: packets.vlans.clone(),
            all_vlans: packets.all_vlans(),
            ..PacketOptions::default()
        }
    }
}
