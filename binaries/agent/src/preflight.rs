// SPDX-License-Identifier: Apache-2.0

//! Sub-command `preflight validate-cnp`: validates the Cilium network policies in the cluster by the rules of this version.

use std::{error::Error as _, path::PathBuf, sync::Arc};

use hive::{Cell, Cfg, HookCtx, Lifecycle, Program, Shutdown};
use serde_json::Value;
use skep_k8s_client::{ApiError, Client, ListOptions};
use skep_k8s_types::Kind;
use skep_policy_model::{PolicySettings, validate};

use crate::start_logging;

const KINDS: [Kind; 2] = [
    Kind::new(
        "cilium.io",
        "v2",
        "CiliumNetworkPolicy",
        "ciliumnetworkpolicies",
        true,
    ),
    Kind::new(
        "cilium.io",
        "v2",
        "CiliumClusterwideNetworkPolicy",
        "ciliumclusterwidenetworkpolicies",
        false,
    ),
];

/// What happens after the validation.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// File that is created once all policies are valid. The program then runs until it is stopped; without, it ends.
    #[config(default = "")]
    pub preflight_ready_file: PathBuf,
}

/// Why policies are not valid.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    /// The API server does not list them. Check its address and the rights of the service account.
    #[error("cannot list {kind}")]
    List {
        /// Kind of the policies.
        kind: String,
        /// Cause.
        #[source]
        cause: ApiError,
    },
    /// The agent would ignore these. Fix or delete them.
    #[error("{invalid} of {all} policies are invalid: {first}")]
    Invalid {
        /// Number of invalid policies.
        invalid: usize,
        /// Number of all policies.
        all: usize,
        /// The first of them, with its error.
        first: String,
    },
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        cause: std::io::Error,
    },
}

/// The cell that validates when it starts.
pub fn cell() -> Cell {
    Cell::module(
        "preflight-policies",
        "Validates the Cilium network policies in the cluster",
    )
    .config::<Config>()
    .run(start)
}

fn start(client: Arc<dyn Client>, config: Cfg<Config>, shutdown: Shutdown, lifecycle: Lifecycle) {
    let shutdown = Arc::new(shutdown);
    let path = config.preflight_ready_file.clone();
    lifecycle.on_start("validate", move |_: HookCtx| {
        let (client, path, shutdown) = (client.clone(), path.clone(), shutdown.clone());
        async move {
            let count = validate_policies(&*client).await?;
            tracing::info!(count, "All policies are valid");
            if path.as_os_str().is_empty() {
                shutdown.request("policies are validated");
                return Ok(());
            }
            std::fs::write(&path, "").map_err(|cause| ValidateError::Write { path, cause })
        }
    });
}

/// Validates all policies; returns their number. A cluster without the definitions has none.
///
/// # Errors
///
/// [`ValidateError`]; each invalid policy is logged.
pub async fn validate_policies(client: &dyn Client) -> Result<usize, ValidateError> {
    let settings = PolicySettings {
        dual_stack: true,
        ..PolicySettings::default()
    };
    let (mut all, mut invalid, mut first) = (0, 0, String::new());
    for kind in KINDS {
        let objects = objects(client, &kind)
            .await
            .map_err(|cause| ValidateError::List {
                kind: kind.kind.to_string(),
                cause,
            })?;
        all += objects.len();
        for (object, result) in objects.iter().zip(validate(&objects, &settings)) {
            let Err(error) = result else { continue };
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            let mut reason = error.to_string();
            if let Some(cause) = error.source() {
                reason.push_str(&format!(": {cause}"));
            }
            tracing::error!(
                kind = %kind.kind,
                namespace = text("namespace"),
                name = text("name"),
                error = reason,
                "Policy is invalid"
            );
            invalid += 1;
            if first.is_empty() {
                first = format!("{} {}/{}: {reason}", kind.kind, text("namespace"), text("name"));
            }
        }
    }
    match invalid {
        0 => Ok(all),
        invalid => Err(ValidateError::Invalid { invalid, all, first }),
    }
}

async fn objects(client: &dyn Client, kind: &Kind) -> Result<Vec<Value>, ApiError> {
    let mut objects = Vec::new();
    let mut options = ListOptions {
        limit: 500,
        ..ListOptions::default()
    };
    loop {
        let page = match client.list(kind, "", &options).await {
            Ok(page) => page,
            Err(error) if error.is_not_found() => return Ok(objects),
            Err(error) => return Err(error),
        };
        for object in page.items {
            let mut object = Value::clone(&*object.to_value()?);
            // Items of lists have no kind of their own.
            object["apiVersion"] = kind.api_version().into();
            object["kind"] = kind.kind.as_str().into();
            objects.push(object);
        }
        if page.continue_token.is_empty() {
            return Ok(objects);
        }
        options.continue_token = page.continue_token;
    }
}

/// The sub-command as a program.
#[must_use]
pub fn program() -> Program {
    let cells = [skep_base_logging::cell(), skep_k8s_client::remote::cell(), cell()];
    Program::new("skep-agent preflight validate-cnp", cells)
        .about(
            "Validates all Cilium network policies in the cluster. The exit status is 1 if one is invalid.",
        )
        .version(env!("CARGO_PKG_VERSION"))
        .env_prefix("CILIUM")
        .path_name("cilium")
        .setup(start_logging)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skep_k8s_memory::testing::TestCluster;

    use super::*;

    fn policy(name: &str, spec: Value) -> Value {
        json!({ "metadata": { "namespace": "default", "name": name }, "spec": spec })
    }

    #[tokio::test]
    async fn invalid_policies_are_named() {
        let cluster = TestCluster::new();
        let definitions = [
            skep_k8s_crds::definitions::cilium_network_policy(),
            skep_k8s_crds::definitions::cilium_clusterwide_network_policy(),
        ];
        skep_k8s_crds::register_all(&**cluster.client(), &definitions)
            .await
            .unwrap();
        cluster.namespace("default").await;
        let valid = json!({ "endpointSelector": {}, "ingress": [{}] });
        cluster.create(&KINDS[0], policy("valid", valid)).await;

        assert_eq!(validate_policies(&**cluster.client()).await.unwrap(), 1);

        let wrong = json!({ "endpointSelector": {}, "egress": [{ "toCIDR": ["10.0.0.0/99"] }] });
        cluster.create(&KINDS[0], policy("wrong", wrong)).await;
        let error = validate_policies(&**cluster.client()).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("1 of 2 policies are invalid: CiliumNetworkPolicy default/wrong"),
            "{text}"
        );
    }
}
