// SPDX-License-Identifier: Apache-2.0

//! Options of the node: read-only globals of the programs, set before they are loaded.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::OnceLock,
    time::Duration,
};

use libbpf_rs::{ProgramType, libbpf_sys};
use skep_bpf_maps::endpoint::events::Events;

use super::error::LoadError;

/// Which network namespace is the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostNetns {
    /// The one of the thread that loads the programs.
    #[default]
    Current,
    Cookie(u64),
}

/// Options of the node for all programs. Constant once loaded: the verifier removes code that they rule out. C twin:
/// `bpf/include/node/options.h`.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeOptions {
    /// The host's network namespace: its sockets reach services on loopback addresses and may not take
    /// the ports of services.
    pub host_netns: HostNetns,
    /// Translate IPv4, also in IPv6 sockets with mapped addresses.
    pub ipv4: bool,
    /// Translate IPv6.
    pub ipv6: bool,
    /// Serve NodePort and HostPort services on node and loopback addresses.
    pub nodeport: bool,
    /// First and last port of NodePort services.
    pub nodeport_range: (u16, u16),
    /// Translate only sockets of the host's network namespace.
    pub host_only: bool,
    /// Calls to services without backends always fail with EHOSTUNREACH; if false, only with the traffic
    /// policy Local, and others go out untranslated.
    pub reject_no_endpoints: bool,
    /// ExternalIP services are only translated for addresses of this node.
    pub external_ip_mitigation: bool,
    /// Heed the skip-LB maps for services of local redirect policies.
    pub local_redirect: bool,
    /// Sockets with the class id of the MKE host extension count as the host's.
    pub mke: bool,
    pub trace: bool,
    /// Monitor aggregation: 0 all events, 1 no reverse events, 3 only those of connect.
    pub trace_aggregation: u8,
    /// Least time between two events when aggregating.
    pub trace_interval: Duration,
    /// Rejected calls return the error that fits; `None`: if the kernel lets programs choose it (Linux 5.18).
    pub chooses_errors: Option<bool>,
    /// Times in maps are jiffies / 256 instead of seconds; the number is ticks a second.
    pub jiffies: Option<u32>,
    pub packets: PacketOptions,
}

