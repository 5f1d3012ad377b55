// SPDX-License-Identifier: Apache-2.0

//! CiliumNodes on the embedded API server.

#![allow(clippy::disallowed_methods, reason = "the loop runs without a hive")]

use hive::{Level, Settings};
use skep_k8s_client::testing::{Fault, Verb, until};
use skep_k8s_client::{Api, ObjectEvent, WatcherEvent};
use skep_k8s_types::RawObject;
use tokio::time::Instant;

use super::*;
use crate::allocator::{Family, PrefixAllocator};
use crate::assign::ClusterPool;
use crate::recorder::Unrecorded;
use crate::world::World;

struct Operator {
    task: tokio::task::JoinHandle<()>,
    health: Arc<hive::MemoryHealth>,
}

fn cluster_pool(network: &str) -> ClusterPool {
    let v4 = PrefixAllocator::new(Family::V4, vec![network.parse().unwrap()], 24).unwrap();
    ClusterPool::new([(Family::V4, v4)].into())
}

impl Operator {
    fn start(server: &Arc<World>, network: &str) -> Self {
        let client: Arc<dyn Client> = server.client.clone();
        let controller = controller(&client, cluster_pool(network), Arc::new(Unrecorded));
        let (health, reports) = hive::testing::health("ipam");
        Self {
            task: tokio::spawn(async move { controller.run(&health).await }),
            health: reports,
        }
    }

