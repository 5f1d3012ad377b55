// SPDX-License-Identifier: Apache-2.0

//! Where a status comes from: controllers, their pods, and each agent.

use futures::{StreamExt as _, stream};
use serde_json::Value;

use super::{Counts, Status};
use crate::{
    access::{Access, AccessError, Pod, number, text},
    chain,
    chart::Helm,
};

/// Kind, name, labels of the pods, whether an installation is one without it.
const COMPONENTS: [(&str, &str, &str, bool); 6] = [
    ("DaemonSet", "cilium", "k8s-app=cilium", true),
    ("DaemonSet", "cilium-envoy", "k8s-app=cilium-envoy", false),
    ("Deployment", "cilium-operator", "name=cilium-operator", true),
    ("Deployment", "hubble-relay", "k8s-app=hubble-relay", false),
    ("Deployment", "hubble-ui", "k8s-app=hubble-ui", false),
    (
        "Deployment",
        "clustermesh-apiserver",
        "k8s-app=clustermesh-apiserver",
        false,
    ),
];

/// Parts of an agent's status that have a state.
const PARTS: [(&str, &str); 5] = [
    ("cilium", "Cilium"),
    ("cluster", "Health"),
    ("hubble", "Hubble"),
    ("kubernetes", "Kubernetes"),
    ("kvstore", "Kvstore"),
];

/// Collects all that there is; what fails is in `collection_errors`.
pub(crate) async fn collect(access: &Access, workers: usize) -> Status {
    let mut status = Status::default();
    for component in COMPONENTS {
        if let Err(error) = controller(access, &mut status, component).await {
            status.collection_errors.push(chain(&error));
        }
    }
    for step in [
        agents(access, &mut status, workers).await,
        pods(access, &mut status).await,
        settings(access, &mut status).await,
    ] {
        if let Err(error) = step {
            status.collection_errors.push(chain(&error));
        }
    }
    // Without Helm the version is unknown, and nothing is wrong.
    status.helm_chart_version = Helm::new(access).chart().unwrap_or_default();
    status
}

async fn controller(
    access: &Access,
    status: &mut Status,
    (kind, name, labels, required): (&str, &str, &str, bool),
) -> Result<(), AccessError> {
    let resource = if kind == "DaemonSet" {
        "daemonsets"
    } else {
        "deployments"
    };
    let Some(found) = access.get(&access.apps(&format!("{resource}/{name}"))).await? else {
        let findings = status.findings(name, name);
        findings.disabled = !required;
        if required {
            findings.errors.push(format!("{kind} {name} is not installed"));
        }
        return Ok(());
    };
    let counts = match kind {
        "DaemonSet" => Counts {
            kind: kind.to_owned(),
            desired: number(&found, "/status/desiredNumberScheduled"),
            ready: number(&found, "/status/numberReady"),
            available: number(&found, "/status/numberAvailable"),
            unavailable: number(&found, "/status/numberUnavailable"),
        },
        _ => Counts {
            kind: kind.to_owned(),
            desired: number(&found, "/status/replicas"),
            ready: number(&found, "/status/readyReplicas"),
            available: number(&found, "/status/availableReplicas"),
            unavailable: number(&found, "/status/unavailableReplicas"),
        },
    };
    let updated = match kind {
        "DaemonSet" => number(&found, "/status/updatedNumberScheduled"),
        _ => number(&found, "/status/updatedReplicas"),
    };
    let is_observed = number(&found, "/status/observedGeneration") >= number(&found, "/metadata/generation");
    let word = kind.to_lowercase();
    let findings = status.findings(name, name);
    if !is_observed {
        let text = format!("{word} {name} is updated but rollout has not started");
        findings.errors.push(text);
    } else if updated < counts.desired {
        findings.errors.push(format!(
            "{word} {name} is rolling out - {updated} out of {} pods updated",
            counts.desired
        ));
    }
    if counts.desired == 0 {
        findings.errors.push(format!("{kind} {name} has no pods"));
    }
    let unready = counts.desired - counts.ready;
    if unready > 0 {
        let text = format!("{unready} pods of {kind} {name} are not ready");
        findings.errors.push(text);
    }
    let unavailable = counts.desired - counts.available;
    if unavailable > 0 {
        let text = format!("{unavailable} pods of {kind} {name} are not available");
        findings.errors.push(text);
    }
    status.pod_state.insert(name.to_owned(), counts);
    for pod in access.pods(access.namespace(), labels).await? {
        pod_of(access, status, name, &pod).await;
    }
    Ok(())
}

