// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::time::Duration;

/// Endpoints of the node.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Interval of endpoint garbage collection; 0: never. An endpoint is deleted if its interface is missing
    /// in two passes.
    #[config(default = "5m")]
    pub endpoint_gc_interval: Duration,
    /// Drop packets that endpoints send from other addresses than their own.
    #[config(default = true)]
    pub enable_source_ip_verification: bool,
    /// Let packets pass that policies deny, with an event: option `PolicyAuditMode` of all endpoints.
    #[config(default = false)]
    pub policy_audit_mode: bool,
    /// Keep the options of endpoints that were changed by the API over a restart of the agent; otherwise they
    /// are those of the agent's settings again.
    #[config(default = false)]
    pub keep_config: bool,
    /// Time until an endpoint gets a new identity after a change of its labels.
    #[config(default = "5s")]
    pub identity_change_grace_period: Duration,
}
