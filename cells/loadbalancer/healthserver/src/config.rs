// SPDX-License-Identifier: Apache-2.0

//! Settings of health-check servers.

use std::net::IpAddr;

/// Settings of health-check node ports.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Serve health checks on the `healthCheckNodePort` of services.
    #[config(default = true, flag = "enable-health-check-nodeport")]
    pub enabled: bool,
    /// Serve health checks on load balancer IPs.
    #[config(default = false, flag = "enable-health-check-loadbalancer-ip")]
    pub serve_virtual: bool,
}

/// The one address servers listen on, for tests that run side by side. All addresses if nothing provides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, hive::Value)]
pub struct ListenAddress(pub IpAddr);
