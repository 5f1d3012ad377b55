// SPDX-License-Identifier: Apache-2.0

//! Configuration of the embedded API server.

use std::net::SocketAddr;
use std::time::Duration;

use hive::Config;

/// The setting of the address.
pub(crate) const ADDRESS: &str = "apiserver-listen";
/// The admission plugin that can be left out.
const SERVICE_ACCOUNT: &str = "ServiceAccount";

/// Where and how the embedded Kubernetes API server serves.
#[derive(Config, Clone, Debug)]
pub struct ApiServerConfig {
    /// Address that the API server listens on. Port 0 takes a free one.
    #[config(default = "127.0.0.1:6443", flag = "apiserver-listen")]
    pub listen: String,
    /// Bearer token that clients must send. Empty: every client may do everything.
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
    /// How long events are kept after their last write. 0 keeps them.
    #[config(default = "1h", flag = "event-ttl")]
    pub event_ttl: Duration,
    /// Admission plugins to leave out: ServiceAccount, which gives pods an account and its token, is the only one.
    #[config(default = "", flag = "disable-admission-plugins")]
    pub disable_admission_plugins: Vec<String>,
    /// Issuer of the tokens of service accounts; also the audience of the API server.
    #[config(default = "https://kubernetes.default.svc", flag = "service-account-issuer")]
    pub service_account_issuer: String,
    /// PEM file (PKCS#8) with the P-256 key that signs the tokens of service accounts. Empty: a new key at each start.
    #[config(default = "", flag = "service-account-signing-key-file")]
    pub signing_key_file: String,
    /// PEM file with the certificates that every namespace gets as ConfigMap kube-root-ca.crt. Empty: none.
    #[config(default = "", flag = "root-ca-file")]
    pub root_ca_file: String,
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
    /// Not an admission plugin of this server.
    #[error("`{0}` is not an admission plugin here; there is ServiceAccount")]
    Plugin(String),
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

    /// The settings of the server, without what files hold.
    ///
    /// # Errors
    /// If a network or the range of ports is malformed, or an admission plugin unknown.
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
        let plugins = self.disable_admission_plugins.iter().map(|name| name.trim());
        let plugins: Vec<&str> = plugins.filter(|name| !name.is_empty()).collect();
        if let Some(unknown) = plugins.iter().find(|name| **name != SERVICE_ACCOUNT) {
            return Err(ConfigError::Plugin((*unknown).to_owned()));
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
            event_ttl: self.event_ttl,
            admits_service_accounts: plugins.is_empty(),
            service_account_issuer: self.service_account_issuer.clone(),
            signing_key: None,
            root_ca: None,
        })
    }
}
