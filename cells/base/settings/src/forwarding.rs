// SPDX-License-Identifier: Apache-2.0

//! How packets from outside reach backends on other nodes.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use hive::config::Faults;
use ipnet::{Ipv4Net, Ipv6Net};

use crate::AddressFamilies;

/// How packets from outside reach backends on other nodes.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = ForwardingConfig::check)]
pub struct ForwardingConfig {
    /// Forwarding mode to backends on other nodes: `snat`, `dsr` or `hybrid`.
    #[config(default = "snat", flag = "bpf-lb-mode")]
    pub mode: NodeMode,
    /// Allow services to select their mode by annotation `service.cilium.io/forwarding-mode`.
    #[config(default = false, flag = "bpf-lb-mode-annotation")]
    pub mode_annotation: bool,
    /// Encoding of the service address in DSR packets: `opt` or `ipip`.
    #[config(default = "opt", flag = "bpf-lb-dsr-dispatch")]
    pub dispatch: Dispatch,
    /// IPv4 network of the outer source addresses of `ipip` packets. Default: the node's address.
    #[config(flag = "bpf-lb-rss-ipv4-src-cidr")]
    pub ipip_source4: String,
    /// IPv6 network of the outer source addresses of `ipip` packets. Default: the node's address.
    #[config(flag = "bpf-lb-rss-ipv6-src-cidr")]
    pub ipip_source6: String,
    /// Send ICMP errors for packets that exceed the path MTU because of DSR.
    #[config(default = false, flag = "enable-pmtu-discovery")]
    pub pmtu_discovery: bool,
    /// Decapsulate IP-in-IP packets to pods of this node, as sent with `bpf-lb-dsr-dispatch=ipip`.
    #[config(default = false, flag = "enable-ipip-termination")]
    pub ipip_termination: bool,
    /// Send what sockets with mark 0xd00 send to a service to the backend that they bind to.
    #[config(default = false, flag = "bpf-lb-ipip-sock-mark", hidden)]
    pub health_probes: bool,
    /// Serve services whose backends are of the other address family. Requires `bpf-lb-mode=snat`.
    #[config(default = false, flag = "bpf-lb-nat46x64", hidden)]
    pub nat46x64_services: bool,
    /// Translate forwarded packets between the address families.
    #[config(default = false, flag = "enable-nat46x64-gateway")]
    pub nat46x64_gateway: bool,
    /// IPv6 prefix of embedded IPv4 addresses, 96 bits.
    #[config(default = "64:ff9b::/96", flag = "nat46x64-prefix")]
    pub nat46x64_prefix: String,
}

impl ForwardingConfig {
    /// Whether some service may use direct server return.
    pub fn may_return_directly(&self) -> bool {
        self.mode != NodeMode::Snat || self.mode_annotation
    }

    /// Whether all services use direct server return.
    pub fn always_returns_directly(&self) -> bool {
        self.mode == NodeMode::Dsr && !self.mode_annotation
    }

    /// The network of `ipip_source4`, if there is one. Validation has rejected malformed ones.
    pub fn source_network4(&self) -> Option<(Ipv4Addr, u8)> {
        let network: Ipv4Net = self.ipip_source4.trim().parse().ok()?;
        Some((network.network(), network.prefix_len()))
    }

    /// As [`source_network4`](Self::source_network4).
    pub fn source_network6(&self) -> Option<(Ipv6Addr, u8)> {
        let network: Ipv6Net = self.ipip_source6.trim().parse().ok()?;
        Some((network.network(), network.prefix_len()))
    }

    /// Network of embedded IPv4 addresses, if something is translated between the address families. Validation has
    /// rejected malformed ones.
    pub fn nat46x64_network(&self) -> Option<Ipv6Net> {
        let network = nat46x64_network(&self.nat46x64_prefix)?;
        (self.nat46x64_services || self.nat46x64_gateway).then_some(network)
    }

    /// [`nat46x64_network`](Self::nat46x64_network), if services may have backends of the other address family.
    pub fn nat46x64_of_services(&self, families: &AddressFamilies) -> Option<Ipv6Net> {
        let is_on = self.nat46x64_services && families.ipv4 && families.ipv6;
        self.nat46x64_network().filter(|_| is_on)
    }

