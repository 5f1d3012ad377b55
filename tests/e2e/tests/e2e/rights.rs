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
use skep_k8s_client::WriteOptions;
use skep_k8s_types::Kind;
use skep_lab::{
    lab_options::LabOptions,
    session::{client_pod, dual_stack_service, echo_pod},
};

/// Verb, API group and resource.
type Right = (String, String, String);

/// Rights that the requests of this test do not need, `account verb group/resource`, by what does.
const OTHERWISE: &[(&str, &[&str])] = &[
    (
        "the init container `config`",
        &[
            "cilium get /configmaps",
            "cilium get /nodes",
            "cilium list cilium.io/ciliumnodeconfigs",
            "cilium watch cilium.io/ciliumnodeconfigs",
        ],
    ),
    ("the Service of an etcd", &["cilium get /services"]),
    (
        "changes of objects that are there",
        &[
            "cilium update cilium.io/ciliumidentities",
            "cilium patch cilium.io/ciliumendpoints",
            "cilium update cilium.io/ciliumnodes",
            "cilium-operator update apiextensions.k8s.io/customresourcedefinitions",
            "cilium-operator get cilium.io/ciliumloadbalancerippools",
            "cilium-operator get /services",
        ],
    ),
    (
        "IPAM of other modes",
        &[
            "cilium update cilium.io/ciliumnodes/status",
            "cilium-operator get cilium.io/ciliumnodes",
            "cilium-operator update cilium.io/ciliumnodes",
            "cilium-operator update cilium.io/ciliumnodes/status",
        ],
    ),
    ("`nodeIPAM.enabled`", &["cilium-operator update /services/status"]),
    (
        "the definitions, which the lab has",
        &["cilium-operator create apiextensions.k8s.io/customresourcedefinitions"],
    ),
    (
        "taints and conditions of nodes",
        &[
            "cilium-operator patch /nodes",
            "cilium-operator patch /nodes/status",
        ],
    ),
    ("pods without an endpoint", &["cilium-operator delete /pods"]),
    (
        "garbage collection",
        &[
            "cilium-operator delete cilium.io/ciliumendpoints",
            "cilium-operator delete cilium.io/ciliumendpointslices",
            "cilium-operator delete cilium.io/ciliumidentities",
            "cilium-operator update cilium.io/ciliumidentities",
            "cilium-operator delete cilium.io/ciliumnodes",
        ],
    ),
    (
        "Secrets of policies",
        &[
            "cilium-operator get /secrets",
            "cilium-operator list /secrets",
            "cilium-operator watch /secrets",
            "cilium-operator create /secrets",
            "cilium-operator update /secrets",
            "cilium-operator delete /secrets",
            "cilium-operator list cilium.io/ciliumnetworkpolicies",
            "cilium-operator watch cilium.io/ciliumnetworkpolicies",
            "cilium-operator list cilium.io/ciliumclusterwidenetworkpolicies",
            "cilium-operator watch cilium.io/ciliumclusterwidenetworkpolicies",
        ],
    ),
];

/// Rights of an account as in [`OTHERWISE`].
fn lines(account: &str, rights: &BTreeSet<Right>) -> BTreeSet<String> {
    let line = |(verb, group, resource): &Right| format!("{account} {verb} {group}/{resource}");
    rights.iter().map(line).collect()
}

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
async fn the_roles_of_the_chart_are_what_requests_need() {
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
    let pool = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumLoadBalancerIPPool", "metadata": {"name": "pool"},
        "spec": {"blocks": [{"cidr": "192.0.2.0/24"}, {"cidr": "2001:db8::/112"}]},
    });
    let pools = Kind::new(
        "cilium.io",
        "v2",
        "CiliumLoadBalancerIPPool",
        "ciliumloadbalancerippools",
        false,
    );
    let client = lab.session.client();
    client
        .create(&pools, "", pool, &WriteOptions::default())
        .await
        .unwrap();
    lab.endpoints("c1-n1", 1).await;
    lab.endpoints("c1-n2", 1).await;
    let server = SocketAddr::from(([172, 30, 1, 250], 6443));
    lab.wait("the service has an address of the pool", || async {
        let used = lines("", &needed(&audit(&lab, server), &["skep-operator"]));
        used.contains(" patch /services/status")
            && used.contains(" patch cilium.io/ciliumloadbalancerippools/status")
    })
    .await;
    lab.restart_agent("c1-n2").await;
    lab.clear().await;

    let requests = audit(&lab, server);
    let programs: [(&[&str], &str); 2] = [
        (&["skep-agent"], "cilium"),
        (&["skep-operator", "leader-election"], "cilium-operator"),
    ];
    let otherwise: Vec<String> = OTHERWISE
        .iter()
        .flat_map(|(_, lines)| lines.iter().map(|line| (*line).to_owned()))
        .collect();
    let mut all = BTreeSet::new();
    for (clients, account) in programs {
        let (granted, needed) = (granted(&manifest, account), needed(&requests, clients));
        let missing: Vec<_> = needed.difference(&granted).collect();
        assert!(
            !needed.is_empty() && missing.is_empty(),
            "{account} has no right to {missing:#?}"
        );
        let unused = &lines(account, &granted) - &lines(account, &needed);
        let unused: Vec<_> = unused.iter().filter(|line| !otherwise.contains(line)).collect();
        assert!(unused.is_empty(), "no request needs the rights {unused:#?}");
        all.extend(lines(account, &granted));
    }
    let stale: Vec<_> = otherwise.iter().filter(|line| !all.contains(*line)).collect();
    assert!(stale.is_empty(), "not granted: {stale:#?}");
}
