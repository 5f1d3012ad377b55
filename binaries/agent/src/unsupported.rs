// SPDX-License-Identifier: Apache-2.0

//! Cell: reports settings of features that the datapath does not have, in the health of module `unsupported-config` and
//! in `skep status`. Requires: the settings of [`skep_datapath_config`].

use hive::{Cell, Cfg, Health, HookCtx, Lifecycle};
use skep_datapath_config::{MasqueradeConfig, Unsupported, UnsupportedConfig};

/// Requested features that are not supported. Remove the keys, or have another program do it.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(|unsupported| format!("{}: {}", unsupported.setting, unsupported.effect)).collect::<Vec<_>>().join("; "))]
struct UnsupportedSettings(Vec<Unsupported>);

hive::catalogue!(cell);

/// Reports settings of features that the datapath does not have.
pub(crate) fn cell() -> Cell {
    Cell::module("unsupported-config", "Settings of unsupported features").run(report)
}

fn requested(config: &UnsupportedConfig, masquerade: &MasqueradeConfig) -> Vec<Unsupported> {
    let mut requested = config.requested();
    for (key, value) in [
        ("enable-ipv4-masquerade", masquerade.ipv4),
        ("enable-ipv6-masquerade", masquerade.ipv6),
    ] {
        if value == Some(true) && !masquerade.bpf {
            requested.push(Unsupported::new(
                key,
                true,
                "packets are not masqueraded without enable-bpf-masquerade",
            ));
        }
    }
    requested
}

fn report(
    config: Cfg<UnsupportedConfig>,
    masquerade: Cfg<MasqueradeConfig>,
    health: Health,
    lifecycle: Lifecycle,
) {
    lifecycle.on_start("report", move |_cx: HookCtx| {
        let unsupported = UnsupportedSettings(requested(&config, &masquerade));
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
    use super::*;

    fn defaults<C: hive::Config>() -> C {
        C::defaults().unwrap()
    }

    #[test]
    fn settings_of_several_cells_are_reported() {
        let (mut config, mut masquerade) = (defaults::<UnsupportedConfig>(), defaults::<MasqueradeConfig>());
        assert_eq!(requested(&config, &masquerade), []);

        config.enable_vtep = true;
        masquerade.ipv4 = Some(true);

        let found = requested(&config, &masquerade);
        let settings: Vec<_> = found
            .iter()
            .map(|unsupported| unsupported.setting.as_str())
            .collect();
        assert_eq!(settings, ["enable-vtep=true", "enable-ipv4-masquerade=true"]);

        masquerade.bpf = true;
        assert_eq!(requested(&config, &masquerade).len(), 1);
    }
}
