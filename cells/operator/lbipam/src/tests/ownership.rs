// SPDX-License-Identifier: Apache-2.0

//! What other controllers write, and the generations that conditions are about.

use serde_json::{Value, json};
use skep_k8s_memory::Subresource;

use super::cluster::{Cluster, pools, services};

/// A pool for services with label `team: red`.
fn red(cidr: &str) -> Value {
    json!({ "blocks": [{ "cidr": cidr }], "serviceSelector": { "matchLabels": { "team": "red" } } })
}

fn team_red(service: &mut Value) {
    service["metadata"]["labels"]["team"] = "red".into();
}

/// Another controller writes the ingress of a service.
fn writes(cluster: &Cluster, name: &str, ingress: Value) {
    let status = json!({ "status": { "loadBalancer": { "ingress": ingress } } });
    cluster.patch(&services(), "default", name, Subresource::Status, status);
}

fn ingress(cluster: &Cluster, name: &str) -> Value {
    let service = cluster.api.get(&services(), "default", name).unwrap();
    let mut ingress = service["status"]["loadBalancer"]["ingress"].clone();
    for entry in ingress.as_array_mut().into_iter().flatten() {
        entry.as_object_mut().unwrap().shift_remove("ipMode");
    }
    ingress
}

const NO_POOL: &str = "False no_pool: There are no enabled pools with IPv4 addresses that match this service";

#[tokio::test(start_paused = true)]
async fn what_another_controller_wrote_stays_where_no_pool_serves() {
    let cluster = Cluster::new();
    for name in ["address", "hostname", "later"] {
        cluster.service(name, |_| {});
    }
    // In the range of the pool, which is for others.
    let address = json!([{ "ip": "192.0.2.0" }]);
    let hostname = json!([{ "hostname": "lb.example.com" }]);
    writes(&cluster, "address", address.clone());
    writes(&cluster, "hostname", hostname.clone());
    cluster.pool("red", red("192.0.2.0/29"));

    let operator = cluster.operator(&[]).await;
    cluster.service("web", team_red);
    cluster.shows("web", "[192.0.2.1] True satisfied: ").await;
    cluster.shows("later", &format!("[] {NO_POOL}")).await;
    writes(&cluster, "later", address.clone());
    cluster.settle().await;
    operator.stop().await.unwrap();
    let operator = cluster.operator(&[]).await;
    cluster.service("more", team_red);
    cluster.shows("more", "[192.0.2.2] True satisfied: ").await;
    cluster.settle().await;

    for (name, expected) in [
        ("address", &address),
        ("hostname", &hostname),
        ("later", &address),
    ] {
        assert_eq!(ingress(&cluster, name), *expected, "{name}");
    }

    // A pool that serves them has precedence.
    cluster.pool("all", json!({ "blocks": [{ "cidr": "198.51.100.0/29" }] }));
    for name in ["address", "hostname", "later"] {
        let is_served = |cluster: &Cluster| cluster.shown(name).starts_with("[198.51.100.");
        cluster.wait(true, is_served).await;
        assert_eq!(ingress(&cluster, name).as_array().unwrap().len(), 1);
    }
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn another_controller_can_take_over_with_the_same_address() {
    let cluster = Cluster::new();
    cluster.pool("all", json!({ "blocks": [{ "cidr": "192.0.2.0/29" }] }));
    cluster.service("web", |_| {});
    let operator = cluster.operator(&[]).await;
    cluster.shows("web", "[192.0.2.0] True satisfied: ").await;
    operator.stop().await.unwrap();

    // It was allocated by a pool that is for others now: it goes, although this process has not allocated it.
    cluster.patch_pool("all", json!({ "spec": red("192.0.2.0/29") }));
    let operator = cluster.operator(&[]).await;
    cluster.shows("web", &format!("[] {NO_POOL}")).await;
    writes(&cluster, "web", json!([{ "ip": "192.0.2.0" }]));
    cluster.settle().await;

    assert_eq!(cluster.shown("web"), format!("[192.0.2.0] {NO_POOL}"));
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn services_that_are_given_up_keep_the_addresses_of_others() {
    let cluster = Cluster::new();
    cluster.pool("all", json!({ "blocks": [{ "cidr": "192.0.2.0/29" }] }));
    cluster.service("web", |_| {});
    let operator = cluster.operator(&[]).await;
    cluster.shows("web", "[192.0.2.0] True satisfied: ").await;
    operator.stop().await.unwrap();
    let others = json!([{ "ip": "203.0.113.9" }, { "hostname": "lb.example.com" }]);
    writes(&cluster, "web", others.clone());

    let operator = cluster.operator(&["--default-lb-service-ipam=none"]).await;

    cluster.shows("web", "[203.0.113.9]").await;
    assert_eq!(ingress(&cluster, "web"), others);
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn conditions_carry_the_generation_that_they_are_about() {
    let cluster = Cluster::new();
    cluster.pool("blue", json!({ "blocks": [{ "cidr": "192.0.2.0/29" }] }));
    let operator = cluster.operator(&[]).await;
    let observed = |cluster: &Cluster| -> Vec<(String, i64)> {
        let pool = cluster.api.get(&pools(), "", "blue").unwrap();
        let conditions = pool["status"]["conditions"].as_array().cloned();
        let observed = |condition: &Value| {
            let kind = condition["type"].as_str().unwrap().replace("cilium.io/", "");
            (kind, condition["observedGeneration"].as_i64().unwrap_or_default())
        };
        conditions.iter().flatten().map(observed).collect()
    };
    let all = |counts: i64, invalid: Option<i64>| {
        let counts = ["PoolConflict", "IPsTotal", "IPsAvailable", "IPsUsed"].map(|kind| (kind, counts));
        let invalid = invalid.map(|generation| ("PoolInvalid", generation));
        let all = counts.into_iter().chain(invalid);
        all.map(|(kind, generation)| (kind.to_owned(), generation))
            .collect::<Vec<_>>()
    };
    cluster.wait(all(1, None), observed).await;

    // Nothing but the generation changes.
    cluster.patch_pool("blue", json!({ "spec": { "disabled": true } }));
    cluster.wait(all(2, None), observed).await;
    cluster.patch_pool("blue", json!({ "spec": { "blocks": [{ "start": "x" }] } }));
    // The counts are those of the last valid specification.
    cluster.wait(all(2, Some(3)), observed).await;
    operator.stop().await.unwrap();
}
