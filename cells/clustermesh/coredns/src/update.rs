// SPDX-License-Identifier: Apache-2.0

//! The change of the ConfigMap, and the restart of the Deployment.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use skep_k8s_client::{ApiError, Client, Patch, Subresource, WriteOptions};
use skep_k8s_types::Kind;
use tokio::time::sleep;

use crate::config::Config;
use crate::corefile::{CorefileError, add_clusterset};
use crate::deployment::{DeploymentError, check_running, check_version};

const DEPLOYMENT: Kind = Kind::new("apps", "v1", "Deployment", "deployments", true);

/// When the Corefile was changed, on the pods of CoreDNS: another value restarts them.
const PATCHED_AT: &str = "clustermesh.cilium.io/autoPatchedAt";
const FIELD_MANAGER: &str = "mcsapi-coredns-autocfg";
/// The Corefile before the change, in the ConfigMap.
const BACKUP: &str = "Corefile.cilium.bak";

/// Attempts while others write the ConfigMap.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// There is no API server. Check the address and the credentials.
    #[error("CoreDNS cannot be configured without a Kubernetes API server")]
    Disabled,
    /// The Deployment cannot be read. Check its name and the role of the service account.
    #[error("cannot read Deployment `{name}`")]
    Deployment {
        name: String,
        #[source]
        cause: ApiError,
    },
    /// CoreDNS must be another version, or its Deployment must be resumed.
    #[error("Deployment `{name}`")]
    Unsupported {
        name: String,
        #[source]
        cause: DeploymentError,
    },
    /// The ConfigMap cannot be read. Check its name and the role of the service account.
    #[error("cannot read ConfigMap `{name}`")]
    ConfigMap {
        name: String,
        #[source]
        cause: ApiError,
    },
    /// The ConfigMap is not that of CoreDNS.
    #[error("ConfigMap `{name}` has no key `Corefile`")]
    NoCorefile { name: String },
    /// The Corefile must be changed by hand.
    #[error("ConfigMap `{name}`")]
    Corefile {
        name: String,
        #[source]
        cause: CorefileError,
    },
    /// The ConfigMap cannot be written: nothing was changed.
    #[error("cannot update ConfigMap `{name}`")]
    Update {
        name: String,
        #[source]
        cause: ApiError,
    },
    #[error("cannot restart Deployment `{name}`")]
    Restart {
        name: String,
        #[source]
        cause: ApiError,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Unchanged,
    /// It was changed, and CoreDNS is restarted.
    Changed,
}

pub struct CoreDns {
    client: Arc<dyn Client>,
    config: Config,
}

impl CoreDns {
    pub fn new(client: Arc<dyn Client>, config: Config) -> Self {
        Self { client, config }
    }

    /// Adds the zone of the cluster set to the configuration, if it is not there, and restarts CoreDNS.
    ///
    /// # Errors
    ///
    /// [`UpdateError`]. The configuration is unchanged after all errors but a last [`UpdateError::Restart`], which names what
    /// has to be restarted.
    pub async fn configure(&self) -> Result<Outcome, UpdateError> {
        if !self.client.is_enabled() {
            return Err(UpdateError::Disabled);
        }
        let mut attempt = 1;
        loop {
            let config_map = self.config_map().await?;
            let deployment = self.deployment().await?;
            check_version(&deployment).map_err(|cause| self.unsupported(cause))?;
            let Some(corefile) = config_map["data"]["Corefile"].as_str() else {
                let name = self.config_map_name();
                return Err(UpdateError::NoCorefile { name });
            };
            let changed = add_clusterset(
                corefile,
                &self.config.coredns_cluster_domain,
                &self.config.coredns_clusterset_domain,
            );
            let changed = changed.map_err(|cause| UpdateError::Corefile {
                name: self.config_map_name(),
                cause,
            })?;
            let Some(changed) = changed else {
                return Ok(Outcome::Unchanged);
            };
            // It fails when the ConfigMap is changed meanwhile.
            let patch = json!({
                "metadata": { "resourceVersion": config_map["metadata"]["resourceVersion"] },
                "data": { "Corefile": changed, BACKUP: corefile },
            });
            check_running(&deployment).map_err(|cause| self.unsupported(cause))?;
            // A second run finds nothing to change: what a restart requires is checked before the change.
            self.restart(true).await?;
            match self.update(patch).await {
                Ok(()) => break,
                Err(error) if error.is_conflict() && attempt < ATTEMPTS => {
                    attempt += 1;
                    sleep(PAUSE).await;
                }
                Err(cause) => {
                    return Err(UpdateError::Update {
                        name: self.config_map_name(),
                        cause,
                    });
                }
            }
        }
        self.restart_again().await?;
        Ok(Outcome::Changed)
    }

