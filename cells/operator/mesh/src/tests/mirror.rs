// SPDX-License-Identifier: Apache-2.0

//! Mirrored EndpointSlices against an API server and remote clusters in memory.

use serde_json::{Value, json};
use skep_base_metrics::{MetricSet, Registry, exposition};
use skep_clustermesh_mesh::testing::FakeCluster;
use skep_clustermesh_types::{
    ClusterEndpointSlice, Conditions, Endpoint, EndpointPort, Kind as Values, TextEntry, keys,
};

use super::world::{World, capabilities, denied, faults, services, slices};

const SYNC: &str = "--clustermesh-enable-endpoint-sync";

/// A headless global Service `shop/<name>`.
fn headless(world: &World, name: &str) {
    let object = json!({
        "metadata": {
            "name": name,
            "labels": { "app": name },
            "annotations": { "service.cilium.io/global": "true" },
        },
        "spec": { "clusterIP": "None", "ports": [{ "name": "http", "port": 80 }] },
    });
    world.create(&services(), "shop", object);
}

fn addresses(slice: &Value) -> Vec<String> {
    let endpoints = slice["endpoints"].as_array().cloned().unwrap_or_default();
    let text = |endpoint: Value| endpoint["addresses"][0].as_str().unwrap().to_owned();
    endpoints.into_iter().map(text).collect()
}

/// Mirrored addresses of a service, sorted: `address@cluster`.
fn mirrored(world: &World, service: &str) -> String {
    let mut texts: Vec<String> = Vec::new();
    for slice in world.slices_of(service) {
        let labels = &slice["metadata"]["labels"];
        if labels["endpointslice.kubernetes.io/managed-by"] == "endpointslice-mesh-controller.cilium.io" {
            let cluster = labels["multicluster.kubernetes.io/source-cluster"]
                .as_str()
                .unwrap();
            texts.extend(
                addresses(&slice)
                    .iter()
                    .map(|address| format!("{address}@{cluster}")),
            );
        }
    }
    texts.sort();
    texts.join(" ")
}

async fn publish(cluster: &FakeCluster, name: &str, backends: &[&str]) {
    cluster.put_service(&cluster.service(name, backends)).await;
}

