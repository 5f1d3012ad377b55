// SPDX-License-Identifier: Apache-2.0

//! How packets travel between pods of different nodes.

use std::{fmt, net::IpAddr, str::FromStr};

use hive::config::Faults;

/// How packets travel between pods of different nodes.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = TunnelConfig::check)]
pub struct TunnelConfig {
    /// Routing mode between nodes: `native` or `tunnel`.
    #[config(default = "native")]
    pub routing_mode: RoutingMode,
    /// Encapsulation protocol of the tunnel: `vxlan`.
    #[config(default = "vxlan")]
    pub tunnel_protocol: TunnelProtocol,
    /// UDP port of the tunnel; 0: 8472.
    #[config(default = 0)]
    pub tunnel_port: u16,
    /// Source port range of tunnel packets; `0-0`: kernel default.
    #[config(default = "0-0")]
    pub tunnel_source_port_range: SourcePorts,
    /// IP family of the underlay: `auto` (IPv4), `ipv4` or `ipv6`. Nodes without an address of the family are
    /// reached by the other one.
    #[config(default = "auto")]
    pub underlay_protocol: Underlay,
    /// Install routes to the pod CIDRs of nodes on the same L2 network. Only with native routing.
    #[config(default = false)]
    pub auto_direct_node_routes: bool,
    /// Skip direct routes to nodes on other L2 networks.
    #[config(default = false)]
    pub direct_routing_skip_unreachable: bool,
}

/// Bytes around a tunnelled packet: Ethernet, VXLAN, UDP and IP headers.
const OVERHEAD_IPV4: u32 = 50;
const OVERHEAD_IPV6: u32 = 70;

/// UDP port of VXLAN where none is configured: that of Linux before IANA assigned one.
const VXLAN_PORT: u16 = 8472;

impl TunnelConfig {
    /// Packets are tunnelled.
    pub fn is_tunnelled(&self) -> bool {
        self.routing_mode == RoutingMode::Tunnel
    }

    /// UDP port of the tunnel.
    pub fn port(&self) -> u16 {
        match self.tunnel_port {
            0 => VXLAN_PORT,
            port => port,
        }
    }

    /// Where tunnels to a node end, by the addresses that other nodes know it by.
    pub fn endpoint(&self, ipv4: Option<IpAddr>, ipv6: Option<IpAddr>) -> Option<IpAddr> {
        match self.underlay_protocol {
            Underlay::Auto | Underlay::Ipv4 => ipv4.or(ipv6),
            Underlay::Ipv6 => ipv6.or(ipv4),
        }
    }

    /// Bytes that the tunnel to a node adds to packets; 0 without a tunnel.
    pub fn overhead(&self, endpoint: Option<IpAddr>) -> u32 {
        match endpoint {
            _ if !self.is_tunnelled() => 0,
            Some(address) if address.is_ipv6() => OVERHEAD_IPV6,
            None if self.underlay_protocol == Underlay::Ipv6 => OVERHEAD_IPV6,
            _ => OVERHEAD_IPV4,
        }
    }

    fn check(&self, faults: &mut Faults) {
        if self.is_tunnelled() && self.tunnel_protocol == TunnelProtocol::Geneve {
            faults.add(
                "tunnel-protocol",
                "geneve is not supported with routing-mode=tunnel; vxlan is",
            );
        }
        if self.is_tunnelled() && self.auto_direct_node_routes {
            faults.add(
                "auto-direct-node-routes",
                "requires routing-mode=native: the tunnel has routes to all nodes",
            );
        }
    }
}

/// How packets travel between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RoutingMode {
    /// By the routes of the network.
    #[default]
    Native,
    /// In packets between nodes.
    Tunnel,
}

impl fmt::Display for RoutingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Tunnel => "tunnel",
        })
    }
}

impl FromStr for RoutingMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "native" => Ok(Self::Native),
            "tunnel" => Ok(Self::Tunnel),
            _ => Err(format!("`{text}` is neither tunnel nor native")),
        }
    }
}

hive::config_value!(RoutingMode, "tunnel or native");

/// Encapsulation of tunnelled packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TunnelProtocol {
    /// VXLAN (RFC 7348).
    #[default]
    Vxlan,
    /// Geneve (RFC 8926).
    Geneve,
}

impl fmt::Display for TunnelProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vxlan => "vxlan",
            Self::Geneve => "geneve",
        })
    }
}

impl FromStr for TunnelProtocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "vxlan" => Ok(Self::Vxlan),
            "geneve" => Ok(Self::Geneve),
            _ => Err(format!("`{text}` is neither vxlan nor geneve")),
        }
    }
}

hive::config_value!(TunnelProtocol, "vxlan or geneve");

/// First and last source port. Displays and parses as `first-last`.
///
/// ```
/// use skep_base_settings::SourcePorts;
///
/// let ports: SourcePorts = "40000-50000".parse()?;
/// assert_eq!(ports.range(), Some((40000, 50000)));
/// assert_eq!("0-0".parse::<SourcePorts>()?.range(), None);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SourcePorts {
    first: u16,
    last: u16,
}

impl SourcePorts {
    /// First and last port; none if the kernel picks them.
    pub const fn range(self) -> Option<(u16, u16)> {
        if self.last == 0 {
            None
        } else {
            Some((self.first, self.last))
        }
    }
}

