// SPDX-License-Identifier: Apache-2.0

//! Settings of the programs at interfaces: connections, events, fragments.

use std::{fmt, net::Ipv4Addr, net::Ipv6Addr, str::FromStr, time::Duration};

use hive::config::Faults;

/// How long connections are remembered without a packet.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = ConntrackConfig::check)]
pub struct ConntrackConfig {
    /// Timeout of established TCP conntrack entries.
    #[config(default = "2h13m20s", flag = "bpf-ct-timeout-regular-tcp")]
    pub tcp: Duration,
    /// Timeout of non-TCP conntrack entries.
    #[config(default = "1m", flag = "bpf-ct-timeout-regular-any")]
    pub any: Duration,
    /// Timeout of established TCP conntrack entries of services.
    #[config(default = "2h13m20s", flag = "bpf-ct-timeout-service-tcp")]
    pub service_tcp: Duration,
    /// Timeout of non-TCP conntrack entries of services.
    #[config(default = "1m", flag = "bpf-ct-timeout-service-any")]
    pub service_any: Duration,
    /// Grace period in which a new TCP connection with the ports of a closed one keeps its backend.
    #[config(default = "1m", flag = "bpf-ct-timeout-service-tcp-grace")]
    pub service_tcp_grace: Duration,
    /// Timeout of TCP conntrack entries in the SYN state.
    #[config(default = "1m", flag = "bpf-ct-timeout-regular-tcp-syn")]
    pub tcp_syn: Duration,
    /// Timeout of TCP conntrack entries closed by both sides.
    #[config(default = "10s", flag = "bpf-ct-timeout-regular-tcp-fin")]
    pub tcp_fin: Duration,
    /// Count packets and bytes of conntrack entries.
    #[config(default = false, flag = "bpf-conntrack-accounting")]
    pub accounting: bool,
}

/// Seconds of a timeout as programs count them, at least one.
pub fn whole_seconds(timeout: Duration) -> u32 {
    u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX).max(1)
}

impl ConntrackConfig {
    fn check(&self, faults: &mut Faults) {
        let all = [
            ("bpf-ct-timeout-regular-tcp", self.tcp),
            ("bpf-ct-timeout-regular-any", self.any),
            ("bpf-ct-timeout-service-tcp", self.service_tcp),
            ("bpf-ct-timeout-service-any", self.service_any),
            ("bpf-ct-timeout-service-tcp-grace", self.service_tcp_grace),
            ("bpf-ct-timeout-regular-tcp-syn", self.tcp_syn),
            ("bpf-ct-timeout-regular-tcp-fin", self.tcp_fin),
        ];
        for (flag, timeout) in all {
            if timeout < Duration::from_secs(1) {
                faults.add(flag, "must be at least a second");
            } else if timeout > Duration::from_secs(u32::MAX.into()) {
                faults.add(flag, "too long, connections are remembered for 136 years at most");
            }
        }
    }
}

/// What the programs at interfaces report, and what they do with unusual packets.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = PacketConfig::check)]
pub struct PacketConfig {
    /// TCP flags whose first occurrence is reported despite aggregation.
    #[config(default = "syn,fin,rst", flag = "monitor-aggregation-flags")]
    pub report_flags: TcpFlags,
    /// Length of captured packets in events, in bytes.
    #[config(default = 128, flag = "trace-payloadlen")]
    pub trace_length: u32,
    /// Length of captured tunnel packets in events, in bytes, with outer headers.
    #[config(default = 192, flag = "trace-payloadlen-overlay")]
    pub trace_length_overlay: u32,
    /// Emit events for dropped packets.
    #[config(default = true, flag = "bpf-events-drop-enabled")]
    pub drop_events: bool,
    /// Emit policy verdict events.
    #[config(default = true, flag = "bpf-events-policy-verdict-enabled")]
    pub verdict_events: bool,
    /// Emit trace events, aggregated by monitor-aggregation.
    #[config(default = true, flag = "bpf-events-trace-enabled")]
    pub trace_events: bool,
    /// Events a second on average; 0: no limit.
    #[config(default = 0, flag = "bpf-events-default-rate-limit", hidden)]
    pub events_rate: u32,
    /// Events at once; 0: no limit.
    #[config(default = 0, flag = "bpf-events-default-burst-limit", hidden)]
    pub events_burst: u32,
    /// Enable tracking of IPv4 fragments.
    #[config(default = true, flag = "enable-ipv4-fragment-tracking")]
    pub fragments4: bool,
    /// Enable tracking of IPv6 fragments.
    #[config(default = true, flag = "enable-ipv6-fragment-tracking")]
    pub fragments6: bool,
    /// Enable ICMP types in network policies.
    #[config(default = true, flag = "enable-icmp-rules")]
    pub icmp_rules: bool,
    /// Allow ICMP "fragmentation needed" messages regardless of policies.
    #[config(default = true, flag = "allow-icmp-frag-needed")]
    pub icmp_frag_needed: bool,
    /// Count packets and bytes of policy entries.
    #[config(default = true, flag = "policy-accounting")]
    pub policy_accounting: bool,
    /// Enforce policies of nodes on packets to and from the node.
    #[config(default = false, flag = "enable-host-firewall")]
    pub host_firewall: bool,
    /// Track flows of IP protocols without ports, such as GRE; otherwise such packets of pods are dropped.
    #[config(default = false, flag = "enable-extended-ip-protocols")]
    pub extended_protocols: bool,
    /// Set the identity of pods in the mark of their packets.
    #[config(default = true, flag = "enable-identity-mark")]
    pub identity_mark: bool,
    /// Response to packets to services without backends: `reject` or `drop`.
    #[config(default = "reject", flag = "service-no-backend-response")]
    pub no_backend: NoBackend,
    /// IPv4 source address of a pod that connects to itself through a service.
    #[config(default = "169.254.42.1", flag = "ipv4-service-loopback-address")]
    pub loopback4: Ipv4Addr,
    /// IPv6 source address of a pod that connects to itself through a service.
    #[config(default = "fe80::1", flag = "ipv6-service-loopback-address")]
    pub loopback6: Ipv6Addr,
    /// VLAN ids that bypass the programs, at most 5; 0: all.
    #[config(flag = "vlan-bpf-bypass")]
    pub vlans: Vec<u16>,
}