    #[track_caller]
    fn wait_health(&self, level: Level, text: &str) -> impl Future<Output = ()> {
        until(true, move || {
            self.health.get("ipam").is_some_and(|entry| {
                let error = entry.error.as_deref().unwrap_or_default();
                entry.level == level && format!("{}: {error}", entry.message).contains(text)
            })
        })
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn allocates_after_all_nodes_are_restored() {
    let server = World::new().await;
    server.add("a", &[]).await;
    server.add("z", &["10.9.0.0/24"]).await;

    let operator = Operator::start(&server, "10.9.0.0/16");

    server.wait("a", &["10.9.1.0/24"], "").await;
    server.wait("z", &["10.9.0.0/24"], "").await;
    let object = server.read("a").await;
    assert_eq!(object["spec"]["ipam"]["pools"], json!({}));
    assert_eq!(object["metadata"]["finalizers"], json!(["example.com/kept"]));
    operator.wait_health(Level::Ok, "2 nodes").await;
    assert_eq!(
        server.client.count(Verb::Update),
        1,
        "a node that has pod CIDRs is not written"
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_pool_is_reported_and_a_deleted_node_makes_room() {
    let server = World::new().await;
    server.add("n1", &[]).await;
    let operator = Operator::start(&server, "10.9.0.0/24");
    server.wait("n1", &["10.9.0.0/24"], "").await;

    server.add("n2", &[]).await;
    server.wait("n2", &[], "allocator full").await;
    operator
        .wait_health(Level::Degraded, "`n2`: allocator full")
        .await;

    server.delete("n1").await;
    server.wait("n2", &["10.9.0.0/24"], "").await;
    operator.wait_health(Level::Ok, "1 nodes").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_cidr_outside_the_pools_stays_until_it_is_corrected() {
    let server = World::new().await;
    server.add("n1", &["172.31.0.0/24"]).await;
    let _operator = Operator::start(&server, "10.9.0.0/16");

    let error = "allocator not configured for the requested CIDR 172.31.0.0/24";
    server.wait("n1", &["172.31.0.0/24"], error).await;

    server
        .change("n1", |object| object["spec"]["ipam"]["podCIDRs"] = json!([]))
        .await;
    server.wait("n1", &["10.9.0.0/24"], "").await;
}

#[tokio::test(start_paused = true)]
async fn of_two_nodes_with_one_pod_cidr_the_later_gets_another() {
    let server = World::new().await;
    server.add("n2", &["10.9.0.0/24"]).await;
    server.add("n1", &["10.9.0.0/24"]).await;
    let _operator = Operator::start(&server, "10.9.0.0/16");
    server.wait("n2", &["10.9.1.0/24"], "").await;

    server.add("n0", &["10.9.0.0/24"]).await;

    server.wait("n0", &["10.9.2.0/24"], "").await;
    server.wait("n1", &["10.9.0.0/24"], "").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_cidr_that_somebody_removed_comes_back() {
    let server = World::new().await;
    server.add("n1", &["10.9.7.0/24"]).await;
    let operator = Operator::start(&server, "10.9.0.0/16");
    operator.wait_health(Level::Ok, "1 nodes").await;

    server
        .change("n1", |object| object["spec"]["ipam"] = json!({}))
        .await;

    server.wait("n1", &["10.9.7.0/24"], "").await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_gone_for_minutes_loses_nothing() {
    let server = World::new().await;
    server.add("n1", &[]).await;
    server.client.fail(Fault::Unreachable);
    let operator = Operator::start(&server, "10.9.0.0/16");
    operator
        .wait_health(Level::Degraded, "Waiting for the Kubernetes API server")
        .await;
    tokio::time::advance(Duration::from_secs(300)).await;

    server.client.heal();
    server.wait("n1", &["10.9.0.0/24"], "").await;

    server.client.fail(Fault::Unreachable);
    server.add("n2", &[]).await;
    operator.wait_health(Level::Degraded, "`n2`").await;
    server.add("n3", &[]).await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    server.client.heal();

    server.wait("n2", &["10.9.1.0/24"], "").await;
    server.wait("n3", &["10.9.2.0/24"], "").await;
    server.wait("n1", &["10.9.0.0/24"], "").await;
}

#[tokio::test(start_paused = true)]
async fn conflicts_are_retried_after_a_second() {
    let server = World::new().await;
    server.client.fail_times(3, Verb::Update, Fault::conflict());
    server.add("n1", &[]).await;
    let start = Instant::now();
    let _operator = Operator::start(&server, "10.9.0.0/16");

    server.wait("n1", &["10.9.0.0/24"], "").await;

    let elapsed = start.elapsed();
    assert!((3..6).contains(&elapsed.as_secs()), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_be_written_does_not_stop_the_others() {
    let server = World::new().await;
    server
        .client
        .inject(|request| (request.verb == Verb::Update && request.name == "n1").then(Fault::forbidden));
    server.add("n1", &[]).await;
    server.add("n2", &[]).await;
    let operator = Operator::start(&server, "10.9.0.0/16");

    server.wait("n2", &["10.9.1.0/24"], "").await;
    operator.wait_health(Level::Degraded, "`n1`: Forbidden").await;

    server.client.heal();
    server.wait("n1", &["10.9.0.0/24"], "").await;
}

#[tokio::test(start_paused = true)]
async fn leaves_nodes_with_the_annotation_alone() {
    let server = World::new().await;
    server.add("n1", &["10.9.0.0/24"]).await;
    server
        .change("n1", |object| {
            object["metadata"]["annotations"] = json!({ IGNORE: "true" });
        })
        .await;
    server.add("n0", &["10.9.0.0/24"]).await;
    server.add("n2", &[]).await;
    server
        .change("n2", |object| {
            object["metadata"]["annotations"] = json!({ IGNORE: "true" });
        })
        .await;
    server.add("n3", &[]).await;
    let _operator = Operator::start(&server, "10.9.0.0/16");

    server.wait("n3", &["10.9.1.0/24"], "").await;

    server.wait("n2", &[], "").await;
    server.wait("n1", &["10.9.0.0/24"], "").await;
}

#[tokio::test(start_paused = true)]
async fn an_event_from_before_the_last_write_changes_nothing() {
    let server = World::new().await;
    server.add("n1", &["10.9.0.0/24"]).await;
    server.add("n2", &["10.9.0.0/24"]).await;
    let list = async || {
        let nodes = Api::<CiliumNode>::all(server.client.clone());
        nodes.list_all().await.unwrap().items
    };
    let stale = list().await[1].clone();
    let mut nodes = pool_of("10.9.0.0/16").await;
    apply(&mut nodes, list().await, Vec::new());
    let operator = Operator::start(&server, "10.9.0.0/16");
    server.wait("n2", &["10.9.1.0/24"], "").await;
    drop(operator);
    apply(&mut nodes, list().await, Vec::new());

    for event in [
        ObjectEvent::Deleted(ObjectKey::of(&*list().await[0]), None),
        ObjectEvent::Applied(stale),
    ] {
        handle(&mut nodes, WatcherEvent::Object(event));
    }

    assert_eq!(nodes.pool.held("n2"), ["10.9.1.0/24".parse().unwrap()]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_allocated_while_a_node_cannot_be_decoded() {
    let server = World::new().await;
    server.add("n1", &[]).await;
    server.add("n2", &["10.9.0.0/24"]).await;
    server.client.rewrite(|object| {
        if object["metadata"]["name"] == "n2" && object["metadata"]["labels"].is_null() {
            object["spec"]["ipam"]["podCIDRs"] = json!(7);
        }
    });
    let operator = Operator::start(&server, "10.9.0.0/16");
    operator
        .wait_health(Level::Degraded, "CiliumNode n2: spec.ipam.podCIDRs")
        .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.client.count(Verb::Update), 0);

    server
        .change("n2", |object| {
            object["metadata"]["labels"] = json!({ "valid": "" })
        })
        .await;

    server.wait("n1", &["10.9.1.0/24"], "").await;
}

fn node(name: &str, pod_cidrs: &[&str]) -> Arc<CiliumNode> {
    let object = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": { "name": name },
        "spec": { "ipam": { "podCIDRs": pod_cidrs } },
    });
    RawObject::from_value(Arc::new(object)).decode().unwrap()
}

fn undecodable(name: &str) -> skep_k8s_types::DecodeError {
    let object = json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": { "name": name },
        "spec": { "ipam": { "podCIDRs": 7 } },
    });
    RawObject::from_value(Arc::new(object))
        .decode::<CiliumNode>()
        .unwrap_err()
}

async fn pool_of(network: &str) -> NodePool<ClusterPool> {
    let client = World::new().await.client.clone();
    NodePool::new(client, cluster_pool(network), Arc::new(Unrecorded))
}

/// Takes in an event as the runtime does; returns the keys that are queued.
fn handle(nodes: &mut NodePool<ClusterPool>, event: WatcherEvent<CiliumNode>) -> Vec<String> {
    let changes = nodes.store().apply(event);
    changes.iter().flat_map(|change| nodes.affected(change)).collect()
}

fn apply(
    nodes: &mut NodePool<ClusterPool>,
    items: Vec<Arc<CiliumNode>>,
    invalid: Vec<skep_k8s_types::DecodeError>,
) {
    handle(nodes, WatcherEvent::Replaced { items, invalid });
}

#[tokio::test(start_paused = true)]
async fn of_the_first_list_the_first_node_by_name_keeps_a_duplicate() {
    let mut nodes = pool_of("10.9.0.0/16").await;

    let items = vec![node("z", &["10.9.0.0/24"]), node("a", &["10.9.0.0/24"])];
    apply(&mut nodes, items, Vec::new());

    assert_eq!(nodes.pool.held("a"), ["10.9.0.0/24".parse().unwrap()]);
    assert_eq!(nodes.pool.held("z"), []);
}

/// A network of a node that is gone is that of a new node, not of one that waits.
#[tokio::test(start_paused = true)]
async fn of_a_relist_the_nodes_that_are_gone_are_first() {
    let mut nodes = pool_of("10.9.0.0/24").await;
    apply(&mut nodes, vec![node("z", &["10.9.0.0/24"])], Vec::new());

    apply(
        &mut nodes,
        vec![node("a", &[]), node("b", &["10.9.0.0/24"])],
        Vec::new(),
    );

    assert_eq!(nodes.pool.held("b"), ["10.9.0.0/24".parse().unwrap()]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_wakes_the_nodes_that_wait() {
    let mut nodes = pool_of("10.9.0.0/24").await;
    let items = vec![
        node("a", &["10.9.0.0/24"]),
        node("b", &[]),
        node("c", &["10.9.7.0/24"]),
    ];
    apply(&mut nodes, items, Vec::new());
    let full = NodeError::Unassigned("allocator full".to_owned());
    let _ = nodes.finished(&"b".to_owned(), Err(full));

    let deleted =
        |name: &str| WatcherEvent::Object(ObjectEvent::Deleted(ObjectKey::of(&*node(name, &[])), None));
    assert_eq!(handle(&mut nodes, deleted("d")), ["d"], "nothing was released");
    assert_eq!(handle(&mut nodes, deleted("a")), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_relist_without_an_undecodable_node_ends_the_wait_for_it() {
    let mut nodes = pool_of("10.9.0.0/16").await;
    let items = vec![node("a", &["10.9.0.0/24"]), node("b", &[])];
    apply(&mut nodes, items, vec![undecodable("broken")]);
    assert_eq!(nodes.wait(), Duration::MAX);

    // A node that was decoded before keeps what it held.
    apply(&mut nodes, vec![node("b", &[])], vec![undecodable("a")]);

    assert_eq!(nodes.wait(), Duration::ZERO);
    assert_eq!(nodes.pool.held("a"), ["10.9.0.0/24".parse().unwrap()]);
}

#[tokio::test(start_paused = true)]
async fn the_cell_allocates_both_families() {
    let server = World::new().await;
    server.add("n1", &[]).await;
    let flags = [
        "--cluster-pool-ipv4-cidr=10.8.0.0/24,10.9.0.0/16",
        "--cluster-pool-ipv6-cidr=fd00::/104",
        "--cluster-pool-ipv6-mask-size=120",
    ];

    let running = server.operator(&flags).await;

    server.wait("n1", &["10.8.0.0/24", "fd00::/120"], "").await;
    server.add("n2", &[]).await;
    server.wait("n2", &["10.9.0.0/24", "fd00::100/120"], "").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn other_modes_allocate_nothing() {
    let server = World::new().await;
    server.add("n1", &[]).await;

    let running = server.operator(&["--ipam=kubernetes"]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;

    server.wait("n1", &[], "").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn networks_that_do_not_suit_the_families_stop_the_start() {
    for (flags, expected) in [
        (
            &["--enable-ipv6=false"][..],
            "--cluster-pool-ipv4-cidr is empty, but --enable-ipv4 is on",
        ),
        (
            &[
                "--enable-ipv6=false",
                "--cluster-pool-ipv4-cidr=10.0.0.0/8",
                "--cluster-pool-ipv6-cidr=fd00::/104",
            ],
            "--cluster-pool-ipv6-cidr is set, but --enable-ipv6 is off",
        ),
        (
            &["--enable-ipv6=false", "--cluster-pool-ipv4-cidr=10.0.0.0/28"],
            "mask size 24 does not fit network 10.0.0.0/28",
        ),
        (&["--ipam=eni"], "`eni` is not supported"),
        (
            &["--cluster-pool-ipv4-cidr=10.0.0.0/33"],
            "`10.0.0.0/33` is not a network",
        ),
    ] {
        let server = World::new().await;
        let settings = Settings::new().args(flags.iter().copied());
        let text = match server.hive().plan(settings) {
            Err(report) => report.to_string(),
            Ok(plan) => plan
                .build()
                .map_or_else(|error| hive::error_chain(&error).to_string(), |_| String::new()),
        };
        assert!(text.contains(expected), "{text}");
    }
}

/// Counts how often the usage of pools was recorded.
#[derive(Default)]
struct Recorded(parking_lot::Mutex<Vec<(u128, usize)>>);

impl IpamRecorder for Recorded {
    fn queued(&self) {}
    fn round(&self, _: usize, _: Duration, _: Duration) {}
    fn nodes(&self, _: usize, _: usize) {}
    fn pools(&self, usage: &[PoolUsage]) {
        let usage = usage.iter().map(|usage| (usage.free, usage.held));
        self.0.lock().extend(usage);
    }
}

/// It was computed at each event of a node: with 5,000 nodes, 5,000 times a look at 5,000 networks.
#[tokio::test(start_paused = true)]
async fn the_usage_of_pools_is_computed_when_it_changes() {
    let server = World::new().await;
    let recorded = Arc::new(Recorded::default());
    let pool = cluster_pool("10.9.0.0/16");
    let mut nodes = NodePool::new(server.client.clone(), pool, recorded.clone());
    let mut event = |event| {
        handle(&mut nodes, event);
        nodes.record();
    };
    let node = |version: u32, pod_cidrs: &[&str]| -> Arc<CiliumNode> {
        let object = json!({
            "metadata": { "name": "n1", "resourceVersion": version.to_string() },
            "spec": { "ipam": { "podCIDRs": pod_cidrs } },
        });
        Arc::new(serde_json::from_value(object).unwrap())
    };
    let replaced = |items| WatcherEvent::Replaced {
        items,
        invalid: Vec::new(),
    };

    event(replaced(Vec::new()));
    for version in 1..100 {
        event(WatcherEvent::Object(ObjectEvent::Applied(node(
            version,
            &["10.9.0.0/24"],
        ))));
    }
    event(replaced(Vec::new()));

    assert_eq!(*recorded.0.lock(), [(256, 0), (255, 1), (256, 0)]);
}
