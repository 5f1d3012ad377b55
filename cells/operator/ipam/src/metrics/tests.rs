// SPDX-License-Identifier: Apache-2.0

//! Nodes and pools as Prometheus reads them.

use hive::{Running, Settings};
use serde_json::json;
use skep_base_metrics::{Namespace, Registry, exposition};

use super::*;
use crate::world::World;

async fn start(server: &World, args: &[&str]) -> Running {
    let metrics = skep_base_metrics::cell_in(Namespace::OPERATOR);
    let hive = server.hive().with(cell()).with(metrics).root::<Arc<Registry>>();
    hive::testing::start_with(hive, Settings::new().args(args.iter().copied())).await
}

/// Waits until all of these lines are there.
#[track_caller]
fn wait<'a>(
    server: &'a World,
    running: &'a Running,
    lines: &'a [&'a str],
) -> impl Future<Output = String> + 'a {
    let registry = running.get::<Arc<Registry>>().unwrap();
    let shown = registry.clone();
    let check = server.until(move || {
        let text = exposition(&registry);
        let missing = lines.iter().find(|line| {
            let line = format!("cilium_operator_ipam_{line}\n");
            !text.contains(&line)
        });
        let result = (missing.is_none(), format!("no {missing:?} in\n{text}"));
        async move { result }
    });
    async move {
        check.await;
        exposition(&shown)
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_pool_shows_what_is_left_and_which_nodes_have_nothing() {
    let server = World::new().await;
    server.add("n1", &["10.9.0.0/24"]).await;
    server.add("n2", &[]).await;
    let args = ["--cluster-pool-ipv4-cidr=10.9.0.0/22", "--enable-ipv6=false"];

    let running = start(&server, &args).await;

    let pool = "family=\"ipv4\",pool=\"cluster-pool\"";
    let free = |free: u8| format!("pool_cidrs_available{{{pool}}} {free}");
    let used = |used: u8| format!("pool_cidrs_used{{{pool}}} {used}");
    let lines = [
        &*free(2),
        &*used(2),
        "nodes{category=\"total\"} 2",
        "nodes{category=\"in-deficit\"} 0",
        // A round for both, and one for the event of the write.
        "k8s_sync_folds 1",
        "k8s_sync_queued_total 3",
        "k8s_sync_duration_seconds_count 2",
        "k8s_sync_latency_seconds_sum 1",
    ];
    wait(&server, &running, &lines).await;
    for node in ["n3", "n4", "n5"] {
        server.add(node, &[]).await;
    }
    let lines = [
        &*free(0),
        &*used(4),
        "nodes{category=\"total\"} 5",
        "nodes{category=\"in-deficit\"} 1",
    ];
    wait(&server, &running, &lines).await;
    server.delete("n1").await;
    let lines = [&*used(4), "nodes{category=\"in-deficit\"} 0"];
    wait(&server, &running, &lines).await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn pools_that_are_gone_are_not_shown() {
    let server = World::new().await;
    let spec = json!({
        "ipv4": { "cidrs": ["10.9.0.0/16"], "maskSize": 24 },
        "ipv6": { "cidrs": ["fd00::/104"], "maskSize": 120 },
    });
    server.add_pool("blue", spec.clone()).await;
    server.add_pool("green", spec).await;
    let white = json!({ "ipv4": { "cidrs": ["10.10.0.0/22"], "maskSize": 24 } });
    server.add("n1", &[]).await;
    server
        .change("n1", |object| {
            let needed = json!({ "ipv4-addrs": 300, "ipv6-addrs": 0 });
            object["spec"]["ipam"]["pools"] = json!({ "requested": [{ "pool": "blue", "needed": needed }] });
        })
        .await;

    let running = start(&server, &["--ipam=multi-pool"]).await;

    let lines = [
        "pool_cidrs_available{family=\"ipv4\",pool=\"blue\"} 254",
        "pool_cidrs_used{family=\"ipv4\",pool=\"blue\"} 2",
        "pool_cidrs_available{family=\"ipv6\",pool=\"blue\"} 65536",
        "pool_cidrs_used{family=\"ipv6\",pool=\"green\"} 0",
        "nodes{category=\"total\"} 1",
    ];
    wait(&server, &running, &lines).await;
    server.delete_pool("green").await;
    server.add("n2", &[]).await;
    let text = wait(&server, &running, &["nodes{category=\"total\"} 2"]).await;
    assert!(!text.contains("green") && text.contains("blue"), "{text}");
    server.add_pool("white", white).await;
    wait(
        &server,
        &running,
        &["pool_cidrs_available{family=\"ipv4\",pool=\"white\"} 4"],
    )
    .await;
    let white = json!({ "ipv4": { "cidrs": ["10.10.0.0/21"], "maskSize": 24 } });
    server.change_pool("white", white).await;
    wait(
        &server,
        &running,
        &["pool_cidrs_available{family=\"ipv4\",pool=\"white\"} 8"],
    )
    .await;
    hive::testing::stop(running).await;
}
