// SPDX-License-Identifier: Apache-2.0

//! Cell: declares the settings of the datapath. Requires and provides nothing else.

use hive::Cell;

use crate::{
    AddressFamilies, AttachConfig, BalancingConfig, BandwidthConfig, ConntrackConfig, ForwardingConfig,
    HealthCheckConfig, KernelConfig, KubeProxyReplacement, MaglevConfig, MapConfig, MasqueradeConfig,
    MonitorConfig, MtuConfig, NodePorts, PacketConfig, ServiceConfig, ServiceIpamConfig, SocketLbConfig,
    StateConfig, TunnelConfig,
};

/// Declares the settings of the datapath.
pub fn cell() -> Cell {
    Cell::module("datapath-config", "Settings of the datapath")
        .config::<AddressFamilies>()
        .config::<KubeProxyReplacement>()
        .config::<NodePorts>()
        .config::<ServiceConfig>()
        .config::<ForwardingConfig>()
        .config::<MapConfig>()
        .config::<SocketLbConfig>()
        .config::<MonitorConfig>()
        .config::<TunnelConfig>()
        .config::<ConntrackConfig>()
        .config::<PacketConfig>()
        .config::<AttachConfig>()
        .config::<MtuConfig>()
        .config::<MasqueradeConfig>()
        .config::<BalancingConfig>()
        .config::<MaglevConfig>()
        .config::<BandwidthConfig>()
        .config::<ServiceIpamConfig>()
        .config::<KernelConfig>()
        .config::<StateConfig>()
        .config::<HealthCheckConfig>()
}

/// Declares [`ServiceIpamConfig`] alone, for programs without a datapath.
pub fn service_ipam_cell() -> Cell {
    Cell::module(
        "service-ipam-config",
        "Which controller allocates addresses to services",
    )
    .config::<ServiceIpamConfig>()
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings};

    use super::*;

    fn errors(flags: &[&'static str]) -> String {
        Hive::new([cell()])
            .plan(Settings::new().args(flags.iter().copied()))
            .map(|_| String::new())
            .unwrap_or_else(|report| report.to_string())
    }

    #[test]
    fn bad_settings_are_reported_all_at_once() {
        let report = errors(&["--node-port-range=2,1", "--bpf-lb-sock=maybe"]);

        assert!(report.contains("bpf-lb-sock"), "{report}");
        assert!(report.contains("2 is not smaller than 1"), "{report}");
    }

    #[test]
    fn one_address_family_is_required() {
        assert_eq!(errors(&["--enable-ipv4=false"]), "");

        let report = errors(&["--enable-ipv4=false", "--enable-ipv6=false"]);

        assert!(report.contains("one address family is needed"), "{report}");
    }
}
