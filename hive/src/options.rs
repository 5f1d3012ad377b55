// SPDX-License-Identifier: Apache-2.0

//! Settings of the hive itself.

use std::time::Duration;

use crate::config::Faults;

/// Settings of the hive itself, known in every hive.
///
/// ```
/// use hive::{Config, HiveOptions};
/// assert_eq!(HiveOptions::defaults().unwrap().hive_stop_timeout.as_secs(), 60);
/// ```
#[derive(Clone, Debug, hive_macros::Config)]
#[config(validate = HiveOptions::check)]
pub struct HiveOptions {
    /// How long all start hooks together may take.
    #[config(default = "5m")]
    pub hive_start_timeout: Duration,
    /// How long all stop hooks together may take.
    #[config(default = "1m")]
    pub hive_stop_timeout: Duration,
    /// Hooks that take longer are logged at info level.
    #[config(default = "100ms")]
    pub hive_log_threshold: Duration,
    /// How often hooks that are not done are reported.
    #[config(default = "5s", flag = "hive-report-interval", hidden)]
    pub report_every: Duration,
}

impl HiveOptions {
    fn check(&self, faults: &mut Faults) {
        let times = [
            ("hive-start-timeout", self.hive_start_timeout),
            ("hive-stop-timeout", self.hive_stop_timeout),
            ("hive-report-interval", self.report_every),
        ];
        for (flag, time) in times {
            if time.is_zero() {
                faults.add(flag, "must be longer than nothing");
            }
        }
    }
}

impl Default for HiveOptions {
    fn default() -> Self {
        Self {
            hive_start_timeout: Duration::from_secs(300),
            hive_stop_timeout: Duration::from_secs(60),
            hive_log_threshold: Duration::from_millis(100),
            report_every: Duration::from_secs(5),
        }
    }
}
