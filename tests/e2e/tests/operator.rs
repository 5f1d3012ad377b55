// SPDX-License-Identifier: Apache-2.0

//! The operator of a lab: elected, and at work on the cluster's API server.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::{Value, json};
use skep_e2e::{TestLab, shape};
use skep_k8s_client::ListOptions;
use skep_k8s_types::Kind;
use skep_lab::{
    cgroup,
    command::Shape,
    machine::Site,
    session::{dual_stack_service, echo_pod},
};

static LEASES: Kind = Kind::new("coordination.k8s.io", "v1", "Lease", "leases", true);
static SERVICES: Kind = Kind::new("", "v1", "Service", "services", true);
static IDENTITIES: Kind = Kind::new("cilium.io", "v2", "CiliumIdentity", "ciliumidentities", false);

async fn get(lab: &TestLab, kind: &Kind, namespace: &str, name: &str) -> Value {
    let found = lab.session.client().get(kind, namespace, name).await;
    found
        .ok()
        .and_then(|object| Some((*object.to_value().ok()?).clone()))
        .unwrap_or_default()
}

async fn holder(lab: &TestLab) -> String {
    let lease = get(lab, &LEASES, "kube-system", "cilium-operator-resource-lock").await;
    lease["spec"]["holderIdentity"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Applications that have an identity.
async fn identities(lab: &TestLab) -> Vec<String> {
    let listed = lab
        .session
        .client()
        .list(&IDENTITIES, "", &ListOptions::default())
        .await;
    let items = listed.map(|list| list.items).unwrap_or_default();
    items
        .iter()
        .filter_map(|object| {
            object.to_value().ok()?["security-labels"]["k8s:app"]
                .as_str()
                .map(str::to_owned)
        })
        .collect()
}

async fn address_of(lab: &TestLab, service: &str) -> String {
    let service = get(lab, &SERVICES, "default", service).await;
    service["status"]["loadBalancer"]["ingress"][0]["ip"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_allocates_identities_and_addresses_also_after_a_crash() {
    let lab = TestLab::up_with(
        "operator",
        Shape {
            operator: true,
            operator_config: [
                "identity-management-mode=operator",
                "leader-election-lease-duration=4s",
                "leader-election-renew-deadline=3s",
                "leader-election-retry-period=500ms",
            ]
            .map(str::to_owned)
            .into(),
            ..shape(1, &[], None)
        },
    )
    .await;
    let first = holder(&lab).await;
    assert_ne!(first, "", "the lab is up when the operator leads");

    let pool = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumLoadBalancerIPPool",
        "metadata": { "name": "lab" },
        "spec": { "blocks": [{ "cidr": "192.0.2.0/24" }] },
    });
    lab.create_all([pool, echo_pod("web-0", "web", "c1-n1")]).await;
    let service = |name: &str| {
        let mut service = dual_stack_service(
            name,
            &json!({ "type": "LoadBalancer", "selector": { "app": "web" } }),
        );
        service["spec"]["ipFamilies"] = json!(["IPv4"]);
        service["spec"]["ipFamilyPolicy"] = json!("SingleStack");
        service
    };
    lab.create_all([service("shop")]).await;

    lab.session
        .wait("the pod has an identity", || async {
            identities(&lab).await.iter().any(|app| app == "web")
        })
        .await
        .unwrap();
    lab.session
        .wait("the service has an address", || async {
            address_of(&lab, "shop").await.starts_with("192.0.2.")
        })
        .await
        .unwrap();

    cgroup::kill(&Site::of(lab.name()).unwrap().cgroup.join("operators/c1"));
    lab.create_all([service("second")]).await;

    lab.session
        .wait("the next one allocates as well", || async {
            address_of(&lab, "second").await.starts_with("192.0.2.")
        })
        .await
        .unwrap();
    assert_ne!(holder(&lab).await, first);
    assert_ne!(address_of(&lab, "second").await, address_of(&lab, "shop").await);
}
