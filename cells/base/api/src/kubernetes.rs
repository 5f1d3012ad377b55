// SPDX-License-Identifier: Apache-2.0

//! Whether the Kubernetes API server answers, as part of the status.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use hive::{Job, JobCtx, Jobs, Member, SpawnError};
use parking_lot::Mutex;
use serde_json::{Value, json};
use skep_k8s::{ApiError, Client, ServerVersion};
use tokio::time::Instant;

use crate::status::StatusProbe;

/// Time between two questions to the API server.
const PERIOD: Duration = Duration::from_secs(10);

struct Kubernetes {
    client: Arc<dyn Client>,
    last: Mutex<Value>,
    /// When the question was asked that has no answer yet.
    asked: Mutex<Option<Instant>>,
}

/// A question to the server; whoever stops waiting for the answer takes it back.
struct Question<'a>(&'a Kubernetes);

impl<'a> Question<'a> {
    fn new(probe: &'a Kubernetes) -> Self {
        *probe.asked.lock() = Some(Instant::now());
        Self(probe)
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        *self.0.asked.lock() = None;
    }
}

#[async_trait]
impl StatusProbe for Kubernetes {
    fn key(&self) -> &'static str {
        "kubernetes"
    }

    async fn probe(&self) -> Value {
        self.last.lock().clone()
    }

    fn pending(&self) -> Option<Duration> {
        let asked = *self.asked.lock();
        asked.map(|asked| asked.elapsed())
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
        asked: Mutex::default(),
    });
    if probe.client.is_enabled() {
        let asking = probe.clone();
        jobs.spawn(
            Job::every(PERIOD, "kubernetes-version", move |cx: JobCtx| {
                let probe = asking.clone();
                async move {
                    // A server that does not answer is not waited for when the agent stops.
                    tokio::select! {
                        result = ask(&probe) => result,
                        () = cx.cancelled() => Ok(()),
                    }
                }
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
    let _question = Question::new(probe);
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
