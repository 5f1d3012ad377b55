// SPDX-License-Identifier: Apache-2.0

//! Settings of interfaces and routes, and of masquerading.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use hive::config::Faults;
use ipnet::{Ipv4Net, Ipv6Net};

/// How the programs are attached, and to what.
#[derive(Debug, Clone, hive::Config)]
pub struct AttachConfig {
    /// Attach programs by tcx (Linux 6.6) if available; otherwise by filters of qdisc clsact.
    #[config(default = true, flag = "enable-tcx")]
    pub tcx: bool,
    /// Priority of the filters; 0 is 1.
    #[config(default = 1, flag = "bpf-filter-priority", hidden)]
    pub filter_priority: u16,
    /// XDP acceleration of node ports: `disabled`, `native` (required on all devices), `best-effort` (where
    /// the driver supports it) or `testing-only` (generic XDP).
    #[config(
        default = "disabled",
        flag = "bpf-lb-acceleration",
        deprecated_alias = "node-port-acceleration"
    )]
    pub acceleration: Acceleration,
    /// Device of traffic between nodes. Default: the only device, or the one with the node's address.
    #[config(default = "")]
    pub direct_routing_device: String,
    /// IPv4 address of cilium_host. Default: allocated by IPAM, the current one if possible.
    pub local_router_ipv4: Option<Ipv4Addr>,
    /// IPv6 address of cilium_host. Default: allocated by IPAM, the current one if possible.
    pub local_router_ipv6: Option<Ipv6Addr>,
    /// Install a route to the node's pod CIDR by cilium_host.
    #[config(default = true)]
    pub enable_local_node_route: bool,
    /// Metric of routes by cilium_host; 0: kernel default.
    #[config(default = 0)]
    pub route_metric: u32,
    /// Install a route per endpoint to its interface, with `cil_to_container` attached. Excludes
    /// enable-local-node-route.
    #[config(default = false)]
    pub enable_endpoint_routes: bool,
    /// Route packets of pods through the host's network stack, with its netfilter rules.
    #[config(default = false)]
    pub enable_host_legacy_routing: bool,
    /// Install unreachable routes to addresses of deleted endpoints until they are reused.
    #[config(default = false)]
    pub enable_unreachable_routes: bool,
    /// With enable-endpoint-routes: another CNI plugin makes the routes.
    #[config(default = false)]
    pub cni_external_routing: bool,
    /// CNI chaining mode: `none`, `portmap`, `flannel`, `generic-veth`, or `aws-cni`, which implies
    /// cni-external-routing.
    #[config(default = "none")]
    pub cni_chaining_mode: String,
}

impl AttachConfig {
    /// The node's pod CIDR is routed to `cilium_host`.
    pub fn routes_local_node(&self) -> bool {
        self.enable_local_node_route && !self.enable_endpoint_routes
    }

    /// Routes to endpoints are made by another CNI plugin.
    pub fn has_external_routing(&self) -> bool {
        self.cni_external_routing || self.cni_chaining_mode.eq_ignore_ascii_case("aws-cni")
    }

    /// Priority of the filters.
    pub fn priority(&self) -> u16 {
        self.filter_priority.max(1)
    }
}

/// Translation of node ports in XDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Acceleration {
    /// None.
    #[default]
    Disabled,
    /// By the drivers of all devices.
    Native,
    /// By the drivers that can.
    BestEffort,
    /// By the kernel: not faster, for tests.
    TestingOnly,
}

impl Acceleration {
    const ALL: [(Self, &str); 4] = [
        (Self::Disabled, "disabled"),
        (Self::Native, "native"),
        (Self::BestEffort, "best-effort"),
        (Self::TestingOnly, "testing-only"),
    ];
}

impl fmt::Display for Acceleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::ALL.iter().find(|(mode, _)| mode == self);
        f.write_str(found.map_or("disabled", |(_, name)| name))
    }
}

impl FromStr for Acceleration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found
            .map(|(mode, _)| *mode)
            .ok_or_else(|| format!("`{text}` is not disabled, native, best-effort or testing-only"))
    }
}

hive::config_value!(Acceleration, "disabled, native, best-effort or testing-only");

