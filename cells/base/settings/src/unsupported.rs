// SPDX-License-Identifier: Apache-2.0

//! Settings of features that the datapath does not have.
//!
//! A ConfigMap written for Cilium mounts unchanged, so these keys are known. [`UnsupportedConfig::requested`] lists those
//! that request a feature, for health and status; [`report_unsupported`] reports them.

use hive::{Health, HookCtx, Lifecycle};

/// Settings of features that the datapath does not have. All are off by default, whatever Cilium's default is: only what
/// a user sets is reported.
#[derive(Debug, Clone, hive::Config)]
pub struct UnsupportedConfig {
    /// Enforcement of network policies: not supported unless `never`.
    #[config(default = "", hidden)]
    pub enable_policy: String,
    /// Devices of endpoints: always pairs of veth.
    #[config(default = "", hidden)]
    pub datapath_mode: String,
    /// ICMP errors for packets that policies deny: not supported unless `none`.
    #[config(default = "", hidden)]
    pub policy_deny_response: String,
    /// The IP option with the id of a trace: not supported unless 0.
    #[config(default = 0, hidden)]
    pub ip_tracing_option_type: u32,
    /// Masquerading at certain devices alone: not supported.
    #[config(hidden)]
    pub egress_masquerade_interfaces: Vec<String>,
    /// Counters of connections by zone: not supported.
    #[config(default = false, hidden)]
    pub enable_active_connection_tracking: bool,
    /// Host firewall: not supported.
    #[config(default = false, hidden)]
    pub enable_host_firewall: bool,
    /// Encryption by WireGuard: not supported.
    #[config(default = false, hidden)]
    pub enable_wireguard: bool,
    /// Encryption by IPsec: not supported.
    #[config(default = false, hidden)]
    pub enable_ipsec: bool,
    /// Bandwidth limits of pods: not supported.
    #[config(default = false, hidden)]
    pub enable_bandwidth_manager: bool,
    /// Egress gateways: not supported.
    #[config(default = false, hidden, deprecated_alias = "enable-ipv4-egress-gateway")]
    pub enable_egress_gateway: bool,
    /// L2 announcements of service addresses: not supported.
    #[config(default = false, hidden)]
    pub enable_l2_announcements: bool,
    /// Prefilter in XDP: not supported.
    #[config(default = false, hidden)]
    pub enable_xdp_prefilter: bool,
    /// Segment routing: not supported.
    #[config(default = false, hidden)]
    pub enable_srv6: bool,
    /// VXLAN tunnel endpoints outside the cluster: not supported.
    #[config(default = false, hidden)]
    pub enable_vtep: bool,
}

/// A setting that requests an unsupported feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// Key and value: `enable-policy=default`.
    pub setting: String,
    /// What does not happen.
    pub effect: &'static str,
}

impl Unsupported {
    /// A key whose value requests what does not happen.
    pub fn new(key: &str, value: impl std::fmt::Display, effect: &'static str) -> Self {
        Self {
            setting: format!("{key}={value}"),
            effect,
        }
    }
}

/// Requested features that are not supported. Remove the keys, or have another program do it.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(|unsupported| format!("{}: {}", unsupported.setting, unsupported.effect)).collect::<Vec<_>>().join("; "))]
struct UnsupportedSettings(Vec<Unsupported>);

/// Reports requested features that are not supported in the health of a module at the start: what is degraded is in the log
/// as well.
pub fn report_unsupported(requested: Vec<Unsupported>, health: Health, lifecycle: &Lifecycle) {
    let unsupported = UnsupportedSettings(requested);
    lifecycle.on_start("report", move |_: HookCtx| {
        match unsupported.0.len() {
            0 => health.ok("All settings are supported"),
            count => health.degraded(
                format!("{count} settings request features that are not supported"),
                &unsupported,
            ),
        }
        async {}
    });
}

const NO_PACKETS: &str = "packets are left as they are";
const NO_ENCRYPTION: &str = "packets are not encrypted";
const NO_XDP: &str = "no XDP programs are attached";

impl UnsupportedConfig {
    /// Settings that request a feature, with what does not happen.
    pub fn requested(&self) -> Vec<Unsupported> {
        let mut requested = self.requested_values();
        requested.extend(self.requested_switches());
        requested
    }

    /// Settings with values, and the value that requests nothing.
    fn requested_values(&self) -> Vec<Unsupported> {
        let interfaces = self.egress_masquerade_interfaces.join(",");
        let tracing = self.ip_tracing_option_type.to_string();
        let values = [
            (
                "enable-policy",
                &self.enable_policy,
                "never",
                "network policies are not enforced",
            ),
            (
                "datapath-mode",
                &self.datapath_mode,
                "veth",
                "endpoints have pairs of veth",
            ),
            (
                "policy-deny-response",
                &self.policy_deny_response,
                "none",
                "network policies are not enforced",
            ),
            (
                "ip-tracing-option-type",
                &tracing,
                "0",
                "events have no ids of traces",
            ),
            (
                "egress-masquerade-interfaces",
                &interfaces,
                "",
                "packets are masqueraded at all devices",
            ),
        ];
        values
            .into_iter()
            .filter(|(_, value, off, _)| !value.is_empty() && value != off)
            .map(|(key, value, _, effect)| Unsupported::new(key, value, effect))
            .collect()
    }

    fn requested_switches(&self) -> impl Iterator<Item = Unsupported> {
        let switches = [
            (
                "enable-active-connection-tracking",
                self.enable_active_connection_tracking,
                "connections are not counted",
            ),
            (
                "enable-host-firewall",
                self.enable_host_firewall,
                "host policies are not enforced",
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
                "service addresses are not announced",
            ),
            ("enable-xdp-prefilter", self.enable_xdp_prefilter, NO_XDP),
            ("enable-srv6", self.enable_srv6, NO_PACKETS),
            ("enable-vtep", self.enable_vtep, NO_PACKETS),
        ];
        switches
            .into_iter()
            .filter(|(_, is_on, _)| *is_on)
            .map(|(key, _, effect)| Unsupported::new(key, true, effect))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(edit: impl Fn(&mut UnsupportedConfig)) -> Vec<String> {
        let mut config = <UnsupportedConfig as hive::Config>::defaults().unwrap();
        edit(&mut config);
        config
            .requested()
            .into_iter()
            .map(|unsupported| unsupported.setting)
            .collect()
    }

    #[test]
    fn defaults_request_nothing() {
        assert_eq!(requested(|_| ()), [""; 0]);
    }

    #[test]
    fn values_that_switch_off_request_nothing() {
        let found = requested(|config| {
            config.enable_policy = "never".to_owned();
            config.datapath_mode = "veth".to_owned();
            config.policy_deny_response = "none".to_owned();
        });
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn each_setting_is_reported_with_its_value() {
        let found = requested(|config| {
            config.enable_policy = "default".to_owned();
            config.datapath_mode = "netkit".to_owned();
            config.egress_masquerade_interfaces = vec!["eth0".to_owned(), "eth1".to_owned()];
            config.enable_wireguard = true;
        });
        assert_eq!(
            found,
            [
                "enable-policy=default",
                "datapath-mode=netkit",
                "egress-masquerade-interfaces=eth0,eth1",
                "enable-wireguard=true",
            ]
        );
    }
}
