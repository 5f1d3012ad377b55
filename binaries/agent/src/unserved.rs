// SPDX-License-Identifier: Apache-2.0

//! Settings that ask for a datapath this agent does not have.
//!
//! A ConfigMap written for Cilium mounts unchanged, so these keys are known. What they ask for is not silently left
//! out: the health of the module `unserved-settings` names every one, and so does `skep status`.

use hive::{Cell, Cfg, Health, HookCtx, Lifecycle};
use skep_loadbalancer_model::Config as LbConfig;

/// Keys of Cilium's whose features are not there. All off by default, whatever Cilium's default is: only what a
/// user asked for is told.
#[derive(Debug, Clone, hive::Config)]
pub(crate) struct Config {
    /// How packets travel between nodes: told if they should be tunnelled.
    #[config(default = "", hidden)]
    routing_mode: String,
    /// Services at the network devices' drivers: told unless `disabled`.
    #[config(default = "", hidden)]
    bpf_lb_acceleration: String,
    /// Network policies: told unless `never`.
    #[config(default = "", hidden)]
    enable_policy: String,
    /// Told if on, as all that follow.
    #[config(default = false, hidden)]
    bpf_lb_nat46x64: bool,
    /// NAT46 and NAT64 for packets.
    #[config(default = false, hidden)]
    enable_nat46x64_gateway: bool,
    /// Health probes through tunnels.
    #[config(default = false, hidden)]
    bpf_lb_ipip_sock_mark: bool,
    /// Counters of connections by zone.
    #[config(default = false, hidden)]
    enable_active_connection_tracking: bool,
    /// Masquerading by programs.
    #[config(default = false, hidden)]
    enable_bpf_masquerade: bool,
    /// Masquerading of IPv4.
    #[config(default = false, hidden)]
    enable_ipv4_masquerade: bool,
    /// Masquerading of IPv6.
    #[config(default = false, hidden)]
    enable_ipv6_masquerade: bool,
    /// Policies of hosts.
    #[config(default = false, hidden)]
    enable_host_firewall: bool,
    /// Encryption by WireGuard.
    #[config(default = false, hidden)]
    enable_wireguard: bool,
    /// Encryption by IPsec.
    #[config(default = false, hidden)]
    enable_ipsec: bool,
    /// Bandwidth limits of pods.
    #[config(default = false, hidden)]
    enable_bandwidth_manager: bool,
    /// Egress gateways.
    #[config(default = false, hidden, deprecated_alias = "enable-ipv4-egress-gateway")]
    enable_egress_gateway: bool,
    /// Answers for service addresses on the link.
    #[config(default = false, hidden)]
    enable_l2_announcements: bool,
    /// Packets refused at the driver.
    #[config(default = false, hidden)]
    enable_xdp_prefilter: bool,
    /// Segment routing.
    #[config(default = false, hidden)]
    enable_srv6: bool,
    /// VXLAN tunnel endpoints outside of the cluster.
    #[config(default = false, hidden)]
    enable_vtep: bool,
}

impl Config {
    /// Settings that ask for something, and what does not happen.
    fn unserved(&self, lb: &LbConfig, host_only: bool) -> Vec<(String, &'static str)> {
        let mut unserved = self.unserved_values(lb);
        unserved.extend(self.unserved_switches(host_only));
        unserved
    }

    fn unserved_values(&self, lb: &LbConfig) -> Vec<(String, &'static str)> {
        let mode = lb.mode.to_string();
        let asks = [
            (
                "routing-mode",
                self.routing_mode.as_str(),
                !matches!(self.routing_mode.as_str(), "" | "native"),
                "packets are not tunnelled between nodes",
            ),
            (
                "bpf-lb-acceleration",
                &self.bpf_lb_acceleration,
                !matches!(self.bpf_lb_acceleration.as_str(), "" | "disabled"),
                "no programs at the drivers",
            ),
            (
                "bpf-lb-mode",
                &mode,
                mode != "snat",
                "packets from outside the node are not translated",
            ),
            (
                "enable-policy",
                &self.enable_policy,
                !matches!(self.enable_policy.as_str(), "" | "never"),
                "network policies are not enforced",
            ),
        ];
        asks.into_iter()
            .filter(|(.., asks, _)| *asks)
            .map(|(key, value, _, lack)| (format!("{key}={value}"), lack))
            .collect()
    }

