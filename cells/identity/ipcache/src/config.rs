// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::time::Duration;

/// How long sources may take.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Timeout of the initial lists of all sources of the ipcache. Stale entries of the previous run are
    /// deleted afterwards.
    #[config(default = "1m", flag = "ipcache-sync-timeout")]
    pub sync_timeout: Duration,
}
