// SPDX-License-Identifier: Apache-2.0

//! Settings.

use hive::config::Faults;
use ipnet::IpNet;

/// Which devices carry traffic of the cluster.
#[derive(Debug, Clone, hive::Config)]
pub struct DeviceConfig {
    /// Native devices: names, prefixes ending in `+`, exclusions beginning with `!`; the first match decides. Detected
    /// without a list.
    pub devices: Vec<String>,
    /// Detect devices besides those that are named.
    #[config(hidden)]
    pub force_device_detection: bool,
}

/// Which addresses are used for what.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = AddressConfig::check)]
pub struct AddressConfig {
    /// Networks of node port addresses. Default: one address of each family per device.
    pub nodeport_addresses: Vec<String>,
    /// Networks whose addresses are never addresses of the node.
    pub exclude_local_address: Vec<String>,
}

impl AddressConfig {
    fn check(&self, faults: &mut Faults) {
        for (key, networks) in [
            ("nodeport-addresses", &self.nodeport_addresses),
            ("exclude-local-address", &self.exclude_local_address),
        ] {
            for network in networks {
                if network.trim().parse::<IpNet>().is_err() {
                    faults.add(key, format!("`{network}` is not a network such as 192.0.2.0/24"));
                }
            }
        }
    }

    /// The networks whose addresses have node ports. Validation has rejected malformed ones.
    pub fn node_port_networks(&self) -> Vec<IpNet> {
        networks(&self.nodeport_addresses)
    }

    /// The networks whose addresses are not the node's. Validation has rejected malformed ones.
    pub fn excluded_networks(&self) -> Vec<IpNet> {
        networks(&self.exclude_local_address)
    }
}

fn networks(texts: &[String]) -> Vec<IpNet> {
    texts
        .iter()
        .filter_map(|network| network.trim().parse().ok())
        .collect()
}
