// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    desired::{Action, Desired, cron_job, daemon_set, deployment, job},
    schedule::node_for,
};

fn node(name: &str) -> Arc<Value> {
    Arc::new(json!({"metadata": {"name": name, "labels": {"os": "linux"}}}))
}

fn workload(kind: &str, image: &str, spec: Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": kind, "metadata": {"namespace": "n", "name": "w", "uid": "u"}, "spec": spec,
    });
    object["spec"]["template"] =
        json!({"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"image": image}]}});
    object
}

/// The pods that result if all actions are carried out, each ready.
fn after(desired: Desired, before: &[Arc<Value>]) -> Vec<Arc<Value>> {
    let mut pods = before.to_vec();
    for action in desired.actions {
        match action {
            Action::Create(_, mut pod) => {
                pod["status"] =
                    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
                pods.push(Arc::new(pod));
            }
            Action::Delete(name) => pods.retain(|pod| pod["metadata"]["name"] != name.as_str()),
            Action::Bind(_) => {}
        }
    }
    pods
}

fn images(pods: &[Arc<Value>]) -> String {
    let mut all: Vec<&str> = pods
        .iter()
        .map(|pod| pod["spec"]["containers"][0]["image"].as_str().unwrap())
        .collect();
    all.sort_unstable();
    all.concat()
}

#[test]
fn a_daemon_set_has_a_pod_on_each_node_and_replaces_one_after_the_other() {
    let nodes = [node("n1"), node("n2")];
    let pods = after(
        daemon_set(&workload("DaemonSet", "a", json!({})), &[], &nodes),
        &[],
    );
    assert_eq!(images(&pods), "aa");

    let changed = workload("DaemonSet", "b", json!({}));
    let desired = daemon_set(&changed, &pods, &nodes);
    assert_eq!(desired.status.as_ref().unwrap()["updatedNumberScheduled"], 0);
    assert_eq!(desired.actions.len(), 1, "{desired:?}");
    let pods = after(desired, &pods);
    let pods = after(daemon_set(&changed, &pods, &nodes), &pods);
    assert_eq!(images(&pods), "ab");
    assert!(!daemon_set(&changed, &pods, &nodes[..1]).actions.is_empty());
}

#[test]
fn a_daemon_set_leaves_nodes_that_its_affinity_excludes() {
    let nodes = [node("n1"), node("n2")];
    let pods = after(
        daemon_set(&workload("DaemonSet", "a", json!({})), &[], &nodes),
        &[],
    );
    let mut object = workload("DaemonSet", "a", json!({}));
    let term = json!({"matchExpressions": [
        {"key": "os", "operator": "In", "values": ["linux"]},
        {"key": "migrated", "operator": "NotIn", "values": ["true"]},
    ]});
    object["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"] = json!([term]);
    let mut migrated = (*nodes[0]).clone();
    migrated["metadata"]["labels"]["migrated"] = "true".into();
    let nodes = [Arc::new(migrated), nodes[1].clone()];

    let mut pods = pods;
    for _ in 0..3 {
        pods = after(daemon_set(&object, &pods, &nodes), &pods);
    }

    let places: Vec<_> = pods.iter().map(|pod| &pod["spec"]["nodeName"]).collect();
    assert_eq!(places, ["n2"]);
}

#[test]
fn a_deployment_rolls_without_fewer_pods_than_it_may_have() {
    let spec = json!({"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}});
    let mut pods = after(deployment(&workload("Deployment", "a", spec.clone()), &[]), &[]);
    assert_eq!(images(&pods), "aa");

    let changed = workload("Deployment", "b", spec);
    for _ in 0..6 {
        pods = after(deployment(&changed, &pods), &pods);
        assert!((2..=3).contains(&pods.len()), "{pods:?}");
    }

    assert_eq!(images(&pods), "bb");
    let status = deployment(&changed, &pods).status.unwrap();
    assert_eq!(
        (&status["availableReplicas"], &status["updatedReplicas"]),
        (&json!(2), &json!(2))
    );
}

#[test]
fn a_job_tries_again_until_a_pod_succeeds() {
    let object = workload("Job", "a", json!({"backoffLimit": 1}));
    let with_phase = |pods: &[Arc<Value>], phase: &str| -> Vec<Arc<Value>> {
        let mut last = (**pods.last().unwrap()).clone();
        last["status"]["phase"] = phase.into();
        let before = pods[..pods.len() - 1].iter().cloned();
        before.chain([Arc::new(last)]).collect()
    };
    let pods = after(job(&object, &[]), &[]);
    let failed = with_phase(&pods, "Failed");
    let pods = after(job(&object, &failed), &failed);
    assert_eq!(pods.len(), 2);

    let done = job(&object, &with_phase(&pods, "Succeeded"));
    assert!(done.actions.is_empty());
    assert_eq!(done.status.unwrap()["conditions"][0]["type"], "Complete");
    let given_up = job(&object, &with_phase(&pods, "Failed"));
    assert_eq!(given_up.status.unwrap()["conditions"][0]["type"], "Failed");
}

#[test]
fn a_cron_job_runs_at_its_times() {
    let object =
        json!({"metadata": {"name": "c"}, "spec": {"schedule": "0 0 1 */4 *", "jobTemplate": {"spec": {}}}});
    let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
    for (last, now, runs) in [
        ("2026-04-30T23:59:00Z", "2026-05-01T00:00:30Z", true),
        ("2026-05-01T00:00:30Z", "2026-05-01T00:01:30Z", false),
        ("2026-06-30T23:59:00Z", "2026-07-01T00:00:30Z", false),
    ] {
        assert_eq!(cron_job(&object, Some(at(last)), at(now)).1, runs, "{now}");
    }
}

#[test]
fn pods_that_repel_each_other_are_on_different_nodes() {
    let repelling = |name: &str, node: &str| {
        Arc::new(json!({
            "metadata": {"name": name, "namespace": "n", "labels": {"app": "o"}},
            "spec": {"nodeName": node, "nodeSelector": {"os": "linux"}, "affinity": {"podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {"matchLabels": {"app": "o"}}, "topologyKey": "kubernetes.io/hostname"}]}}},
        }))
    };
    let nodes = [node("n1"), node("n2")];
    let first = repelling("a", "n1");
    let pod = repelling("b", "");

    assert_eq!(
        node_for(&pod, std::slice::from_ref(&first), &nodes).unwrap(),
        "n2"
    );
    assert_eq!(node_for(&pod, &[first], &nodes[..1]), None);
}
