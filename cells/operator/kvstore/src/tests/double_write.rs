// SPDX-License-Identifier: Apache-2.0

//! The comparison of the two places of identities.

use std::sync::Arc;
use std::time::Duration;

use hive::{Running, testing};
use serde_json::json;
use skep_base_metrics::{MetricSet, Namespace, Registry, exposition};
use skep_k8s_types::Kind;

use super::world::{World, seconds};
use crate::double_write::{DoubleWriteMetrics, cell};

const BASE: &str = "cilium/state/identities/v1/";

static IDENTITIES: Kind = Kind::new("cilium.io", "v2", "CiliumIdentity", "ciliumidentities", false);

async fn world() -> World {
    let world = World::new().await;
    for id in ["459001", "459002"] {
        let labels = json!({ "k8s:app": id });
        let object = json!({ "metadata": { "name": id }, "security-labels": labels });
        world.create(&IDENTITIES, object).await;
    }
    for key in [
        "id/459002",
        "id/459003",
        "id/459004",
        "value/k8s:app=c;/192.168.50.21",
    ] {
        world.put(&[(&format!("{BASE}{key}"), "k8s:app=c;")]).await;
    }
    world
}

fn exposed(running: &Running) -> String {
    let metrics = running.get::<Arc<DoubleWriteMetrics>>().unwrap();
    exposition(&Registry::in_namespace(Namespace::OPERATOR, metrics.metrics(), &[]).unwrap())
}

/// Waits until identities are counted so: CiliumIdentities, keys, and those of one place alone.
async fn wait_counts(running: &Running, counts: [usize; 4]) {
    let lines: Vec<String> = ["crd", "kvstore", "crd_only", "kvstore_only"]
        .iter()
        .zip(counts)
        .map(|(name, count)| format!("cilium_operator_doublewrite_{name}_identities {count}\n"))
        .collect();
    for _ in 0..1000 {
        let text = exposed(running);
        if lines.iter().all(|line| text.contains(line)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{lines:?} in {}", exposed(running));
}

#[tokio::test(start_paused = true)]
async fn identities_of_one_place_alone_are_counted() {
    let world = world().await;
    let flags = ["--identity-allocation-mode=doublewrite-readkvstore"];
    let running = world.start(cell(), &flags).await;
    wait_counts(&running, [2, 3, 1, 2]).await;

    world.put(&[(&format!("{BASE}id/459001"), "k8s:app=a;")]).await;

    wait_counts(&running, [2, 4, 0, 2]).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn in_other_modes_nothing_is_compared() {
    for mode in ["crd", "kvstore"] {
        let world = world().await;
        let flags = [format!("--identity-allocation-mode={mode}")];
        let running = world.start(cell(), &[flags[0].as_str()]).await;

        seconds(120).await;

        let text = exposed(&running);
        assert!(
            !text.contains("doublewrite_kvstore_identities 3"),
            "{mode}: {text}"
        );
        testing::stop(running).await;
    }
}
