// SPDX-License-Identifier: Apache-2.0

//! Cell: reports settings of features of Cilium's servers that do not exist here, in the health of module `unsupported-config`
//! and in the log.

use hive::{Cell, Cfg, Health, Lifecycle};
use skep_base_settings::{Unsupported, report_unsupported};

hive::catalogue!(cell);

/// Settings of features that do not exist. All are off by default: only what a user sets is reported.
#[derive(Debug, Clone, hive::Config)]
struct UnsupportedConfig {
    /// Profiles over HTTP: not supported.
    #[config(default = false, hidden)]
    pprof: bool,
}

/// Reports settings of features that do not exist.
pub(crate) fn cell() -> Cell {
    Cell::module("unsupported-config", "Settings of unsupported features")
        .config::<UnsupportedConfig>()
        .run(report)
}

fn report(config: Cfg<UnsupportedConfig>, health: Health, lifecycle: Lifecycle) {
    let profiles = config
        .pprof
        .then(|| Unsupported::new("pprof", true, "profiles are not served"));
    report_unsupported(profiles.into_iter().collect(), health, &lifecycle);
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Level, Settings, testing};

    use super::*;

    #[tokio::test]
    async fn settings_without_effect_are_reported_with_what_does_not_happen() {
        for (flags, expected) in [
            (&[][..], (Level::Ok, None)),
            (
                &["--pprof"],
                (Level::Degraded, Some("pprof=true: profiles are not served")),
            ),
        ] {
            let settings = Settings::new().args(flags.iter().copied());
            let running = testing::start_with(Hive::new([cell()]), settings).await;

            let entry = running
                .health()
                .get("unsupported-config")
                .expect("it is reported");
            assert_eq!((entry.level, entry.error.as_deref()), expected);
            testing::stop(running).await;
        }
    }
}
