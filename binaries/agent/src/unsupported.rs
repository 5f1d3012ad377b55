// SPDX-License-Identifier: Apache-2.0

//! Cell: reports settings of features that the datapath does not have, in the health of module `unsupported-config` and
//! in `skep status`. Requires: the settings of [`skep_base_settings`].

use hive::{Cell, Cfg, Health, Lifecycle};
use skep_base_settings::cilium::{AGENT, CiliumConfig, UnsupportedSetting, cilium_cell, report_unsupported};
use skep_base_settings::{AddressFamilies, ForwardingConfig, MasqueradeConfig, TunnelConfig};

type Config = CiliumConfig<AGENT>;

hive::catalogue!(cell);

/// Reports settings of features that the datapath does not have.
pub(crate) fn cell() -> Cell {
    cilium_cell::<AGENT>().run(report)
}

fn requested(
    config: &Config,
    forwarding: &ForwardingConfig,
    masquerade: &MasqueradeConfig,
    tunnel: &TunnelConfig,
    families: &AddressFamilies,
) -> Vec<UnsupportedSetting> {
    let mut requested = config.requested();
    for (key, is_on) in [
        ("bpf-lb-nat46x64", forwarding.nat46x64_services),
        ("enable-nat46x64-gateway", forwarding.nat46x64_gateway),
    ] {
        if is_on && !(families.ipv4 && families.ipv6) {
            requested.push(UnsupportedSetting::new(AGENT, key, true));
        }
    }
    if tunnel.is_tunnelled() && forwarding.may_return_directly() {
        requested.push(UnsupportedSetting::new(
            AGENT,
            "routing-mode",
            tunnel.routing_mode,
        ));
    }
    for (key, value) in [
        ("enable-ipv4-masquerade", masquerade.ipv4),
        ("enable-ipv6-masquerade", masquerade.ipv6),
    ] {
        if value == Some(true) && !masquerade.bpf {
            requested.push(UnsupportedSetting::new(AGENT, key, true));
        }
    }
    requested
}

fn report(
    config: Cfg<Config>,
    forwarding: Cfg<ForwardingConfig>,
    masquerade: Cfg<MasqueradeConfig>,
    tunnel: Cfg<TunnelConfig>,
    families: Cfg<AddressFamilies>,
    health: Health,
    lifecycle: Lifecycle,
) {
    let requested = requested(&config, &forwarding, &masquerade, &tunnel, &families);
    report_unsupported(requested, health, &lifecycle);
}

#[cfg(test)]
mod tests {
    use skep_base_settings::{NodeMode, RoutingMode};

    use super::*;

    fn defaults<C: hive::Config>() -> C {
        C::defaults().unwrap()
    }

    fn found(
        config: &Config,
        forwarding: &ForwardingConfig,
        masquerade: &MasqueradeConfig,
        tunnel: &TunnelConfig,
    ) -> Vec<UnsupportedSetting> {
        requested(config, forwarding, masquerade, tunnel, &defaults())
    }

    #[test]
    fn translation_between_families_requires_both() {
        let (mut forwarding, mut families) = (defaults::<ForwardingConfig>(), defaults::<AddressFamilies>());
        forwarding.nat46x64_services = true;
        let all = |families: &AddressFamilies| {
            requested(&defaults(), &forwarding, &defaults(), &defaults(), families)
        };
        assert_eq!(all(&families), []);

        families.ipv6 = false;

        assert_eq!(all(&families)[0].setting, "bpf-lb-nat46x64=true");
    }

    #[test]
    fn settings_of_several_cells_are_reported() {
        let (config, mut forwarding, mut masquerade, mut tunnel) = (
            defaults(),
            defaults::<ForwardingConfig>(),
            defaults::<MasqueradeConfig>(),
            defaults::<TunnelConfig>(),
        );
        assert_eq!(found(&config, &forwarding, &masquerade, &tunnel), []);
        tunnel.routing_mode = RoutingMode::Tunnel;
        assert_eq!(found(&config, &forwarding, &masquerade, &tunnel), []);

        forwarding.mode = NodeMode::Dsr;
        masquerade.ipv4 = Some(true);

        let all = found(&config, &forwarding, &masquerade, &tunnel);
        let settings: Vec<_> = all
            .iter()
            .map(|unsupported| unsupported.setting.as_str())
            .collect();
        let expected = ["routing-mode=tunnel", "enable-ipv4-masquerade=true"];
        assert_eq!(settings, expected);

        masquerade.bpf = true;
        assert_eq!(found(&config, &forwarding, &masquerade, &tunnel).len(), 1);
    }
}