/// Most VLANs of `vlan-bpf-bypass`.
const VLANS_MAX: usize = 5;

impl PacketConfig {
    /// All VLANs' packets go to the kernel.
    pub fn all_vlans(&self) -> bool {
        self.vlans.contains(&0)
    }

    /// Events a second, and at once, if there is a limit.
    pub fn events_limit(&self) -> Option<(u32, u32)> {
        (self.events_rate > 0).then_some((self.events_rate, self.events_burst))
    }

    fn check(&self, faults: &mut Faults) {
        if !self.all_vlans() && self.vlans.len() > VLANS_MAX {
            faults.add(
                "vlan-bpf-bypass",
                format!(
                    "names {} VLANs, at most {VLANS_MAX} are possible; 0 is all",
                    self.vlans.len()
                ),
            );
        }
        if let Some(id) = self.vlans.iter().find(|id| **id > 4095) {
            faults.add("vlan-bpf-bypass", format!("{id} is not a VLAN"));
        }
        if (self.events_rate == 0) != (self.events_burst == 0) {
            faults.add(
                "bpf-events-default-rate-limit",
                "and bpf-events-default-burst-limit are set together, or neither is",
            );
        }
        if self.events_burst < self.events_rate {
            faults.add(
                "bpf-events-default-burst-limit",
                "must not be smaller than bpf-events-default-rate-limit",
            );
        }
    }
}

/// What packets to services without backends get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NoBackend {
    /// An ICMP error.
    #[default]
    Reject,
    /// Nothing.
    Drop,
}

impl fmt::Display for NoBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reject => "reject",
            Self::Drop => "drop",
        })
    }
}

impl FromStr for NoBackend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "reject" => Ok(Self::Reject),
            "drop" => Ok(Self::Drop),
            _ => Err(format!("`{text}` is neither reject nor drop")),
        }
    }
}

hive::config_value!(NoBackend, "reject or drop");

/// A set of TCP flags. Displays and parses as `syn,fin,rst`.
///
/// ```
/// use skep_base_settings::TcpFlags;
///
/// assert_eq!("syn,ack".parse::<TcpFlags>()?.bits(), 0x12);
/// assert_eq!("all".parse::<TcpFlags>()?.bits(), 0xff);
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpFlags(u8);

impl TcpFlags {
    const NAMES: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

    /// The flags as in the header.
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Self::NAMES
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.0 & (1 << bit) != 0)
            .map(|(_, name)| *name)
            .collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for TcpFlags {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut bits = 0;
        for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
            let lower = word.to_ascii_lowercase();
            match Self::NAMES.iter().position(|name| *name == lower) {
                _ if lower == "all" => bits = 0xff,
                Some(bit) => bits |= 1 << bit,
                None => return Err(format!("`{word}` is not a TCP flag")),
            }
        }
        Ok(Self(bits))
    }
}

hive::config_value!(TcpFlags, "TCP flags, as in `syn,fin,rst`");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::faults;

    #[test]
    fn defaults_are_those_of_cilium() {
        let timeouts = <ConntrackConfig as hive::Config>::defaults().unwrap();
        assert_eq!(
            (whole_seconds(timeouts.tcp), whole_seconds(timeouts.tcp_fin)),
            (8000, 10)
        );

        let packets = <PacketConfig as hive::Config>::defaults().unwrap();
        assert_eq!(packets.report_flags.bits(), 0x07);
        assert_eq!(packets.events_limit(), None);
        assert!(!packets.all_vlans());
    }

    #[test]
    fn flags_have_names() {
        let flags: TcpFlags = "SYN, rst".parse().unwrap();
        assert_eq!((flags.bits(), flags.to_string().as_str()), (0x06, "syn,rst"));
        assert!("syn,fun".parse::<TcpFlags>().unwrap_err().contains("`fun`"));
        assert_eq!("".parse::<TcpFlags>().unwrap().bits(), 0);
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        let text = faults(ConntrackConfig::check, |config| config.any = Duration::ZERO);
        assert_eq!(text, "bpf-ct-timeout-regular-any: must be at least a second");

        let text = faults(PacketConfig::check, |config| {
            config.vlans = vec![1, 2, 3, 4, 5, 6]
        });
        assert!(text.contains("names 6 VLANs"), "{text}");
        assert_eq!(
            faults(PacketConfig::check, |config| config.vlans =
                vec![0, 1, 2, 3, 4, 5]),
            ""
        );
        let text = faults(PacketConfig::check, |config| config.vlans = vec![4096]);
        assert!(text.contains("4096 is not a VLAN"), "{text}");
        let text = faults(PacketConfig::check, |config| config.events_rate = 10);
        assert!(text.contains("set together"), "{text}");
    }
}
