// SPDX-License-Identifier: Apache-2.0

//! Cell: copies of the Secrets that policies name.
//! Requires: a Kubernetes client. For leaders only: two programs would overwrite each other.

use std::sync::Arc;

use hive::config::Faults;
use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_base_metrics::workqueue::{WorkqueueMetrics, WorkqueueRecorder};
use skep_k8s_client::Client;
use skep_k8s_controller::job;

use crate::controller::controller;

/// Whether Secrets are copied, and where to.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Copy Secrets that CiliumNetworkPolicies and CiliumClusterwideNetworkPolicies reference to
    /// `policy-secrets-namespace`.
    pub enable_policy_secrets_sync: bool,
    /// Namespace of copied Secrets.
    #[config(default = "cilium-secrets")]
    pub policy_secrets_namespace: String,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if self.enable_policy_secrets_sync && self.policy_secrets_namespace.is_empty() {
            faults.add(
                "policy-secrets-namespace",
                "no namespace, and enable-policy-secrets-sync is on",
            );
        }
    }
}

/// Copies of the Secrets that policies name.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("secret-sync", "Copies Secrets that policies name")
        .config::<Config>()
        .run(start)
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    client: Arc<dyn Client>,
    queues: Option<Arc<WorkqueueMetrics>>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        config,
        client,
        queues,
        jobs,
    } = params;
    if !config.enable_policy_secrets_sync || !client.is_enabled() {
        return Ok(());
    }
    let queue = WorkqueueRecorder::new(queues.as_ref(), "secret-sync");
    let namespace = config.policy_secrets_namespace.clone();
    jobs.spawn(job("copy", move || {
        controller(&client, &namespace, queue.clone())
    }))
}
