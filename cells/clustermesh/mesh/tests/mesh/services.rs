// SPDX-License-Identifier: Apache-2.0

//! Remote services as backends.

use std::sync::Arc;
use std::time::Duration;

use skep_clustermesh_mesh::testing::FakeCluster;
use skep_clustermesh_types::{
    BackendZone, Capabilities, ClusterEndpointSlice, Endpoint, EndpointPort, EndpointSlicesExportMode,
    ForZone, Kind, SERVICE_NAME_LABEL, ServicePort, TextEntry,
};
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::testing::FaultyBackend;
use skep_loadbalancer_model::{BackendParams, FrontendKind, FrontendParams, Service, ServiceName, Source};
use tokio::time::sleep;

use crate::fixture::{World, eventually, node};

#[tokio::test(start_paused = true)]
async fn backends_have_ports_names_and_zones() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    let mut service = alder.service("cart", &["10.4.1.15"]);
    let port = |protocol: &str, port| ServicePort {
        protocol: protocol.into(),
        port,
    };
    let ports = [
        ("web", port("TCP", 80)),
        ("http", port("TCP", 80)),
        ("dns", port("UDP", 80)),
        ("", port("SCTP", 9)),
        ("odd", port("ICMP", 1)),
        ("any", port("ANY", 1)),
    ];
    let ports = ports
        .into_iter()
        .map(|(name, port)| (name.into(), port))
        .collect();
    service
        .backends
        .insert("10.4.1.15".parse().expect("valid"), ports);
    let zone = BackendZone {
        zone: "z-a".into(),
        for_zones: Some(vec![ForZone { name: "z-b".into() }]),
    };
    service.zones.insert("10.4.1.15".to_owned(), zone);
    alder.put_service(&service).await;
    world.join("alder");
    eventually("they are there", || world.backends().len() == 3).await;

    let txn = world.writer.db().read();
    let mut seen: Vec<String> = world
        .writer
        .backends()
        .all(&txn)
        .map(|row| {
            let params = &row.params;
            let zone = params.zone.as_ref().expect("there is a zone");
            format!(
                "{} {:?} {} {:?} {} {}",
                params.address,
                params.port_names.iter().collect::<Vec<_>>(),
                zone.zone,
                zone.for_zones.iter().collect::<Vec<_>>(),
                params.source.as_str(),
                params.node_name.is_none(),
            )
        })
        .collect();
    seen.sort();
    assert_eq!(
        seen,
        [
            "10.4.1.15:80/TCP [\"http\", \"web\"] z-a [\"z-b\"] clustermesh true",
            "10.4.1.15:80/UDP [\"dns\"] z-a [\"z-b\"] clustermesh true",
            "10.4.1.15:9/SCTP [] z-a [\"z-b\"] clustermesh true",
        ]
    );
    drop(txn);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_shared_any_longer_is_gone() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    let mut service = alder.service("cart", &["10.4.1.15"]);
    let mut hidden = alder.service("hidden", &["10.4.1.16"]);
    hidden.shared = false;
    alder.put_service(&service).await;
    alder.put_service(&hidden).await;
    world.join("alder");
    world.ready("alder").await;
    eventually("it is there", || {
        world.backends() == ["shop/cart 10.4.1.15:80/TCP@7"]
    })
    .await;

    service.shared = false;
    alder.put_service(&service).await;

    eventually("it is gone", || world.backends().is_empty()).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn each_cluster_replaces_its_own_backends_and_leaves_local_ones() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    let cedar = world.cluster("cedar", 8).await;
    let mut txn = world.writer.write();
    let local = BackendParams::new("10.1.0.1:80/TCP".parse().expect("valid"), Source::Kubernetes);
    world
        .writer
        .upsert_backends(&mut txn, &ServiceName::new("shop", "cart"), vec![local])
        .unwrap();
    txn.commit();
    alder
        .put_service(&alder.service("cart", &["10.4.1.15", "10.4.1.16"]))
        .await;
    cedar.put_service(&cedar.service("cart", &["10.5.1.15"])).await;
    for name in ["alder", "cedar"] {
        world.join(name);
        world.ready(name).await;
    }
    eventually("all are there", || world.backends().len() == 4).await;

    alder.put_service(&alder.service("cart", &["10.4.1.17"])).await;
    eventually("they are replaced", || {
        world.backends()
            == [
                "shop/cart 10.1.0.1:80/TCP@0",
                "shop/cart 10.4.1.17:80/TCP@7",
                "shop/cart 10.5.1.15:80/TCP@8",
            ]
    })
    .await;

    world.leave("alder");
    eventually("they are gone", || {
        world.backends() == ["shop/cart 10.1.0.1:80/TCP@0", "shop/cart 10.5.1.15:80/TCP@8"]
    })
    .await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn services_are_withdrawn_from_a_cluster_that_is_away_for_too_long_but_nodes_stay() {
    let world = World::start_with(&["--clustermesh-cache-ttl=300s"], |_| {}).await;
    let store = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(store.clone()));
    let alder = world
        .cluster_via("alder", 7, Arc::new(store), faulty.clone())
        .await;
    alder.put_service(&alder.service("cart", &["10.4.1.15"])).await;
    alder.put(Kind::Nodes, "n1", node(&alder, "n1")).await;
    world.join("alder");
    world.ready("alder").await;
    eventually("it is there", || world.backends().len() == 1).await;

    faulty.partition(true);
    eventually("it fails", || {
        world
            .status("alder")
            .is_some_and(|status| status.num_failures > 0)
    })
    .await;
    sleep(Duration::from_secs(250)).await;
    assert_eq!(world.backends().len(), 1, "the time is not over");
    eventually("they are withdrawn", || world.backends().is_empty()).await;
    assert_eq!(world.nodes.names(), ["alder/n1"]);
    let revocations = || {
        let metrics = skep_base_metrics::MetricSet::metrics(&*world.metrics);
        let registry = skep_base_metrics::Registry::new(metrics, &[]).expect("the names differ");
        let text = skep_base_metrics::exposition(&registry);
        let line = text
            .lines()
            .find(|line| line.starts_with("cilium_clustermesh_remote_cluster_cache_revocations{"));
        line.map(str::to_owned).expect("there is such a metric")
    };
    assert_eq!(
        revocations(),
        "cilium_clustermesh_remote_cluster_cache_revocations{target_cluster=\"alder\"} 1"
    );
    sleep(Duration::from_secs(1000)).await;
    assert!(revocations().ends_with(" 1"), "once an outage");

    faulty.partition(false);
    eventually("they are back", || world.backends().len() == 1).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn services_stay_for_ever_without_a_time_to_live() {
    let world = World::start().await;
    let store = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(store.clone()));
    let alder = world
        .cluster_via("alder", 7, Arc::new(store), faulty.clone())
        .await;
    alder.put_service(&alder.service("cart", &["10.4.1.15"])).await;
    world.join("alder");
    world.ready("alder").await;
    eventually("it is there", || world.backends().len() == 1).await;

    faulty.partition(true);
    sleep(Duration::from_secs(2 * 3600)).await;

    assert_eq!(world.backends().len(), 1);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_turns_to_endpoint_slices_alone_has_no_backends_here() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    alder.put_service(&alder.service("cart", &["10.4.1.15"])).await;
    world.join("alder");
    world.ready("alder").await;
    eventually("it is there", || world.backends().len() == 1).await;

    alder
        .configure(Capabilities {
            synced_canaries: true,
            endpoint_slices_export_mode: EndpointSlicesExportMode::EndpointSlicesOnly,
            ..Capabilities::default()
        })
        .await;
    eventually("it is gone", || world.backends().is_empty()).await;

    world.ready("alder").await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_load_balancer_waits_for_remote_services_but_not_for_ever() {
    let frontends_are_complete = |world: &World| {
        let txn = world.writer.db().read();
        world.writer.frontends().is_initialized(&txn)
    };
    let configured =
        |directory: &std::path::Path| skep_clustermesh_mesh::testing::write_file(directory, "alder", "alder");
    let world = World::start_with(&["--clustermesh-sync-timeout=50s"], configured).await;
    sleep(Duration::from_secs(40)).await;
    assert!(!frontends_are_complete(&world));
    sleep(Duration::from_secs(20)).await;
    assert!(frontends_are_complete(&world));
    world.stop().await;

    let world = World::start_with(&["--clustermesh-sync-timeout=1h"], configured).await;
    let alder = world.cluster("alder", 7).await;
    alder.put_service(&alder.service("cart", &["10.4.1.15"])).await;
    eventually("it is complete", || frontends_are_complete(&world)).await;
    assert_eq!(world.backends().len(), 1);
    world.stop().await;
}

