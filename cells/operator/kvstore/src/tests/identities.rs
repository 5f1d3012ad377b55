// SPDX-License-Identifier: Apache-2.0

//! Identities in the key-value store.

use std::sync::Arc;

use hive::{Level, testing};
use skep_base_metrics::{MetricSet, Namespace, Registry, exposition};
use skep_operator_gc::identities::IdentityMetrics;

use super::world::{World, seconds, wait_health};
use crate::identities::{IdMetrics, cell};

const BASE: &str = "cilium/state/identities/v1/";
const MODULE: &str = "kvstore-identities-gc";

async fn put(world: &World, key: &str, value: &str) {
    world.put(&[(&format!("{BASE}{key}"), value)]).await;
}

#[tokio::test(start_paused = true)]
async fn an_unused_identity_of_the_cluster_is_deleted_in_the_second_pass() {
    let world = World::new().await;
    for (key, value) in [
        ("id/459001", "k8s:app=used;"),
        ("id/459002", "k8s:app=unused;"),
        ("id/600000", "k8s:app=other-cluster;"),
        ("value/k8s:app=used;/192.168.50.21", "459001"),
    ] {
        put(&world, key, value).await;
    }
    let running = world.start(cell(), &["--identity-gc-interval=10m"]).await;
    wait_health(
        &running,
        MODULE,
        Level::Ok,
        "1 identities are used, 65534 of 65536 ids are left",
    )
    .await;
    seconds(590).await;
    assert_eq!(world.keys(&format!("{BASE}id/")), ["459001", "459002", "600000"]);

    seconds(20).await;

    assert_eq!(world.keys(&format!("{BASE}id/")), ["459001", "600000"]);
    let ids = running.get::<Arc<IdMetrics>>().unwrap();
    let passes = running.get::<Arc<IdentityMetrics>>().unwrap();
    let metrics = ids.metrics().into_iter().chain(passes.metrics());
    let text = exposition(&Registry::in_namespace(Namespace::OPERATOR, metrics, &[]).unwrap());
    for line in [
        "cilium_operator_identity_free_ids 65535",
        "cilium_operator_identity_gc_entries{identity_type=\"kvstore\",status=\"alive\"} 1",
        "cilium_operator_identity_gc_entries{identity_type=\"kvstore\",status=\"deleted\"} 1",
        "cilium_operator_identity_gc_runs{identity_type=\"kvstore\",outcome=\"success\"} 2",
        "cilium_operator_identity_gc_latency{identity_type=\"kvstore\",outcome=\"success\"}",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_runs_out_of_ids_is_degraded() {
    let world = World::new().await;
    for id in 229_376..260_600 {
        put(&world, &format!("id/{id}"), &format!("k8s:app={id};")).await;
    }
    let running = world.start(cell(), &["--max-connected-clusters=511"]).await;

    wait_health(
        &running,
        MODULE,
        Level::Degraded,
        "only 1544 of 32768 ids are left",
    )
    .await;

    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_reported() {
    let world = World::new().await;
    let running = world.start(cell(), &["--identity-gc-interval=1m"]).await;
    wait_health(&running, MODULE, Level::Ok, "0 identities").await;
    world.faults.fail(1, 1.0);

    wait_health(&running, MODULE, Level::Degraded, "not checked").await;
    world.faults.fail(1, 0.0);
    wait_health(&running, MODULE, Level::Ok, "0 identities").await;

    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn identities_elsewhere_and_an_interval_of_zero_delete_nothing() {
    for (flags, is_deleted) in [
        (&["--identity-allocation-mode=crd"][..], false),
        (&["--identity-gc-interval=0"], false),
        (&["--identity-allocation-mode=doublewrite-readcrd"], true),
    ] {
        let world = World::new().await;
        put(&world, "id/459002", "k8s:app=unused;").await;
        let running = world.start(cell(), flags).await;

        seconds(3600).await;

        assert_eq!(
            world.keys(&format!("{BASE}id/")).is_empty(),
            is_deleted,
            "{flags:?}"
        );
        testing::stop(running).await;
    }
}