/// Options of programs that see packets. C twin: `struct packet_options` in `bpf/include/node/options.h`.
///
/// Times are in seconds; programs get them in the unit of their clock.
#[derive(Debug, Clone, PartialEq)]
pub struct PacketOptions {
    /// Established TCP (`bpf-ct-timeout-regular-tcp`).
    pub ct_tcp: u32,
    /// Other protocols (`bpf-ct-timeout-regular-any`).
    pub ct_any: u32,
    /// The backend of a TCP connection to a service (`bpf-ct-timeout-service-tcp`).
    pub ct_service_tcp: u32,
    /// The backend of other flows to a service (`bpf-ct-timeout-service-any`).
    pub ct_service_any: u32,
    /// How long a SYN on a closed connection to a service goes to the same backend
    /// (`bpf-ct-timeout-service-tcp-grace`).
    pub ct_service_grace: u32,
    /// TCP of which only SYNs were seen (`bpf-ct-timeout-regular-tcp-syn`).
    pub ct_tcp_syn: u32,
    /// TCP that is closed (`bpf-ct-timeout-regular-tcp-fin`).
    pub ct_tcp_fin: u32,
    /// Least time between two reports of a flow (`monitor-aggregation-interval`).
    pub ct_report_interval: u32,
    /// TCP flags that are reported when they are first seen (`monitor-aggregation-flags`).
    pub ct_report_flags: u8,
    /// Bytes of a packet in an event (`trace-payloadlen`).
    pub trace_length: u32,
    /// The same of packets of the tunnel, with their outer headers (`trace-payloadlen-overlay`).
    pub trace_length_overlay: u32,
    /// Events a second on average, and at once; `None`: all (`bpf-events-default-rate-limit`, `-burst-limit`).
    pub events_limit: Option<(u32, u32)>,
    /// Index of `cilium_host`.
    pub cilium_host: u32,
    /// Index of `cilium_net`.
    pub cilium_net: u32,
    /// Id of the endpoint that is the host.
    pub host_endpoint: u16,
    /// Source of a pod that reaches itself through a service (`ipv4-service-loopback-address`).
    pub loopback4: Ipv4Addr,
    /// As `loopback4`.
    pub loopback6: Ipv6Addr,
    pub router6: Ipv6Addr,
    /// As `router6`. Both are the sources of packets that the node sends by the tunnel.
    pub router4: Ipv4Addr,
    /// `cilium_ipmasq_v4` and `_v6` have networks that packets of pods reach without masquerade
    /// (`enable-ip-masq-agent`).
    pub ip_masq_agent: bool,
    /// How packets come to pods of other nodes (`routing-mode`); `None`: by the routes of the node.
    pub tunnel: Option<Tunnel>,
    /// Source of packets to backends on other nodes.
    pub nodeport_source4: Ipv4Addr,
    /// As `nodeport_source4`.
    pub nodeport_source6: Ipv6Addr,
    /// Network that packets of pods reach without masquerade, with the bits of its prefix
    /// (`ipv4-native-routing-cidr`).
    pub native4: Option<(Ipv4Addr, u8)>,
    /// As `native4`.
    pub native6: Option<(Ipv6Addr, u8)>,
    /// First and last source port of translated packets.
    pub nat_ports: (u16, u16),
    /// Translate packets of pods to services.
    pub services: bool,
    /// Packets of pods to the world get the node's source.
    pub masquerade4: bool,
    /// As `masquerade4`.
    pub masquerade6: bool,
    /// Those to other nodes, too (`enable-remote-node-masquerade`).
    pub masquerade_nodes: bool,
    /// Follow fragments of IPv4.
    pub fragments4: bool,
    /// Follow fragments of IPv6.
    pub fragments6: bool,
    /// Policies see the type of ICMP messages (`enable-icmp-rules`).
    pub icmp_rules: bool,
    /// "Fragmentation needed" passes all policies (`allow-icmp-frag-needed`).
    pub icmp_frag_needed: bool,
    /// Count what policies match (`policy-accounting`).
    pub policy_accounting: bool,
    /// Packets of pods carry their identity in the mark (`enable-identity-mark`).
    pub identity_mark: bool,
    pub arp_responder: bool,
    /// Services without backends answer with an ICMP error (`service-no-backend-response`).
    pub reply_no_backend: bool,
    /// Clients outside get backends by Maglev tables, not at random (`bpf-lb-algorithm`).
    pub maglev: bool,
    /// How packets find their place in a table.
    pub packet_hash: PacketHash,
    /// Services may choose the algorithm for themselves, and pods get backends by it, too (`bpf-lb-algorithm-annotation`).
    pub lb_per_service: bool,
    /// The XDP program is attached, too (`bpf-lb-acceleration`).
    pub xdp: bool,
    /// Direct server return (`bpf-lb-mode`, `bpf-lb-mode-annotation`); `None`: backends of other nodes answer through
    /// this one.
    pub dsr: Option<DirectReturn>,
    /// Translation between the address families; `None`: neither services nor the node translate.
    pub nat46x64: Option<Nat46x64>,
    /// IP packets in IP packets for pods of this node are packets to services (`enable-ipip-termination`).
    pub ipip_termination: bool,
    /// Sockets with the mark of health probes choose the backends that they reach through services
    /// (`bpf-lb-ipip-sock-mark`). Implies [`ipip_termination`](Self::ipip_termination), by which they reach those of
    /// this node.
    pub health_probes: bool,
    /// SCTP has ports, like TCP and UDP (`enable-sctp`).
    pub sctp: bool,
    /// IP protocols without ports have flows, too (`enable-extended-ip-protocols`).
    pub extended_protocols: bool,
    /// VLAN ids whose packets the kernel gets (`vlan-bpf-bypass`); at most 5.
    pub vlans: Vec<u16>,
    /// All VLANs' packets go to the kernel.
    pub all_vlans: bool,
    /// Entries of flows count packets and bytes (`bpf-conntrack-accounting`).
    pub ct_accounting: bool,
    /// Events of packets outside of endpoints, and of endpoints without options of their own.
    pub events: EventKinds,
    /// An endpoint has debug events.
    pub endpoint_debug: bool,
    /// Enforce the rates of `cilium_throttle` (`enable-bandwidth-manager`).
    pub bandwidth: bool,
    /// Keep a flow table (`bpf-flow-table-max`); not with `bandwidth`.
    pub flows: bool,
    /// Packets between pods and the network pass the kernel's stack (`enable-host-legacy-routing`).
    pub legacy_routing: bool,
    /// Enforce the policy of the host endpoint (`enable-host-firewall`).
    pub host_firewall: bool,
}

