// SPDX-License-Identifier: Apache-2.0

//! Rights of the chart's roles, compared with the requests of agent and operator.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::SocketAddr,
    path::Path,
};

use serde::Deserialize as _;
use serde_json::{Value, json};
use skep_e2e::{TestLab, lab_options};
use skep_lab::{
    lab_options::LabOptions,
    session::{client_pod, dual_stack_service, echo_pod},
};

/// Verb, API group and resource.
type Right = (String, String, String);

/// Rights of a service account's roles in the manifest.
fn granted(manifest: &[Value], account: &str) -> BTreeSet<Right> {
    let has_account = |binding: &&Value| {
        let subjects = binding["subjects"].as_array().into_iter().flatten();
        subjects.into_iter().any(|subject| subject["name"] == account)
    };
    let roles: Vec<_> = manifest
        .iter()
        .filter(|object| {
            object["kind"]
                .as_str()
                .is_some_and(|kind| kind.ends_with("RoleBinding"))
        })
        .filter(has_account)
        .map(|binding| {
            (
                binding["roleRef"]["kind"].clone(),
                binding["roleRef"]["name"].clone(),
            )
        })
        .collect();
    let is_bound =
        |object: &&Value| roles.contains(&(object["kind"].clone(), object["metadata"]["name"].clone()));
    let texts = |list: &Value| -> Vec<String> {
        let all = list.as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut rights = BTreeSet::new();
    for role in manifest.iter().filter(is_bound) {
        for rule in role["rules"].as_array().into_iter().flatten() {
            for verb in texts(&rule["verbs"]) {
                for group in texts(&rule["apiGroups"]) {
                    let resources = texts(&rule["resources"]).into_iter();
                    rights.extend(resources.map(|resource| (verb.clone(), group.clone(), resource)));
                }
            }
        }
    }
    rights
}

/// Rights that the requests of clients needed.
fn needed(audit: &[Value], clients: &[&str]) -> BTreeSet<Right> {
    let text = |access: &Value, name: &str| access[name].as_str().unwrap_or_default().to_owned();
    audit
        .iter()
        .filter(|access| {
            access["client"]
                .as_str()
                .is_some_and(|client| clients.contains(&client))
        })
        .map(|access| {
            (
                text(access, "verb"),
                text(access, "apiGroup"),
                text(access, "resource"),
            )
        })
        .collect()
}

fn audit(lab: &TestLab, server: SocketAddr) -> Vec<Value> {
    let mut stream = lab.place("c1-n1").connect(server).unwrap();
    stream
        .write_all(b"GET /debug/audit HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_roles_of_the_chart_cover_all_requests() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/manifest.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let manifest: Vec<Value> = serde_norway::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).unwrap())
        .collect();
    let lab = TestLab::up_with(
        "rights",
        LabOptions {
            operator: true,
            ..lab_options(2, &["enable-local-redirect-policy=false"], None)
        },
    )
    .await;
    lab.create_all([
        client_pod("client", "c1-n1"),
        echo_pod("web", "web", "c1-n2"),
        dual_stack_service("web", &json!({"type": "LoadBalancer"})),
        json!({
            "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"endpointSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"fromEntities": ["cluster"]}]},
        }),
    ])
    .await;
    lab.endpoints("c1-n1", 1).await;
    lab.endpoints("c1-n2", 1).await;
    let server = SocketAddr::from(([172, 30, 1, 250], 6443));
    lab.restart_agent("c1-n2").await;
    lab.clear().await;

    let requests = audit(&lab, server);
    let programs: [(&[&str], &str); 2] = [
        (&["skep-agent"], "cilium"),
        (&["skep-operator", "leader-election"], "cilium-operator"),
    ];
    for (clients, account) in programs {
        let (granted, needed) = (granted(&manifest, account), needed(&requests, clients));
        let missing: Vec<_> = needed.difference(&granted).collect();
        eprintln!(
            "{account} used {needed:#?}, unused: {:#?}",
            granted.difference(&needed)
        );
        assert!(
            !needed.is_empty() && missing.is_empty(),
            "{account} has no right to {missing:#?}"
        );
    }
}