#[tokio::test(start_paused = true)]
async fn backends_of_remote_clusters_become_slices() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    let mut service = alder.service("cart", &["10.4.1.15"]);
    service.hostnames = [("10.4.1.15".to_owned(), "cart-0".to_owned())].into();
    alder.put_service(&service).await;
    world.join("alder");
    headless(&world, "cart");
    let operator = world.operator(&[SYNC]).await;

    world
        .until("10.4.1.15@alder".to_owned(), |w| mirrored(w, "cart"))
        .await;

    let slice = world.slices_of("cart").remove(0);
    let metadata = &slice["metadata"];
    assert_eq!(metadata["generateName"], "cart-alder-");
    assert_eq!(
        metadata["labels"],
        json!({
            "app": "cart",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-mesh-controller.cilium.io",
            "kubernetes.io/service-name": "cart",
            "multicluster.kubernetes.io/source-cluster": "alder",
            "service.kubernetes.io/headless": "",
        })
    );
    let owner = &metadata["ownerReferences"][0];
    assert_eq!(owner["kind"], "Service");
    assert_eq!(owner["uid"], world.get(&services(), "cart")["metadata"]["uid"]);
    assert_eq!(owner["controller"], true);
    assert_eq!(owner["blockOwnerDeletion"], true);
    assert_eq!(slice["addressType"], "IPv4");
    assert_eq!(
        slice["endpoints"],
        json!([{
            "addresses": ["10.4.1.15"],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "hostname": "cart-0",
            "nodeName": "alder",
            "zone": "alder",
            "targetRef": {
                "apiVersion": "cilium.io",
                "kind": "store.ClusterService",
                "name": "fake-pod-10.4.1.15",
                "namespace": "shop",
            },
        }])
    );
    assert_eq!(
        slice["ports"],
        json!([{ "name": "http", "port": 80, "protocol": "TCP" }])
    );

    // A restart writes nothing.
    world.settle().await;
    operator.stop().await.unwrap();
    world.client.take_writes();
    let operator = world.operator(&[SYNC]).await;
    world.settle().await;
    assert_eq!(world.client.take_writes(), [""; 0]);

    publish(&alder, "cart", &["10.4.1.16"]).await;
    world
        .until("10.4.1.16@alder".to_owned(), |w| mirrored(w, "cart"))
        .await;
    alder.delete(Values::Services, "shop/cart").await;
    world.until(0, |w| w.slices_of("cart").len()).await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn annotations_and_finalizers_of_others_stay() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    publish(&alder, "cart", &["10.4.1.15"]).await;
    world.join("alder");
    headless(&world, "cart");
    let operator = world.operator(&[SYNC]).await;
    world
        .until("10.4.1.15@alder".to_owned(), |w| mirrored(w, "cart"))
        .await;
    let name = world.slices_of("cart").remove(0)["metadata"]["name"].clone();
    let others = json!({ "annotations": { "example.com/a": "1" }, "finalizers": ["example.com/kept"] });
    world.patch(
        &slices(),
        "shop",
        name.as_str().unwrap(),
        json!({ "metadata": others }),
    );

    publish(&alder, "cart", &["10.4.1.16"]).await;

    world
        .until("10.4.1.16@alder".to_owned(), |w| mirrored(w, "cart"))
        .await;
    let slice = world.slices_of("cart").remove(0);
    assert_eq!(slice["metadata"]["name"], name);
    for field in ["annotations", "finalizers"] {
        assert_eq!(slice["metadata"][field], others[field]);
    }
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn annotations_decide_what_is_mirrored() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    publish(&alder, "cart", &["10.4.1.15"]).await;
    world.join("alder");
    world.service("cart", json!({ "ports": [{ "port": 80 }] }));
    let operator = world.operator(&[SYNC]).await;
    let annotate = |key: &str, value: &str| {
        let patch = json!({ "metadata": { "annotations": { key: value } } });
        world.patch(&services(), "shop", "cart", patch);
    };

    for (key, value, expected) in [
        ("service.cilium.io/global-sync-endpoint-slices", "true", ""),
        ("io.cilium/global-service", "true", "10.4.1.15@alder"),
        ("service.cilium.io/global", "false", ""),
        ("service.cilium.io/global", "true", "10.4.1.15@alder"),
        ("service.cilium.io/global-sync-endpoint-slices", "false", ""),
    ] {
        annotate(key, value);
        world.settle().await;
        assert_eq!(mirrored(&world, "cart"), expected, "{key}={value}");
    }
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn slices_of_a_service_that_is_gone_are_deleted() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    publish(&alder, "cart", &["10.4.1.15"]).await;
    world.join("alder");
    headless(&world, "cart");
    world.slice("cart-own", "cart", &["10.0.0.1"]);
    let operator = world.operator(&[SYNC]).await;
    world
        .until("10.4.1.15@alder".to_owned(), |w| mirrored(w, "cart"))
        .await;

    world.delete(&services(), "shop", "cart");

    world.until(String::new(), |w| mirrored(w, "cart")).await;
    world.settle().await;
    assert!(world.has(&slices(), "cart-own"), "slices of others stay");
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_change_of_one_backend_writes_one_slice() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    let backends = |range: std::ops::Range<u8>| -> Vec<String> {
        range.map(|number| format!("10.4.1.{number}")).collect()
    };
    let publish_range = async |range| {
        let texts = backends(range);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        publish(&alder, "cart", &texts).await;
    };
    publish_range(0..25).await;
    world.join("alder");
    headless(&world, "cart");
    let operator = world
        .operator(&[SYNC, "--clustermesh-endpoints-per-slice=10"])
        .await;
    world.until(25, |w| mirrored(w, "cart").split(' ').count()).await;
    let mut sizes: Vec<usize> = world
        .slices_of("cart")
        .iter()
        .map(|s| addresses(s).len())
        .collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [5, 10, 10]);
    world.settle().await;
    world.client.take_writes();

    publish_range(0..26).await;
    world.until(26, |w| mirrored(w, "cart").split(' ').count()).await;
    publish_range(1..26).await;
    world.until(25, |w| mirrored(w, "cart").split(' ').count()).await;

    world.settle().await;
    let writes = world.client.take_writes();
    assert_eq!(writes.len(), 2, "{writes:?}");
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn slices_of_a_cluster_that_is_not_known_yet_stay() {
    let world = World::new();
    let (alder, cedar) = (world.cluster("alder", 7).await, world.cluster("cedar", 8).await);
    publish(&alder, "cart", &["10.4.1.1"]).await;
    publish(&cedar, "cart", &["10.5.1.1"]).await;
    world.join("alder");
    world.join("cedar");
    headless(&world, "cart");
    let operator = world.operator(&[SYNC]).await;
    let both = "10.4.1.1@alder 10.5.1.1@cedar";
    world.until(both.to_owned(), |w| mirrored(w, "cart")).await;
    operator.stop().await.unwrap();

    cedar.delete_key(&keys::cluster_config("cedar")).await;
    cedar.delete(Values::Services, "shop/cart").await;
    publish(&alder, "cart", &["10.4.1.2"]).await;
    let operator = world.operator(&[SYNC]).await;

    let others = "10.4.1.2@alder 10.5.1.1@cedar";
    world.until(others.to_owned(), |w| mirrored(w, "cart")).await;
    tokio::time::sleep(std::time::Duration::from_secs(300)).await;
    assert_eq!(mirrored(&world, "cart"), others);

    cedar.configure(capabilities(None)).await;
    world
        .until("10.4.1.2@alder".to_owned(), |w| mirrored(w, "cart"))
        .await;
    world.leave("alder");
    world.until(String::new(), |w| mirrored(w, "cart")).await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn slices_of_remote_clusters_are_mirrored_when_they_are_read() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    let mut published = capabilities(None);
    published.endpoint_slices_export_mode =
        skep_clustermesh_types::EndpointSlicesExportMode::EndpointSlicesOnly;
    alder.configure(published).await;
    let entry = TextEntry {
        key: Some("kubernetes.io/service-name".to_owned()),
        value: Some("cart".to_owned()),
    };
    let endpoint = |ip: &str, ready: bool, serving: Option<bool>| Endpoint {
        addresses: vec![ip.to_owned()],
        conditions: Some(Conditions {
            ready: Some(ready),
            serving,
            ..Conditions::default()
        }),
        ..Endpoint::default()
    };
    let slice = ClusterEndpointSlice {
        cluster: Some("alder".to_owned()),
        cluster_id: Some(7),
        namespace: Some("shop".to_owned()),
        name: Some("cart-x".to_owned()),
        labels: vec![entry],
        address_type: Some("IPv6".to_owned()),
        endpoints: vec![
            endpoint("fd00::1", true, Some(true)),
            endpoint("fd00::2", false, Some(true)),
            endpoint("fd00::3", false, Some(false)),
            endpoint("fd00::4", false, None),
        ],
        ports: vec![EndpointPort {
            name: Some("http".to_owned()),
            port: Some(80),
            ..EndpointPort::default()
        }],
        ..ClusterEndpointSlice::default()
    };
    let value = slice.encode_value();
    alder.put(Values::EndpointSlices, "shop/cart-x", value).await;
    world.join("alder");
    headless(&world, "cart");
    let operator = world
        .operator(&[SYNC, "--clustermesh-service-v2=prefer-endpointslice"])
        .await;

    world
        .until("fd00::1@alder fd00::2@alder fd00::4@alder".to_owned(), |w| {
            mirrored(w, "cart")
        })
        .await;

    assert_eq!(world.slices_of("cart")[0]["addressType"], "IPv6");
    alder.delete(Values::EndpointSlices, "shop/cart-x").await;
    world.until(String::new(), |w| mirrored(w, "cart")).await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn denied_writes_are_named_and_retried() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    for name in ["cart", "web"] {
        publish(&alder, name, &["10.4.1.1"]).await;
        headless(&world, name);
    }
    world.join("alder");
    let (operator, queues) = world.queued_operator(&[SYNC]).await;
    world
        .until("10.4.1.1@alder".to_owned(), |w| mirrored(w, "cart"))
        .await;
    world
        .until("10.4.1.1@alder".to_owned(), |w| mirrored(w, "web"))
        .await;
    world.settle().await;
    world
        .client
        .inject(|request| (request.verb.is_write() && request.name.starts_with("cart")).then(denied));

    publish(&alder, "cart", &["10.4.1.2"]).await;
    publish(&alder, "web", &["10.4.1.2"]).await;

    world
        .until("10.4.1.2@alder".to_owned(), |w| mirrored(w, "web"))
        .await;
    world
        .until(true, |_| {
            faults(&operator).contains("cannot update EndpointSlice `shop/cart-alder-")
        })
        .await;
    let retries = "cilium_workqueue_retries_total{queue_name=\"endpoint-sync\"} ";
    let text = exposition(&Registry::new(queues.metrics(), &[]).unwrap());
    assert!(
        text.contains(retries) && !text.contains(&format!("{retries}0")),
        "{text}"
    );
    world.client.heal();
    world
        .until("10.4.1.2@alder".to_owned(), |w| mirrored(w, "cart"))
        .await;
    world.until(String::new(), |_| faults(&operator)).await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_was_changed_is_repaired() {
    let world = World::new();
    let alder = world.cluster("alder", 7).await;
    publish(&alder, "cart", &["10.4.1.1"]).await;
    world.join("alder");
    headless(&world, "cart");
    let operator = world.operator(&[SYNC]).await;
    world
        .until("10.4.1.1@alder".to_owned(), |w| mirrored(w, "cart"))
        .await;
    let name = world.slices_of("cart")[0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();

    world.patch(
        &slices(),
        "shop",
        &name,
        json!({ "endpoints": [{ "addresses": ["192.0.2.1"] }] }),
    );
    world
        .until("10.4.1.1@alder".to_owned(), |w| mirrored(w, "cart"))
        .await;
    world.delete(&slices(), "shop", &name);
    world
        .until("10.4.1.1@alder".to_owned(), |w| mirrored(w, "cart"))
        .await;

    world.settle().await;
    assert_eq!(world.slices_of("cart").len(), 1);
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn settings_are_checked() {
    for (flag, expected) in [
        ("--clustermesh-endpoints-per-slice=0", "it must be from 1 to 1000"),
        (
            "--clustermesh-endpoints-per-slice=1001",
            "it must be from 1 to 1000",
        ),
        (
            "--clustermesh-concurrent-service-endpoint-syncs=0",
            "it must be at least 1",
        ),
    ] {
        let error = World::new().start_error(&[SYNC, flag]).await;
        assert!(error.contains(expected), "{flag}: {error}");
    }
}