    fn check_nat46x64(&self, faults: &mut Faults) {
        if self.nat46x64_services && self.may_return_directly() {
            faults.add(
                "bpf-lb-nat46x64",
                "requires bpf-lb-mode=snat, without bpf-lb-mode-annotation",
            );
        }
        if nat46x64_network(&self.nat46x64_prefix).is_none() {
            faults.add(
                "nat46x64-prefix",
                format!(
                    "`{}` is not an IPv6 network of 96 bits such as 64:ff9b::/96",
                    self.nat46x64_prefix
                ),
            );
        }
    }

    fn check(&self, faults: &mut Faults) {
        self.check_nat46x64(faults);
        if self.mode_annotation && self.mode == NodeMode::Hybrid {
            faults.add(
                "bpf-lb-mode",
                "hybrid cannot be combined with bpf-lb-mode-annotation",
            );
        }
        if self.may_return_directly() && self.dispatch == Dispatch::Geneve {
            faults.add(
                "bpf-lb-dsr-dispatch",
                "geneve is not supported: packets are not encapsulated in Geneve; opt and ipip are",
            );
        }
        let networks = [
            (
                "bpf-lb-rss-ipv4-src-cidr",
                &self.ipip_source4,
                self.source_network4().is_some(),
                "192.0.2.0/24",
            ),
            (
                "bpf-lb-rss-ipv6-src-cidr",
                &self.ipip_source6,
                self.source_network6().is_some(),
                "2001:db8::/64",
            ),
        ];
        for (key, text, is_network, example) in networks {
            if text.trim().is_empty() {
                continue;
            }
            if !is_network {
                faults.add(key, format!("`{text}` is not a network such as {example}"));
            } else if self.may_return_directly() && self.dispatch != Dispatch::Ipip {
                faults.add(key, "requires bpf-lb-dsr-dispatch=ipip");
            }
        }
    }
}

/// Bits before an embedded IPv4 address.
const NAT46X64_BITS: u8 = 96;

fn nat46x64_network(text: &str) -> Option<Ipv6Net> {
    let network: Ipv6Net = text.trim().parse().ok()?;
    (network.prefix_len() == NAT46X64_BITS && !network.addr().is_multicast()).then(|| network.trunc())
}

/// Why a setting is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct ForwardingError {
    text: String,
    expected: &'static str,
}

/// How packets for backends on other nodes are sent, for services that say nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeMode {
    /// Source address translation.
    #[default]
    Snat,
    /// Direct server return.
    Dsr,
    /// Direct server return for TCP, source address translation for the rest.
    Hybrid,
}

impl FromStr for NodeMode {
    type Err = ForwardingError;

    fn from_str(text: &str) -> Result<Self, ForwardingError> {
        match text {
            "snat" => Ok(Self::Snat),
            "dsr" => Ok(Self::Dsr),
            "hybrid" => Ok(Self::Hybrid),
            _ => Err(ForwardingError {
                text: text.to_owned(),
                expected: "snat, dsr or hybrid",
            }),
        }
    }
}

impl fmt::Display for NodeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Snat => "snat",
            Self::Dsr => "dsr",
            Self::Hybrid => "hybrid",
        })
    }
}

/// How the backend's node learns which service a client asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dispatch {
    /// IPv4 option, or option of the IPv6 destination options header.
    #[default]
    Opt,
    /// IP in IP.
    Ipip,
    /// Option of a Geneve header.
    Geneve,
}

impl FromStr for Dispatch {
    type Err = ForwardingError;

    fn from_str(text: &str) -> Result<Self, ForwardingError> {
        match text {
            "opt" => Ok(Self::Opt),
            "ipip" => Ok(Self::Ipip),
            "geneve" => Ok(Self::Geneve),
            _ => Err(ForwardingError {
                text: text.to_owned(),
                expected: "opt, ipip or geneve",
            }),
        }
    }
}

impl fmt::Display for Dispatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Opt => "opt",
            Self::Ipip => "ipip",
            Self::Geneve => "geneve",
        })
    }
}

