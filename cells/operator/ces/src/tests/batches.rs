// SPDX-License-Identifier: Apache-2.0

//! What slices have.

use std::sync::Arc;

use hive::testing;
use serde_json::json;
use skep_base_metrics::workqueue::WorkqueueMetrics;
use skep_base_metrics::{MetricSet, Registry, exposition};
use skep_k8s_client::testing::{Fault, Verb};

use super::world::*;

#[tokio::test(start_paused = true)]
async fn slices_have_what_endpoints_say() {
    let world = World::new().await;
    world.endpoint("shop", "cart-0", 459_001).await;
    let running = world.start(&[]).await;

    until(async || world.sizes().await == [1]).await;

    let slice = world.list(&SLICES).await.remove(0);
    let name = slice["metadata"]["name"].as_str().unwrap();
    let parts: Vec<&str> = name.split('-').collect();
    assert!(
        matches!(parts[..], ["ces", nine, five] if nine.len() == 9 && five.len() == 5),
        "{name}"
    );
    let letters = "bcdfghjklmnpqrstvwxyz2456789";
    assert!(
        parts[1..].concat().chars().all(|letter| letters.contains(letter)),
        "{name}"
    );
    assert_eq!(slice["namespace"], "shop");
    assert_eq!(
        slice["endpoints"],
        json!([{
            "name": "cart-0",
            "id": 459_001,
            "pod-uid": "uid-cart-0",
            "service-account": "cart",
            "networking": { "node": "172.30.1.2", "addressing": [{ "ipv4": "10.0.2.8" }] },
            "encryption": { "key": 3 },
            "named-ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        }])
    );
    let identity = json!({ "status": { "identity": { "id": 459_002 }, "encryption": null } });
    let others = json!({ "metadata": { "annotations": { "example.com/a": "1" } } });
    world.patch(&SLICES, "", name, others).await;
    world.patch(&ENDPOINTS, "shop", "cart-0", identity).await;
    until(async || world.list(&SLICES).await[0]["endpoints"][0]["id"] == 459_002).await;
    let annotations = world.list(&SLICES).await[0]["metadata"]["annotations"].clone();
    assert_eq!(annotations["example.com/a"], "1", "what others wrote stays");
    assert_eq!(
        world.list(&SLICES).await[0]["endpoints"][0]["encryption"],
        json!({})
    );
    world.delete(&ENDPOINTS, "shop", "cart-0").await;
    until(async || world.sizes().await.is_empty()).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_without_identity_wait() {
    let world = World::new().await;
    let mut object = endpoint("shop", "cart-0", 1);
    object["status"]["identity"] = json!(null);
    world.create(&ENDPOINTS, object).await;
    let running = world.start(&[]).await;

    seconds(60).await;
    assert_eq!(world.sizes().await, [0; 0]);
    let identity = json!({ "status": { "identity": { "id": 459_002 } } });
    world.patch(&ENDPOINTS, "shop", "cart-0", identity).await;

    until(async || world.sizes().await == [1]).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn slices_are_full_before_another_one_begins_and_endpoints_never_move() {
    let world = World::new().await;
    for pod in 0..7 {
        world.endpoint("shop", &format!("cart-{pod}"), 300).await;
    }
    world.endpoint("bank", "till-0", 301).await;
    let running = world.start(&["--ces-max-ciliumendpoints-per-ces=3"]).await;
    until(async || world.sizes().await == [1, 1, 3, 3]).await;
    let before = world.slices().await;

    let full = before.iter().find(|(_, entries)| entries.len() == 3).unwrap();
    let gone = full.1[0].strip_prefix("shop/").unwrap();
    world.delete(&ENDPOINTS, "shop", gone).await;
    until(async || world.sizes().await == [1, 1, 2, 3]).await;
    world.endpoint("shop", "new", 300).await;
    until(async || world.sizes().await == [1, 1, 3, 3]).await;

    let after = world.slices().await;
    assert!(
        after[full.0].contains(&"shop/new".to_owned()),
        "the fullest one with room: {after:?}"
    );
    assert!(before.keys().eq(after.keys()));
    for entries in after.values() {
        let namespaces = entries.iter().map(|entry| entry.split('/').next());
        assert_eq!(namespaces.collect::<std::collections::BTreeSet<_>>().len(), 1);
    }
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn next_leader_keeps_slices_and_drops_endpoints_that_are_gone() {
    let world = World::new().await;
    for pod in 0..5 {
        world.endpoint("shop", &format!("cart-{pod}"), 300).await;
    }
    let flags = ["--ces-max-ciliumendpoints-per-ces=3"];
    let running = world.start(&flags).await;
    until(async || world.sizes().await == [2, 3]).await;
    testing::stop(running).await;
    let before = world.slices().await;
    let writes = world.faults.requests().len();

    let running = world.start(&flags).await;
    seconds(60).await;
    assert_eq!(world.slices().await, before);
    let requests = world.faults.requests();
    assert!(requests[writes..].iter().all(|request| !request.verb.is_write()));
    testing::stop(running).await;

    world.delete(&ENDPOINTS, "shop", "cart-3").await;
    world.endpoint("shop", "cart-9", 300).await;
    let running = world.start(&flags).await;
    until(async || {
        let slices = world.slices().await;
        let all: Vec<&String> = slices.values().flatten().collect();
        all.len() == 5 && !all.iter().any(|entry| *entry == "shop/cart-3")
    })
    .await;
    assert!(world.slices().await.keys().eq(before.keys()));
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn edits_of_others_are_reverted() {
    let world = World::new().await;
    world.endpoint("shop", "cart-0", 300).await;
    let running = world.start(&[]).await;
    until(async || world.sizes().await == [1]).await;
    let name = world.slices().await.keys().next().unwrap().clone();
    let before = world.list(&SLICES).await[0]["endpoints"].clone();

    world.patch(&SLICES, "", &name, json!({ "endpoints": [] })).await;
    until(async || world.list(&SLICES).await[0]["endpoints"] == before).await;
    world.delete(&SLICES, "", &name).await;
    until(async || world.sizes().await == [1]).await;
    let twin = json!({ "metadata": { "name": "ces-twin" }, "namespace": "shop", "endpoints": before });
    world.create(&SLICES, twin).await;
    until(async || world.sizes().await == [1]).await;

    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_list_of_endpoints_slices_stay_and_health_names_the_kind() {
    let world = World::new().await;
    world.endpoint("shop", "cart-0", 300).await;
    let running = world.start(&[]).await;
    until(async || world.sizes().await == [1]).await;
    testing::stop(running).await;
    // The kind is gone, and with it the list of endpoints.
    world
        .delete(
            &skep_k8s_types::Kind::new(
                "apiextensions.k8s.io",
                "v1",
                "CustomResourceDefinition",
                "customresourcedefinitions",
                false,
            ),
            "",
            "ciliumendpoints.cilium.io",
        )
        .await;

    let running = world.start(&[]).await;
    seconds(120).await;

    assert_eq!(
        world.sizes().await,
        [1],
        "without a list of endpoints nothing is removed"
    );
    let health = format!("{:?}", running.health().entries());
    assert!(health.contains("ciliumendpoints"), "{health}");
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn writes_are_limited_in_rate_and_priority_namespaces_go_first() {
    let world = World::new().await;
    let annotation = json!({ "metadata": { "annotations": { "cilium.io/ces-namespace": "priority" } } });
    world.patch(&NAMESPACES, "", "bank", annotation).await;
    for pod in 0..20 {
        world.endpoint("shop", &format!("cart-{pod}"), 300).await;
    }
    for pod in 0..5 {
        world.endpoint("bank", &format!("till-{pod}"), 300).await;
    }
    world
        .create(&NODES, json!({ "metadata": { "name": "n1" }, "spec": {} }))
        .await;
    let flags = [
        "--ces-max-ciliumendpoints-per-ces=1",
        r#"--ces-rate-limits=[{"nodes":0,"limit":100,"burst":100},{"nodes":1,"limit":0.1,"burst":5}]"#,
    ];
    let running = world.start(&flags).await;

    seconds(9).await;
    let banks = |slices: &std::collections::BTreeMap<String, Vec<String>>| {
        slices
            .values()
            .flatten()
            .filter(|entry| entry.starts_with("bank/"))
            .count()
    };
    let slices = world.slices().await;
    assert!(slices.len() <= 6, "{slices:?}");
    assert!(banks(&slices) >= 3, "{slices:?}");
    seconds(100).await;
    let slices = world.slices().await;
    assert!((14..=16).contains(&slices.len()), "{slices:?}");
    assert_eq!(banks(&slices), 5);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_of_next_to_nothing_is_a_long_wait() {
    let world = World::new().await;
    for pod in ["cart-1", "cart-2"] {
        world.endpoint("shop", pod, 300).await;
    }
    let flags = [
        "--ces-max-ciliumendpoints-per-ces=1",
        r#"--ces-rate-limits=[{"nodes":0,"limit":1e-300,"burst":1}]"#,
    ];
    let running = world.start(&flags).await;

    seconds(60).await;

    assert_eq!(world.slices().await.len(), 1);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_slice_that_cannot_be_written_is_retried_and_keeps_no_other() {
    let world = World::new().await;
    let running = world.start(&[]).await;
    seconds(1).await;
    world.faults.fail_times(3, Verb::Create, Fault::forbidden());
    world.endpoint("shop", "cart-0", 300).await;
    seconds(1).await;
    let health = format!("{:?}", running.health().entries());
    assert!(health.contains("1 slices not written, retrying"), "{health}");
    world.endpoint("bank", "till-0", 300).await;

    until(async || world.sizes().await == [1, 1]).await;
    seconds(2).await;
    let health = format!("{:?}", running.health().entries());
    assert!(
        health.contains("2 endpoints in 2 slices") && !health.contains("retrying"),
        "{health}"
    );
    // Both are looked at once more, as the events of their writes come.
    let queue = running.get::<Arc<WorkqueueMetrics>>().unwrap();
    let text = exposition(&Registry::new(queue.metrics(), &[]).unwrap());
    for series in [
        "depth@ 0",
        "adds_total@ 7",
        "retries_total@ 3",
        "queue_duration_seconds_count@ 7",
        "work_duration_seconds_count@ 7",
        "unfinished_work_seconds@ 0",
    ] {
        let series = series.replace('@', "{queue_name=\"ciliumendpointslice\"}");
        assert!(
            text.contains(&format!("\ncilium_workqueue_{series}\n")),
            "{series}\n{text}"
        );
    }
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_without_an_answer_is_repeated() {
    let world = World::new().await;
    let running = world.start(&[]).await;
    seconds(1).await;
    world.faults.fail_times(1, Verb::Create, Fault::Hangs);
    world.endpoint("shop", "cart-0", 300).await;

    seconds(11).await;
    assert_eq!(world.sizes().await, [0; 0]);
    seconds(10).await;

    assert_eq!(world.sizes().await, [1]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_unless_it_is_on() {
    let world = World::new().await;
    world.endpoint("shop", "cart-0", 300).await;
    let running = world.start(&["--enable-cilium-endpoint-slice=false"]).await;

    seconds(60).await;

    assert_eq!(world.sizes().await, [0; 0]);
    assert!(world.faults.requests().is_empty());
    testing::stop(running).await;
}
