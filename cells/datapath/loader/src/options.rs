// SPDX-License-Identifier: Apache-2.0

//! Settings and addresses → options of the programs.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use hive::{Cfg, Params};
use skep_base_settings::{
    Acceleration, AddressFamilies, Algorithm, AttachConfig, BalancingConfig, BandwidthConfig,
    ConntrackConfig, Dispatch, ForwardingConfig, KernelConfig, KubeProxyReplacement, MaglevConfig, MapConfig,
    MasqueradeConfig, MonitorConfig, MtuConfig, NoBackend, NodePorts, PacketConfig, ServiceConfig,
    SocketLbConfig, TunnelConfig, whole_seconds,
};
use skep_bpf_maps::lb::LbMapSizes;
use skep_bpf_programs::{
    DirectReturn, DsrDispatch, EventKinds, Nat46x64, NodeOptions, PacketHash, PacketOptions, Tunnel,
    TunnelProtocol,
};

use crate::{desired::Desired, pair::Pair};

/// Source ports of packets of the tunnel if none are configured: those that the kernel has by default
/// (`net.ipv4.ip_local_port_range`).
const LOCAL_PORTS: (u16, u16) = (32_768, 60_999);

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
    /// How large packets may be.
    pub mtu: Cfg<MtuConfig>,
    /// Masquerading.
    pub masquerade: Cfg<MasqueradeConfig>,
    /// How packets reach backends on other nodes.
    pub forwarding: Cfg<ForwardingConfig>,
    /// How packets travel between nodes.
    pub tunnel: Cfg<TunnelConfig>,
    /// How services are served.
    pub services: Cfg<ServiceConfig>,
    /// How backends are picked.
    pub balancing: Cfg<BalancingConfig>,
    /// Where settings of the kernel are.
    pub kernel: Cfg<KernelConfig>,
    /// Lookup tables of backends.
    pub maglev: Cfg<MaglevConfig>,
    /// Rates of endpoints.
    pub bandwidth: Cfg<BandwidthConfig>,
    /// Sizes of maps.
    pub maps: Cfg<MapConfig>,
    /// Sizes of the maps of services.
    pub sizes: Arc<LbMapSizes>,
}

impl PacketSettings {
    /// A program for what leaves the node is wanted: something is translated or filtered there.
    pub fn has_egress(&self) -> bool {
        let translates = self.replacement.enabled || self.masquerade.bpf;
        translates || self.packets.host_firewall || self.bandwidth.enabled
    }

    pub fn has_xdp(&self) -> bool {
        self.attach.acceleration != Acceleration::Disabled
    }

    /// Options of the programs; `base` has those that they share with the programs of sockets, `tunnel` is the index of
    /// the tunnel's interface.
    pub(crate) fn options(
        &self,
        base: NodeOptions,
        desired: &Desired,
        pair: Pair,
        tunnel: Option<u32>,
    ) -> NodeOptions {
        let sockets_translated = self.sockets.enabled || self.replacement.enabled;
        let direct = desired.direct_routing.as_ref();
        let packets = PacketOptions {
            cilium_host: pair.host,
            cilium_net: pair.net,
            router4: desired.pair.router4.unwrap_or(Ipv4Addr::UNSPECIFIED),
            tunnel: tunnel.map(|device| Tunnel {
                protocol: TunnelProtocol::Vxlan,
                port: self.tunnel.port(),
                source_ports: self
                    .tunnel
                    .tunnel_source_port_range
                    .range()
                    .unwrap_or(LOCAL_PORTS),
                device,
            }),
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
            nat_ports: self.node_ports.range.snat_ports().into_inner(),
            // Programs of sockets do not translate SCTP.
            services: !sockets_translated || self.sockets.host_only || self.services.sctp,
            dsr: self.direct_return(),
            nat46x64: self.nat46x64(desired.pair.mtu),
            ipip_termination: self.forwarding.ipip_termination,
            health_probes: self.forwarding.health_probes,
            sctp: self.services.sctp,
            masquerade4: self.families.ipv4 && self.masquerade.masquerades4(),
            masquerade6: self.families.ipv6 && self.masquerade.masquerades6(),
            masquerade_nodes: self.masquerade.remote_nodes,
            ip_masq_agent: self.masquerade.has_ip_masq_agent(),
            maglev: self.balancing.algorithm == Algorithm::Maglev,
            lb_per_service: self.balancing.algorithm_annotation,
            packet_hash: PacketHash {
                table_size: self.sizes.maglev_table,
                seeds: self.maglev.hash_seed.jhash,
            },
            xdp: self.has_xdp(),
            legacy_routing: self.attach.enable_host_legacy_routing,
            endpoint_debug: desired.endpoint_debug,
            bandwidth: desired.bandwidth,
            flows: self.maps.flow_table_max > 0,
            ..self.unchanging()
        };
        let mut options = NodeOptions { packets, ..base };
        if let Some(events) = desired.events {
            options.trace_aggregation = events.aggregation;
            options.packets.events = EventKinds {
                drops: events.drops,
                verdicts: events.verdicts,
                traces: events.traces,
                debug: events.debug,
            };
        }
        options
    }

