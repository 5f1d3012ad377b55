// SPDX-License-Identifier: Apache-2.0

//! Which services are published, and when they are withdrawn.

use serde_json::{Value, json};

use crate::world::{EXPORTS, IDENTITIES, SERVICES, SLICES, World, endpoint, eventually};

const STATE: &str = "cilium/state/services/v1/alder/shop/";
const SLICE_STATE: &str = "cilium/state/endpointslices/v1/alder/shop/";

fn service(name: &str, annotations: Value) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "shop", "annotations": annotations },
        "spec": { "clusterIPs": ["10.96.0.9"], "ports": [{ "port": 80, "protocol": "TCP" }] },
    })
}

fn global(name: &str) -> Value {
    service(name, json!({ "service.cilium.io/global": "true" }))
}

fn slice(name: &str, service: &str, addresses: &[&str]) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "shop", "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": "IPv4",
        "ports": [{ "port": 8080, "protocol": "TCP" }],
        "endpoints": addresses.iter().map(|ip| json!({ "addresses": [ip] })).collect::<Vec<_>>(),
    })
}

fn backends(world: &World, service: &str) -> Vec<String> {
    let value = world.json(&format!("{STATE}{service}")).unwrap_or_default();
    let backends = value["backends"].as_object().cloned().unwrap_or_default();
    backends.keys().cloned().collect()
}

#[tokio::test]
async fn annotations_decide_what_is_published() {
    let world = World::new().await;
    for (name, annotations) in [
        ("plain", json!({})),
        ("global", json!({ "service.cilium.io/global": "True" })),
        ("alias", json!({ "io.cilium/global-service": "true" })),
        (
            "new-name-wins",
            json!({ "io.cilium/global-service": "true", "service.cilium.io/global": "false" }),
        ),
        (
            "not-shared",
            json!({ "service.cilium.io/global": "true", "service.cilium.io/shared": "false" }),
        ),
        ("shared-alone", json!({ "service.cilium.io/shared": "true" })),
    ] {
        world.apply(&SERVICES, service(name, annotations)).await;
        world.apply(&SLICES, slice(name, name, &["10.4.1.1"])).await;
    }

    let program = world.start(&[]).await;
    program.synced().await;

    assert_eq!(world.names(STATE), ["alias", "global"]);
    assert_eq!(world.names(SLICE_STATE), ["alias", "global"]);
    program.stop().await;
}

#[tokio::test]
async fn changes_of_slices_and_services_are_published() {
    let world = World::new().await;
    let program = world.start(&[]).await;
    program.synced().await;

    world.apply(&SLICES, slice("a", "cart", &["10.4.1.1"])).await;
    world.apply(&SERVICES, global("cart")).await;
    eventually("the backend is there", || {
        backends(&world, "cart") == ["10.4.1.1"]
    })
    .await;
    world.apply(&SLICES, slice("b", "cart", &["10.4.1.2"])).await;
    eventually("both are", || {
        backends(&world, "cart") == ["10.4.1.1", "10.4.1.2"]
    })
    .await;
    assert_eq!(world.names(SLICE_STATE), ["a", "b"]);
    world.delete(&SLICES, "shop", "a").await;
    eventually("one is gone", || backends(&world, "cart") == ["10.4.1.2"]).await;

    world.apply(&SERVICES, service("cart", json!({}))).await;
    eventually("it is withdrawn", || {
        world.names(STATE).is_empty() && world.names(SLICE_STATE).is_empty()
    })
    .await;
    program.stop().await;
}

#[tokio::test]
async fn a_slice_that_changes_its_service_leaves_the_former_one() {
    let world = World::new().await;
    for name in ["cart", "cash"] {
        world.apply(&SERVICES, global(name)).await;
    }
    world.apply(&SLICES, slice("a", "cart", &["10.4.1.1"])).await;
    let program = world.start(&[]).await;
    program.synced().await;
    assert_eq!(backends(&world, "cart"), ["10.4.1.1"]);

    world.apply(&SLICES, slice("a", "cash", &["10.4.1.1"])).await;

    eventually("the other one has it", || {
        backends(&world, "cash") == ["10.4.1.1"] && backends(&world, "cart").is_empty()
    })
    .await;
    program.stop().await;
}

