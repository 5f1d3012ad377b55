// SPDX-License-Identifier: Apache-2.0

//! Cell: writes the configuration in the cluster to a directory that the agent reads at its start (`config-dir`), then ends
//! the program. Requires: a Kubernetes client, the name of the node.

mod directory;
mod sources;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use hive::config::Faults;
use hive::{Cell, Cfg, HookCtx, Lifecycle, Shutdown};
use skep_base_settings::NodeName;
use skep_k8s_client::Client;

use crate::config::{Overrides, Source};

pub use directory::DirectoryError;
pub use sources::BuildError;

/// What is written where.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = BuildConfig::check)]
pub struct BuildConfig {
    /// Directory of the configuration: one file per key.
    #[config(default = "/tmp/cilium/config-map")]
    pub dest: PathBuf,
    /// Name of the node. Default: k8s-node-name.
    pub node_name: String,
    /// Sources in the order of precedence, the weakest one first: config-map:NAMESPACE/NAME,
    /// cilium-node-config:NAMESPACE/NAME or node:NAME; the namespace, and the names of the last two, may be omitted.
    /// Default: ConfigMap cilium-config, then the CiliumNodeConfigs of the namespace.
    pub source: Vec<String>,
    /// Keys that only these may override. Default: all.
    pub allow_config_keys: Vec<String>,
    /// Keys that only the first source sets. Without effect with allow-config-keys.
    pub deny_config_keys: Vec<String>,
    /// Namespace of the agents. Default: kube-system.
    pub k8s_namespace: String,
}

impl BuildConfig {
    fn check(&self, faults: &mut Faults) {
        if let Err(error) = self.sources() {
            faults.add("source", error);
        }
    }

    /// The sources in their order.
    fn sources(&self) -> Result<Vec<Source>, String> {
        let namespace = match self.k8s_namespace.as_str() {
            "" => "kube-system",
            namespace => namespace,
        };
        let defaults = || {
            vec![
                "config-map:cilium-config".to_owned(),
                "cilium-node-config:".to_owned(),
            ]
        };
        let texts = match self.source.is_empty() {
            true => defaults(),
            false => self.source.clone(),
        };
        let parsed = texts.iter().map(|text| {
            Source::parse(text, namespace).ok_or_else(|| {
                format!("`{text}` is not config-map:NAME, cilium-node-config:NAMESPACE or node:NAME")
            })
        });
        parsed.collect()
    }

    fn overrides(&self) -> Overrides {
        Overrides {
            allow_config_keys: self.allow_config_keys.clone(),
            deny_config_keys: self.deny_config_keys.clone(),
        }
    }
}

/// Writes the configuration. The start fails if that fails.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("build-config", "Writes the configuration of the agent")
        .config::<BuildConfig>()
        .run(start)
}

hive::catalogue!(cell);

fn start(
    config: Cfg<BuildConfig>,
    client: Arc<dyn Client>,
    node: NodeName,
    shutdown: Shutdown,
    lifecycle: Lifecycle,
) {
    let node = match config.node_name.as_str() {
        "" => node.as_str().to_owned(),
        name => name.to_owned(),
    };
    let context = Arc::new((config, client, node, shutdown));
    lifecycle.on_start("build", move |_: HookCtx| {
        let context = context.clone();
        async move {
            let (config, client, node, shutdown) = &*context;
            // Validation has rejected invalid ones.
            let sources = config.sources().unwrap_or_default();
            let entries = sources::read(client, &sources, &config.overrides(), node).await?;
            directory::write(&config.dest, &entries)?;
            tracing::info!(path = %config.dest.display(), keys = entries.len(), "Wrote the configuration");
            shutdown.request("the configuration is written");
            Ok::<_, BuildError>(())
        }
    });
}
