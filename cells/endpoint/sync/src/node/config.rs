// SPDX-License-Identifier: Apache-2.0

//! Settings.

use hive::config::Faults;
use regex::Regex;

/// What is published of the node.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Create the CiliumNode of this node if it is missing.
    #[config(default = true)]
    pub auto_create_cilium_node_resource: bool,
    /// Write pod CIDRs and addresses of the node into annotations of the Node.
    #[config(default = false)]
    pub annotate_k8s_node: bool,
    /// Regular expressions of labels that the CiliumNode does not have of the Node.
    pub exclude_node_label_patterns: Vec<String>,
    /// Minimum number of addresses of the node, for the operator of a cloud; 0: not set. Modes crd, eni, azure, alibabacloud.
    #[config(default = 0)]
    pub ipam_min_allocate: u32,
    /// Maximum number of addresses of the node, for the operator of a cloud; 0: not set. Modes crd, eni, azure, alibabacloud.
    #[config(default = 0)]
    pub ipam_max_allocate: u32,
    /// Number of free addresses of the node, for the operator of a cloud; 0: not set. Modes crd, eni, azure, alibabacloud.
    #[config(default = 0)]
    pub ipam_pre_allocate: u32,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        for pattern in &self.exclude_node_label_patterns {
            if let Err(error) = Regex::new(pattern) {
                faults.add("exclude-node-label-patterns", format!("`{pattern}`: {error}"));
            }
        }
    }

    /// Patterns of labels that are not copied. Validation has rejected invalid ones.
    pub(super) fn excluded_labels(&self) -> Vec<Regex> {
        let patterns = self.exclude_node_label_patterns.iter();
        patterns.filter_map(|pattern| Regex::new(pattern).ok()).collect()
    }
}
