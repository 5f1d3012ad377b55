// SPDX-License-Identifier: Apache-2.0

//! Settings of the hive itself.

use std::time::Duration;

use crate::config::Faults;

/// A hundred years: what can be added to the present without overflow.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Settings of the hive itself, known in every hive.
///
/// ```
/// use hive::{Config, HiveOptions};
/// assert_eq!(HiveOptions::defaults().unwrap().hive_stop_timeout.as_secs(), 60);
/// ```
#[derive(Clone, Debug, hive_macros::Config)]
#[config(validate = HiveOptions::check)]
pub struct HiveOptions {
    /// Timeout of all constructors, and of all start hooks.
    #[config(default = "5m")]
    pub hive_start_timeout: Duration,
    /// Timeout of all stop hooks.
    #[config(default = "1m")]
    pub hive_stop_timeout: Duration,
    /// Factor of all hook timeouts, for slow machines.
    #[config(default = 1)]
    pub hive_timeout_scale: f64,
    /// Run independent start and stop hooks in parallel. The order of log lines varies.
    pub hive_parallel: bool,
    /// Duration after which hooks are logged at info level.
    #[config(default = "100ms")]
    pub hive_log_threshold: Duration,
    /// How often hooks that are not done are reported.
    #[config(default = "5s", flag = "hive-report-interval", hidden)]
    pub report_every: Duration,
}

impl HiveOptions {
    /// How long a start may take on this machine.
    pub(crate) fn start_timeout(&self) -> Duration {
        self.scaled(self.hive_start_timeout)
    }

    /// How long a stop may take on this machine.
    pub(crate) fn stop_timeout(&self) -> Duration {
        self.scaled(self.hive_stop_timeout)
    }

    /// A timeout on this machine.
    pub(crate) fn scaled(&self, timeout: Duration) -> Duration {
        if self.hive_timeout_scale == 1.0 {
            return timeout;
        }
        let seconds = timeout.as_secs_f64() * self.hive_timeout_scale;
        Duration::try_from_secs_f64(seconds).map_or(LONGEST, |scaled| scaled.min(LONGEST))
    }

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
        if !(self.hive_timeout_scale.is_finite() && self.hive_timeout_scale > 0.0) {
            faults.add("hive-timeout-scale", "must be above zero");
        }
    }
}

impl Default for HiveOptions {
    fn default() -> Self {
        Self {
            hive_start_timeout: Duration::from_secs(300),
            hive_stop_timeout: Duration::from_secs(60),
            hive_timeout_scale: 1.0,
            hive_parallel: false,
            hive_log_threshold: Duration::from_millis(100),
            report_every: Duration::from_secs(5),
        }
    }
}
