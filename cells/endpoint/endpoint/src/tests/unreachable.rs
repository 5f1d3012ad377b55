// SPDX-License-Identifier: Apache-2.0

//! Unreachable routes to addresses of endpoints that are gone.

use std::sync::atomic::Ordering;

use skep_identity::NumericIdentity;

use super::{
    hive::{Bench, Kernel},
    world::spec,
};
use crate::{DatapathConfiguration, EndpointSpec};

const SETTING: &str = "--enable-unreachable-routes";
const OF_SEVEN: [&str; 2] = ["10.0.1.7", "fd00::7"];

async fn start(kernel: &Kernel, settings: &[&str]) -> Bench {
    kernel.hooks.load();
    Bench::start_in(kernel.clone(), settings, Vec::new()).await
}

async fn create(bench: &Bench, spec: EndpointSpec) -> u16 {
    bench.create(spec, NumericIdentity::INIT).await.id
}

/// Creates the endpoint at `lxc<n>`, and deletes it.
async fn come_and_go(bench: &Bench, number: u8) {
    let id = create(bench, spec(number)).await;
    assert!(bench.kernel.routes.unreachable_addresses().is_empty());
    bench.delete(id).await;
}

/// The endpoint at `lxc8`, with the addresses of the one at `lxc7`.
fn heir() -> EndpointSpec {
    EndpointSpec {
        ipv4: spec(7).ipv4,
        ipv6: spec(7).ipv6,
        ..spec(8)
    }
}

#[tokio::test]
async fn addresses_are_unreachable_from_deletion_to_reuse() {
    let kernel = Kernel::new();
    let bench = start(&kernel, &[SETTING]).await;

    come_and_go(&bench, 7).await;

    assert_eq!(kernel.routes.unreachable_addresses(), OF_SEVEN);
    let id = create(&bench, heir()).await;
    assert!(kernel.routes.unreachable_addresses().is_empty());
    bench.delete(id).await;
    assert_eq!(kernel.routes.unreachable_addresses(), OF_SEVEN);
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn without_the_setting_there_are_no_unreachable_routes() {
    let kernel = Kernel::new();
    let bench = start(&kernel, &[]).await;

    come_and_go(&bench, 7).await;

    assert!(kernel.routes.unreachable_addresses().is_empty());
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn routes_of_an_earlier_run_are_removed_on_reuse() {
    let kernel = Kernel::new();
    let bench = start(&kernel, &[SETTING]).await;
    come_and_go(&bench, 7).await;
    hive::testing::stop(bench.running).await;

    let bench = start(&kernel, &[SETTING]).await;
    create(&bench, spec(9)).await;
    assert_eq!(
        kernel.routes.unreachable_addresses(),
        OF_SEVEN,
        "of no endpoint yet"
    );
    create(&bench, heir()).await;

    assert!(kernel.routes.unreachable_addresses().is_empty());
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn a_restart_without_the_setting_removes_all() {
    let kernel = Kernel::new();
    let bench = start(&kernel, &[SETTING]).await;
    come_and_go(&bench, 7).await;
    hive::testing::stop(bench.running).await;

    let bench = start(&kernel, &[]).await;

    let is_empty = |bench: &Bench| bench.kernel.routes.unreachable_addresses().is_empty();
    bench.until("removed", is_empty).await;
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn released_networks_keep_no_unreachable_routes() {
    let kernel = Kernel::new();
    let bench = start(&kernel, &[SETTING]).await;
    let set_networks = |networks: &[&str]| {
        let parsed = networks.iter().map(|text| text.parse().unwrap()).collect();
        let node = bench.local_node();
        node.update(|node| node.pod_cidrs = parsed).unwrap();
    };
    set_networks(&["10.0.1.0/24", "fd00::/64"]);
    come_and_go(&bench, 7).await;
    assert_eq!(kernel.routes.unreachable_addresses(), OF_SEVEN);

    set_networks(&["10.0.2.0/24", "fd00::/64"]);
    bench
        .until("released", |bench| {
            bench.kernel.routes.unreachable_addresses() == ["fd00::7"]
        })
        .await;

    // Not allocated from the node's networks any more when it is deleted.
    let id = create(&bench, spec(9)).await;
    bench.delete(id).await;
    assert_eq!(kernel.routes.unreachable_addresses(), ["fd00::7", "fd00::9"]);
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn addresses_of_another_ipam_stay_reachable() {
    let kernel = Kernel::new();
    let bench = start(&kernel, &[SETTING]).await;
    let chained = EndpointSpec {
        datapath: DatapathConfiguration {
            external_ipam: true,
            ..DatapathConfiguration::default()
        },
        ..spec(7)
    };

    let id = create(&bench, chained).await;
    bench.delete(id).await;

    assert!(kernel.routes.unreachable_addresses().is_empty());
    hive::testing::stop(bench.running).await;
}

#[tokio::test]
async fn what_the_kernel_refuses_is_in_health() {
    let kernel = Kernel::new();
    let bench = start(&kernel, &[SETTING]).await;
    let refuse = |refuses| kernel.routes.is_refusing.store(refuses, Ordering::SeqCst);
    let has_error = |bench: &Bench, text: &str| bench.errors().iter().any(|error| error.contains(text));
    let id = create(&bench, spec(7)).await;
    refuse(true);

    // The endpoint is gone all the same.
    bench.delete(id).await;
    assert!(
        has_error(&bench, "cannot add the route to 10.0.1.7"),
        "{:?}",
        bench.errors()
    );

    refuse(false);
    come_and_go(&bench, 7).await;
    assert!(!has_error(&bench, "the route to"), "{:?}", bench.errors());
    refuse(true);
    bench.plug(8);
    let endpoints = bench.endpoints();
    let id = endpoints
        .create(heir(), None, Some(NumericIdentity::INIT))
        .unwrap()
        .id;
    let error = endpoints.wait_ready(id).await.unwrap_err().to_string();
    assert!(error.contains("cannot delete the route to 10.0.1.7"), "{error}");
    bench
        .until("reported", |bench| has_error(bench, "cannot delete the route to"))
        .await;

    // It is tried again.
    refuse(false);
    bench
        .until("ready", |bench| {
            bench.kernel.routes.unreachable_addresses().is_empty()
        })
        .await;
    hive::testing::stop(bench.running).await;
}
