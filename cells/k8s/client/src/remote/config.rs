// SPDX-License-Identifier: Apache-2.0

//! Settings of the client.

use std::path::PathBuf;
use std::time::Duration;

use hive::Cfg;
use hive::config::Faults;

use super::connection::Settings;
use super::target::Target;

/// How the Kubernetes API server is reached.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Enable Kubernetes. Otherwise services are read from a state file.
    #[config(default = true)]
    pub enable_k8s: bool,
    /// Path of a kubeconfig file, instead of the pod's service account.
    pub k8s_kubeconfig_path: String,
    /// URLs of API servers, tried in turn. The working one is restored after a restart.
    pub k8s_api_server_urls: Vec<String>,
    /// Timeout of connecting to the API server.
    #[config(default = "30s")]
    pub k8s_client_connection_timeout: Duration,
    /// Interval of keep-alive probes of idle connections to the API server; 0: none.
    #[config(default = "30s")]
    pub k8s_client_connection_keep_alive: Duration,
    /// Idle time before a health check of the API server; 0: never. Connections are closed if it fails.
    #[config(default = "30s")]
    pub k8s_heartbeat_timeout: Duration,
    /// File that remembers which API server works.
    #[config(default = "/var/run/{program}/state/k8s-api-server", hidden)]
    pub k8s_api_server_state_file: String,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        let target = Target::choose(None, &self.k8s_api_server_urls);
        if let Err(error) = target.check() {
            faults.add("k8s-api-server-urls", error.to_string());
        }
    }

    /// The configured cluster.
    pub fn target(&self) -> Target {
        if !self.enable_k8s {
            return Target::Nowhere;
        }
        let kubeconfig =
            (!self.k8s_kubeconfig_path.is_empty()).then(|| PathBuf::from(&self.k8s_kubeconfig_path));
        Target::choose(kubeconfig.as_deref(), &self.k8s_api_server_urls)
    }

    /// Settings for [`RemoteClient::new`](super::RemoteClient::new).
    pub fn settings(&self, limit: RequestLimit) -> Settings {
        Settings {
            qps: limit.qps,
            burst: limit.burst,
            connect_timeout: self.k8s_client_connection_timeout,
            keep_alive: self.k8s_client_connection_keep_alive,
            heartbeat: self.k8s_heartbeat_timeout,
            // With one address there is nothing to remember.
            state_file: (self.k8s_api_server_urls.len() > 1 && !self.k8s_api_server_state_file.is_empty())
                .then(|| PathBuf::from(&self.k8s_api_server_state_file)),
            ..Settings::default()
        }
    }
}

/// How many requests a client sends.
#[derive(Debug, Clone, Copy, PartialEq, hive::Value)]
pub struct RequestLimit {
    /// Requests a second; 0 for no limit.
    pub qps: f64,
    /// Requests at once.
    pub burst: u32,
}

fn check_qps(flag: &'static str, qps: f64, faults: &mut Faults) {
    if !(qps.is_finite() && qps >= 0.0) {
        faults.add(flag, "must not be negative");
    }
}

/// How many requests an agent sends.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = LimitConfig::check)]
pub struct LimitConfig {
    /// Maximum rate of requests to the API server per second; 0: unlimited.
    #[config(default = 10.0)]
    pub k8s_client_qps: f64,
    /// Maximum burst of requests to the API server.
    #[config(default = 20)]
    pub k8s_client_burst: u32,
}

impl LimitConfig {
    fn check(&self, faults: &mut Faults) {
        check_qps("k8s-client-qps", self.k8s_client_qps, faults);
    }

    pub(super) fn limit(config: Cfg<Self>) -> RequestLimit {
        RequestLimit {
            qps: config.k8s_client_qps,
            burst: config.k8s_client_burst,
        }
    }
}

/// How many requests an operator sends. It shares its ConfigMap with the agents, whose limits are others.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = OperatorLimitConfig::check)]
pub struct OperatorLimitConfig {
    /// Maximum rate of requests to the API server per second; 0: unlimited.
    #[config(default = 100.0)]
    pub operator_k8s_client_qps: f64,
    /// Maximum burst of requests to the API server.
    #[config(default = 200)]
    pub operator_k8s_client_burst: u32,
}

impl OperatorLimitConfig {
    fn check(&self, faults: &mut Faults) {
        check_qps("operator-k8s-client-qps", self.operator_k8s_client_qps, faults);
    }

    pub(super) fn limit(config: Cfg<Self>) -> RequestLimit {
        RequestLimit {
            qps: config.operator_k8s_client_qps,
            burst: config.operator_k8s_client_burst,
        }
    }
}
