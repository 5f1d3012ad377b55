// SPDX-License-Identifier: Apache-2.0

//! Whether the Kubernetes API server answers, as part of the status.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use hive::{Job, JobCtx, Jobs, Member, SpawnError};
use parking_lot::Mutex;
use serde_json::{Value, json};
use skep_k8s::{ApiError, Client, ServerVersion};

use crate::status::StatusProbe;

/// Time between two questions to the API server.
const PERIOD: Duration = Duration::from_secs(10);

struct Kubernetes {
    client: Arc<dyn Client>,
    last: Mutex<Value>,
}

#[async_trait]
impl StatusProbe for Kubernetes {
    fn key(&self) -> &'static str {
        "kubernetes"
    }

    async fn probe(&self) -> Value {
        self.last.lock().clone()
    }

    fn is_required(&self) -> bool {
        true
    }
}

/// Asks the API server for its version now and then; the status shows the last answer.
pub(crate) fn probe(
    client: Option<Arc<dyn Client>>,
    jobs: Jobs,
) -> Result<Member<Arc<dyn StatusProbe>>, SpawnError> {
    let client = client.unwrap_or_else(|| Arc::new(skep_k8s::DisabledClient));
    let first = if client.is_enabled() {
        json!({"state": "Warning", "msg": "not asked yet"})
    } else {
        json!({"state": "Disabled"})
    };
    let probe = Arc::new(Kubernetes {
        client,
        last: Mutex::new(first),
    });
    if probe.client.is_enabled() {
        let asking = probe.clone();
        jobs.spawn(
            Job::every(PERIOD, "kubernetes-version", move |_: JobCtx| {
                let probe = asking.clone();
                async move { ask(&probe).await }
            })
            .run_at_start(),
        )?;
    }
    Ok(Member(probe))
}

/// The version as people read it: `1.33 (v1.33.1) [linux/amd64]`.
fn text(version: &ServerVersion) -> String {
    let mut text = format!("{version} ({})", version.git_version);
    if !version.platform.is_empty() {
        text.push_str(&format!(" [{}]", version.platform));
    }
    text
}

async fn ask(probe: &Kubernetes) -> Result<(), ApiError> {
    match probe.client.server_version().await {
        Ok(version) => {
            *probe.last.lock() = json!({"state": "Ok", "msg": text(&version), "k8s-api-versions": [
                "cilium/v2::CiliumLocalRedirectPolicy", "core/v1::Pods", "core/v1::Service",
                "discovery/v1::EndpointSlice"]});
            Ok(())
        }
        Err(err) => {
            *probe.last.lock() = json!({"state": "Failure", "msg": err.to_string()});
            Err(err)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_platform_if_the_server_does() {
        let mut version = ServerVersion {
            major: 1,
            minor: 33,
            git_version: "v1.33.1".to_owned(),
            ..ServerVersion::default()
        };
        assert_eq!(text(&version), "1.33 (v1.33.1)");

        version.platform = "linux/amd64".to_owned();
        assert_eq!(text(&version), "1.33 (v1.33.1) [linux/amd64]");
    }
}