    /// Translation between the address families, if both are in use.
    fn nat46x64(&self, mtu: u32) -> Option<Nat46x64> {
        let network = self.forwarding.nat46x64_network()?;
        (self.families.ipv4 && self.families.ipv6).then(|| Nat46x64 {
            services: self.forwarding.nat46x64_services,
            gateway: self.forwarding.nat46x64_gateway,
            prefix: network.network(),
            mtu: mtu.min(u16::MAX.into()) as u16,
        })
    }

    /// Direct server return, if a service may have it.
    fn direct_return(&self) -> Option<DirectReturn> {
        let forwarding = &self.forwarding;
        // Packets in tunnels tell no service.
        if !forwarding.may_return_directly() || self.tunnel.is_tunnelled() {
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
            trace_length_overlay: packets.trace_length_overlay,
            events_limit: packets.events_limit(),
            loopback4: packets.loopback4,
            loopback6: packets.loopback6,
            fragments4: packets.fragments4,
            fragments6: packets.fragments6,
            icmp_rules: packets.icmp_rules,
            icmp_frag_needed: packets.icmp_frag_needed,
            policy_accounting: packets.policy_accounting,
            host_firewall: packets.host_firewall,
            extended_protocols: packets.extended_protocols,
            identity_mark: packets.identity_mark,
            reply_no_backend: packets.no_backend == NoBackend::Reject,
            vlans: packets.vlans.clone(),
            all_vlans: packets.all_vlans(),
            ct_accounting: conntrack.accounting,
            events: EventKinds {
                drops: packets.drop_events,
                verdicts: packets.verdict_events,
                traces: packets.trace_events,
                debug: self.monitor.debug.has_datapath(),
            },
            ..PacketOptions::default()
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use hive::Config;

    use super::*;
    use crate::{desired::DirectRouting, pair::Pair};

    fn cfg<C: Config>(edit: impl Fn(&mut C)) -> Cfg<C> {
        let mut config = C::defaults().unwrap();
        edit(&mut config);
        Cfg::fixed(config)
    }

    pub(crate) fn settings() -> PacketSettings {
        PacketSettings {
            families: cfg(|_| ()),
            replacement: cfg(|_| ()),
            node_ports: cfg(|_| ()),
            sockets: cfg(|_| ()),
            monitor: cfg(|_| ()),
            conntrack: cfg(|_| ()),
            packets: cfg(|_| ()),
            attach: cfg(|_| ()),
            mtu: cfg(|_| ()),
            masquerade: cfg(|_| ()),
            forwarding: cfg(|_| ()),
            tunnel: cfg(|_| ()),
            services: cfg(|_| ()),
            balancing: cfg(|_| ()),
            kernel: cfg(|_| ()),
            maglev: cfg(|_| ()),
            bandwidth: cfg(|_| ()),
            maps: cfg(|_| ()),
            sizes: Arc::new(LbMapSizes::uniform(1024)),
        }
    }

    fn options(settings: &PacketSettings) -> PacketOptions {
        let desired = Desired {
            direct_routing: Some(DirectRouting {
                device: "eth0".to_owned(),
                ipv4: Some([192, 0, 2, 1].into()),
                ipv6: None,
            }),
            pod_cidr4: Some("10.1.0.0/24".parse().unwrap()),
            ..Desired::default()
        };
        let pair = Pair {
            host: 5,
            net: 4,
            ..Pair::default()
        };
        settings
            .options(NodeOptions::default(), &desired, pair, None)
            .packets
    }

    #[test]
    fn without_settings_options_are_those_of_cilium() {
        let found = options(&settings());

        let expected = PacketOptions {
            cilium_host: 5,
            cilium_net: 4,
            nodeport_source4: [192, 0, 2, 1].into(),
            native4: Some(([10, 1, 0, 0].into(), 24)),
            ..PacketOptions::default()
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn services_are_translated_at_packets_unless_they_are_at_all_sockets() {
        let mut settings = settings();
        settings.replacement = cfg(|config: &mut KubeProxyReplacement| config.enabled = true);
        assert!(!options(&settings).services);
        assert!(settings.has_egress());

        settings.sockets = cfg(|config: &mut SocketLbConfig| config.host_only = true);
        assert!(options(&settings).services);
    }

    #[test]
    fn masquerading_has_its_families_and_networks() {
        let mut settings = settings();
        assert!(!settings.has_egress());
        settings.masquerade = cfg(|config: &mut MasqueradeConfig| {
            config.bpf = true;
            config.ipv6 = Some(false);
            config.native4 = Some("10.0.0.0/8".parse().unwrap());
        });

        let found = options(&settings);

        assert!(found.masquerade4 && !found.masquerade6);
        assert_eq!(found.native4, Some(([10, 0, 0, 0].into(), 8)));
        assert!(settings.has_egress());
    }

    #[test]
    fn packets_pass_the_stack_if_the_setting_says_so() {
        let mut settings = settings();
        assert!(!options(&settings).legacy_routing);

        settings.attach = cfg(|config: &mut AttachConfig| config.enable_host_legacy_routing = true);

        assert!(options(&settings).legacy_routing);
    }

    #[test]
    fn families_are_translated_if_both_are_in_use() {
        let mut settings = settings();
        assert_eq!(options(&settings).nat46x64, None);

        settings.forwarding = cfg(|config: &mut ForwardingConfig| {
            config.nat46x64_gateway = true;
            config.nat46x64_prefix = "2001:db8:64::/96".to_owned();
        });

        assert!(!options(&settings).ipip_termination);
        let found = options(&settings).nat46x64.unwrap();
        assert!(found.gateway && !found.services);
        assert_eq!(found.prefix, "2001:db8:64::".parse::<Ipv6Addr>().unwrap());

        settings.families = cfg(|config: &mut AddressFamilies| config.ipv4 = false);
        assert_eq!(options(&settings).nat46x64, None);
    }

    #[test]
    fn packets_of_the_tunnel_have_source_ports_as_configured() {
        let ports = |range: &str| {
            let mut settings = settings();
            settings.tunnel = cfg(|config: &mut TunnelConfig| {
                config.tunnel_source_port_range = range.parse().unwrap();
            });
            let base = NodeOptions::default();
            let options = settings.options(base, &Desired::default(), Pair::default(), Some(6));
            options.packets.tunnel.unwrap().source_ports
        };
        assert_eq!(ports("0-0"), (32_768, 60_999));
        assert_eq!(ports("40000-40010"), (40_000, 40_010));
    }

    #[test]
    fn source_ports_are_behind_those_of_node_ports() {
        let mut settings = settings();
        settings.node_ports = cfg(|config: &mut NodePorts| config.range = "40000,50000".parse().unwrap());
        assert_eq!(options(&settings).nat_ports, (50_001, 65_535));
    }

    #[test]
    fn events_and_accounting_are_as_configured() {
        let mut settings = settings();
        settings.packets = cfg(|config: &mut PacketConfig| {
            (config.drop_events, config.trace_events) = (false, false);
            (config.trace_length, config.trace_length_overlay) = (64, 96);
        });
        settings.monitor = cfg(|config: &mut MonitorConfig| config.debug = "datapath".parse().unwrap());
        settings.conntrack = cfg(|config: &mut ConntrackConfig| config.accounting = true);

        let found = options(&settings);

        let expected = EventKinds {
            drops: false,
            verdicts: true,
            traces: false,
            debug: true,
        };
        assert_eq!(found.events, expected);
        assert_eq!((found.trace_length, found.trace_length_overlay), (64, 96));
        assert!(found.ct_accounting);

        settings.packets = cfg(|config: &mut PacketConfig| config.verdict_events = false);
        settings.monitor = cfg(|config: &mut MonitorConfig| config.debug = "policy".parse().unwrap());
        let found = options(&settings).events;
        assert!(found.drops && !found.verdicts && found.traces && !found.debug);
    }

    #[test]
    fn every_timeout_reaches_its_option() {
        let mut settings = settings();
        let seconds = std::time::Duration::from_secs;
        settings.conntrack = cfg(|config: &mut ConntrackConfig| {
            (config.tcp, config.any) = (seconds(1), seconds(2));
            (config.service_tcp, config.service_any) = (seconds(3), seconds(4));
            config.service_tcp_grace = seconds(5);
            (config.tcp_syn, config.tcp_fin) = (seconds(6), seconds(7));
        });

        let found = options(&settings);

        let timeouts = [
            found.ct_tcp,
            found.ct_any,
            found.ct_service_tcp,
            found.ct_service_any,
            found.ct_service_grace,
            found.ct_tcp_syn,
            found.ct_tcp_fin,
        ];
        assert_eq!(timeouts, [1, 2, 3, 4, 5, 6, 7]);
    }
}