#[tokio::test]
async fn namespaces_decide_about_all_that_is_in_them() {
    let world = World::new().await;
    world.apply(&SERVICES, global("cart")).await;
    world.apply(&SLICES, slice("a", "cart", &["10.4.1.1"])).await;
    world
        .apply(
            &EXPORTS,
            json!({ "metadata": {
                "name": "cart", "namespace": "shop", "creationTimestamp": "2026-11-21T00:31:51Z",
            }}),
        )
        .await;
    world
        .apply(
            &crate::world::ENDPOINTS,
            endpoint("cart-0", 458_753, &["10.4.1.1"]),
        )
        .await;
    let labels = json!({ "k8s:io.kubernetes.pod.namespace": "shop" });
    let identity = json!({ "metadata": { "name": "458753" }, "security-labels": labels });
    world.apply(&IDENTITIES, identity).await;
    let flags = [
        "--clustermesh-default-global-namespace=false",
        "--clustermesh-enable-mcs-api",
    ];
    let program = world.start(&flags).await;
    program.synced().await;
    assert_eq!(world.names("cilium/state/"), [""; 0]);

    world.namespace("shop", Some("true")).await;
    let all = [
        "endpointslices/v1/alder/shop/a",
        "identities/v1/id/458753",
        "ip/v1/default/10.4.1.1",
        "serviceexports/v1/alder/shop/cart",
        "services/v1/alder/shop/cart",
    ];
    eventually("all is published", || world.names("cilium/state/") == all).await;

    world.namespace("shop", Some("false")).await;
    eventually("all is withdrawn", || world.names("cilium/state/").is_empty()).await;
    program.stop().await;
}

#[tokio::test]
async fn without_services_only_their_canary_is_written() {
    let world = World::new().await;
    world.apply(&SERVICES, global("cart")).await;
    world.apply(&SLICES, slice("a", "cart", &["10.4.1.1"])).await;

    let program = world
        .start(&["--clustermesh-service-v2=only-endpointslice"])
        .await;
    program.synced().await;

    assert_eq!(world.names(STATE), [""; 0]);
    assert_eq!(world.names(SLICE_STATE), ["a"]);
    assert_eq!(world.names("cilium/synced/alder/cilium/state/").len(), 6);
    program.stop().await;
}

#[tokio::test]
async fn invalid_parts_are_named_and_the_rest_is_published() {
    let world = World::new().await;
    let program = world.start(&[]).await;
    program.synced().await;

    let mut bad = global("bad");
    bad["spec"]["clusterIPs"] = json!(["10.96.0", "10.96.0.9"]);
    bad["spec"]["ports"] = json!([{ "name": "a", "port": 80 }, { "name": "b", "port": 0 }]);
    world.apply(&SERVICES, bad).await;
    world
        .apply(&SLICES, slice("bad", "bad", &["10.4.1.1", "10.4.1", "fd00::1"]))
        .await;

    eventually("the rest is published", || {
        backends(&world, "bad") == ["10.4.1.1"]
    })
    .await;
    let value = world.json(&format!("{STATE}bad")).expect("it is published");
    let port = json!({ "Protocol": "TCP", "Port": 80 });
    assert_eq!(value["frontends"], json!({ "10.96.0.9": { "a": port } }));
    for (component, text) in [
        (
            "service-sync.job-export",
            "`shop/bad`: invalid port 0: it must be from 1 to 65535, cluster IP `10.96.0` is not an IP address",
        ),
        (
            "endpointslice-export-sync.job-export",
            "`shop/bad`: `10.4.1` is not an address of type IPv4, `fd00::1` is not an address of type IPv4",
        ),
    ] {
        eventually("it is in health", || program.health(component).contains(text)).await;
    }
    world.delete(&SERVICES, "shop", "bad").await;
    world.delete(&SLICES, "shop", "bad").await;
    for component in ["service-sync.job-export", "endpointslice-export-sync.job-export"] {
        eventually("health has forgotten it", || {
            program.health(component).contains("All objects are published")
        })
        .await;
    }
    program.stop().await;
}
