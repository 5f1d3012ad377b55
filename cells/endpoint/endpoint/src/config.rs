// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::{path::PathBuf, time::Duration};

/// Endpoints of the node.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Folder for what survives a restart of the agent; endpoints are in its folder `state`.
    #[config(default = "/var/run/cilium")]
    pub state_dir: PathBuf,
    /// Time between two looks for endpoints whose interface is gone: they are deleted when two looks in a row miss it. 0: never.
    #[config(default = "5m")]
    pub endpoint_gc_interval: Duration,
}
