// SPDX-License-Identifier: Apache-2.0

//! Pods of the lab, as their users see them.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::{Value, json};
use skep_e2e::TestLab;
use skep_k8s::{Kind, ListOptions};
use skep_lab::{cgroup, machine::Site};

const POD: Kind = Kind::new("", "v1", "Pod", "pods", true);
const EVENT: Kind = Kind::new("", "v1", "Event", "events", true);

async fn pod(lab: &TestLab, name: &str) -> Value {
    let pod = lab.session.client().get(&POD, "default", name).await.unwrap();
    (*pod.to_value().unwrap()).clone()
}

/// Reason, message and count of the events of a pod.
async fn events(lab: &TestLab, name: &str) -> Vec<(String, String, u64)> {
    let list = lab
        .session
        .client()
        .list(&EVENT, "default", &ListOptions::default())
        .await;
    let items = list.unwrap().items;
    let values = items.iter().map(|item| item.to_value().unwrap());
    values
        .filter(|event| event["involvedObject"]["name"] == name)
        .map(|event| {
            let text = |key: &str| event[key].as_str().unwrap().to_owned();
            (text("reason"), text("message"), event["count"].as_u64().unwrap())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_crashes_is_started_again_and_its_events_say_so() {
    let lab = TestLab::up("crashing", 1, &[]).await;
    // One port under two names is valid.
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": "web-0"},
        "spec": {"containers": [{"name": "web", "image": "skep-lab/echo", "ports": [
            {"name": "http", "containerPort": 8080}, {"name": "metrics", "containerPort": 8080}]}]},
    });
    lab.create_all([object]).await;
    lab.session
        .wait("the pod is ready", || async {
            pod(&lab, "web-0").await["status"]["containerStatuses"][0]["ready"] == true
        })
        .await
        .unwrap();
    let first = pod(&lab, "web-0").await;
    assert_eq!(first["status"]["containerStatuses"][0]["name"], "web");
    assert_eq!(first["status"]["containerStatuses"][0]["restartCount"], 0);
    let state = lab.session.state().unwrap();
    let node = state.lab.node("c1-n1").unwrap();
    let group = Site::of(lab.name())
        .unwrap()
        .node_cgroup(node)
        .join("pods/default.web-0");

    for times in 1..=2 {
        let process = cgroup::processes(&group)[0].to_string();
        lab.session
            .run("c1-n1", &["kill", "-KILL", &process])
            .await
            .unwrap();
        lab.session
            .wait("the pod is started again", || async {
                let status = pod(&lab, "web-0").await["status"]["containerStatuses"][0].clone();
                status["restartCount"] == times && status["ready"] == true
            })
            .await
            .unwrap();
    }

    let status = pod(&lab, "web-0").await["status"]["containerStatuses"][0].clone();
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 137, "{status}");
    lab.session
        .wait("the third start is counted", || async {
            let events = events(&lab, "web-0").await;
            events
                .iter()
                .any(|(reason, _, count)| reason == "Started" && *count == 3)
        })
        .await
        .unwrap();
    let uid = first["metadata"]["uid"].as_str().unwrap();
    let event = |reason: &str, message: &str, count| (reason.to_owned(), message.to_owned(), count);
    let mut seen = events(&lab, "web-0").await;
    seen.sort();
    assert_eq!(
        seen,
        [
            event(
                "BackOff",
                &format!("Back-off restarting failed container web in pod web-0_default({uid})"),
                2
            ),
            event("Created", "Created container: web", 3),
            event(
                "Pulled",
                "Container image \"skep-lab/echo\" already present on machine",
                3
            ),
            event("Scheduled", "Successfully assigned default/web-0 to c1-n1", 1),
            event("Started", "Started container web", 3),
        ]
    );
}
