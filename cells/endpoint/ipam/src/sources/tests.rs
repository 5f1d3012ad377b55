// SPDX-License-Identifier: Apache-2.0

//! The modes in a hive, with an API server in memory.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use hive::{Hive, Running, Settings};
use serde_json::{Value, json};
use skep_k8s_crds::{definitions, register_all};
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::{Kind, Resource};
use tokio::time::Instant;

use super::*;
use crate::{Family, InfrastructureAddress};

struct Bench {
    cluster: TestCluster,
    running: Running,
}

async fn cluster() -> TestCluster {
    let cluster = TestCluster::new();
    let kinds = [definitions::cilium_node(), definitions::cilium_pod_ip_pool()];
    register_all(&**cluster.client(), &kinds).await.unwrap();
    cluster
}

impl Bench {
    async fn start(cluster: TestCluster, flags: &[&str]) -> Self {
        let client = cluster.client().clone();
        let fakes = Cell::module("fakes", "What stands for the rest of the agent")
            .provide(move || -> Arc<dyn Client> { client.clone() })
            .provide(|| NodeName::new("n1"));
        let cells = [
            statedb::cell(),
            skep_base_settings::cell(),
            skep_node_local::cells::local_node(),
            skep_k8s_reflectors::tables::cell(),
            crate::cell(),
            cell(),
            infrastructure::cell(),
            fakes,
        ];
        let hive = Hive::new(cells)
            .root::<Ipam>()
            .root::<Db>()
            .root::<LocalNodeStore>()
            .root::<Table<InfrastructureAddress>>();
        let running = hive::testing::start_with(hive, Settings::new().args(flags.iter().copied())).await;
        Self { cluster, running }
    }

    fn ipam(&self) -> Ipam {
        self.running.get().unwrap()
    }

    async fn node(&self) -> Value {
        self.cluster.get(&IpamNode::kind(), "", "n1").await
    }

    /// Addresses of the node itself, by owner and family.
    fn own(&self) -> BTreeMap<String, String> {
        let (db, table): (Db, Table<InfrastructureAddress>) =
            (self.running.get().unwrap(), self.running.get().unwrap());
        let snapshot = db.read();
        let rows = table.all(&snapshot);
        rows.map(|row| {
            (
                InfrastructureAddress::key(row.owner, Family::of(row.ip)),
                row.ip.to_string(),
            )
        })
        .collect()
    }

    /// Waits until the requested and allocated pools of the CiliumNode are these.
    async fn wait_pools(&self, requested: Value, allocated: Value) {
        until(|| async {
            let node = self.node().await;
            let pools = &node["spec"]["ipam"]["pools"];
            let found = pools["requested"] == requested && pools["allocated"] == allocated;
            (found, format!("{pools:#}"))
        })
        .await;
    }
}

async fn until<F: Future<Output = (bool, String)>>(check: impl Fn() -> F) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (holds, shown) = check().await;
        if holds {
            return;
        }
        assert!(Instant::now() < deadline, "{shown}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn add_node(cluster: &TestCluster, spec: Value) {
    let object = json!({ "metadata": { "name": "n1" }, "spec": spec });
    cluster.create(&IpamNode::kind(), object).await;
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_node_of_a_cluster_pool_waits_for_pod_cidrs_and_keeps_its_own_addresses() {
    let cluster = cluster().await;
    let spec = json!({
        "addresses": [{ "type": "CiliumInternalIP", "ip": "10.0.1.7" }],
        "health": { "ipv4": "10.0.1.8", "ipv6": "fd00::8" },
    });
    add_node(&cluster, spec).await;
    let bench = Bench::start(cluster, &["--enable-envoy-config"]).await;
    let ipam = bench.ipam();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!ipam.is_ready());

    let cidrs = json!({ "spec": { "ipam": { "podCIDRs": ["10.0.1.0/24", "fd00::/120"] } } });
    bench.cluster.patch(&IpamNode::kind(), "", "n1", cidrs).await;
    ipam.ready().await;
    ipam.allocate_ip(ip("10.0.1.8"), "shop/web [restored]", "default")
        .unwrap();
    ipam.restore_finished();

    until(|| async { (bench.own().len() == 6, format!("{:?}", bench.own())) }).await;
    let own = bench.own();
    assert_eq!(own["router/ipv4"], "10.0.1.7");
    assert_eq!(own["health/ipv6"], "fd00::8");
    assert_ne!(own["health/ipv4"], "10.0.1.8", "a pod has it");
    assert_eq!(
        ipam.status(),
        "IPv4: 4/254 allocated from 10.0.1.0/24, IPv6: 3/254 allocated from fd00::/120"
    );
    let local: LocalNodeStore = bench.running.get().unwrap();
    until(|| async { (local.get().unwrap().routers().count() == 2, String::new()) }).await;
    let local = local.get().unwrap();
    assert!(local.routers().any(|router| router == ip("10.0.1.7")));
    assert!(local.health.contains(&ip("fd00::8")));
    let cidrs: Vec<String> = local.pod_cidrs.iter().map(ToString::to_string).collect();
    assert_eq!(cidrs, ["10.0.1.0/24", "fd00::/120"]);
}

