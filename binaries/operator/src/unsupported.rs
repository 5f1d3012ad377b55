// SPDX-License-Identifier: Apache-2.0

//! Cell: reports settings of features of Cilium's operator that do not exist here, in the health of module
//! `unsupported-config` and in the log. Requires: settings of definitions.

use hive::{Cell, Cfg, Health, Lifecycle};
use skep_base_settings::{Unsupported, report_unsupported};
use skep_k8s_crds::Config as CrdConfig;

/// Settings of features that do not exist. All are off by default: only what a user sets is reported.
#[derive(Debug, Clone, hive::Config)]
struct UnsupportedConfig {
    /// Ingresses: not supported.
    #[config(default = false, hidden)]
    enable_ingress_controller: bool,
    /// L7 load balancing of services by Envoy: not supported unless empty.
    #[config(default = "", hidden)]
    loadbalancer_l7: String,
    /// Mutual authentication by SPIRE: not supported.
    #[config(default = false, hidden)]
    mesh_auth_mutual_enabled: bool,
    /// Encryption by ztunnel: not supported.
    #[config(default = false, hidden)]
    enable_ztunnel: bool,
    /// Profiles over HTTP: not supported.
    #[config(default = false, hidden)]
    operator_pprof: bool,
    /// Metrics over TLS: not supported.
    #[config(default = false, hidden)]
    operator_prometheus_enable_tls: bool,
}

hive::catalogue!(cell);

/// Reports settings of features that do not exist.
pub(crate) fn cell() -> Cell {
    Cell::module("unsupported-config", "Settings of unsupported features")
        .config::<UnsupportedConfig>()
        .run(report)
}

fn requested(config: &UnsupportedConfig, crds: &CrdConfig) -> Vec<Unsupported> {
    let switches = [
        (
            "enable-bgp-control-plane",
            crds.enable_bgp_control_plane,
            "nodes get no BGP configuration",
        ),
        (
            "enable-gateway-api",
            crds.enable_gateway_api,
            "Gateways are not served",
        ),
        (
            "enable-ingress-controller",
            config.enable_ingress_controller,
            "Ingresses are not served",
        ),
        (
            "enable-ztunnel",
            config.enable_ztunnel,
            "namespaces are not enrolled",
        ),
        (
            "mesh-auth-mutual-enabled",
            config.mesh_auth_mutual_enabled,
            "identities are not registered with SPIRE",
        ),
        ("operator-pprof", config.operator_pprof, "profiles are not served"),
        (
            "operator-prometheus-enable-tls",
            config.operator_prometheus_enable_tls,
            "metrics are served without TLS",
        ),
    ];
    let mut requested: Vec<_> = switches
        .into_iter()
        .filter(|(_, is_on, _)| *is_on)
        .map(|(key, _, effect)| Unsupported::new(key, true, effect))
        .collect();
    if !config.loadbalancer_l7.is_empty() {
        requested.push(Unsupported::new(
            "loadbalancer-l7",
            &config.loadbalancer_l7,
            "services are not balanced by Envoy",
        ));
    }
    requested
}

fn report(config: Cfg<UnsupportedConfig>, crds: Cfg<CrdConfig>, health: Health, lifecycle: Lifecycle) {
    report_unsupported(requested(&config, &crds), health, &lifecycle);
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Level, Settings, testing};

    use super::*;

    async fn reported(flags: &[&str]) -> (Level, String) {
        let hive = Hive::new([cell(), Cell::group([]).config::<CrdConfig>()]);
        let running = testing::start_with(hive, Settings::new().args(flags.iter().copied())).await;
        let entries = running.health().entries();
        let entry = entries
            .into_iter()
            .find(|entry| entry.id.module().to_string().ends_with("unsupported-config"))
            .unwrap();
        testing::stop(running).await;
        (entry.level, entry.error.unwrap_or_default())
    }

    #[tokio::test]
    async fn settings_without_effect_are_reported_with_what_does_not_happen() {
        assert_eq!(reported(&[]).await, (Level::Ok, String::new()));

        let (level, text) = reported(&[
            "--enable-ingress-controller",
            "--enable-gateway-api",
            "--loadbalancer-l7=envoy",
        ])
        .await;

        assert_eq!(level, Level::Degraded);
        assert_eq!(
            text,
            "enable-gateway-api=true: Gateways are not served; \
             enable-ingress-controller=true: Ingresses are not served; \
             loadbalancer-l7=envoy: services are not balanced by Envoy"
        );
    }
}
