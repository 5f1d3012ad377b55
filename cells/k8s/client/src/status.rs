// SPDX-License-Identifier: Apache-2.0

//! Whether the Kubernetes API server answers, as part of the status.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use hive::{All, Cell, Job, JobCtx, Jobs, Member, SpawnError};
use parking_lot::Mutex;
use skep_base_api::StatusProbe;
use skep_base_api_types::{K8sStatus, State, Status, StatusResponse};
use tokio::time::{Instant, sleep};

use crate::{ApiError, Client, DisabledClient, ServerVersion, WatchedKind};

hive::catalogue!(cell);

/// Time between two requests for the version.
const PERIOD: Duration = Duration::from_secs(10);
/// Shortest and longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(120));
/// Kinds that the agent watches, those that Cilium's clients know.
const WATCHED: [&str; 6] = [
    "cilium/v2::CiliumCIDRGroup",
    "cilium/v2::CiliumClusterwideNetworkPolicy",
    "cilium/v2::CiliumNetworkPolicy",
    "cilium/v2::CiliumNode",
    "core/v1::Pods",
    "networking.k8s.io/v1::NetworkPolicy",
];

/// Part `kubernetes` of the agent's status.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("k8s-status", "Kubernetes in the status of the agent").provide(probe)
}

struct Kubernetes {
    client: Arc<dyn Client>,
    last: Mutex<K8sStatus>,
    /// When the pending request was sent.
    asked: Mutex<Option<Instant>>,
    watched: Vec<String>,
}

/// A request to the server, pending until it is dropped.
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
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let part = response.kubernetes.insert(self.last.lock().clone());
        Some(Status {
            state: part.state,
            msg: part.msg.clone(),
        })
    }

    fn pending(&self) -> Option<Duration> {
        let asked = *self.asked.lock();
        asked.map(|asked| asked.elapsed())
    }

    fn fail(&self, response: &mut StatusResponse, failure: Status) {
        response.kubernetes = Some(status(failure.state, failure.msg));
    }
}

/// Requests the version of the API server periodically; the status shows the last answer.
fn probe(
    client: Option<Arc<dyn Client>>,
    more: All<WatchedKind>,
    jobs: Jobs,
) -> Result<Member<Arc<dyn StatusProbe>>, SpawnError> {
    let more = more.iter().map(|WatchedKind(kind)| *kind);
    let mut watched: Vec<String> = WATCHED.into_iter().chain(more).map(str::to_owned).collect();
    watched.sort();
    let client = client.unwrap_or_else(|| Arc::new(DisabledClient));
    let first = if client.is_enabled() {
        status(State::Warning, "no answer yet".to_owned())
    } else {
        K8sStatus::default()
    };
    let probe = Arc::new(Kubernetes {
        client,
        last: Mutex::new(first),
        asked: Mutex::default(),
        watched,
    });
    if probe.client.is_enabled() {
        let asking = probe.clone();
        jobs.spawn(Job::once("kubernetes-version", move |cx: JobCtx| {
            let probe = asking.clone();
            async move {
                // A server that does not answer is not waited for when the agent stops.
                _ = cx.until_cancelled(keep_asking(&probe, &cx)).await;
            }
        }))?;
    }
    Ok(Member(probe))
}

fn status(state: State, msg: String) -> K8sStatus {
    K8sStatus {
        state,
        msg,
        k8s_api_versions: Vec::new(),
    }
}

/// The version as people read it: `1.33 (v1.33.1) [linux/amd64]`.
fn text(version: &ServerVersion) -> String {
    let mut text = format!("{version} ({})", version.git_version);
    if !version.platform.is_empty() {
        text.push_str(&format!(" [{}]", version.platform));
    }
    text
}

async fn keep_asking(probe: &Kubernetes, cx: &JobCtx) {
    let mut failures = 0;
    loop {
        match ask(probe).await {
            Ok(()) => {
                failures = 0;
                cx.health.ok("The API server answers");
            }
            Err(error) => {
                failures += 1;
                cx.health.degraded("The API server does not answer", &error);
            }
        }
        sleep(pause(failures)).await;
    }
}

/// Time until the next request after so many failures in a row.
fn pause(failures: u32) -> Duration {
    let (shortest, longest) = PAUSES;
    match failures.checked_sub(1) {
        None => PERIOD,
        Some(more) => shortest.saturating_mul(1 << more.min(10)).min(longest),
    }
}

async fn ask(probe: &Kubernetes) -> Result<(), ApiError> {
    let _question = Question::new(probe);
    let answer = probe.client.server_version().await;
    *probe.last.lock() = match &answer {
        Ok(version) => K8sStatus {
            k8s_api_versions: probe.watched.clone(),
            ..status(State::Ok, text(version))
        },
        Err(error) => status(State::Failure, error.to_string()),
    };
    answer.map(drop)
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

    #[test]
    fn pauses_grow_while_the_server_does_not_answer() {
        let pauses = [0, 1, 2, 5, 6, 4_000_000].map(|failures| pause(failures).as_secs());
        assert_eq!(pauses, [10, 5, 10, 80, 120, 120]);
    }

    /// A server that accepts requests and answers none.
    struct Frozen;

    #[async_trait]
    impl Client for Frozen {
        fn is_enabled(&self) -> bool {
            true
        }

        async fn server_version(&self) -> Result<ServerVersion, ApiError> {
            std::future::pending().await
        }

        async fn kinds(&self) -> Result<Vec<skep_k8s_types::Kind>, ApiError> {
            Err(ApiError::Disabled)
        }

        async fn list(
            &self,
            _: &skep_k8s_types::Kind,
            _: &str,
            _: &crate::ListOptions,
        ) -> Result<crate::RawPage, ApiError> {
            Err(ApiError::Disabled)
        }

        async fn watch(
            &self,
            _: &skep_k8s_types::Kind,
            _: &str,
            _: &crate::WatchOptions,
        ) -> Result<crate::RawWatch, ApiError> {
            Err(ApiError::Disabled)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_is_pending() {
        let probe = Kubernetes {
            client: Arc::new(Frozen),
            last: Mutex::default(),
            asked: Mutex::default(),
            watched: Vec::new(),
        };
        assert_eq!(probe.pending(), None);

        let asking = ask(&probe);
        let waited = tokio::time::timeout(Duration::from_secs(17), async {
            tokio::join!(asking, async {
                sleep(Duration::from_secs(16)).await;
                assert_eq!(probe.pending(), Some(Duration::from_secs(16)));
            })
        });

        assert!(waited.await.is_err());
        assert_eq!(probe.pending(), None, "the request was dropped");
    }
}
