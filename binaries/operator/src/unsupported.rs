// SPDX-License-Identifier: Apache-2.0

//! Cell: reports settings of features of Cilium's operator that do not exist here, in the health of module
//! `unsupported-config` and in the log. Requires: settings of definitions.

use hive::{Cell, Cfg, Health, Lifecycle};
use skep_base_settings::cilium::{
    CiliumConfig, OPERATOR, UnsupportedSetting, cilium_cell, report_unsupported,
};
use skep_k8s_crds::Config as CrdConfig;

hive::catalogue!(cell);

/// Reports settings of features that do not exist.
pub(crate) fn cell() -> Cell {
    cilium_cell::<OPERATOR>().run(report)
}

fn report(config: Cfg<CiliumConfig<OPERATOR>>, crds: Cfg<CrdConfig>, health: Health, lifecycle: Lifecycle) {
    let partial = [
        ("enable-bgp-control-plane", crds.enable_bgp_control_plane),
        ("enable-gateway-api", crds.enable_gateway_api),
    ];
    let partial = partial.into_iter().filter(|(_, is_on)| *is_on);
    let mut requested: Vec<_> = partial
        .map(|(key, _)| UnsupportedSetting::new(OPERATOR, key, true))
        .collect();
    requested.extend(config.requested());
    report_unsupported(requested, health, &lifecycle);
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
