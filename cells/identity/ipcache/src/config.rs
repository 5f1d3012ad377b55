// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::time::Duration;

use hive::config::Faults;
use skep_identity_labels::{LabelFilter, PatternError};

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
    /// Label patterns of nodes, `[source:][!]expression`: of the host endpoint in addition to the default ones; of other nodes
    /// instead of all labels.
    #[config(flag = "node-labels")]
    pub node_label_patterns: Vec<String>,
}

impl Config {
    /// CIDR rules match nodes.
    pub fn networks_match_nodes(&self) -> bool {
        self.cidr_match_mode.iter().any(|mode| mode == "nodes")
    }

    /// Which labels of its Node the host endpoint has.
    ///
    /// # Errors
    ///
    /// [`PatternError`] for the first invalid pattern.
    pub fn host_label_filter(&self) -> Result<LabelFilter, PatternError> {
        LabelFilter::new(self.node_label_patterns.iter().map(String::as_str))
    }

    /// Which labels of their Node other nodes have; none: all.
    ///
    /// # Errors
    ///
    /// [`PatternError`] for the first invalid pattern.
    pub fn node_label_filter(&self) -> Result<Option<LabelFilter>, PatternError> {
        let filter = (!self.node_label_patterns.is_empty()).then(|| self.host_label_filter());
        filter.transpose()
    }

    fn check(&self, faults: &mut Faults) {
        if let Err(error) = self.host_label_filter() {
            faults.add("node-labels", hive::error_chain(&error).to_string());
        }
        let unknown = |mode: &&String| !mode.is_empty() && *mode != "nodes";
        if let Some(mode) = self.cidr_match_mode.iter().find(unknown) {
            faults.add("policy-cidr-match-mode", format!("`{mode}` is not nodes"));
        }
    }
}
