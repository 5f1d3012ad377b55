// SPDX-License-Identifier: Apache-2.0

//! The cell against an API server.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use skep_k8s_client::testing::{Fault, Request, Verb};
use skep_k8s_memory::Subresource;

use super::cluster::{Cluster, pools, services, unavailable};

fn annotate(name: &'static str, value: &'static str) -> impl FnOnce(&mut Value) {
    move |service| service["metadata"]["annotations"][name] = value.into()
}

fn share(key: &'static str, port: u16) -> impl FnOnce(&mut Value) {
    move |service| {
        service["metadata"]["annotations"]["lbipam.cilium.io/sharing-key"] = key.into();
        service["spec"]["ports"][0]["port"] = port.into();
    }
}

fn block(cidr: &str) -> Value {
    json!({ "blocks": [{ "cidr": cidr }] })
}

#[tokio::test(start_paused = true)]
async fn writes_what_the_reference_shows() {
    let cluster = Cluster::new();
    let operator = cluster.operator(&[]).await;
    cluster.service("first", |_| {});
    cluster.pool("blue", block("192.0.2.0/29"));
    cluster.shows("first", "[192.0.2.0] True satisfied: ").await;
    for (name, port) in [("b", 80), ("c", 81)] {
        cluster.service(name, |service| {
            share("key", port)(service);
            annotate("lbipam.cilium.io/ips", "192.0.2.5")(service);
        });
        cluster.settle().await;
    }
    cluster.service("next", |_| {});
    cluster.service("outside", annotate("io.cilium/lb-ipam-ips", "203.0.113.9"));

    cluster.shows("b", "[192.0.2.5] True satisfied: ").await;
    cluster.shows("c", "[192.0.2.5] True satisfied: ").await;
    cluster.shows("next", "[192.0.2.6] True satisfied: ").await;
    cluster
        .shows(
            "outside",
            "[] False no_pool: No pool exists with a CIDR containing '203.0.113.9'",
        )
        .await;
    cluster.settle().await;
    let expected = [
        "PoolConflict=False resolved ",
        "IPsTotal=Unknown noreason 8",
        "IPsAvailable=Unknown noreason 5",
        "IPsUsed=Unknown noreason 3",
    ];
    assert_eq!(cluster.conditions("blue"), expected);
    let first = cluster.api.get(&services(), "default", "first").unwrap();
    // The API server adds the mode.
    let ingress = json!([{ "ip": "192.0.2.0", "ipMode": "VIP" }]);
    assert_eq!(first["status"]["loadBalancer"]["ingress"], ingress);
    let requests = cluster.client.requests().into_iter();
    let writes: Vec<_> = requests.filter(|request| request.verb.is_write()).collect();
    let manager = "cilium-operator-lb-ipam";
    assert!(!writes.is_empty() && writes.iter().all(|write| write.field_manager == manager));
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn watches_no_service_while_there_is_no_pool() {
    let cluster = Cluster::new();
    let operator = cluster.operator(&[]).await;
    cluster.service("web", |_| {});
    cluster.settle().await;
    assert_eq!(cluster.service_lists(), 0);

    cluster.pool("blue", block("192.0.2.0/29"));
    cluster.shows("web", "[192.0.2.0] True satisfied: ").await;
    cluster.delete(&pools(), "", "blue");

    cluster
        .shows(
            "web",
            "[] False no_pool: There are no enabled pools with IPv4 addresses that match this service",
        )
        .await;
    cluster.settle().await;
    let lists = cluster.service_lists();
    cluster.service("web-later", |_| {});
    cluster.settle().await;
    assert_eq!(cluster.shown("web-later"), "[]");
    cluster.pool("red", block("198.51.100.0/29"));
    cluster.shows("web", "[198.51.100.0] True satisfied: ").await;
    cluster
        .shows("web-later", "[198.51.100.1] True satisfied: ")
        .await;
    assert_eq!(cluster.service_lists(), lists + 1);
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_restart_changes_nothing() {
    let cluster = Cluster::new();
    cluster.pool("blue", block("192.0.2.0/29"));
    let operator = cluster.operator(&[]).await;
    for (name, port) in [("a", 80), ("b", 81)] {
        cluster.service(name, share("key", port));
        cluster.settle().await;
    }
    cluster.service("c", |_| {});
    cluster.settle().await;
    cluster.delete(&services(), "default", "a");
    cluster.settle().await;
    operator.stop().await.unwrap();
    // Pending while no operator allocates: it must not get an address of the others.
    cluster.service("a", |_| {});
    cluster.client.forget();

    let operator = cluster.operator(&[]).await;

    cluster.shows("a", "[192.0.2.2] True satisfied: ").await;
    cluster.settle().await;
    assert_eq!(cluster.shown("b"), "[192.0.2.0] True satisfied: ");
    assert_eq!(cluster.shown("c"), "[192.0.2.1] True satisfied: ");
    let written = cluster.client.take_writes();
    let others = written
        .iter()
        .find(|write| !write.ends_with("/a") && !write.ends_with("/blue"));
    assert_eq!(others, None);
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn retries_until_the_api_server_accepts() {
    let cluster = Cluster::new();
    cluster.pool("blue", block("192.0.2.0/29"));
    cluster.service("web", |_| {});
    cluster.client.fail_times(usize::MAX, Verb::Patch, unavailable());
    let operator = cluster.operator(&[]).await;
    let refused = |cluster: &Cluster| cluster.refused() >= 6;
    cluster.wait(true, refused).await;
    assert_eq!(cluster.shown("web"), "[]");

    cluster.client.heal();

    cluster.shows("web", "[192.0.2.0] True satisfied: ").await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_recovers_does_not_hide_one_that_fails() {
    let cluster = Cluster::new();
    cluster.pool("blue", block("192.0.2.0/29"));
    let pool_watches = AtomicUsize::new(0);
    cluster.client.inject(move |request: &Request| {
        let fails = match (request.verb, request.plural.as_str()) {
            (Verb::List, "services") => true,
            (Verb::Watch, "ciliumloadbalancerippools") => pool_watches.fetch_add(1, Ordering::Relaxed) < 3,
            _ => false,
        };
        fails.then(unavailable)
    });
    let operator = cluster.operator(&[]).await;
    let is_degraded = || {
        let entries = operator.health().entries();
        entries.iter().any(|entry| entry.level == hive::Level::Degraded)
    };
    cluster.wait(true, |_| is_degraded()).await;

    // The pools are watched again soon; services never.
    for _ in 0..1200 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(is_degraded(), "services cannot be listed");
    }

    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn keeps_what_others_write_meanwhile() {
    let cluster = Cluster::new();
    cluster.pool("blue", block("192.0.2.0/29"));
    cluster.service("web", |_| {});
    let api = cluster.api.clone();
    let once = AtomicBool::new(true);
    cluster.client.inject(move |write| {
        if write.verb == Verb::Patch && write.name == "web" && once.swap(false, Ordering::SeqCst) {
            let condition = json!({
                "type": "other.io/Ready", "status": "True", "reason": "Up", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            let patch = skep_k8s_memory::Patch::Merge(json!({ "status": { "conditions": [condition] } }));
            api.patch(
                &services(),
                "default",
                "web",
                Subresource::Status,
                &patch,
                &Default::default(),
            )
            .unwrap();
        }
        None
    });

    let operator = cluster.operator(&[]).await;

    cluster.shows("web", "[192.0.2.0] True satisfied: ").await;
    let web = cluster.api.get(&services(), "default", "web").unwrap();
    assert_eq!(web["status"]["conditions"][0]["type"], "other.io/Ready");
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_invalid_pool_keeps_its_last_valid_specification() {
    let cluster = Cluster::new();
    cluster.pool("blue", block("192.0.2.0/29"));
    cluster.service("web", |_| {});
    let operator = cluster.operator(&[]).await;
    cluster.shows("web", "[192.0.2.0] True satisfied: ").await;

    cluster.patch_pool(
        "blue",
        json!({ "spec": { "blocks": [{ "start": "192.0.2.9", "stop": "192.0.2.1" }] } }),
    );
    cluster.settle().await;
    cluster.service("more", |_| {});

    cluster.shows("more", "[192.0.2.1] True satisfied: ").await;
    assert_eq!(cluster.shown("web"), "[192.0.2.0] True satisfied: ");
    let fault = "PoolInvalid=True invalid_spec spec.blocks[0]: start 192.0.2.9 is after stop 192.0.2.1";
    let last = |cluster: &Cluster| cluster.conditions("blue").pop().unwrap();
    cluster.wait(fault.to_owned(), last).await;
    operator.stop().await.unwrap();

    // Another operator knows no valid specification: no service loses an address, and none gets one.
    let operator = cluster.operator(&[]).await;
    cluster.service("late", |_| {});
    let pending = "[] False no_pool: There are no enabled pools with IPv4 addresses that match this service";
    cluster.shows("late", pending).await;
    assert_eq!(cluster.shown("web"), "[192.0.2.0] True satisfied: ");

    cluster.patch_pool(
        "blue",
        json!({ "spec": { "blocks": [{ "cidr": "192.0.2.0/28" }] } }),
    );
    cluster.shows("late", "[192.0.2.2] True satisfied: ").await;
    cluster.wait("PoolInvalid=False resolved ".to_owned(), last).await;
    operator.stop().await.unwrap();
}

/// Services with label `odd` come as from a server with another schema: their ports cannot be decoded.
fn odd_services_are_undecodable(cluster: &Cluster) {
    cluster.client.rewrite(|object| {
        if object.pointer("/metadata/labels/odd").is_some() {
            object["spec"]["ports"] = json!([{ "port": "http" }]);
        }
    });
}

fn odd(service: &mut Value) {
    service["metadata"]["labels"]["odd"] = "".into();
}

fn shows_address(cluster: &Cluster, name: &str, address: &str) {
    let status =
        json!({ "status": { "loadBalancer": { "ingress": [{ "hostname": "lb" }, { "ip": address }] } } });
    cluster.patch(&services(), "default", name, Subresource::Status, status);
}

/// What health says of the job.
fn fault(operator: &hive::Running) -> String {
    let entries = operator.health().entries();
    let entry = entries
        .iter()
        .find(|entry| entry.id.to_string().ends_with("lbipam"));
    entry.and_then(|entry| entry.error.clone()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_service_that_cannot_be_decoded_keeps_its_addresses() {
    let cluster = Cluster::new();
    odd_services_are_undecodable(&cluster);
    cluster.pool("blue", block("192.0.2.0/30"));
    let operator = cluster.operator(&[]).await;
    // Never decoded.
    cluster.service("foreign", odd);
    shows_address(&cluster, "foreign", "192.0.2.0");
    cluster.settle().await;
    cluster.service("web", |_| {});
    cluster.shows("web", "[192.0.2.1] True satisfied: ").await;
    // Decoded before.
    cluster.patch_service("web", json!({ "metadata": { "labels": { "odd": "" } } }));
    cluster.settle().await;

    cluster.service("next", |_| {});
    cluster.shows("next", "[192.0.2.2] True satisfied: ").await;
    for name in ["foreign", "web"] {
        let named = format!("Service default/{name}: spec.ports[0].port: invalid type");
        assert!(fault(&operator).contains(&named), "{}", fault(&operator));
    }
    operator.stop().await.unwrap();

    // Another operator has decoded neither.
    let operator = cluster.operator(&[]).await;
    cluster.service("last", |_| {});
    cluster.shows("last", "[192.0.2.3] True satisfied: ").await;
    cluster.service("late", |_| {});
    let full = "[] False out_of_ips: All enabled pools that match this service ran out of IPv4 addresses";
    cluster.shows("late", full).await;

    cluster.delete(&services(), "default", "foreign");
    cluster.shows("late", "[192.0.2.0] True satisfied: ").await;
    cluster.patch_service("web", json!({ "metadata": { "labels": { "odd": null } } }));
    cluster.wait(String::new(), |_| fault(&operator)).await;
    cluster.shows("web", "[192.0.2.1] True satisfied: ").await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_allocated_while_addresses_in_use_cannot_be_read() {
    let cluster = Cluster::new();
    odd_services_are_undecodable(&cluster);
    cluster.pool("blue", block("192.0.2.0/30"));
    cluster.service("foreign", odd);
    shows_address(&cluster, "foreign", "192.0.2.0");
    cluster.service("web", |_| {});
    let reads = |request: &Request| request.verb == Verb::Get && request.name == "foreign";
    cluster
        .client
        .inject(move |request| reads(request).then(unavailable));
    let operator = cluster.operator(&[]).await;
    let refused = |cluster: &Cluster| cluster.client.count_failed(Verb::Get) >= 3;
    cluster.wait(true, refused).await;
    assert_eq!(cluster.shown("web"), "[]");
    let cause = "nothing is allocated: cannot read the addresses of Service default/foreign";
    assert!(fault(&operator).contains(cause), "{}", fault(&operator));

    cluster.client.heal();

    cluster.shows("web", "[192.0.2.1] True satisfied: ").await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn clears_what_it_wrote_when_it_is_no_longer_responsible() {
    let cluster = Cluster::new();
    cluster.pool("blue", block("192.0.2.0/29"));
    let operator = cluster.operator(&[]).await;
    cluster.service("web", |_| {});
    cluster.service("other", |service| {
        service["spec"]["loadBalancerClass"] = "example.com/lb".into()
    });
    cluster.service("web-bgp", |service| {
        service["spec"]["loadBalancerClass"] = "io.cilium/bgp-control-plane".into()
    });
    let status = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.7" }] } } });
    cluster.patch(&services(), "default", "other", Subresource::Status, status);
    cluster.shows("web", "[192.0.2.0] True satisfied: ").await;
    cluster.shows("web-bgp", "[192.0.2.1] True satisfied: ").await;
    operator.stop().await.unwrap();

    let operator = cluster.operator(&["--default-lb-service-ipam=none"]).await;

    cluster.shows("web", "[]").await;
    cluster.settle().await;
    assert_eq!(cluster.shown("other"), "[192.0.2.7]");
    assert_eq!(cluster.shown("web-bgp"), "[192.0.2.1] True satisfied: ");
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_address_moves_only_after_its_old_owner_does_not_show_it() {
    let cluster = Cluster::new();
    cluster.pool("blue", block("192.0.2.0/31"));
    let operator = cluster.operator(&[]).await;
    cluster.service("old", annotate("lbipam.cilium.io/ips", "192.0.2.0"));
    cluster.shows("old", "[192.0.2.0] True satisfied: ").await;
    let refuses = |write: &Request| write.verb == Verb::Patch && write.name == "old";
    cluster
        .client
        .inject(move |write| refuses(write).then(unavailable));
    cluster.patch_service(
        "old",
        json!({ "metadata": { "annotations": { "lbipam.cilium.io/ips": "192.0.2.1" } } }),
    );
    cluster.settle().await;
    cluster.service("new", annotate("lbipam.cilium.io/ips", "192.0.2.0"));
    let refused = cluster.refused();
    cluster
        .wait(true, |cluster| cluster.refused() > refused + 1)
        .await;
    assert_eq!(cluster.shown("new"), "[]");

    cluster.client.heal();

    cluster.shows("new", "[192.0.2.0] True satisfied: ").await;
    cluster.shows("old", "[192.0.2.1] True satisfied: ").await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_two_services_that_cannot_share_any_more_the_one_that_changed_loses() {
    let cluster = Cluster::new();
    cluster.pool("blue", block("192.0.2.0/29"));
    let operator = cluster.operator(&[]).await;
    for (name, port) in [("a", 80), ("b", 81)] {
        cluster.service(name, share("key", port));
        cluster.shows(name, "[192.0.2.0] True satisfied: ").await;
    }

    // `a` comes first by age and name.
    cluster.patch_service("a", json!({ "spec": { "ports": [{ "port": 81 }] } }));

    cluster.shows("a", "[192.0.2.1] True satisfied: ").await;
    cluster.settle().await;
    assert_eq!(cluster.shown("b"), "[192.0.2.0] True satisfied: ");
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn marks_pools_in_conflict_and_resolves() {
    let cluster = Cluster::new();
    cluster.pool("a", block("192.0.2.0/29"));
    cluster.pool("b", block("192.0.2.4/30"));
    cluster.service("web", |_| {});
    let operator = cluster.operator(&[]).await;
    let first = |name: &'static str| move |cluster: &Cluster| cluster.conditions(name).first().cloned();
    let conflict = "PoolConflict=True cidr_overlap Pool conflicts since range '192.0.2.4 - 192.0.2.7' overlaps range '192.0.2.0 - 192.0.2.7' from IP Pool 'a'";
    cluster.wait(Some(conflict.to_owned()), first("b")).await;

    cluster.delete(&pools(), "", "a");

    cluster
        .wait(Some("PoolConflict=False resolved ".to_owned()), first("b"))
        .await;
    cluster.shows("web", "[192.0.2.4] True satisfied: ").await;
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn does_nothing_when_disabled() {
    let cluster = Cluster::new();
    cluster.pool("blue", block("192.0.2.0/29"));
    cluster.service("web", |_| {});

    let operator = cluster.operator(&["--enable-lb-ipam=false"]).await;
    cluster.settle().await;

    assert_eq!(cluster.shown("web"), "[]");
    assert!(cluster.conditions("blue").is_empty());
    operator.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pool_without_services_has_its_status() {
    let cluster = Cluster::new();
    let services = cluster.api.list(&services(), None, &Default::default()).unwrap();
    assert_eq!(services.items.len(), 0);
    cluster.pool("blue", block("192.0.2.0/29"));
    cluster.client.inject(|request| {
        let is_list = request.verb == Verb::List && request.plural == "services";
        is_list.then_some(Fault::Delayed(Duration::from_secs(5)))
    });

    let operator = cluster.operator(&[]).await;

    let total = |cluster: &Cluster| cluster.conditions("blue").get(1).cloned();
    cluster
        .wait(Some("IPsTotal=Unknown noreason 8".to_owned()), total)
        .await;
    operator.stop().await.unwrap();
}
