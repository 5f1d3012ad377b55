// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::{path::PathBuf, time::Duration};

/// Endpoints of the node.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Directory of the agent's state; endpoints are restored from its directory `state`.
    #[config(default = "/var/run/cilium")]
    pub state_dir: PathBuf,
    /// Interval of endpoint garbage collection; 0: never. An endpoint is deleted if its interface is missing
    /// in two passes.
    #[config(default = "5m")]
    pub endpoint_gc_interval: Duration,
}