/// Which packets of pods leave with the node's address.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = MasqueradeConfig::check)]
pub struct MasqueradeConfig {
    /// Masquerade in eBPF. There is no masquerading by iptables.
    #[config(default = false, flag = "enable-bpf-masquerade")]
    pub bpf: bool,
    /// Masquerade IPv4 packets of pods. Default: true.
    #[config(flag = "enable-ipv4-masquerade")]
    pub ipv4: Option<bool>,
    /// Masquerade IPv6 packets of pods. Default: true.
    #[config(flag = "enable-ipv6-masquerade")]
    pub ipv6: Option<bool>,
    /// Masquerade packets to other nodes.
    #[config(default = false, flag = "enable-remote-node-masquerade")]
    pub remote_nodes: bool,
    /// Read nonMasqueradeCIDRs from the configuration file of the ip-masq-agent.
    #[config(default = false, flag = "enable-ip-masq-agent")]
    pub ip_masq_agent: bool,
    /// Configuration file of the ip-masq-agent.
    #[config(default = "/etc/config/ip-masq-agent")]
    pub ip_masq_agent_config_path: String,
    /// IPv4 network that is reached without masquerading. Default: the node's pod CIDR.
    #[config(flag = "ipv4-native-routing-cidr")]
    pub native4: Option<Ipv4Net>,
    /// IPv6 network that is reached without masquerading. Default: the node's pod CIDR.
    #[config(flag = "ipv6-native-routing-cidr")]
    pub native6: Option<Ipv6Net>,
}

impl MasqueradeConfig {
    /// The file of the ip-masq-agent is in force.
    pub fn has_ip_masq_agent(&self) -> bool {
        self.bpf && self.ip_masq_agent
    }

    /// IPv4 packets are masqueraded.
    pub fn masquerades4(&self) -> bool {
        self.bpf && self.ipv4.unwrap_or(true)
    }

    /// IPv6 packets are masqueraded.
    pub fn masquerades6(&self) -> bool {
        self.bpf && self.ipv6.unwrap_or(true)
    }

    fn check(&self, faults: &mut Faults) {
        if self.bpf && !self.masquerades4() && !self.masquerades6() {
            faults.add(
                "enable-bpf-masquerade",
                "requires enable-ipv4-masquerade or enable-ipv6-masquerade",
            );
        }
        if self.ip_masq_agent && !self.bpf {
            faults.add("enable-ip-masq-agent", "requires enable-bpf-masquerade");
        }
        if self.remote_nodes && !self.bpf {
            faults.add("enable-remote-node-masquerade", "requires enable-bpf-masquerade");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn faults(edit: impl Fn(&mut MasqueradeConfig)) -> String {
        testing::faults(MasqueradeConfig::check, edit)
    }

    #[test]
    fn masquerading_requires_bpf_and_a_family() {
        assert_eq!(faults(|_| ()), "");
        assert_eq!(faults(|config| config.bpf = true), "");

        let text = faults(|config| {
            config.bpf = true;
            (config.ipv4, config.ipv6) = (Some(false), Some(false));
        });
        assert!(text.starts_with("enable-bpf-masquerade: requires"), "{text}");
        let text = faults(|config| config.remote_nodes = true);
        assert_eq!(
            text,
            "enable-remote-node-masquerade: requires enable-bpf-masquerade"
        );
    }

    #[test]
    fn routes_are_made_by_the_plugin_that_is_configured() {
        let mut config = <AttachConfig as hive::Config>::defaults().unwrap();
        assert!(config.routes_local_node() && !config.has_external_routing());

        config.enable_endpoint_routes = true;
        assert!(!config.routes_local_node());

        config.cni_chaining_mode = "generic-veth".to_owned();
        assert!(!config.has_external_routing());
        config.cni_chaining_mode = "aws-cni".to_owned();
        assert!(config.has_external_routing());
    }

    #[test]
    fn modes_of_acceleration_have_names() {
        for (mode, name) in Acceleration::ALL {
            assert_eq!(name.parse(), Ok(mode));
            assert_eq!(mode.to_string(), name);
        }
        assert!("fast".parse::<Acceleration>().unwrap_err().contains("`fast`"));
    }
}
