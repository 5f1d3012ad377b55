// SPDX-License-Identifier: Apache-2.0

//! Cell: gauges of enabled features, set once from the settings; those of services and redirect policies are in their crates.

use hive::{Cell, Cfg, Members, Params};
use skep_base_metrics::{Gauge, GaugeVec, MetricHandle, MetricSet as _, Metrics};
use skep_base_settings::identity::IdentityConfig;
use skep_base_settings::{
    AddressFamilies, AttachConfig, BandwidthConfig, PacketConfig, RoutingMode, ServiceConfig, TunnelConfig,
};

hive::catalogue!(cell);

pub(crate) fn cell() -> Cell {
    Cell::module("enabled-features", "Metrics of enabled features").provide(metrics)
}

#[derive(Metrics)]
#[metrics(prefix = "feature")]
struct FeatureMetrics {
    /// IPAM mode.
    #[metric(name = "controlplane_ipam", labels = ["mode"])]
    ipam: GaugeVec,
    /// Identity allocation mode.
    #[metric(name = "controlplane_identity_allocation", labels = ["mode"])]
    identity_allocation: GaugeVec,
    /// CiliumEndpointSlices are enabled.
    #[metric(name = "controlplane_cilium_endpoint_slices_enabled")]
    endpoint_slices: Gauge,
    /// Routing between nodes.
    #[metric(name = "datapath_network", labels = ["mode"])]
    network: GaugeVec,
    /// CNI chaining mode.
    #[metric(name = "datapath_chaining_enabled", labels = ["mode"])]
    chaining: GaugeVec,
    /// Address families.
    #[metric(name = "datapath_internet_protocol", labels = ["address_family"])]
    protocol: GaugeVec,
    /// Kind of the interfaces of pods.
    #[metric(name = "datapath_config", labels = ["configured_mode", "operational_mode"])]
    datapath: GaugeVec,
    /// Endpoints have routes of their own.
    #[metric(name = "datapath_endpoint_routes_enabled")]
    endpoint_routes: Gauge,
    /// Version of the kernel.
    #[metric(name = "datapath_kernel_version", labels = ["version"])]
    kernel: GaugeVec,
    /// The host firewall is enabled.
    #[metric(name = "network_policies_host_firewall_enabled")]
    host_firewall: Gauge,
    /// Mutual authentication is enabled.
    #[metric(name = "network_policies_mutual_auth_enabled")]
    mutual_auth: Gauge,
    /// Policies without default deny are enabled.
    #[metric(name = "network_policies_non_defaultdeny_policies_enabled")]
    non_default_deny: Gauge,
    /// Nodes as peers of CIDR rules.
    #[metric(name = "network_policies_cidr_policies", labels = ["mode"])]
    cidr_policies: GaugeVec,
    /// BGP is enabled.
    #[metric(name = "adv_connect_and_lb_bgp_enabled")]
    bgp: Gauge,
    /// The egress gateway is enabled.
    #[metric(name = "adv_connect_and_lb_egress_gateway_enabled")]
    egress_gateway: Gauge,
    /// The bandwidth manager is enabled.
    #[metric(name = "adv_connect_and_lb_bandwidth_manager_enabled")]
    bandwidth: Gauge,
    /// SCTP is enabled.
    #[metric(name = "adv_connect_and_lb_sctp_enabled")]
    sctp: Gauge,
    /// VXLAN tunnel endpoints are enabled.
    #[metric(name = "adv_connect_and_lb_vtep_enabled")]
    vtep: Gauge,
    /// CiliumEnvoyConfigs are enabled.
    #[metric(name = "adv_connect_and_lb_cilium_envoy_config_enabled")]
    envoy_config: Gauge,
    /// Announcements of services in the local network are enabled.
    #[metric(name = "adv_connect_and_lb_l2_lb_enabled")]
    l2_services: Gauge,
    /// Announcements of pods in the local network are enabled.
    #[metric(name = "adv_connect_and_lb_l2_pod_announcement_enabled")]
    l2_pods: Gauge,
    /// Envoy runs, and where.
    #[metric(name = "adv_connect_and_lb_envoy_proxy_enabled", labels = ["mode"])]
    envoy: GaugeVec,
    /// CiliumNodeConfigs are in force.
    #[metric(name = "adv_connect_and_lb_cilium_node_config_enabled")]
    node_config: Gauge,
}