/// Which events of packets there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventKinds {
    /// Drops (`bpf-events-drop-enabled`).
    pub drops: bool,
    /// Verdicts of policies (`bpf-events-policy-verdict-enabled`).
    pub verdicts: bool,
    /// Packets that pass a point (`bpf-events-trace-enabled`).
    pub traces: bool,
    /// Messages of programs, and packets at further points (`debug-verbose`).
    pub debug: bool,
}

impl EventKinds {
    /// As [`skep_bpf_maps::endpoint::events`], with this aggregation level of traces.
    pub fn bits(&self, level: u8) -> u8 {
        let Self {
            drops,
            verdicts,
            traces,
            debug,
        } = *self;
        let events = Events {
            drops,
            traces,
            verdicts,
            debug,
            level,
        };
        events.bits()
    }
}

impl Default for EventKinds {
    fn default() -> Self {
        Self {
            drops: true,
            verdicts: true,
            traces: true,
            debug: false,
        }
    }
}

/// Translation between the address families (RFC 7915). IPv4 addresses are embedded in IPv6 addresses (RFC 6052).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nat46x64 {
    /// For services with backends of the other family (`bpf-lb-nat46x64`).
    pub services: bool,
    /// For packets that only pass this node (`enable-nat46x64-gateway`).
    pub gateway: bool,
    /// Prefix of 96 bits before embedded addresses; the last 32 bits are zero.
    pub prefix: Ipv6Addr,
    /// Largest packet of the interfaces that translated packets leave by.
    pub mtu: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel {
    /// What is around packets (`tunnel-protocol`).
    pub protocol: TunnelProtocol,
    /// UDP port that nodes receive on (`tunnel-port`).
    pub port: u16,
    pub device: u32,
    /// First and last source port of packets that the XDP program encapsulates (`tunnel-source-port-range`).
    pub source_ports: (u16, u16),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelProtocol {
    /// VXLAN (RFC 7348).
    Vxlan = 1,
    /// Geneve (RFC 8926).
    Geneve = 2,
}

/// Direct server return: backends of other nodes answer clients themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectReturn {
    /// How a backend's node learns which service was asked for.
    pub dispatch: DsrDispatch,
    /// For every service; if false, for those with [`FORWARD_DSR`](skep_bpf_maps::lb::ServiceFlags::FORWARD_DSR).
    pub all_services: bool,
    /// Answer packets that exceed the MTU with the option with an ICMP error (`enable-pmtu-discovery`).
    pub icmp_errors: bool,
}

/// How a backend's node learns which service was asked for (`bpf-lb-dsr-dispatch`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DsrDispatch {
    /// By an IPv4 option or an IPv6 destination option.
    #[default]
    IpOption,
    /// By the packet as the client sent it, in another IP packet.
    Ipip {
        /// Network of the sources of these packets (`bpf-lb-rss-ipv4-src-cidr`); `None`:
        /// [`nodeport_source4`](PacketOptions::nodeport_source4).
        source4: Option<(Ipv4Addr, u8)>,
        /// As `source4`.
        source6: Option<(Ipv6Addr, u8)>,
    },
}

/// How a packet finds its place in a Maglev table; the same on all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketHash {
    /// Backend ids in a table (`bpf-lb-maglev-table-size`); that of the maps, or programs are refused.
    pub table_size: u32,
    /// Seeds for IPv4 and IPv6 (part of `bpf-lb-maglev-hash-seed`).
    pub seeds: [u32; 2],
}

impl Default for PacketHash {
    fn default() -> Self {
        Self {
            table_size: skep_bpf_maps::lb::DEFAULT_MAGLEV_TABLE,
            seeds: [0x71dc_da46, 0x9250_5688],
        }
    }
}

