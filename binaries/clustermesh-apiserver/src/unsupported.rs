// SPDX-License-Identifier: Apache-2.0

//! Cell: reports settings of features of Cilium's servers that do not exist here, in the health of module `unsupported-config`
//! and in the log.

use hive::Cell;
use skep_base_settings::cilium::{APISERVER, reporting_cell};

hive::catalogue!(cell);

/// Reports settings of features that do not exist.
pub(crate) fn cell() -> Cell {
    reporting_cell::<APISERVER>()
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