    fn unserved_switches(&self, host_only: bool) -> impl Iterator<Item = (String, &'static str)> {
        let asks = [
            (
                "bpf-lb-sock-hostns-only",
                host_only,
                "services are not translated for pods",
            ),
            ("bpf-lb-nat46x64", self.bpf_lb_nat46x64, NO_PACKETS),
            (
                "enable-nat46x64-gateway",
                self.enable_nat46x64_gateway,
                NO_PACKETS,
            ),
            (
                "bpf-lb-ipip-sock-mark",
                self.bpf_lb_ipip_sock_mark,
                "health probes are not sent through tunnels",
            ),
            (
                "enable-active-connection-tracking",
                self.enable_active_connection_tracking,
                "connections are not counted",
            ),
            ("enable-bpf-masquerade", self.enable_bpf_masquerade, NO_MASQUERADE),
            (
                "enable-ipv4-masquerade",
                self.enable_ipv4_masquerade,
                NO_MASQUERADE,
            ),
            (
                "enable-ipv6-masquerade",
                self.enable_ipv6_masquerade,
                NO_MASQUERADE,
            ),
            (
                "enable-host-firewall",
                self.enable_host_firewall,
                "policies of hosts are not enforced",
            ),
            ("enable-wireguard", self.enable_wireguard, NO_ENCRYPTION),
            ("enable-ipsec", self.enable_ipsec, NO_ENCRYPTION),
            (
                "enable-bandwidth-manager",
                self.enable_bandwidth_manager,
                "bandwidth is not limited",
            ),
            ("enable-egress-gateway", self.enable_egress_gateway, NO_PACKETS),
            (
                "enable-l2-announcements",
                self.enable_l2_announcements,
                "nobody answers for service addresses",
            ),
            (
                "enable-xdp-prefilter",
                self.enable_xdp_prefilter,
                "no programs at the drivers",
            ),
            ("enable-srv6", self.enable_srv6, NO_PACKETS),
            ("enable-vtep", self.enable_vtep, NO_PACKETS),
        ];
        asks.into_iter()
            .filter(|(_, asks, _)| *asks)
            .map(|(key, _, lack)| (format!("{key}=true"), lack))
    }
}

const NO_PACKETS: &str = "packets are left as they are";
const NO_MASQUERADE: &str = "packets are not masqueraded";
const NO_ENCRYPTION: &str = "packets are not encrypted";

/// What was asked for and is not there. Remove the keys, or have another program do it.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(|(setting, lack)| format!("{setting}: {lack}")).collect::<Vec<_>>().join("; "))]
struct Unserved(Vec<(String, &'static str)>);

hive::catalogue!(cell);

/// Tells which settings are not served.
pub(crate) fn cell() -> Cell {
    Cell::module("unserved-settings", "Settings that ask for what is not there")
        .config::<Config>()
        .run(tell)
}

fn tell(
    config: Cfg<Config>,
    lb: Cfg<LbConfig>,
    sockets: Cfg<skep_socketlb::Config>,
    health: Health,
    lifecycle: Lifecycle,
) {
    lifecycle.on_start("tell", move |_cx: HookCtx| {
        let unserved = Unserved(config.unserved(&lb, sockets.host_only));
        if unserved.0.is_empty() {
            health.ok("Everything that is set is served");
        } else {
            tracing::warn!(
                settings = unserved.to_string(),
                "settings ask for a datapath that is not there"
            );
            health.degraded(
                format!(
                    "{} settings ask for a datapath that is not there",
                    unserved.0.len()
                ),
                &unserved,
            );
        }
        async {}
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unserved(edit: impl Fn(&mut Config)) -> Vec<String> {
        let mut config = <Config as hive::Config>::defaults().unwrap();
        edit(&mut config);
        let lb = <LbConfig as hive::Config>::defaults().unwrap();
        let found = config.unserved(&lb, false);
        found.into_iter().map(|(setting, _)| setting).collect()
    }

    #[test]
    fn defaults_ask_for_nothing() {
        assert_eq!(unserved(|_| ()), [""; 0]);
    }

    #[test]
    fn values_that_switch_off_ask_for_nothing() {
        let found = unserved(|config| {
            config.routing_mode = "native".to_owned();
            config.bpf_lb_acceleration = "disabled".to_owned();
            config.enable_policy = "never".to_owned();
        });
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn each_setting_is_told_with_its_value() {
        let found = unserved(|config| {
            config.routing_mode = "tunnel".to_owned();
            config.enable_wireguard = true;
        });
        assert_eq!(found, ["routing-mode=tunnel", "enable-wireguard=true"]);
    }
}
