// SPDX-License-Identifier: Apache-2.0

//! Settings of local redirect policies.

use ipnet::IpNet;

/// Settings of local redirect policies.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Enable local redirect policies.
    #[config(default = false, flag = "enable-local-redirect-policy")]
    pub enabled: bool,
    /// Networks whose addresses local redirect policies may match; empty: all.
    #[config(flag = "lrp-address-matcher-cidrs")]
    pub address_networks: Vec<IpNet>,
}
