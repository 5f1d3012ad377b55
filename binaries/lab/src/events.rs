// SPDX-License-Identifier: Apache-2.0

//! Events of pods, as the scheduler and the kubelet record them: `kubectl get events`, `kubectl describe pod`.
//!
//! A repeated event increments the count of the first one.

use std::{collections::HashMap, sync::Arc, sync::Mutex, sync::PoisonError};

use serde_json::{Value, json};
use skep_k8s_client::{ApiError, Client, Patch, Subresource, WriteOptions};
use skep_k8s_types::Kind;

use crate::pod::Pod;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Happened {
    /// It was bound to its node.
    Scheduled,
    /// The image of this container is present.
    Pulled(usize),
    Created(usize),
    Started(usize),
    /// This container ended and is restarted later.
    BackOff(usize),
    Killing(usize),
    /// A volume is missing, for this reason.
    FailedMount(String),
    /// It cannot run, for this reason.
    Failed(String),
}

impl Happened {
    fn reason(&self) -> &'static str {
        match self {
            Self::Scheduled => "Scheduled",
            Self::Pulled(_) => "Pulled",
            Self::Created(_) => "Created",
            Self::Started(_) => "Started",
            Self::BackOff(_) => "BackOff",
            Self::Killing(_) => "Killing",
            Self::FailedMount(_) => "FailedMount",
            Self::Failed(_) => "Failed",
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::BackOff(_) | Self::FailedMount(_) | Self::Failed(_) => "Warning",
            _ => "Normal",
        }
    }

    fn component(&self) -> &'static str {
        match self {
            Self::Scheduled => "default-scheduler",
            _ => "kubelet",
        }
    }

    fn container(&self) -> Option<usize> {
        match self {
            Self::Pulled(at)
            | Self::Created(at)
            | Self::Started(at)
            | Self::BackOff(at)
            | Self::Killing(at) => Some(*at),
            Self::Scheduled | Self::FailedMount(_) | Self::Failed(_) => None,
        }
    }

    fn message(&self, pod: &Pod) -> String {
        let container = self.container().and_then(|at| pod.containers.get(at));
        let (name, image) = container.map_or(("", ""), |found| (found.name.as_str(), found.image.as_str()));
        match self {
            Self::Scheduled => format!(
                "Successfully assigned {}/{} to {}",
                pod.namespace, pod.name, pod.node
            ),
            Self::Pulled(_) => format!("Container image \"{image}\" already present on machine"),
            Self::Created(_) => format!("Created container: {name}"),
            Self::Started(_) => format!("Started container {name}"),
            Self::BackOff(_) => format!(
                "Back-off restarting failed container {name} in pod {}_{}({})",
                pod.name, pod.namespace, pod.uid
            ),
            Self::Killing(_) => format!("Stopping container {name}"),
            Self::FailedMount(problem) => problem.clone(),
            Self::Failed(problem) => format!("Error: {problem}"),
        }
    }
}

/// Name and count of what was recorded, by the pod's uid and what happened.
type Recorded = HashMap<String, Vec<(Happened, String, u64)>>;

pub(crate) struct Recorder {
    client: Arc<dyn Client>,
    recorded: Mutex<Recorded>,
}

impl Recorder {
    pub(crate) fn new(client: Arc<dyn Client>) -> Self {
        Self {
            client,
            recorded: Mutex::default(),
        }
    }

    /// Records what happened. A failure is logged: nothing depends on an event.
    pub(crate) async fn record(&self, pod: &Pod, happened: Happened) {
        let reason = happened.reason();
        match self.write(pod, happened).await {
            // The namespace is going away.
            Err(err) if !err.is_not_found() && err.status().is_none_or(|status| status.code != 403) => {
                tracing::warn!(error = %err, pod = %pod.id(), reason, "Cannot record event");
            }
            _ => {}
        }
    }

    /// Drops the counts of a pod that was deleted.
    pub(crate) fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write(&self, pod: &Pod, happened: Happened) -> Result<(), ApiError> {
        let (kind, now) = (Kind::EVENT, jiff::Timestamp::now());
        let options = WriteOptions::default();
        let repeated = self.lock().get_mut(&pod.uid).and_then(|recorded| {
            let found = recorded.iter_mut().find(|(before, ..)| *before == happened)?;
            found.2 += 1;
            Some((found.1.clone(), found.2))
        });
        if let Some((name, count)) = repeated {
            let patch = Patch::Merge(json!({"count": count, "lastTimestamp": time(now)}));
            let patched =
                self.client
                    .patch(&kind, &pod.namespace, &name, Subresource::None, &patch, &options);
            match patched.await {
                // Expired: it is created again.
                Err(err) if err.is_not_found() => {}
                other => return other.map(drop),
            }
        }
        let name = format!("{}.{:x}", pod.name, now.as_nanosecond());
        let event = event(pod, &happened, &name, &time(now));
        self.client.create(&kind, &pod.namespace, event, &options).await?;
        let mut all = self.lock();
        let recorded = all.entry(pod.uid.clone()).or_default();
        recorded.retain(|(before, ..)| *before != happened);
        recorded.push((happened, name, 1));
        Ok(())
    }
}

fn time(at: jiff::Timestamp) -> String {
    at.strftime("%FT%TZ").to_string()
}

fn event(pod: &Pod, happened: &Happened, name: &str, now: &str) -> Value {
    let mut involved = json!({
        "apiVersion": "v1", "kind": "Pod",
        "namespace": pod.namespace, "name": pod.name, "uid": pod.uid,
    });
    if let Some(container) = happened.container().and_then(|at| pod.containers.get(at)) {
        involved["fieldPath"] = format!("spec.containers{{{}}}", container.name).into();
    }
    let component = happened.component();
    let mut source = json!({"component": component});
    if component == "kubelet" {
        source["host"] = pod.node.as_str().into();
    }
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"namespace": pod.namespace, "name": name},
        "involvedObject": involved,
        "type": happened.kind(), "reason": happened.reason(), "message": happened.message(pod),
        "source": source, "reportingComponent": component,
        "reportingInstance": source["host"].as_str().unwrap_or_default(),
        "firstTimestamp": now, "lastTimestamp": now, "count": 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_name_the_pod_its_container_and_who_reports() {
        let pod = Pod::read(&json!({
            "metadata": {"namespace": "shop", "name": "web-0", "uid": "u1"},
            "spec": {"nodeName": "c1-n1", "containers": [{"name": "web", "image": "skep-lab/echo:1"}]},
        }));

        let crash = event(&pod, &Happened::BackOff(0), "e", "2026-01-01T00:00:00Z");

        assert_eq!(crash["type"], "Warning");
        assert_eq!(
            crash["message"],
            "Back-off restarting failed container web in pod web-0_shop(u1)"
        );
        assert_eq!(crash["involvedObject"]["fieldPath"], "spec.containers{web}");
        assert_eq!(crash["source"], json!({"component": "kubelet", "host": "c1-n1"}));
        let bound = event(&pod, &Happened::Scheduled, "e", "2026-01-01T00:00:00Z");
        assert_eq!(bound["message"], "Successfully assigned shop/web-0 to c1-n1");
        assert_eq!(bound["source"], json!({"component": "default-scheduler"}));
    }
}