impl fmt::Display for SourcePorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for SourcePorts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ports = text.split_once('-').and_then(|(first, last)| {
            let first = first.trim().parse::<u16>().ok()?;
            Some((first, last.trim().parse::<u16>().ok()?))
        });
        match ports {
            Some((0, 0)) => Ok(Self::default()),
            Some((first, last)) if first > 0 && first <= last => Ok(Self { first, last }),
            Some(_) => Err(format!("`{text}`: the first port is not from 1 to the last one")),
            None => Err(format!("`{text}` is not a range of ports such as 40000-50000")),
        }
    }
}

hive::config_value!(SourcePorts, "ports, as in `40000-50000`, or `0-0`");

/// Address family of packets between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Underlay {
    /// IPv4 to nodes that have an IPv4 address.
    #[default]
    Auto,
    /// The same.
    Ipv4,
    /// IPv6 to nodes that have an IPv6 address.
    Ipv6,
}

impl fmt::Display for Underlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
        })
    }
}

impl FromStr for Underlay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" | "" => Ok(Self::Auto),
            "ipv4" => Ok(Self::Ipv4),
            "ipv6" => Ok(Self::Ipv6),
            _ => Err(format!("`{text}` is not auto, ipv4 or ipv6")),
        }
    }
}

hive::config_value!(Underlay, "auto, ipv4 or ipv6");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_names() {
        for text in ["native", "tunnel"] {
            assert_eq!(text.parse::<RoutingMode>().unwrap().to_string(), text);
        }
        for text in ["vxlan", "geneve"] {
            assert_eq!(text.parse::<TunnelProtocol>().unwrap().to_string(), text);
        }
        for text in ["auto", "ipv4", "ipv6"] {
            assert_eq!(text.parse::<Underlay>().unwrap().to_string(), text);
        }
        let errors = [
            "hybrid".parse::<RoutingMode>().unwrap_err(),
            "gre".parse::<TunnelProtocol>().unwrap_err(),
            "ip".parse::<Underlay>().unwrap_err(),
            "5".parse::<SourcePorts>().unwrap_err(),
            "9-5".parse::<SourcePorts>().unwrap_err(),
            "0-5".parse::<SourcePorts>().unwrap_err(),
        ];
        for (error, word) in errors.iter().zip(["hybrid", "gre", "ip", "5", "9-5", "0-5"]) {
            assert!(error.contains(&format!("`{word}`")), "{error}");
        }
    }

    #[test]
    fn geneve_is_refused_where_it_would_be_used() {
        let mut config = <TunnelConfig as hive::Config>::defaults().unwrap();
        config.tunnel_protocol = TunnelProtocol::Geneve;
        for (mode, count) in [(RoutingMode::Native, 0), (RoutingMode::Tunnel, 1)] {
            config.routing_mode = mode;
            let mut faults = Faults::default();
            config.check(&mut faults);
            assert_eq!(faults.iter().count(), count, "{mode}");
        }
    }

    #[test]
    fn direct_routes_require_native_routing() {
        let mut config = <TunnelConfig as hive::Config>::defaults().unwrap();
        config.auto_direct_node_routes = true;
        for (mode, expected) in [
            (RoutingMode::Native, None),
            (RoutingMode::Tunnel, Some("auto-direct-node-routes")),
        ] {
            config.routing_mode = mode;
            let mut faults = Faults::default();
            config.check(&mut faults);
            let found = faults.iter().next().map(|(flag, _)| flag);
            assert_eq!(found, expected, "{mode}");
        }
    }

    #[test]
    fn tunnels_end_at_an_address_of_the_underlay_or_else_at_the_other_one() {
        let mut config = <TunnelConfig as hive::Config>::defaults().unwrap();
        let (ipv4, ipv6) = (["192.0.2.1", "2001:db8::1"].map(|text| text.parse().ok())).into();
        config.routing_mode = RoutingMode::Tunnel;
        for (underlay, both, overhead) in [
            (Underlay::Auto, ipv4, 50),
            (Underlay::Ipv4, ipv4, 50),
            (Underlay::Ipv6, ipv6, 70),
        ] {
            config.underlay_protocol = underlay;
            assert_eq!(config.endpoint(ipv4, ipv6), both, "{underlay}");
            assert_eq!(config.endpoint(ipv4, None), ipv4, "{underlay}");
            assert_eq!(config.endpoint(None, ipv6), ipv6, "{underlay}");
            assert_eq!(
                config.overhead(config.endpoint(ipv4, ipv6)),
                overhead,
                "{underlay}"
            );
            assert_eq!(config.overhead(None), overhead, "{underlay}");
            assert_eq!(
                (config.overhead(ipv4), config.overhead(ipv6)),
                (50, 70),
                "{underlay}"
            );
        }
        config.routing_mode = RoutingMode::Native;
        assert_eq!(config.overhead(ipv6), 0);
    }

    #[test]
    fn the_port_is_that_of_vxlan_unless_configured() {
        let mut config = <TunnelConfig as hive::Config>::defaults().unwrap();
        assert_eq!(config.port(), 8472);
        config.tunnel_port = 4789;
        assert_eq!(config.port(), 4789);
    }
}
