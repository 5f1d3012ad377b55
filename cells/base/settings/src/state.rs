// SPDX-License-Identifier: Apache-2.0

//! Where the agent keeps its state.

use std::path::PathBuf;

/// Where the agent keeps what survives a restart.
#[derive(Debug, Clone, hive::Config)]
pub struct StateConfig {
    /// Directory of the agent's state; endpoints are restored from its directory `state`.
    #[config(default = "/var/run/cilium")]
    pub state_dir: PathBuf,
}

impl StateConfig {
    /// The directory of files that cells write.
    pub fn directory(&self) -> PathBuf {
        self.state_dir.join("state")
    }
}
