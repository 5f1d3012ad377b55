// SPDX-License-Identifier: Apache-2.0

//! Where the API listens.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use hive::config::Faults;

/// The setting of the address.
pub(crate) const SERVE_ADDR: &str = "operator-api-serve-addr";

/// Where the API listens.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Address of the operator's API. `localhost` is the loopback address of both families.
    #[config(default = "localhost:9234", flag = "operator-api-serve-addr")]
    pub serve_addr: String,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if self.addresses().is_empty() {
            let text = format!("`{}` is not an address such as `localhost:9234`", self.serve_addr);
            faults.add(SERVE_ADDR, text);
        }
    }

    /// Addresses to listen on: all that this machine has. None if the setting is no address.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let Some((host, port)) = self.serve_addr.rsplit_once(':') else {
            return Vec::new();
        };
        let both = |v4: Ipv4Addr, v6: Ipv6Addr| {
            port.parse().map_or_else(
                |_| Vec::new(),
                |port: u16| vec![(v4, port).into(), (v6, port).into()],
            )
        };
        match host {
            "localhost" => both(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
            // That of IPv6 is of both families.
            "" => port.parse().map_or_else(
                |_| Vec::new(),
                |port: u16| vec![(Ipv6Addr::UNSPECIFIED, port).into()],
            ),
            _ => self.serve_addr.parse().into_iter().collect(),
        }
    }
}