/// A slice with an endpoint for each address, at port 80.
fn slice(cluster: &FakeCluster, name: &str, service: Option<&str>, ips: &[&str]) -> Vec<u8> {
    let text = |key: &str, value: &str| TextEntry {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
    };
    let endpoint = |ip: &&str| Endpoint {
        addresses: vec![(*ip).to_owned()],
        ..Endpoint::default()
    };
    let port = EndpointPort {
        port: Some(80),
        ..EndpointPort::default()
    };
    let slice = ClusterEndpointSlice {
        cluster: Some(cluster.name.clone()),
        cluster_id: Some(cluster.id),
        namespace: Some("shop".to_owned()),
        name: Some(name.to_owned()),
        labels: service
            .iter()
            .map(|service| text(SERVICE_NAME_LABEL, service))
            .collect(),
        address_type: Some("IPv4".to_owned()),
        endpoints: ips.iter().map(endpoint).collect(),
        ports: vec![port],
        ..ClusterEndpointSlice::default()
    };
    slice.encode_value()
}

#[tokio::test(start_paused = true)]
async fn slices_of_a_service_are_its_backends_where_they_are_preferred() {
    let world = World::start_with(&["--clustermesh-service-v2=prefer-endpointslice"], |_| {}).await;
    let alder = world.cluster("alder", 7).await;
    let publishes = |endpoint_slices_export_mode| Capabilities {
        synced_canaries: true,
        endpoint_slices_export_mode,
        ..Capabilities::default()
    };
    alder
        .configure(publishes(EndpointSlicesExportMode::ServicesAndEndpointSlices))
        .await;
    alder.put_service(&alder.service("cart", &["10.4.9.9"])).await;
    let put = async |name: &str, service: Option<&str>, ips: &[&str]| {
        alder
            .put(
                Kind::EndpointSlices,
                &format!("shop/{name}"),
                slice(&alder, name, service, ips),
            )
            .await;
    };
    put("a", Some("cart"), &["10.4.1.1", "10.4.1.2"]).await;
    put("b", Some("cart"), &["10.4.1.3"]).await;
    world.join("alder");
    world.ready("alder").await;
    let backends = |expected: &[&str]| {
        let expected: Vec<String> = expected
            .iter()
            .map(|text| format!("shop/{text}:80/TCP@7"))
            .collect();
        let world = &world;
        eventually(&format!("{expected:?}"), move || world.backends() == expected)
    };
    backends(&["cart 10.4.1.1", "cart 10.4.1.2", "cart 10.4.1.3"]).await;

    put("a", Some("cart"), &["10.4.1.2"]).await;
    backends(&["cart 10.4.1.2", "cart 10.4.1.3"]).await;
    put("b", Some("other"), &["10.4.1.3"]).await;
    backends(&["cart 10.4.1.2", "other 10.4.1.3"]).await;
    put("b", None, &["10.4.1.3"]).await;
    backends(&["cart 10.4.1.2"]).await;
    alder.delete(Kind::EndpointSlices, "shop/a").await;
    backends(&[]).await;
    put("a", Some("cart"), &["10.4.1.1"]).await;
    backends(&["cart 10.4.1.1"]).await;

    // A cluster that goes back to services.
    alder
        .configure(publishes(EndpointSlicesExportMode::ServicesOnly))
        .await;
    backends(&["cart 10.4.9.9"]).await;
    assert_eq!(
        world
            .status("alder")
            .expect("it is configured")
            .num_endpoint_slices,
        0
    );
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn only_global_services_of_the_local_cluster_use_remote_backends() {
    let world = World::start().await;
    let alder = world.cluster("alder", 7).await;
    let mut txn = world.writer.write();
    for (name, address, annotations) in [
        (
            "global",
            "10.96.0.1:80/TCP",
            &[("service.cilium.io/global", "true")][..],
        ),
        ("local", "10.96.0.2:80/TCP", &[]),
    ] {
        let mut service = Service::new(ServiceName::new("shop", name), Source::Kubernetes);
        service.annotations = annotations.iter().copied().collect();
        let frontend = FrontendParams {
            address: address.parse().expect("valid"),
            kind: FrontendKind::ClusterIp,
            port_name: "".into(),
            service_port: 80,
        };
        world
            .writer
            .upsert_service_and_frontends(&mut txn, service, vec![frontend])
            .expect("it is written");
    }
    txn.commit();
    for name in ["global", "local"] {
        alder.put_service(&alder.service(name, &["10.4.1.15"])).await;
    }
    world.join("alder");
    world
        .mesh
        .wait_synced(&[Kind::Services])
        .await
        .expect("it is synced");

    // At once: who has waited finds all in the tables.
    let txn = world.writer.db().read();
    let frontends = world.writer.frontends();
    let mut used: Vec<String> = frontends
        .all(&txn)
        .map(|row| format!("{} {}", row.address(), row.backends.iter().count()))
        .collect();
    used.sort();
    assert_eq!(used, ["10.96.0.1:80/TCP 1", "10.96.0.2:80/TCP 0"]);
    drop(txn);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_withdraws_nothing_later() {
    let world = World::start_with(&["--clustermesh-cache-ttl=300s"], |_| {}).await;
    let store = Memory::new();
    let faulty = FaultyBackend::new(Arc::new(store.clone()));
    let alder = world
        .cluster_via("alder", 7, Arc::new(store), faulty.clone())
        .await;
    alder.put_service(&alder.service("cart", &["10.4.1.15"])).await;
    world.join("alder");
    world.ready("alder").await;
    let failures = || world.status("alder").map_or(0, |status| status.num_failures);

    for _ in 0..2 {
        let before = failures();
        faulty.partition(true);
        eventually("it fails", || failures() > before).await;
        faulty.partition(false);
        world.ready("alder").await;
        sleep(Duration::from_secs(200)).await;
        assert_eq!(world.backends().len(), 1);
    }
    let line = "cilium_clustermesh_remote_cluster_cache_revocations{target_cluster=\"alder\"}";
    let metrics = skep_base_metrics::MetricSet::metrics(&*world.metrics);
    let registry = skep_base_metrics::Registry::new(metrics, &[]).expect("the names differ");
    assert!(!skep_base_metrics::exposition(&registry).contains(line));
    world.stop().await;
}