impl Default for PacketOptions {
    fn default() -> Self {
        Self {
            ct_tcp: 8000,
            ct_any: 60,
            ct_service_tcp: 8000,
            ct_service_any: 60,
            ct_service_grace: 60,
            ct_tcp_syn: 60,
            ct_tcp_fin: 10,
            ct_report_interval: 5,
            ct_report_flags: 0x07,
            trace_length: 128,
            trace_length_overlay: 192,
            events_limit: None,
            cilium_host: 0,
            cilium_net: 0,
            host_endpoint: 0,
            loopback4: Ipv4Addr::new(169, 254, 42, 1),
            loopback6: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1),
            router6: Ipv6Addr::UNSPECIFIED,
            router4: Ipv4Addr::UNSPECIFIED,
            ip_masq_agent: false,
            tunnel: None,
            nodeport_source4: Ipv4Addr::UNSPECIFIED,
            nodeport_source6: Ipv6Addr::UNSPECIFIED,
            native4: None,
            native6: None,
            nat_ports: (32_768, 65_535),
            services: true,
            masquerade4: false,
            masquerade6: false,
            masquerade_nodes: false,
            fragments4: true,
            fragments6: true,
            icmp_rules: true,
            icmp_frag_needed: true,
            policy_accounting: true,
            identity_mark: true,
            arp_responder: true,
            reply_no_backend: true,
            maglev: false,
            packet_hash: PacketHash::default(),
            lb_per_service: false,
            xdp: false,
            dsr: None,
            nat46x64: None,
            ipip_termination: false,
            health_probes: false,
            sctp: false,
            extended_protocols: false,
            vlans: Vec::new(),
            all_vlans: false,
            ct_accounting: false,
            events: EventKinds::default(),
            endpoint_debug: false,
            bandwidth: false,
            flows: false,
            legacy_routing: false,
            host_firewall: false,
        }
    }
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            host_netns: HostNetns::Current,
            ipv4: true,
            ipv6: true,
            nodeport: true,
            nodeport_range: (30_000, 32_767),
            host_only: false,
            reject_no_endpoints: true,
            external_ip_mitigation: true,
            local_redirect: false,
            mke: false,
            trace: true,
            trace_aggregation: 0,
            trace_interval: Duration::from_secs(5),
            chooses_errors: None,
            jiffies: None,
            packets: PacketOptions::default(),
        }
    }
}