hive::config_value!(NodeMode, "snat, dsr or hybrid");
hive::config_value!(Dispatch, "opt, ipip or geneve");

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings};

    use super::*;

    #[track_caller]
    fn check(flags: &[&'static str], expected: &[&str]) {
        let planned = Hive::new([crate::cell()]).plan(Settings::new().args(flags.iter().copied()));
        let report = planned.map_or_else(|report| report.to_string(), |_| String::new());
        for part in expected {
            assert!(report.contains(part), "no {part} in {report}");
        }
        assert_eq!(report.is_empty(), expected.is_empty(), "{report}");
    }

    #[test]
    fn modes_and_dispatches_have_names() {
        for (text, mode) in [
            ("snat", NodeMode::Snat),
            ("dsr", NodeMode::Dsr),
            ("hybrid", NodeMode::Hybrid),
        ] {
            assert_eq!(text.parse(), Ok(mode));
            assert_eq!(mode.to_string(), text);
        }
        for (text, dispatch) in [
            ("opt", Dispatch::Opt),
            ("ipip", Dispatch::Ipip),
            ("geneve", Dispatch::Geneve),
        ] {
            assert_eq!(text.parse(), Ok(dispatch));
            assert_eq!(dispatch.to_string(), text);
        }
        check(
            &["--bpf-lb-mode=direct"],
            &["bpf-lb-mode", "`direct` is not snat, dsr or hybrid"],
        );
        check(
            &["--bpf-lb-dsr-dispatch=gre"],
            &["`gre` is not opt, ipip or geneve"],
        );
    }

    #[test]
    fn geneve_is_refused_where_it_would_be_used() {
        check(&["--bpf-lb-dsr-dispatch=geneve"], &[]);
        for mode in [
            "--bpf-lb-mode=dsr",
            "--bpf-lb-mode=hybrid",
            "--bpf-lb-mode-annotation",
        ] {
            check(
                &["--bpf-lb-dsr-dispatch=geneve", mode],
                &["bpf-lb-dsr-dispatch", "geneve is not supported"],
            );
        }
    }

    #[test]
    fn sources_are_networks_and_of_ipip() {
        check(
            &[
                "--bpf-lb-mode=dsr",
                "--bpf-lb-dsr-dispatch=ipip",
                "--bpf-lb-rss-ipv4-src-cidr=10.9.8.7/16",
                "--bpf-lb-rss-ipv6-src-cidr=fd00::/64",
            ],
            &[],
        );
        check(
            &["--bpf-lb-mode=dsr", "--bpf-lb-rss-ipv6-src-cidr=fd00::/64"],
            &["bpf-lb-rss-ipv6-src-cidr", "requires bpf-lb-dsr-dispatch=ipip"],
        );
        check(
            &[
                "--bpf-lb-rss-ipv4-src-cidr=fd00::/64",
                "--bpf-lb-rss-ipv6-src-cidr=x",
            ],
            &[
                "`fd00::/64` is not a network such as 192.0.2.0/24",
                "`x` is not a network",
            ],
        );

        let mut config = <ForwardingConfig as hive::Config>::defaults().unwrap();
        assert_eq!(config.source_network4(), None);
        config.ipip_source4 = "10.9.8.7/16".to_owned();
        assert_eq!(config.source_network4(), Some((Ipv4Addr::new(10, 9, 0, 0), 16)));
    }

    #[test]
    fn families_are_translated_with_source_translation_alone() {
        check(&["--bpf-lb-nat46x64", "--enable-nat46x64-gateway"], &[]);
        check(&["--enable-nat46x64-gateway", "--bpf-lb-mode=dsr"], &[]);
        for flags in [["--bpf-lb-mode=dsr"], ["--bpf-lb-mode-annotation"]] {
            let flags = [flags[0], "--bpf-lb-nat46x64"];
            check(&flags, &["bpf-lb-nat46x64", "requires bpf-lb-mode=snat"]);
        }
        for network in ["64:ff9b::/64", "10.0.0.0/8", "x", "ff02::/96"] {
            let flag: &'static str = format!("--nat46x64-prefix={network}").leak();
            check(
                &[flag],
                &["nat46x64-prefix", network, "is not an IPv6 network of 96 bits"],
            );
        }

        let mut config = <ForwardingConfig as hive::Config>::defaults().unwrap();
        assert_eq!(config.nat46x64_network(), None);
        config.nat46x64_gateway = true;
        assert_eq!(config.nat46x64_network().unwrap().to_string(), "64:ff9b::/96");
    }

    #[test]
    fn annotations_override_a_mode_for_all() {
        let mut config = <ForwardingConfig as hive::Config>::defaults().unwrap();
        assert!(!config.may_return_directly());
        config.mode = NodeMode::Dsr;
        assert!(config.may_return_directly() && config.always_returns_directly());
        config.mode_annotation = true;
        assert!(config.may_return_directly() && !config.always_returns_directly());
        config.mode = NodeMode::Hybrid;
        config.mode_annotation = false;
        assert!(config.may_return_directly() && !config.always_returns_directly());
        check(
            &["--bpf-lb-mode=hybrid", "--bpf-lb-mode-annotation"],
            &["hybrid cannot be combined with bpf-lb-mode-annotation"],
        );
    }
}
