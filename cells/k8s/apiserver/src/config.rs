// SPDX-License-Identifier: Apache-2.0

//! Configuration of the embedded API server.

use std::net::SocketAddr;
use std::time::Duration;

use hive::Config;

/// Where and how the embedded Kubernetes API server serves.
#[derive(Config, Clone, Debug)]
pub struct ApiServerConfig {
    /// Address that the API server listens on. Port 0 takes a free one.
    #[config(default = "127.0.0.1:6443", flag = "apiserver-listen")]
    pub listen: String,
    /// Bearer token that clients must show. Empty: everybody may do everything.
    #[config(default = "", flag = "apiserver-token", secret)]
    pub token: String,
    /// Networks that cluster addresses of services are taken from, at most one of each family.
    #[config(default = "10.96.0.0/16", flag = "service-cluster-ip-range")]
    pub service_networks: Vec<String>,
    /// Node ports of services, as first and last.
    #[config(default = "30000-32767", flag = "service-node-port-range")]
    pub node_ports: String,
    /// Changes of each resource that watches can catch up on.
    #[config(default = "10000", flag = "apiserver-history")]
    pub history: u32,
    /// Time between two bookmarks of a watch.
    #[config(default = "1m", flag = "apiserver-bookmark-interval")]
    pub bookmark_every: Duration,
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Not an address with a port.
    #[error("`{0}` is not an address with a port, such as 127.0.0.1:6443")]
    Listen(String),
    /// Not a network, or a second one of a family.
    #[error("`{0}` is not a network of a family that has none yet, such as 10.96.0.0/16")]
    Network(String),
    /// Not a range of ports.
    #[error("`{0}` is not a range of ports, such as 30000-32767")]
    Ports(String),
}

impl ApiServerConfig {
    /// The address to listen on.
    ///
    /// # Errors
    /// If it is none.
    pub fn address(&self) -> Result<SocketAddr, ConfigError> {
        self.listen
            .parse()
            .map_err(|_| ConfigError::Listen(self.listen.clone()))
    }

    /// The settings of the server.
    ///
    /// # Errors
    /// If a network or the range of ports is malformed.
    pub fn settings(&self) -> Result<crate::Settings, ConfigError> {
        let mut networks: Vec<ipnet::IpNet> = Vec::new();
        for text in &self.service_networks {
            let error = || ConfigError::Network(text.clone());
            let network: ipnet::IpNet = text.trim().parse().map_err(|_| error())?;
            if networks
                .iter()
                .any(|n| n.addr().is_ipv4() == network.addr().is_ipv4())
            {
                return Err(error());
            }
            networks.push(network);
        }
        let ports = || {
            let (first, last) = self.node_ports.split_once('-')?;
            let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (first > 0 && first <= last).then_some(first..=last)
        };
        let node_ports = ports().ok_or_else(|| ConfigError::Ports(self.node_ports.clone()))?;
        Ok(crate::Settings {
            service_networks: networks,
            node_ports,
            bookmark_every: self.bookmark_every,
        })
    }
}