    fn config_map_name(&self) -> String {
        format!(
            "{}/{}",
            self.config.coredns_namespace, self.config.coredns_configmap_name
        )
    }

    fn deployment_name(&self) -> String {
        format!(
            "{}/{}",
            self.config.coredns_namespace, self.config.coredns_deployment_name
        )
    }

    async fn read(&self, kind: &Kind, name: &str) -> Result<Arc<Value>, ApiError> {
        let object = self
            .client
            .get(kind, &self.config.coredns_namespace, name)
            .await?;
        Ok(object.to_value()?)
    }

    async fn config_map(&self) -> Result<Arc<Value>, UpdateError> {
        let config_map = self
            .read(&Kind::CONFIG_MAP, &self.config.coredns_configmap_name)
            .await;
        config_map.map_err(|cause| UpdateError::ConfigMap {
            name: self.config_map_name(),
            cause,
        })
    }

    async fn deployment(&self) -> Result<Arc<Value>, UpdateError> {
        let deployment = self.read(&DEPLOYMENT, &self.config.coredns_deployment_name).await;
        deployment.map_err(|cause| UpdateError::Deployment {
            name: self.deployment_name(),
            cause,
        })
    }

    fn unsupported(&self, cause: DeploymentError) -> UpdateError {
        UpdateError::Unsupported {
            name: self.deployment_name(),
            cause,
        }
    }

    async fn update(&self, patch: Value) -> Result<(), ApiError> {
        let Config {
            coredns_namespace: namespace,
            coredns_configmap_name: name,
            ..
        } = &self.config;
        let (patch, options) = (Patch::Merge(patch), WriteOptions::default());
        self.client
            .patch(
                &Kind::CONFIG_MAP,
                namespace,
                name,
                Subresource::None,
                &patch,
                &options,
            )
            .await?;
        Ok(())
    }

    /// Restarts CoreDNS: its Deployment replaces the pods. Some errors pass.
    async fn restart_again(&self) -> Result<(), UpdateError> {
        for _ in 1..ATTEMPTS {
            match self.restart(false).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::warn!(
                        error = hive::error_chain(&error),
                        "Cannot restart CoreDNS, retrying"
                    );
                    sleep(PAUSE).await;
                }
            }
        }
        self.restart(false).await
    }

    async fn restart(&self, dry_run: bool) -> Result<(), UpdateError> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let Config {
            coredns_namespace: namespace,
            coredns_deployment_name: name,
            ..
        } = &self.config;
        let patch = Patch::Apply(json!({
            "apiVersion": DEPLOYMENT.api_version(),
            "kind": DEPLOYMENT.kind,
            "metadata": { "namespace": namespace, "name": name },
            "spec": { "template": { "metadata": { "annotations": { PATCHED_AT: now } } } },
        }));
        let options = WriteOptions {
            field_manager: FIELD_MANAGER.to_owned(),
            force: true,
            dry_run,
        };
        let patched = self
            .client
            .patch(&DEPLOYMENT, namespace, name, Subresource::None, &patch, &options)
            .await;
        patched.map(drop).map_err(|cause| UpdateError::Restart {
            name: self.deployment_name(),
            cause,
        })
    }
}
