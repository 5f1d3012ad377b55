// SPDX-License-Identifier: Apache-2.0

//! Settings.

use hive::config::Faults;
use ipnet::IpNet;

/// Which devices carry traffic of the cluster.
#[derive(Debug, Clone, hive::Config)]
pub struct DeviceConfig {
    /// Devices that face the cluster and the outside: names, prefixes ending in `+`, exclusions beginning with `!`.
    /// Detected if no name is given.
    pub devices: Vec<String>,
    /// Detect devices besides those that are named.
    #[config(hidden)]
    pub force_device_detection: bool,
}

/// Which addresses are used for what.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = AddressConfig::check)]
pub struct AddressConfig {
    /// Networks whose addresses have node ports. Default: one address of each family on each device.
    pub nodeport_addresses: Vec<String>,
}

impl AddressConfig {
    fn check(&self, faults: &mut Faults) {
        for network in &self.nodeport_addresses {
            if network.trim().parse::<IpNet>().is_err() {
                faults.add(
                    "nodeport-addresses",
                    format!("`{network}` is not a network such as 192.0.2.0/24"),
                );
            }
        }
    }

    /// The networks. Validation has rejected malformed ones.
    pub fn networks(&self) -> Vec<IpNet> {
        self.nodeport_addresses
            .iter()
            .filter_map(|network| network.trim().parse().ok())
            .collect()
    }
}
