// SPDX-License-Identifier: Apache-2.0

//! What nodes are in the ipcache.

use skep_identity::{Label, Labels};
use skep_identity_cache::SecurityIdentity;
use skep_ipcache::{Claim, Owner, Prefix, ResourceId, Writer};

use super::*;

#[tokio::test(start_paused = true)]
async fn cilium_node_claims_its_addresses_and_networks() {
    let bench = Bench::start().await;

    bench.kubernetes.add(CILIUM_NODE_2).unwrap();

    bench
        .expect_ipcache(&[
            "172.30.1.2/32 identity=6 encryptkey=0 tunnelendpoint=0.0.0.0 flags=<none>",
            "10.1.2.1/32 identity=6 encryptkey=0 tunnelendpoint=172.30.1.2 flags=hastunnel",
            "10.1.2.91/32 identity=4 encryptkey=3 tunnelendpoint=172.30.1.2 flags=hastunnel",
            "10.1.2.92/32 identity=8 encryptkey=3 tunnelendpoint=172.30.1.2 flags=hastunnel",
            "10.1.2.0/24 identity=9 encryptkey=3 tunnelendpoint=172.30.1.2 flags=hastunnel",
            "10.7.2.0/24 identity=9 encryptkey=3 tunnelendpoint=172.30.1.2 flags=hastunnel",
        ])
        .await;
    bench.kubernetes.delete(CILIUM_NODE_2).unwrap();
    bench.expect_ipcache(&[]).await;

    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn addresses_that_a_node_loses_are_given_up() {
    let bench = Bench::start().await;
    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.2", "172.30.1.3"]));
    bench
        .expect_ipcache(&["172.30.1.2/32 identity=6", "172.30.1.3/32 identity=6"])
        .await;

    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.3", "172.30.1.4"]));

    bench
        .expect_ipcache(&["172.30.1.3/32 identity=6", "172.30.1.4/32 identity=6"])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn tunnels_end_at_an_address_of_the_underlay_if_the_node_has_one() {
    let flags = ["--routing-mode=tunnel", "--underlay-protocol=ipv6"];
    let bench = Bench::start_with(Settings::new().args(flags)).await;
    let pods = |name: &str, addresses: &[&str], network: &str| {
        let mut node = node("", name, Source::KvStore, addresses);
        node.pod_cidrs = vec![network.parse().unwrap()];
        node
    };

    bench.upsert(pods("n2", &["172.30.1.2", "2001:db8::2"], "10.1.2.0/24"));
    bench.upsert(pods("n3", &["172.30.1.3"], "10.1.3.0/24"));

    bench
        .expect_ipcache(&[
            "172.30.1.2/32 identity=6 encryptkey=0 tunnelendpoint=0.0.0.0 flags=<none>",
            "2001:db8::2/128 identity=6 encryptkey=0 tunnelendpoint=0.0.0.0 flags=<none>",
            "10.1.2.0/24 identity=9 encryptkey=0 tunnelendpoint=2001:db8::2 flags=hastunnel,ipv6tunnel",
            "172.30.1.3/32 identity=6 encryptkey=0 tunnelendpoint=0.0.0.0 flags=<none>",
            "10.1.3.0/24 identity=9 encryptkey=0 tunnelendpoint=172.30.1.3 flags=hastunnel",
        ])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_of_other_clusters_are_marked_but_not_what_they_have() {
    let bench = Bench::start().await;
    let mut remote = node("alder", "n1", Source::ClusterMesh, &["172.31.1.1"]);
    remote.pod_cidrs = vec!["10.4.1.0/24".parse().unwrap()];
    remote.health = vec!["10.4.1.2".parse().unwrap()];
    remote.ingress = vec!["10.4.1.3".parse().unwrap()];

    bench.upsert(remote);

    bench
        .expect_ipcache(&[
            "172.31.1.1/32 identity=6 encryptkey=0 tunnelendpoint=0.0.0.0 flags=remotecluster",
            "10.4.1.0/24 identity=9 encryptkey=0 tunnelendpoint=172.31.1.1 flags=hastunnel",
            "10.4.1.2/32 identity=4 encryptkey=0 tunnelendpoint=172.31.1.1 flags=hastunnel",
            "10.4.1.3/32 identity=8 encryptkey=0 tunnelendpoint=172.31.1.1 flags=hastunnel",
        ])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn this_node_is_the_host_with_the_addresses_that_it_knows_itself() {
    let bench = Bench::start().await;
    bench.upsert(node("", THIS, Source::KvStore, &["172.30.1.1"]));
    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.2"]));
    bench.expect_ipcache(&["172.30.1.2/32 identity=6"]).await;

    bench
        .local
        .update(|local| {
            local.addresses = vec![(NodeAddressType::InternalIp, "172.30.1.9".parse().unwrap())];
        })
        .unwrap();
    bench
        .expect_ipcache(&["172.30.1.2/32 identity=6", "172.30.1.9/32 identity=1"])
        .await;

    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn excluded_addresses_of_this_node_are_not_the_hosts() {
    let settings = Settings::new().args(["--exclude-local-address=172.30.2.0/24,fd00::/8"]);
    let of_node = Cell::module("node-address", "Addresses").config::<AddressConfig>();
    let bench = Bench::start_hive(hive().with(of_node), settings).await;
    let known = ["172.30.1.9", "172.30.2.9", "fd00::9"].map(|text| text.parse().unwrap());

    bench
        .local
        .update(|local| {
            local.addresses = known
                .map(|address| (NodeAddressType::InternalIp, address))
                .to_vec();
        })
        .unwrap();
    // Of other nodes they are as before.
    bench.upsert(node("", "n2", Source::KvStore, &["172.30.2.2"]));

    bench
        .expect_ipcache(&["172.30.1.9/32 identity=1", "172.30.2.2/32 identity=6"])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn devices_of_this_node_win_over_what_others_say() {
    let bench = Bench::start().await;
    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.2"]));
    bench.expect_ipcache(&["172.30.1.2/32 identity=6"]).await;

    let mut txn = bench.db.write(&[&bench.addresses]);
    bench
        .addresses
        .insert(&mut txn, device("172.30.1.2", "eth0"))
        .unwrap();
    bench
        .addresses
        .insert(&mut txn, device("fd00::1", "eth0"))
        .unwrap();
    txn.commit();
    bench
        .expect_ipcache(&["172.30.1.2/32 identity=1", "fd00::1/128 identity=1"])
        .await;
    let mut txn = bench.db.write(&[&bench.addresses]);
    bench.addresses.delete_all(&mut txn).unwrap();
    txn.commit();

    bench.expect_ipcache(&["172.30.1.2/32 identity=6"]).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn everything_else_is_the_world() {
    for (ipv6, wanted) in [
        ("true", vec!["0.0.0.0/0 9", "::/0 10"]),
        ("false", vec!["0.0.0.0/0 2"]),
    ] {
        let bench = Bench::start_with(Settings::new().flag("enable-ipv6", ipv6)).await;
        let map = bench.maps.handle(&IPCACHE);
        bench
            .wait(|| {
                let mut found: Vec<String> = map
                    .entries()
                    .unwrap()
                    .iter()
                    .map(|(key, value)| format!("{} {}", key.text(), value.identity))
                    .collect();
                found.sort();
                found == wanted
            })
            .await;
        bench.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn address_family_that_is_off_is_left_out() {
    let bench = Bench::start_with(Settings::new().flag("enable-ipv6", "false")).await;

    let mut remote = node("", "n2", Source::KvStore, &["fd00::2", "172.30.1.2"]);
    remote.pod_cidrs = vec!["fd01::/64".parse().unwrap(), "10.1.2.0/24".parse().unwrap()];
    bench.upsert(remote);

    bench
        .expect_ipcache(&["172.30.1.2/32 identity=6", "10.1.2.0/24 identity=2"])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn entries_from_before_a_restart_go_when_all_sources_have_delivered() {
    let leftover = Cell::module("leftover", "An entry from before a restart").run(|maps: Arc<Maps>| {
        let key = skep_bpf_maps::node::IpcacheKey::host("10.9.9.9".parse().unwrap());
        let value = skep_bpf_maps::node::IpcacheValue::new(6);
        maps.handle(&IPCACHE).update(&key, &value)
    });
    let hold = Cell::module("hold", "A source that never delivers")
        .run(|manager: NodeManager| manager.register_source("held").map(drop));
    let bench = Bench::start_hive(hive().with(leftover).with(hold), Settings::new()).await;
    bench.kubernetes.add(NODE_2).unwrap();
    bench
        .expect_ipcache(&[
            "10.9.9.9/32 identity=6",
            "172.30.1.2/32 identity=6",
            "10.1.2.0/24 identity=9",
        ])
        .await;

    tokio::time::sleep(Duration::from_secs(61)).await;

    bench
        .expect_ipcache(&["172.30.1.2/32 identity=6", "10.1.2.0/24 identity=9"])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn claims_of_a_node_have_its_source_and_name() {
    let bench = Bench::start().await;
    bench.upsert(node("alder", "n7", Source::ClusterMesh, &["172.31.1.7"]));
    bench
        .expect_ipcache(&["172.31.1.7/32 identity=6 encryptkey=0"])
        .await;

    let table = bench.db.table("ipcache").unwrap();
    let rows: Vec<_> = table
        .rows(&bench.db.read())
        .iter()
        .map(|row| row.cells())
        .filter(|cells| cells[0] == "172.31.1.7")
        .collect();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0][7], "clustermesh:node/alder/n7");
    bench.end().await;
}

const SLICE: &str = r#"
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: IPv4
metadata:
  namespace: default
  name: kubernetes
  labels: {kubernetes.io/service-name: kubernetes}
endpoints:
- addresses: ["172.30.1.2", "198.51.100.1"]
"#;

#[tokio::test(start_paused = true)]
async fn node_that_runs_the_api_server_has_its_identity() {
    let bench = Bench::start().await;
    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.2"]));
    bench.upsert(node("", "n3", Source::KvStore, &["172.30.1.3"]));

    bench.kubernetes.add(SLICE).unwrap();
    bench
        .kubernetes
        .add(
            &SLICE
                .replace("kubernetes", "other")
                .replace("172.30.1.2", "172.30.1.3")
                .replace("other.io", "kubernetes.io"),
        )
        .unwrap();
    bench
        .expect_ipcache(&["172.30.1.2/32 identity=7", "172.30.1.3/32 identity=6"])
        .await;
    bench
        .kubernetes
        .add(&SLICE.replace("172.30.1.2", "172.30.1.3"))
        .unwrap();
    bench
        .expect_ipcache(&["172.30.1.2/32 identity=6", "172.30.1.3/32 identity=7"])
        .await;
    bench.kubernetes.delete(SLICE).unwrap();

    bench
        .expect_ipcache(&["172.30.1.2/32 identity=6", "172.30.1.3/32 identity=6"])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn api_server_outside_of_the_cluster_has_an_identity_of_this_node() {
    let hive = hive()
        .with(skep_identity_cache::cell())
        .root::<Table<SecurityIdentity>>();
    let bench = Bench::start_hive(hive, Settings::new()).await;
    bench.upsert(node("", "n2", Source::KvStore, &["172.30.1.2"]));
    bench.expect_ipcache(&["172.30.1.2/32 identity=6"]).await;

    bench.kubernetes.add(SLICE).unwrap();

    bench
        .expect_ipcache(&["172.30.1.2/32 identity=7", "198.51.100.1/32 identity=16777217"])
        .await;
    let identities: Table<SecurityIdentity> = bench.hive.get().unwrap();
    let snapshot = bench.db.read();
    let row = identities.get(&snapshot, SecurityIdentity::BY_ID.key(&16_777_217));
    assert_eq!(
        row.unwrap().label_texts(),
        ["reserved:kube-apiserver", "reserved:world-ipv4"]
    );
    drop(snapshot);
    bench.end().await;
}

/// Addresses of another node, with labels of its identity.
async fn labels_of_node(settings: &[&str], claims: &[&str]) -> Vec<String> {
    let hive = hive()
        .with(skep_identity_cache::cell())
        .root::<Writer>()
        .root::<Table<SecurityIdentity>>();
    let bench = Bench::start_hive(hive, Settings::new().args(settings.iter().copied())).await;
    let ipcache: Writer = bench.hive.get().unwrap();
    let mut txn = ipcache.write();
    for net in claims {
        let net: ipnet::IpNet = net.parse().unwrap();
        let owner = Owner::new(Source::Generated, ResourceId::new("cnp", "shop", "p"));
        let labels = Labels::from_iter(Label::cidr(net));
        ipcache
            .upsert(&mut txn, Prefix::cidr(net), Claim::labels(owner, labels))
            .unwrap();
    }
    txn.commit();
    let mut other = node("", "n2", Source::KvStore, &["172.30.1.2"]);
    other.labels = [("zone", "a"), ("topology.kubernetes.io/region", "r")]
        .into_iter()
        .collect();
    bench.upsert(other);
    let map = bench.maps.handle(&IPCACHE);
    // A lookup finds the network, too.
    let identity = || {
        let entries = map.entries().unwrap();
        let found = entries.iter().find(|(key, _)| key.text() == "172.30.1.2/32");
        found.map(|(_, value)| value.identity)
    };
    // The first identity may be that of other nodes: labels of the node come by another job.
    let scope = u32::from(!settings.is_empty()) * 2;
    bench
        .wait(|| identity().is_some_and(|identity| identity >> 24 == scope))
        .await;
    let identity = identity().unwrap();
    let identities: Table<SecurityIdentity> = bench.hive.get().unwrap();
    let row = identities
        .get(&bench.db.read(), SecurityIdentity::BY_ID.key(&identity))
        .cloned();
    let labels = row
        .unwrap()
        .label_texts()
        .iter()
        .map(ToString::to_string)
        .collect();
    bench.end().await;
    labels
}

#[tokio::test(start_paused = true)]
async fn other_nodes_have_the_labels_that_settings_say() {
    let nothing = labels_of_node(&[], &["172.30.0.0/16"]).await;
    assert_eq!(nothing, ["reserved:remote-node"]);

    let networks = labels_of_node(&["--policy-cidr-match-mode=nodes"], &["172.30.0.0/16"]).await;
    assert_eq!(networks, ["cidr:172.30.0.0/16", "reserved:remote-node"]);

    let all = labels_of_node(&["--enable-node-selector-labels=true"], &[]).await;
    let expected = [
        "k8s:io.cilium.k8s.policy.cluster=default",
        "reserved:remote-node",
        "node:topology.kubernetes.io/region=r",
        "node:zone=a",
    ];
    assert_eq!(all, expected);

    let some = labels_of_node(&["--enable-node-selector-labels=true", "--node-labels=zo.*"], &[]).await;
    assert_eq!(some, [expected[0], expected[1], expected[3]]);
}
