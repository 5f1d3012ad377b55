// SPDX-License-Identifier: Apache-2.0

//! Identities that the operator creates and deletes.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use skep_k8s_types::Kind;

use super::world::{World, until};

static ENDPOINTS: Kind = Kind::new("cilium.io", "v2", "CiliumEndpoint", "ciliumendpoints", true);
static IDENTITIES: Kind = Kind::new("cilium.io", "v2", "CiliumIdentity", "ciliumidentities", false);

/// Label `app` of all identities, with their names.
async fn identities(world: &World) -> BTreeMap<String, String> {
    let client = world.cluster.client();
    let Ok(page) = client.list(&IDENTITIES, "", &Default::default()).await else {
        // The kind is not defined yet.
        return BTreeMap::new();
    };
    let objects = page.items.iter().map(|item| item.to_value().expect("it is JSON"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    objects
        .map(|object| {
            let app = text(&object["security-labels"]["k8s:app"]);
            (app, text(&object["metadata"]["name"]))
        })
        .collect()
}

/// Pods change their labels and are deleted while identities for their former labels are being created: these identities are
/// garbage collected, and that of the pod that stays is not.
#[tokio::test(flavor = "multi_thread")]
async fn labels_that_change_while_pods_go_leave_no_identity() {
    let world = World::start().await;
    let mut operator = world.operator(
        "operator",
        &[
            "--identity-allocation-mode=crd",
            "--identity-management-mode=operator",
            "--identity-gc-interval=500ms",
            "--identity-heartbeat-timeout=3s",
        ],
    );
    world.next_leader("").await;
    let pod = |name: &str, app: &str| {
        json!({
            "metadata": { "name": name, "namespace": "kube-system", "labels": { "app": app } },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        })
    };
    world.cluster.create(&Kind::POD, pod("stays", "stays")).await;
    until("the pod has an identity", async || {
        identities(&world).await.contains_key("stays")
    })
    .await;
    // Its endpoint uses the identity.
    let before = identities(&world).await;
    let id: u32 = before["stays"].parse().expect("the name is the number");
    let endpoint = json!({
        "metadata": { "name": "stays", "namespace": "kube-system" },
        "status": { "identity": { "id": id } },
    });
    world.cluster.create(&ENDPOINTS, endpoint).await;

    for round in 0..20 {
        let name = format!("goes-{round}");
        world
            .cluster
            .create(&Kind::POD, pod(&name, &format!("before-{round}")))
            .await;
        if round % 2 == 0 {
            // The other pods are deleted before they have one.
            let before = format!("before-{round}");
            until("the pod has an identity", async || {
                identities(&world).await.contains_key(&before)
            })
            .await;
        }
        let after = json!({ "metadata": { "labels": { "app": format!("after-{round}") } } });
        world.cluster.patch(&Kind::POD, "kube-system", &name, after).await;
        world.cluster.delete(&Kind::POD, "kube-system", &name).await;
    }

    until("only the identity of the pod that stays is left", async || {
        identities(&world).await == before
    })
    .await;
    operator.wait_healthz("200 ok").await;
    operator.terminate();
    assert_eq!(operator.wait_exit().await, Some(0), "{}", operator.log());
    world.stop().await;
}
