// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::time::Duration;

/// How long sources may take.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// How long a source of addresses or nodes may take for its first list. Then entries that it had before a restart are
    /// deleted.
    #[config(default = "1m", flag = "ipcache-sync-timeout")]
    pub sync_timeout: Duration,
}