/// The C structures of one object's skeleton: each has types of its own.
macro_rules! raw_options {
    ($types:path, $values:expr, $raw:expr) => {{
        use $types as types;
        let values: &$crate::options::Values = $values;
        let options = &values.options;
        let packets = &options.packets;
        let unit = |seconds: u32| values.clock_units(seconds);
        let raw: &mut types::node_options = $raw;
        raw.host_netns_cookie = values.host_netns_cookie;
        raw.trace_interval = u64::try_from(options.trace_interval.as_nanos()).unwrap_or(u64::MAX);
        raw.kernel_hz = options.jiffies.unwrap_or(0);
        (raw.nodeport_min, raw.nodeport_max) = options.nodeport_range;
        raw.ipv4 = options.ipv4.into();
        raw.ipv6 = options.ipv6.into();
        raw.nodeport = options.nodeport.into();
        raw.host_only = options.host_only.into();
        raw.reject_no_endpoints = options.reject_no_endpoints.into();
        raw.external_ip_mitigation = options.external_ip_mitigation.into();
        raw.local_redirect = options.local_redirect.into();
        raw.mke = values.has_class_ids.into();
        raw.trace = options.trace.into();
        raw.trace_aggregation = options.trace_aggregation;
        raw.clock_jiffies = options.jiffies.is_some().into();
        raw.has_set_retval = values.has_set_retval.into();
        let raw: &mut types::packet_options = &mut raw.packet;
        raw.ct_tcp = unit(packets.ct_tcp);
        raw.ct_any = unit(packets.ct_any);
        raw.ct_service_tcp = unit(packets.ct_service_tcp);
        raw.ct_service_any = unit(packets.ct_service_any);
        raw.ct_service_grace = unit(packets.ct_service_grace);
        raw.ct_tcp_syn = unit(packets.ct_tcp_syn);
        raw.ct_tcp_fin = unit(packets.ct_tcp_fin);
        raw.ct_report_interval = unit(packets.ct_report_interval);
        raw.ct_report_flags = packets.ct_report_flags;
        raw.trace_length = packets.trace_length;
        raw.trace_length_overlay = packets.trace_length_overlay;
        (raw.events_rate, raw.events_burst) = packets.events_limit.unwrap_or((0, 0));
        raw.cilium_host = packets.cilium_host;
        raw.cilium_net = packets.cilium_net;
        raw.host_endpoint = packets.host_endpoint.into();
        raw.loopback4 = $crate::options::word(packets.loopback4);
        raw.loopback6 = $crate::options::words(packets.loopback6);
        raw.router6 = $crate::options::words(packets.router6);
        raw.ip_masq_agent = packets.ip_masq_agent.into();
        raw.router4 = $crate::options::word(packets.router4);
        if let Some(tunnel) = packets.tunnel {
            raw.tunnel = tunnel.protocol as u8;
            raw.tunnel_device = tunnel.device;
            raw.tunnel_port = tunnel.port;
            (raw.tunnel_port_min, raw.tunnel_port_max) = tunnel.source_ports;
        }
        raw.nodeport_source4 = $crate::options::word(packets.nodeport_source4);
        raw.nodeport_source6 = $crate::options::words(packets.nodeport_source6);
        if let Some((network, bits)) = packets.native4 {
            raw.native4 = $crate::options::word(network);
            raw.native4_bits = bits;
        }
        if let Some((network, bits)) = packets.native6 {
            raw.native6 = $crate::options::words(network);
            raw.native6_bits = bits;
        }
        (raw.nat_min, raw.nat_max) = packets.nat_ports;
        raw.services = packets.services.into();
        raw.masquerade4 = packets.masquerade4.into();
        raw.masquerade6 = packets.masquerade6.into();
        raw.masquerade_nodes = packets.masquerade_nodes.into();
        raw.fragments4 = packets.fragments4.into();
        raw.fragments6 = packets.fragments6.into();
        raw.icmp_rules = packets.icmp_rules.into();
        raw.icmp_frag_needed = packets.icmp_frag_needed.into();
        raw.policy_accounting = packets.policy_accounting.into();
        raw.identity_mark = packets.identity_mark.into();
        raw.arp_responder = packets.arp_responder.into();
        raw.reply_no_backend = packets.reply_no_backend.into();
        raw.xdp = packets.xdp.into();
        raw.maglev = packets.maglev.into();
        raw.lb_per_service = packets.lb_per_service.into();
        raw.maglev_size = packets.packet_hash.table_size;
        [raw.maglev_seed4, raw.maglev_seed6] = packets.packet_hash.seeds;
        if let Some(dsr) = packets.dsr {
            raw.dsr_all = dsr.all_services.into();
            raw.dsr_icmp = dsr.icmp_errors.into();
            match dsr.dispatch {
                $crate::DsrDispatch::IpOption => raw.dsr = 1,
                $crate::DsrDispatch::Ipip { source4, source6 } => {
                    raw.dsr = 2;
                    let (network, bits) = source4.unwrap_or((packets.nodeport_source4, 32));
                    raw.rss4 = $crate::options::word(network);
                    raw.rss4_bits = bits;
                    let (network, bits) = source6.unwrap_or((packets.nodeport_source6, 128));
                    raw.rss6 = $crate::options::words(network);
                    raw.rss6_bits = bits;
                }
            }
        }
        if let Some(nat) = packets.nat46x64 {
            raw.nat46x64 = u8::from(nat.services) | u8::from(nat.gateway) << 1;
            raw.nat46x64_mtu = nat.mtu;
            raw.nat46x64_prefix
                .copy_from_slice(&$crate::options::words(nat.prefix)[..3]);
        }
        raw.ipip_termination = (packets.ipip_termination || packets.health_probes).into();
        raw.health_probes = packets.health_probes.into();
        if packets.health_probes && raw.dsr != 2 {
            raw.rss4 = $crate::options::word(packets.nodeport_source4);
            raw.rss4_bits = 32;
            raw.rss6 = $crate::options::words(packets.nodeport_source6);
            raw.rss6_bits = 128;
        }
        raw.sctp = packets.sctp.into();
        raw.ct_accounting = packets.ct_accounting.into();
        raw.events = packets.events.bits(options.trace_aggregation);
        raw.debug_code = (packets.events.debug || packets.endpoint_debug).into();
        raw.bandwidth = packets.bandwidth.into();
        // Rates count each packet, and debug messages are of each one.
        raw.flows = (packets.flows && !packets.bandwidth && raw.debug_code == 0).into();
        raw.protocols = packets.extended_protocols.into();
        raw.legacy_routing = packets.legacy_routing.into();
        raw.host_firewall = packets.host_firewall.into();
        raw.dual_stack = (options.ipv4 && options.ipv6).into();
        raw.has_skip_neigh = values.has_skip_neigh.into();
        raw.has_mem_keys = values.has_mem_keys.into();
        raw.vlan_all = packets.all_vlans.into();
        for (to, from) in raw.vlan_ids.iter_mut().zip(&packets.vlans) {
            *to = *from;
        }
    }};
}
pub(crate) use raw_options;

