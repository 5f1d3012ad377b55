// SPDX-License-Identifier: Apache-2.0

//! Configuration of the API.

/// Where the agent's API listens.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Path of the API's unix socket. Mode 0660, group `cilium` if it exists.
    #[config(default = "/var/run/{program}/cilium.sock")]
    pub socket_path: String,
    /// TCP port of the health endpoint on the loopback addresses; 0 switches it off.
    #[config(default = "9879")]
    pub agent_health_port: u16,
}
