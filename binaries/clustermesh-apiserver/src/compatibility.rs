// SPDX-License-Identifier: Apache-2.0

//! Settings of Cilium that have no effect here.

use hive::{Cell, Cfg};

hive::catalogue!(cell);

/// Settings of Cilium that have no effect here.
pub(crate) fn cell() -> Cell {
    Cell::module("compatibility", "Settings of Cilium without effect")
        .config::<WithoutEffect>()
        .run(|_: Cfg<WithoutEffect>| ())
}

/// Settings that Cilium's programs have, and that have no effect here. Those that ask for something are reported by
/// `unsupported`.
#[derive(Debug, Clone, hive::Config)]
pub(crate) struct WithoutEffect {
    /// Has no effect: there is no gops agent.
    #[config(default = true, hidden)]
    pub enable_gops: bool,
    /// Has no effect: there is no gops agent.
    #[config(default = 9892, hidden)]
    pub gops_port: u16,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = "localhost", hidden)]
    pub pprof_address: String,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = 6063, hidden)]
    pub pprof_port: u16,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = 0, hidden)]
    pub pprof_mutex_profile_fraction: u32,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = 0, hidden)]
    pub pprof_block_profile_rate: u32,
    /// Has no effect: there are no metrics of controllers.
    #[config(hidden)]
    pub controller_group_metrics: Vec<String>,
    /// Has no effect: the resources that are used are known.
    #[config(default = false, hidden)]
    pub enable_k8s_api_discovery: bool,
    /// Has no effect: policies are up to the agents.
    #[config(default = true, hidden)]
    pub policy_default_local_cluster: bool,
    /// Has no effect: logs are written to the standard error.
    #[config(hidden)]
    pub log_driver: Vec<String>,
    /// Has no effect: see `log-format` and `log-filter`.
    #[config(hidden)]
    pub log_opt: std::collections::BTreeMap<String, String>,
}