#[derive(Params)]
struct Settings {
    families: Cfg<AddressFamilies>,
    ipam: Cfg<skep_endpoint_ipam::Config>,
    identities: Cfg<IdentityConfig>,
    endpoints: Cfg<skep_endpoint_watcher::Config>,
    tunnel: Cfg<TunnelConfig>,
    attach: Cfg<AttachConfig>,
    packets: Cfg<PacketConfig>,
    policies: Cfg<skep_policy_repository::Config>,
    networks: Cfg<skep_ipcache::Config>,
    services: Cfg<ServiceConfig>,
    bandwidth: Cfg<BandwidthConfig>,
    proxy: Cfg<skep_policy_fqdn::Config>,
}

/// Features that are not in this program are off.
fn metrics(settings: Settings) -> Members<MetricHandle> {
    let all = FeatureMetrics::default();
    let flag = |gauge: &Gauge, is_on: bool| gauge.set(f64::from(u8::from(is_on)));
    let mode = |gauge: &GaugeVec, mode: &str| gauge.with([mode]).set(1.0);
    mode(&all.ipam, &settings.ipam.mode.to_string());
    mode(
        &all.identity_allocation,
        &settings.identities.identity_allocation_mode.to_string(),
    );
    flag(
        &all.endpoint_slices,
        settings.endpoints.enable_cilium_endpoint_slice,
    );
    mode(&all.network, &network(&settings.tunnel));
    mode(&all.chaining, &settings.attach.cni_chaining_mode);
    let protocol = match (settings.families.ipv4, settings.families.ipv6) {
        (true, true) => "ipv4-ipv6-dual-stack",
        (false, true) => "ipv6-only",
        _ => "ipv4-only",
    };
    mode(&all.protocol, protocol);
    all.datapath.with(["veth", "veth"]).set(1.0);
    flag(&all.endpoint_routes, settings.attach.enable_endpoint_routes);
    if let Some(version) = kernel() {
        mode(&all.kernel, &version);
    }
    flag(&all.host_firewall, settings.packets.host_firewall);
    flag(
        &all.non_default_deny,
        settings.policies.enable_non_default_deny_policies,
    );
    for nodes in &settings.networks.cidr_match_mode {
        mode(&all.cidr_policies, nodes);
    }
    flag(&all.bandwidth, settings.bandwidth.enabled);
    flag(&all.sctp, settings.services.sctp);
    if settings.proxy.enable_l7_proxy {
        let place = if settings.proxy.external_envoy {
            "standalone"
        } else {
            "embedded"
        };
        all.envoy.with([place]).set(0.0);
    }
    let unsupported = [
        &all.mutual_auth,
        &all.bgp,
        &all.egress_gateway,
        &all.vtep,
        &all.envoy_config,
        &all.l2_services,
        &all.l2_pods,
        &all.node_config,
    ];
    unsupported.into_iter().for_each(|gauge| flag(gauge, false));
    Members(all.metrics())
}

fn network(tunnel: &TunnelConfig) -> String {
    match tunnel.routing_mode {
        RoutingMode::Native => "direct-routing".to_owned(),
        RoutingMode::Tunnel => format!("overlay-{}", tunnel.tunnel_protocol),
    }
}

/// `6.18.2` of `6.18.2-1-amd64`.
fn kernel() -> Option<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let version = release.trim().split(['-', '+']).next()?;
    Some(version.to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hive::{Hive, Settings};

    use skep_base_metrics::{Registry, exposition};

    use crate::cells::cells;

    #[test]
    fn features_are_those_of_the_settings() {
        let settings = Settings::new()
            .flag("routing-mode", "native")
            .flag("enable-ipv6", "false")
            .flag("ipam", "kubernetes");
        let hive = Hive::new(cells(Arc::default())).root::<Arc<Registry>>();

        let built = hive.plan(settings).unwrap().build().unwrap();
        let text = exposition(&built.get::<Arc<Registry>>().unwrap());

        for line in [
            "cilium_feature_controlplane_ipam{mode=\"kubernetes\"} 1",
            "cilium_feature_datapath_network{mode=\"direct-routing\"} 1",
            "cilium_feature_datapath_internet_protocol{address_family=\"ipv4-only\"} 1",
            "cilium_feature_datapath_chaining_enabled{mode=\"none\"} 1",
            "cilium_feature_adv_connect_and_lb_bgp_enabled 0",
        ] {
            assert!(text.contains(line), "{line}");
        }
    }
}
