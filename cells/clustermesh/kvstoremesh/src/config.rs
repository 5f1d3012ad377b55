// SPDX-License-Identifier: Apache-2.0

//! Settings.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use hive::config::Faults;

/// Which remote clusters are copied, and when the copies count as complete.
#[derive(Debug, Clone, hive::Config)]
pub struct KvstoreMeshConfig {
    /// Directory with the configurations of remote clusters, one file per cluster, named after it. Empty: no
    /// cluster mesh.
    pub clustermesh_config: PathBuf,
    /// Time after which services of a disconnected remote cluster are removed; 0: never. Nodes, addresses and
    /// identities are kept.
    #[config(default = "0s")]
    pub clustermesh_cache_ttl: Duration,
    /// Readiness timeout of the connection to a remote cluster.
    #[config(default = "15s")]
    pub per_cluster_ready_timeout: Duration,
    /// Readiness timeout of the initial synchronization of all remote clusters.
    #[config(default = "10m")]
    pub global_ready_timeout: Duration,
    /// Keep the copy of a remote cluster that is removed from the configuration.
    #[config(default = false, hidden)]
    pub disable_drain_on_disconnection: bool,
}

/// Whether the heartbeat is written.
#[derive(Debug, Clone, hive::Config)]
pub struct HeartbeatConfig {
    /// Write the heartbeat key of the key-value store: required without a clustermesh-apiserver.
    #[config(default = false)]
    pub enable_heartbeat: bool,
}

/// The setting of the address of the API.
pub(crate) const API_SERVE_ADDR: &str = "api-serve-addr";

/// Where the API listens.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = ApiConfig::check)]
pub struct ApiConfig {
    /// Address of the API of kvstoremesh. `localhost` is the loopback address of both families.
    #[config(default = "localhost:9889")]
    pub api_serve_addr: String,
}

impl ApiConfig {
    fn check(&self, faults: &mut Faults) {
        if self.addresses().is_empty() {
            let text = format!(
                "`{}` is not an address such as `localhost:9889`",
                self.api_serve_addr
            );
            faults.add(API_SERVE_ADDR, text);
        }
    }

    /// Addresses to listen on. None if the setting is no address.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        let Some((host, port)) = self.api_serve_addr.rsplit_once(':') else {
            return Vec::new();
        };
        let Ok(port) = port.parse() else {
            return Vec::new();
        };
        match host {
            "localhost" => vec![
                (Ipv4Addr::LOCALHOST, port).into(),
                (Ipv6Addr::LOCALHOST, port).into(),
            ],
            // That of IPv6 is of both families.
            "" => vec![(Ipv6Addr::UNSPECIFIED, port).into()],
            _ => self.api_serve_addr.parse().into_iter().collect(),
        }
    }
}

/// The setting of the port of health checks.
pub(crate) const HEALTH_PORT: &str = "health-port";

/// Where health checks are answered.
#[derive(Debug, Clone, hive::Config)]
pub struct HealthConfig {
    /// Port of `GET /readyz`, on all addresses.
    #[config(default = 9880)]
    pub health_port: u16,
}

impl HealthConfig {
    /// Addresses to listen on: that of IPv6 is of both families.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        vec![(Ipv6Addr::UNSPECIFIED, self.health_port).into()]
    }
}
