// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::time::Duration;

use hive::config::Faults;

/// What addresses are, and how long sources may take.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Timeout of the initial lists of all sources of the ipcache. Stale entries of the previous run are
    /// deleted afterwards.
    #[config(default = "1m", flag = "ipcache-sync-timeout")]
    pub sync_timeout: Duration,
    /// What CIDR rules match besides addresses outside of the cluster: `nodes`, or nothing.
    #[config(flag = "policy-cidr-match-mode")]
    pub cidr_match_mode: Vec<String>,
    /// Give other nodes identities with the labels of their Node, for `fromNodes` and `toNodes`.
    #[config(default = false, flag = "enable-node-selector-labels")]
    pub node_labels: bool,
}

impl Config {
    /// CIDR rules match nodes.
    pub fn networks_match_nodes(&self) -> bool {
        self.cidr_match_mode.iter().any(|mode| mode == "nodes")
    }

    fn check(&self, faults: &mut Faults) {
        let unknown = |mode: &&String| !mode.is_empty() && *mode != "nodes";
        if let Some(mode) = self.cidr_match_mode.iter().find(unknown) {
            faults.add("policy-cidr-match-mode", format!("`{mode}` is not nodes"));
        }
    }
}
