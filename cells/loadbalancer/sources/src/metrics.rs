// SPDX-License-Identifier: Apache-2.0

//! Metrics of the sources, and which features are in use.

use std::sync::Arc;

use hive::{Cfg, Members};
use skep_base_metrics::{Counter, CounterVec, Gauge, GaugeVec, MetricHandle, Metrics, supply};
use skep_base_settings::{BalancingConfig, ForwardingConfig, KubeProxyReplacement};

/// What arrived from Kubernetes, and how the load balancer is set up.
#[derive(Debug, Metrics)]
pub struct SourceMetrics {
    /// Terminating endpoints in EndpointSlice events.
    #[metric(name = "k8s_terminating_endpoints_events_total")]
    terminating: Counter,
    /// Added and deleted services with internal traffic policy Local.
    #[metric(
        name = "feature_network_policies_internal_traffic_policy_services_total",
        labels = ["action"]
    )]
    internal_policy: CounterVec,
    /// Kube-proxy replacement: 1 or 0.
    #[metric(name = "feature_adv_connect_and_lb_kube_proxy_replacement_enabled")]
    replacement: Gauge,
    /// Node port configuration.
    #[metric(
        name = "feature_adv_connect_and_lb_node_port_configuration",
        labels = ["mode", "algorithm", "acceleration"]
    )]
    node_port: GaugeVec,
}

impl SourceMetrics {
    /// Counts terminating endpoints of one event.
    pub(super) fn terminating(&self, endpoints: usize) {
        self.terminating.add(endpoints as f64);
    }

    /// Counts that a service got, or lost, internal traffic policy Local.
    pub(super) fn internal_policy(&self, is_local: bool) {
        let action = if is_local { "add" } else { "delete" };
        self.internal_policy.with([action]).inc();
    }
}

/// The metrics, for the registry and for the sources.
pub(super) fn supply_metrics(
    balancing: Cfg<BalancingConfig>,
    forwarding: Cfg<ForwardingConfig>,
    replacement: Cfg<KubeProxyReplacement>,
) -> (Arc<SourceMetrics>, Members<MetricHandle>) {
    let metrics = SourceMetrics::default();
    metrics.replacement.set(f64::from(u8::from(replacement.enabled)));
    if replacement.enabled {
        let (mode, algorithm) = (forwarding.mode.to_string(), balancing.algorithm.to_string());
        // Node ports are not accelerated by programs on the network card's driver.
        let labels = [mode.as_str(), algorithm.as_str(), "disabled"];
        metrics.node_port.with(labels).set(1.0);
    }
    supply(metrics)
}
