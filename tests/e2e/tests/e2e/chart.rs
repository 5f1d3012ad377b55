// SPDX-License-Identifier: Apache-2.0

//! The chart in a lab: its pods run in containerd, by the lab's kubelet.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::{Value, json};
use skep_e2e::{TestLab, lab_options};
use skep_k8s_client::ListOptions;
use skep_k8s_types::Kind;
use skep_lab::{
    command,
    install::{RELEASE, TOOLS_IMAGE},
    lab_options::LabOptions,
};

async fn pods(lab: &TestLab, namespace: &str) -> Vec<Value> {
    let listed = lab
        .session
        .client()
        .list(&Kind::POD, namespace, &ListOptions::default())
        .await;
    let items = listed.unwrap().items;
    items
        .iter()
        .map(|item| (*item.to_value().unwrap()).clone())
        .collect()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_chart_is_installed_connects_pods_and_is_uninstalled() {
    let lab_options = LabOptions {
        install: true,
        chart: concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/helm/skep").into(),
        ..lab_options(1, &[], None)
    };
    let lab = TestLab::up_with("chart", lab_options.clone()).await;
    let state = lab.session.state().unwrap();
    command::install(&state, &lab_options).await.unwrap();
    lab.wait("agent and operator are ready", || async {
        let pods = pods(&lab, RELEASE.1).await;
        pods.len() == 2 && pods.iter().all(is_ready)
    })
    .await;

    // A secret in its environment and a changing ConfigMap in a file.
    let config = |color: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default", "name": "c"}, "data": {"color": color},
        })
    };
    let script = "test \"$COLOR\" = red && until grep -q green /etc/c/color; do sleep 0.1; done && \
        exec skep-lab echo --name web --tcp 8080";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": "web"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": TOOLS_IMAGE, "command": ["/bin/busybox", "sh", "-c", script],
                "env": [{"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "color"}}}],
                "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
                "volumeMounts": [{"name": "c", "mountPath": "/etc/c"}],
            }],
            "volumes": [{"name": "c", "configMap": {"name": "c"}}],
        },
    });
    lab.create_all([config("red"), pod]).await;
    lab.wait("the pod runs", || async {
        pods(&lab, "default").await[0]["status"]["phase"] == "Running"
    })
    .await;
    assert!(!is_ready(&pods(&lab, "default").await[0]));
    let change = json!({"data": {"color": "green"}});
    lab.session
        .merge(&config("red"), Default::default(), change)
        .await
        .unwrap();
    lab.wait("the pod is ready", || async {
        is_ready(&pods(&lab, "default").await[0])
    })
    .await;
    let endpoints = Kind::new("cilium.io", "v2", "CiliumEndpoint", "ciliumendpoints", true);
    let endpoint = lab
        .session
        .client()
        .get(&endpoints, "default", "web")
        .await
        .unwrap();
    let address = endpoint.to_value().unwrap()["status"]["networking"]["addressing"][0]["ipv4"].clone();
    assert_eq!(address, pods(&lab, "default").await[0]["status"]["podIP"]);

    lab.clear().await;
    let kubeconfig = state.kubeconfig("c1").unwrap();
    let uninstalled = tokio::process::Command::new("helm")
        .args(["uninstall", RELEASE.0, "--namespace", RELEASE.1, "--kubeconfig"])
        .arg(kubeconfig)
        .output()
        .await
        .unwrap();
    assert!(uninstalled.status.success(), "{uninstalled:?}");
    lab.wait("all pods are gone", || async { pods(&lab, "").await.is_empty() })
        .await;
}
