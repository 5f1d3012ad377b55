// SPDX-License-Identifier: Apache-2.0

//! What is served: address families, and which services.

use hive::config::Faults;

/// Address families in use.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = AddressFamilies::check)]
pub struct AddressFamilies {
    /// Enable IPv4.
    #[config(default = true, flag = "enable-ipv4")]
    pub ipv4: bool,
    /// Enable IPv6.
    #[config(default = true, flag = "enable-ipv6")]
    pub ipv6: bool,
}

impl AddressFamilies {
    fn check(&self, faults: &mut Faults) {
        if !self.ipv4 && !self.ipv6 {
            faults.add(
                "enable-ipv4",
                "and --enable-ipv6 are both off: one address family is needed",
            );
        }
    }
}

/// Whether this agent replaces kube-proxy.
#[derive(Debug, Clone, hive::Config)]
pub struct KubeProxyReplacement {
    /// Replace kube-proxy: node ports, load balancer IPs, external IPs and host ports.
    #[config(default = false, flag = "kube-proxy-replacement")]
    pub enabled: bool,
}

/// How services are served, whichever program serves them.
#[derive(Debug, Clone, hive::Config)]
pub struct ServiceConfig {
    /// Fail socket calls to services without backends, regardless of their traffic policy.
    #[config(default = true, flag = "enable-no-service-endpoints-routable")]
    pub reject_without_backends: bool,
    /// Enable SCTP. Ports are not translated: services and backends must have the same ones.
    #[config(default = false, flag = "enable-sctp")]
    pub sctp: bool,
}