async fn pod_of(access: &Access, status: &mut Status, component: &str, pod: &Pod) {
    let phases = status.phase_count.entry(component.to_owned()).or_default();
    *phases.entry(pod.phase().to_owned()).or_default() += 1;
    let containers = pod.object["spec"]["containers"].as_array();
    for container in containers.into_iter().flatten() {
        let images = status.image_count.entry(component.to_owned()).or_default();
        *images.entry(text(container, "/image").to_owned()).or_default() += 1;
    }
    // As long as an init container has not ended, that is what the others wait for.
    let init = pod.object["status"]["initContainerStatuses"].as_array();
    let has_failed = |state: &&Value| state.pointer("/state/terminated/exitCode") != Some(&Value::from(0));
    let first = init.into_iter().flatten().find(has_failed);
    let states = pod.object["status"]["containerStatuses"].as_array();
    let states = states.into_iter().flatten().filter(|_| first.is_none());
    for state in first.into_iter().chain(states) {
        let name = text(state, "/name");
        let waiting = text(state, "/state/waiting/reason");
        let is_running = !state["state"]["running"].is_null();
        let what = match waiting {
            "CrashLoopBackOff" => format!("container {name} is in CrashLoopBackOff"),
            "ErrImagePull" | "ImagePullBackOff" => {
                format!(
                    "container {name} has no image: {}",
                    text(state, "/state/waiting/message")
                )
            }
            _ if is_running => continue,
            _ => format!("container {name} is not running"),
        };
        let log = match waiting {
            "CrashLoopBackOff" => access.log(pod, name, "&previous=true&tailLines=1").await,
            _ => access.log(pod, name, "&tailLines=1").await,
        };
        let last = log.ok().and_then(|log| log.lines().last().map(str::to_owned));
        let what = match last {
            Some(last) => format!("{what}, last log line: {last}"),
            None => what,
        };
        status.findings(component, &pod.name).errors.push(what);
    }
}

async fn agents(access: &Access, status: &mut Status, workers: usize) -> Result<(), AccessError> {
    let running = access
        .agents()
        .await?
        .into_iter()
        .filter(|pod| pod.phase() == "Running");
    let asked = running.map(|pod| async move {
        let answers = (
            access.agent_json(&pod, &["status"]).await,
            access.agent_json(&pod, &["endpoint", "list"]).await,
        );
        (pod, answers)
    });
    let mut answers = stream::iter(asked).buffer_unordered(workers.max(1));
    while let Some((pod, (answer, endpoints))) = answers.next().await {
        match answer {
            Ok(answer) => {
                parts(&answer, status.findings("cilium", &pod.name));
                status.cilium_status.insert(pod.name.clone(), answer);
            }
            Err(error) => {
                let text = format!("unable to retrieve cilium status: {error}");
                status.findings("cilium", &pod.name).errors.push(text);
            }
        }
        match endpoints {
            Ok(endpoints) => {
                let all = endpoints.as_array().into_iter().flatten();
                let unready = all.filter(|one| text(one, "/status/state") != "ready").count();
                if unready > 0 {
                    let text = format!("{unready} endpoints are not ready");
                    status.findings("cilium", &pod.name).warnings.push(text);
                }
                status.cilium_endpoints.insert(pod.name.clone(), endpoints);
            }
            Err(error) => {
                let text = format!("unable to retrieve cilium endpoint information: {error}");
                status.findings("cilium", &pod.name).errors.push(text);
            }
        }
    }
    Ok(())
}

fn parts(answer: &Value, findings: &mut super::Findings) {
    for (part, name) in PARTS {
        let state = match part {
            "cluster" => &answer["cluster"]["ciliumHealth"],
            part => &answer[part],
        };
        match text(state, "/state") {
            "Failure" => findings.errors.push(format!("{name}: {}", text(state, "/msg"))),
            "Warning" => findings.warnings.push(format!("{name}: {}", text(state, "/msg"))),
            _ => {}
        }
    }
    for controller in answer["controllers"].as_array().into_iter().flatten() {
        let failures = number(controller, "/status/consecutive-failure-count");
        if failures > 0 {
            findings.errors.push(format!(
                "controller {} is failing since {} ({failures}x): {}",
                text(controller, "/name"),
                text(controller, "/status/last-failure-timestamp"),
                text(controller, "/status/last-failure-msg"),
            ));
        }
    }
}

async fn pods(access: &Access, status: &mut Status) -> Result<(), AccessError> {
    let pods = access.list("/api/v1/pods").await?;
    let mut own = pods.iter().filter(|pod| {
        pod["spec"]["hostNetwork"] != true && matches!(text(pod, "/status/phase"), "Running" | "Pending")
    });
    let names: std::collections::BTreeSet<(&str, &str)> = own
        .by_ref()
        .map(|pod| (text(pod, "/metadata/namespace"), text(pod, "/metadata/name")))
        .collect();
    let endpoints = access.list("/apis/cilium.io/v2/ciliumendpoints").await?;
    status.pods_count.all = names.len();
    status.pods_count.managed = endpoints
        .iter()
        .filter(|one| names.contains(&(text(one, "/metadata/namespace"), text(one, "/metadata/name"))))
        .count();
    Ok(())
}

async fn settings(access: &Access, status: &mut Status) -> Result<(), AccessError> {
    let settings = access.settings().await?;
    let annotations = settings.0["metadata"]["annotations"].as_object();
    for (key, value) in annotations.into_iter().flatten() {
        if key.starts_with("config.cilium.io") {
            let text = value.as_str().unwrap_or_default();
            status.config_errors.push(text.to_owned());
        }
    }
    Ok(())
}
