// SPDX-License-Identifier: Apache-2.0

//! Cell: reports settings of features that the datapath does not have, in the health of module `unsupported-config` and
//! in `skep status`. Requires: the settings of [`skep_datapath_config`] and of the load balancer.

use hive::{Cell, Cfg, Health, HookCtx, Lifecycle};
use skep_datapath_config::{
    ForwardingConfig, NodeMode, SocketLbConfig, TunnelConfig, Underlay, Unsupported, UnsupportedConfig,
};

/// Requested features that are not supported. Remove the keys, or have another program do it.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(|unsupported| format!("{}: {}", unsupported.setting, unsupported.effect)).collect::<Vec<_>>().join("; "))]
struct UnsupportedSettings(Vec<Unsupported>);

hive::catalogue!(cell);

/// Reports settings of features that the datapath does not have.
pub(crate) fn cell() -> Cell {
    Cell::module("unsupported-config", "Settings of unsupported features").run(report)
}

fn requested(
    config: &UnsupportedConfig,
    forwarding: &ForwardingConfig,
    sockets: &SocketLbConfig,
    tunnel: &TunnelConfig,
) -> Vec<Unsupported> {
    let mut requested = config.requested();
    if forwarding.mode != NodeMode::Snat {
        requested.push(Unsupported::new(
            "bpf-lb-mode",
            forwarding.mode,
            "packets from outside the node are not translated",
        ));
    }
    if tunnel.is_tunnelled() && forwarding.may_return_directly() {
        requested.push(Unsupported::new(
            "routing-mode",
            tunnel.routing_mode,
            "all services use source address translation, whatever bpf-lb-mode says",
        ));
    }
    if tunnel.is_tunnelled() && tunnel.underlay_protocol == Underlay::Ipv6 {
        requested.push(Unsupported::new(
            "underlay-protocol",
            tunnel.underlay_protocol,
            "tunnels end at the IPv4 address of nodes that have one",
        ));
    }
    if sockets.host_only {
        requested.push(Unsupported::new(
            "bpf-lb-sock-hostns-only",
            true,
            "services are not translated for pods",
        ));
    }
    requested
}

fn report(
    config: Cfg<UnsupportedConfig>,
    forwarding: Cfg<ForwardingConfig>,
    sockets: Cfg<SocketLbConfig>,
    tunnel: Cfg<TunnelConfig>,
    health: Health,
    lifecycle: Lifecycle,
) {
    lifecycle.on_start("report", move |_cx: HookCtx| {
        let unsupported = UnsupportedSettings(requested(&config, &forwarding, &sockets, &tunnel));
        if unsupported.0.is_empty() {
            health.ok("All settings are supported");
        } else {
            tracing::warn!(
                settings = unsupported.to_string(),
                "settings request features that are not supported"
            );
            health.degraded(
                format!(
                    "{} settings request features that are not supported",
                    unsupported.0.len()
                ),
                &unsupported,
            );
        }
        async {}
    });
}

#[cfg(test)]
mod tests {
    use skep_datapath_config::RoutingMode;

    use super::*;

    fn defaults<C: hive::Config>() -> C {
        C::defaults().unwrap()
    }

    #[test]
    fn settings_of_several_cells_are_reported() {
        let (config, mut forwarding, mut sockets, mut tunnel) = (
            defaults(),
            defaults::<ForwardingConfig>(),
            defaults::<SocketLbConfig>(),
            defaults::<TunnelConfig>(),
        );
        assert_eq!(requested(&config, &forwarding, &sockets, &tunnel), []);
        tunnel.routing_mode = RoutingMode::Tunnel;
        assert_eq!(requested(&config, &forwarding, &sockets, &tunnel), []);

        forwarding.mode = NodeMode::Dsr;
        sockets.host_only = true;
        tunnel.underlay_protocol = Underlay::Ipv6;

        let found = requested(&config, &forwarding, &sockets, &tunnel);
        let settings: Vec<_> = found
            .iter()
            .map(|unsupported| unsupported.setting.as_str())
            .collect();
        let expected = [
            "bpf-lb-mode=dsr",
            "routing-mode=tunnel",
            "underlay-protocol=ipv6",
            "bpf-lb-sock-hostns-only=true",
        ];
        assert_eq!(settings, expected);
    }
}
