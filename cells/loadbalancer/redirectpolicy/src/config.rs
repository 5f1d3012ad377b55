// SPDX-License-Identifier: Apache-2.0

//! Settings of local redirect policies.

use ipnet::IpNet;

/// Settings of local redirect policies.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Serve local redirect policies.
    #[config(default = false, flag = "enable-local-redirect-policy")]
    pub enabled: bool,
    /// Networks whose addresses policies may redirect; empty: all.
    #[config(flag = "lrp-address-matcher-cidrs")]
    pub address_networks: Vec<IpNet>,
}
