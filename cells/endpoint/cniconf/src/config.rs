// SPDX-License-Identifier: Apache-2.0

//! Settings of the CNI configuration. Those of chaining that the datapath reads as well are in [`AttachConfig`].

use std::path::PathBuf;

use hive::config::Faults;
use skep_base_settings::AttachConfig;

/// The CNI configuration of the node.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = CniConfConfig::check)]
pub struct CniConfConfig {
    /// Path of the CNI configuration to write. Default: none is written.
    #[config(default = "")]
    pub write_cni_conf_when_ready: PathBuf,
    /// Path of a CNI configuration to copy instead of a rendered one.
    #[config(default = "")]
    pub read_cni_conf: PathBuf,
    /// Name of the CNI network to add this plugin to; `*`: the first one. Default with cni-chaining-mode `aws-cni`:
    /// `aws-cni`.
    #[config(default = "")]
    pub cni_chaining_target: String,
    /// Rename other CNI configurations to `*.cilium_bak`, also those that appear later.
    #[config(default = false)]
    pub cni_exclusive: bool,
    /// Log file of the CNI plugin.
    #[config(default = "/var/run/cilium/cilium-cni.log")]
    pub cni_log_file: String,
}

impl CniConfConfig {
    fn check(&self, faults: &mut Faults) {
        let path = &self.write_cni_conf_when_ready;
        if *path != PathBuf::new() && (path.file_name().is_none() || !path.is_absolute()) {
            faults.add(
                "write-cni-conf-when-ready",
                format!("`{}` is not the absolute path of a file", path.display()),
            );
        }
    }
}

/// What the plugin's entry is chained to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chaining {
    /// As configured.
    pub(crate) mode: String,
    /// Name of a network; `None`: a configuration of its own.
    pub(crate) target: Option<String>,
}

impl Chaining {
    pub(crate) fn new(config: &CniConfConfig, attach: &AttachConfig) -> Self {
        let mut mode = attach.cni_chaining_mode.clone();
        let mut target = config.cni_chaining_target.clone();
        if target.is_empty() && mode.eq_ignore_ascii_case("aws-cni") {
            target = "aws-cni".to_owned();
        }
        if mode.is_empty() {
            let implied = if target.is_empty() { "none" } else { "generic-veth" };
            mode = implied.to_owned();
        }
        Self {
            mode,
            target: (!target.is_empty()).then_some(target),
        }
    }
}