#[tokio::test(start_paused = true)]
async fn a_kubernetes_node_has_the_pod_cidrs_of_its_node() {
    let flags = [
        "--ipam=kubernetes",
        "--local-router-ipv4=169.254.23.1",
        "--enable-endpoint-health-checking=false",
    ];
    let bench = Bench::start(cluster().await, &flags).await;
    let (ipam, local): (Ipam, LocalNodeStore) = (bench.ipam(), bench.running.get().unwrap());

    local
        .update(|node| {
            node.pod_cidrs = ["10.1.0.0/24", "fd00:1::/64"]
                .map(|cidr| cidr.parse().unwrap())
                .into();
        })
        .unwrap();
    ipam.ready().await;
    ipam.restore_finished();

    until(|| async { (bench.own().len() == 2, format!("{:?}", bench.own())) }).await;
    assert_eq!(bench.own()["router/ipv4"], "169.254.23.1");
    assert_eq!(
        ipam.status(),
        "IPv4: 0/254 allocated from 10.1.0.0/24, IPv6: 1/18446744073709551614 allocated from fd00:1::/64"
    );
}

#[tokio::test(start_paused = true)]
async fn pools_are_asked_for_more_networks_and_get_back_those_without_use() {
    let cluster = cluster().await;
    let allocated = json!([{ "pool": "default", "cidrs": ["10.0.0.0/28", "fd00::/124"] }]);
    add_node(
        &cluster,
        json!({ "ipam": { "pools": { "allocated": allocated } } }),
    )
    .await;
    let flags = [
        "--ipam=multi-pool",
        "--only-masquerade-default-pool",
        "--enable-health-checking=false",
        "--local-router-ipv4=169.254.23.1",
        "--local-router-ipv6=fe80::1",
    ];
    let bench = Bench::start(cluster, &flags).await;
    let ipam = bench.ipam();
    ipam.ready().await;
    let requested = |ipv4: u32, ipv6: u32| json!([{ "pool": "default", "needed": { "ipv4-addrs": ipv4, "ipv6-addrs": ipv6 } }]);
    bench.wait_pools(requested(8, 8), allocated.clone()).await;

    ipam.allocate_ip(ip("10.0.0.3"), "shop/web [restored]", "default")
        .unwrap();
    ipam.restore_finished();
    bench.wait_pools(requested(16, 8), allocated).await;

    // The operator answers.
    let more = json!([{ "pool": "default", "cidrs": ["10.0.0.0/28", "10.0.1.0/28", "fd00::/124"] }]);
    let answer = json!({ "spec": { "ipam": { "pools": { "allocated": more } } } });
    bench.cluster.patch(&IpamNode::kind(), "", "n1", answer).await;
    let mut last = None;
    until(|| async { (ipam.allocate(Family::V4, "x", "default").is_err(), String::new()) }).await;
    for address in ipam.addresses(Family::V4) {
        last = Some(address.ip);
    }
    assert!(
        last.is_some_and(|last| last > ip("10.0.1.0")),
        "both networks are used"
    );
    bench.wait_pools(requested(40, 8), more.clone()).await;

    for address in ipam.addresses(Family::V4) {
        ipam.release(address.ip, "default").unwrap();
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    let one = json!([{ "pool": "default", "cidrs": ["10.0.0.0/28", "fd00::/124"] }]);
    bench.wait_pools(requested(8, 8), one).await;
    assert_eq!(
        ipam.status(),
        "IPv4: 1 IPAM pool(s) available, IPv6: 1 IPAM pool(s) available"
    );
}

#[tokio::test(start_paused = true)]
async fn pods_select_pools_by_annotations_and_selectors() {
    let cluster = cluster().await;
    for (name, annotations) in [
        ("shop", json!({})),
        ("red", json!({ "ipam.cilium.io/ip-pool": "red" })),
    ] {
        let metadata = json!({ "name": name, "annotations": annotations });
        cluster
            .create(&Kind::NAMESPACE, json!({ "metadata": metadata }))
            .await;
    }
    for (namespace, name, annotations, labels) in [
        ("shop", "plain", json!({}), json!({})),
        (
            "shop",
            "own",
            json!({ "ipam.cilium.io/ip-pool": "red" }),
            json!({}),
        ),
        (
            "shop",
            "v4",
            json!({ "ipam.cilium.io/ipv4-pool": "red" }),
            json!({}),
        ),
        ("shop", "green", json!({}), json!({ "pool": "green" })),
        (
            "shop",
            "both",
            json!({}),
            json!({ "pool": "green", "also": "blue" }),
        ),
        (
            "shop",
            "strict",
            json!({ "ipam.cilium.io/require-pool-match": "true" }),
            json!({}),
        ),
        ("red", "inherits", json!({}), json!({})),
    ] {
        let metadata =
            json!({ "namespace": namespace, "name": name, "annotations": annotations, "labels": labels });
        let spec = json!({ "nodeName": "n1", "containers": [{ "name": "c", "image": "i" }] });
        cluster
            .create(&Kind::POD, json!({ "metadata": metadata, "spec": spec }))
            .await;
    }
    for (name, selector, annotations) in [
        ("default", Value::Null, json!({})),
        (
            "red",
            Value::Null,
            json!({ "ipam.cilium.io/skip-masquerade": "true" }),
        ),
        ("green", json!({ "matchLabels": { "pool": "green" } }), json!({})),
        ("blue", json!({ "matchLabels": { "also": "blue" } }), json!({})),
    ] {
        let mut spec = json!({ "ipv4": { "cidrs": ["10.0.0.0/16"], "maskSize": 24 } });
        if !selector.is_null() {
            spec["podSelector"] = selector;
        }
        let metadata = json!({ "name": name, "annotations": annotations });
        cluster
            .create(&PodIpPool::kind(), json!({ "metadata": metadata, "spec": spec }))
            .await;
    }
    let pool = |name: &str, cidr: &str| json!({ "pool": name, "cidrs": [cidr] });
    let allocated = json!([
        pool("default", "10.0.0.0/24"),
        pool("green", "10.0.1.0/24"),
        pool("red", "10.0.2.0/24")
    ]);
    add_node(
        &cluster,
        json!({ "ipam": { "pools": { "allocated": allocated } } }),
    )
    .await;
    let bench = Bench::start(cluster, &["--ipam=multi-pool", "--enable-ipv6=false"]).await;
    let ipam = bench.ipam();
    ipam.ready().await;
    until(|| async {
        (
            ipam.allocate(Family::V4, "red/inherits", "").is_ok(),
            String::new(),
        )
    })
    .await;

    let select = |owner: &str| match ipam.allocate(Family::V4, owner, "") {
        Ok(allocation) => format!("{} {}", allocation.pool, allocation.skip_masquerade),
        Err(error) => hive::error_chain(&error),
    };

    for (owner, selected) in [
        ("shop/plain", "default false"),
        ("shop/own", "red true"),
        ("shop/v4", "red true"),
        ("shop/green", "green false"),
        ("red/inherits", "red true"),
        ("router", "default false"),
        (
            "shop/strict",
            "unable to determine IPAM pool for owner \"shop/strict\": no matching CiliumPodIPPool found for pod \
             shop/strict (family=ipv4) and require-pool-match annotation is set on pod",
        ),
        (
            "shop/both",
            "unable to determine IPAM pool for owner \"shop/both\": multiple CiliumPodIPPools match pod shop/both \
             (family=ipv4): [blue green]",
        ),
        (
            "shop/gone",
            "unable to determine IPAM pool for owner \"shop/gone\": resource Pod \"shop/gone\" not found",
        ),
    ] {
        assert_eq!(select(owner), selected, "{owner}");
    }
}

#[tokio::test(start_paused = true)]
async fn single_addresses_of_the_cilium_node_are_reported_when_in_use() {
    let cluster = cluster().await;
    let pool = json!({ "192.0.2.1": { "resource": "eni-1" }, "192.0.2.2": { "resource": "eni-1" } });
    add_node(&cluster, json!({ "ipam": { "pool": pool } })).await;
    let flags = [
        "--ipam=crd",
        "--enable-ipv6=false",
        "--enable-health-checking=false",
        "--local-router-ipv4=169.254.23.1",
    ];
    let bench = Bench::start(cluster, &flags).await;
    let ipam = bench.ipam();
    ipam.ready().await;
    ipam.restore_finished();

    ipam.allocate(Family::V4, "shop/web", "").unwrap();
    let release = json!({ "ipam": { "release-ips": { "192.0.2.1": "marked-for-release", "192.0.2.2": "marked-for-release" } } });
    bench
        .cluster
        .patch_status(&IpamNode::kind(), "", "n1", release)
        .await;

    let expected = json!({
        "used": { "192.0.2.1": { "owner": "shop/web", "resource": "eni-1" } },
        "release-ips": { "192.0.2.1": "do-not-release", "192.0.2.2": "ready-for-release" },
    });
    until(|| async {
        let node = bench.node().await;
        let status = &node["status"]["ipam"];
        let is_same = ["used", "release-ips"]
            .iter()
            .all(|part| status[part] == expected[part]);
        (is_same, format!("{status:#}"))
    })
    .await;
    assert_eq!(ipam.status(), "IPv4: 1/2 allocated, ");
    let full = ipam.allocate(Family::V4, "shop/cart", "").unwrap_err();
    assert_eq!(full.to_string(), "No more IPs available");
}