/// An address as the bytes of the packet in a word.
pub(crate) fn word(address: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(address.octets())
}

/// An address as the bytes of the packet in words.
pub(crate) fn words(address: Ipv6Addr) -> [u32; 4] {
    let octets = address.octets();
    std::array::from_fn(|n| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&octets[4 * n..][..4]);
        u32::from_ne_bytes(bytes)
    })
}

/// Options, and what the kernel says to them.
pub(crate) struct Values<'a> {
    pub(crate) options: &'a NodeOptions,
    pub(crate) host_netns_cookie: u64,
    pub(crate) has_class_ids: bool,
    pub(crate) has_set_retval: bool,
    pub(crate) has_skip_neigh: bool,
    pub(crate) has_mem_keys: bool,
}

impl Values<'_> {
    /// Seconds in units of the maps' clock.
    pub(crate) fn clock_units(&self, seconds: u32) -> u32 {
        match self.options.jiffies {
            Some(hz) => (u64::from(seconds) * u64::from(hz) / 256).min(u32::MAX.into()) as u32,
            None => seconds,
        }
    }
}

impl NodeOptions {
    /// Asks the kernel what the options leave open.
    pub(crate) fn values(&self, object: &'static str) -> Result<Values<'_>, LoadError> {
        Ok(Values {
            options: self,
            host_netns_cookie: match self.host_netns {
                HostNetns::Cookie(cookie) => cookie,
                HostNetns::Current => {
                    skep_base_net::netns::cookie().map_err(|source| LoadError::Probe { object, source })?
                }
            },
            has_class_ids: self.mke && has_class_ids(),
            has_set_retval: self.chooses_errors.unwrap_or_else(has_set_retval),
            has_skip_neigh: kernel_version().is_some_and(|version| version >= (6, 3)),
            has_mem_keys: kernel_version().is_some_and(|version| version >= (6, 2)),
        })
    }
}

/// The kernel lets programs choose the error of a rejected call (Linux 5.18). Without it callers see EPERM.
pub fn has_set_retval() -> bool {
    static PROBED: OnceLock<bool> = OnceLock::new();
    *PROBED.get_or_init(|| has_helper(libbpf_sys::BPF_FUNC_set_retval))
}

/// The kernel gives sockets class ids by control group (`CONFIG_CGROUP_NET_CLASSID`).
fn has_class_ids() -> bool {
    static PROBED: OnceLock<bool> = OnceLock::new();
    *PROBED.get_or_init(|| has_helper(libbpf_sys::BPF_FUNC_get_cgroup_classid))
}

/// Programs at sockets' calls may call the helper of this number.
fn has_helper(number: u32) -> bool {
    // SAFETY: probes a helper by loading a two-instruction program; takes no pointers.
    let probed = unsafe {
        libbpf_sys::libbpf_probe_bpf_helper(ProgramType::CgroupSockAddr as u32, number, std::ptr::null())
    };
    probed == 1
}

/// The kernel can translate what `getpeername(2)` returns (Linux 5.8).
pub fn has_getpeername() -> bool {
    kernel_version().is_none_or(|version| version >= (5, 8))
}

fn kernel_version() -> Option<(u32, u32)> {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().ok()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
