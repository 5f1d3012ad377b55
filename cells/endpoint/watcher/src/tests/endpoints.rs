// SPDX-License-Identifier: Apache-2.0

//! CiliumEndpoints.

use skep_k8s_client::testing::{Fault, Verb};

use super::*;

fn endpoint(name: &str, address: &str, node: &str, identity: u32) -> String {
    format!(
        r#"
apiVersion: cilium.io/v2
kind: CiliumEndpoint
metadata: {{name: {name}, namespace: shop}}
status:
  id: 7
  identity: {{id: {identity}, labels: ["k8s:app=cart"]}}
  networking: {{node: {node}, addressing: [{{ipv4: {address}}}]}}
  encryption: {{}}
  named-ports: [{{name: http, port: 8080, protocol: TCP}}]
  state: ready
"#
    )
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_all_nodes_are_claimed_and_only_others_are_tunnelled() {
    let bench = Bench::start(&[]).await;
    let both = endpoint("cart-1", "10.0.2.9", "172.30.1.2", 52_311)
        .replace("ipv4: 10.0.2.9", "ipv4: 10.0.2.9, ipv6: 'fd00::9'")
        .replace("encryption: {}", "encryption: {key: 3}");
    bench.add(&endpoint("cart-0", "10.0.1.8", THIS, 52_310));
    bench.add(&both);

    bench
        .expect(&[
            ("10.0.1.8", "52310 shop/cart-0"),
            ("10.0.2.9", "52311 shop/cart-1 via 172.30.1.2 key 3"),
            ("fd00::9", "52311 shop/cart-1 via 172.30.1.2 key 3"),
        ])
        .await;
    bench.delete(&both);
    bench.expect(&[("10.0.1.8", "52310 shop/cart-0")]).await;

    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn endpoint_whose_node_becomes_this_one_is_not_tunnelled_any_more() {
    let bench = Bench::start(&[]).await;
    bench.add(&endpoint("cart-0", "10.0.1.8", "172.30.1.7", 52_310));
    bench
        .expect(&[("10.0.1.8", "52310 shop/cart-0 via 172.30.1.7 key 0")])
        .await;

    let address = (NodeAddressType::InternalIp, "172.30.1.7".parse().unwrap());
    bench.local.update(|node| node.addresses.push(address)).unwrap();

    bench.expect(&[("10.0.1.8", "52310 shop/cart-0")]).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn late_deletion_keeps_the_claim_of_the_successor() {
    let bench = Bench::start(&[]).await;
    let old = endpoint("cart-0", "10.0.2.8", "172.30.1.2", 52_310);
    let new = endpoint("web-0", "10.0.2.8", "172.30.1.2", 52_400);
    bench.add(&old);
    bench
        .expect(&[("10.0.2.8", "52310 shop/cart-0 via 172.30.1.2 key 0")])
        .await;
    bench.add(&new);
    let successor = [("10.0.2.8", "52400 shop/web-0 via 172.30.1.2 key 0")];
    bench.expect(&successor).await;

    bench.delete(&old);
    bench
        .wait(|| bench.claims().len() == 1, || format!("{:?}", bench.claims()))
        .await;

    bench.expect(&successor).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn of_a_first_list_the_newest_endpoint_of_an_address_counts() {
    let kubernetes = FakeClient::new(Db::new()).unwrap();
    // The list is sorted by name: the first one is the newer one.
    kubernetes
        .add(&endpoint("web-0", "10.0.2.8", "172.30.1.2", 52_310))
        .unwrap();
    kubernetes
        .add(&endpoint("cart-0", "10.0.2.8", "172.30.1.2", 52_400))
        .unwrap();

    let bench = Bench::start_with(kubernetes, &[]).await;

    bench
        .expect(&[("10.0.2.8", "52400 shop/cart-0 via 172.30.1.2 key 0")])
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn endpoint_moves_to_another_address_and_is_unmanaged_without_identity() {
    let bench = Bench::start(&[]).await;
    bench.add(&endpoint("cart-0", "10.0.2.8", "172.30.1.2", 52_310));
    bench
        .expect(&[("10.0.2.8", "52310 shop/cart-0 via 172.30.1.2 key 0")])
        .await;

    let moved = endpoint("cart-0", "10.0.3.8", "172.30.1.3", 52_310);
    bench.add(&moved);
    bench
        .expect(&[("10.0.3.8", "52310 shop/cart-0 via 172.30.1.3 key 0")])
        .await;
    let line = "  identity: {id: 52310, labels: [\"k8s:app=cart\"]}\n";
    bench.add(&moved.replace(line, ""));
    bench
        .expect(&[("10.0.3.8", "3 shop/cart-0 via 172.30.1.3 key 0")])
        .await;
    bench.add(&moved.replace("node: 172.30.1.3, ", ""));
    bench.expect(&[]).await;

    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn invalid_endpoint_is_named_and_keeps_its_last_state() {
    let bench = Bench::start(&[]).await;
    let good = endpoint("cart-0", "10.0.2.8", "172.30.1.2", 52_310);
    let state = [("10.0.2.8", "52310 shop/cart-0 via 172.30.1.2 key 0")];
    bench.add(&good);
    bench.expect(&state).await;

    for (from, to, error) in [
        (
            "10.0.2.8",
            "10.0.2",
            "endpoint `shop/cart-0`: address `10.0.2` is invalid",
        ),
        (
            "id: 52310",
            "id: -4",
            "endpoint `shop/cart-0`: identity -4 is out of range",
        ),
        (
            "encryption: {}",
            "encryption: {key: 300}",
            "encryption key 300 is out of range",
        ),
        ("protocol: TCP", "protocol: XYZ", "named port `http` is invalid"),
        ("port: 8080", "port: eighty", "named-ports"),
    ] {
        bench.add(&good.replace(from, to));
        bench.wait_health(error).await;
        bench.expect(&state).await;
    }

    bench.add(&good);
    bench
        .wait(|| !bench.health().contains("invalid"), || bench.health())
        .await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn map_is_pruned_only_after_the_first_list() {
    let kubernetes = FakeClient::new(Db::new()).unwrap();
    kubernetes
        .add(&endpoint("cart-0", "10.0.2.8", "172.30.1.2", 52_310))
        .unwrap();
    let faults = FaultyClient::new(Arc::new(kubernetes.client()));
    faults.inject(|request| (request.verb == Verb::List).then_some(Fault::Unreachable));
    let bench = Bench::start_on(kubernetes, faults, &["--ipcache-sync-timeout=1h"]).await;
    bench.wait_health("Waiting for the Kubernetes API server").await;
    assert!(!bench.is_synced());

    bench.faults.heal();

    bench
        .expect(&[("10.0.2.8", "52310 shop/cart-0 via 172.30.1.2 key 0")])
        .await;
    bench.wait(|| bench.is_synced(), || "synced".to_owned()).await;
    bench.end().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_watched_without_the_definition() {
    let bench = Bench::start(&["--disable-endpoint-crd"]).await;
    bench.add(&endpoint("cart-0", "10.0.2.8", "172.30.1.2", 52_310));

    tokio::time::sleep(Duration::from_secs(60)).await;

    assert_eq!(bench.resolved(), BTreeMap::new());
    let requests = bench.faults.requests();
    assert!(requests.iter().all(|request| request.plural != "ciliumendpoints"));
    bench.end().await;
}
