// SPDX-License-Identifier: Apache-2.0

//! Which backends are left over when place, health and clusters have been looked at.

use std::sync::Arc;

use super::{VIP, addr, backend, backends_of, name, params, service, with_cluster_ip, writer};
use crate::node::NodeFacts;
use crate::selection::ClusterAffinity;
use crate::types::{
    BackendParams, BackendState, BackendZone, FrontendKind, NatPolicy, ProxyRedirect, Service, ServiceName,
    Source, TrafficDistribution,
};
use crate::writer::{Writer, WriterSettings};

/// A writer on node `here` in zone `a` that looks at places.
fn placed() -> Writer {
    let writer = writer(WriterSettings {
        has_topology: true,
        ..WriterSettings::default()
    });
    super::set_node(
        &writer,
        NodeFacts {
            name: "here".into(),
            zone: Some("a".into()),
            ..NodeFacts::default()
        },
    );
    writer
}

fn hinted(address: &str, zone: &str, state: BackendState) -> BackendParams {
    BackendParams {
        zone: Some(Arc::new(BackendZone {
            zone: "a".into(),
            for_zones: [zone].into_iter().collect(),
        })),
        state,
        ..backend(address)
    }
}

fn in_state(address: &str, state: BackendState) -> BackendParams {
    BackendParams {
        state,
        ..backend(address)
    }
}

fn mesh(address: &str) -> BackendParams {
    BackendParams {
        source: Source::ClusterMesh,
        cluster_id: 3,
        ..backend(address)
    }
}

fn report(writer: &Writer, address: &str, is_healthy: bool) {
    let mut txn = writer.write();
    writer
        .set_backend_health(&mut txn, &name(), &addr(address), is_healthy)
        .unwrap();
    txn.commit();
}

fn close() -> Service {
    Service {
        traffic_distribution: TrafficDistribution::PreferClose,
        ..service()
    }
}

#[test]
fn a_zone_with_nothing_but_terminating_backends_is_not_preferred() {
    let writer = placed();
    let all = vec![
        hinted("10.0.0.1:80/TCP", "a", BackendState::Terminating),
        hinted("10.0.0.2:80/TCP", "b", BackendState::Active),
    ];

    with_cluster_ip(&writer, close(), all);

    assert_eq!(backends_of(&writer, VIP), ["10.0.0.1:80/TCP", "10.0.0.2:80/TCP"]);
}

#[test]
fn redirected_frontends_do_not_look_at_zones() {
    let writer = placed();
    let target = ServiceName::new("shop", "target");
    with_cluster_ip(&writer, close(), vec![]);
    let mut txn = writer.write();
    writer
        .upsert_service(&mut txn, Service::new(target.clone(), Source::Kubernetes))
        .unwrap();
    let all = [("10.0.0.1:80/TCP", "a"), ("10.0.0.2:80/TCP", "b")];
    let all = all.map(|(address, zone)| hinted(address, zone, BackendState::Active));
    writer.upsert_backends(&mut txn, &target, all.into()).unwrap();
    writer
        .set_redirect_to(&mut txn, &addr(VIP), Some(&target))
        .unwrap();
    txn.commit();

    assert_eq!(backends_of(&writer, VIP), ["10.0.0.1:80/TCP", "10.0.0.2:80/TCP"]);
}

#[test]
fn an_unhealthy_backend_on_this_node_is_not_preferred() {
    let writer = placed();
    writer.set_health_checked(|_| true);
    let on = |address, node: &str| BackendParams {
        node_name: Some(node.into()),
        ..backend(address)
    };
    let service = Service {
        traffic_distribution: TrafficDistribution::PreferSameNode,
        ..service()
    };
    let all = vec![on("10.0.0.1:80/TCP", "here"), on("10.0.0.2:80/TCP", "there")];
    with_cluster_ip(&writer, service, all);
    report(&writer, "10.0.0.1:80/TCP", true);
    report(&writer, "10.0.0.2:80/TCP", true);
    let healthy = backends_of(&writer, VIP);

    report(&writer, "10.0.0.1:80/TCP", false);

    assert_eq!(healthy, ["10.0.0.1:80/TCP"]);
    assert_eq!(backends_of(&writer, VIP), ["10.0.0.1:80/TCP", "10.0.0.2:80/TCP"]);
}

#[test]
fn terminating_backends_need_no_check() {
    let writer = writer(WriterSettings::default());
    writer.set_health_checked(|_| true);
    let all = vec![
        in_state("10.0.0.1:80/TCP", BackendState::Active),
        in_state("10.0.0.2:80/TCP", BackendState::Terminating),
    ];

    with_cluster_ip(&writer, service(), all);

    assert_eq!(backends_of(&writer, VIP), ["10.0.0.2:80/TCP"]);
}

#[test]
fn clusters_that_have_nothing_alive_are_no_refuge() {
    for (affinity, wanted) in [("local", "10.0.0.1:80/TCP"), ("remote", "10.0.0.9:80/TCP")] {
        let writer = writer(WriterSettings::default());
        writer.set_backend_filter(Arc::new(ClusterAffinity));
        let all = vec![backend("10.0.0.1:80/TCP"), mesh("10.0.0.9:80/TCP")];
        with_cluster_ip(&writer, super::with_affinity(affinity), all);
        report(&writer, "10.0.0.1:80/TCP", false);
        report(&writer, "10.0.0.9:80/TCP", false);

        assert_eq!(backends_of(&writer, VIP), [wanted], "{affinity}");
    }
}

#[test]
fn sources_of_equal_rank_do_not_take_each_others_backends() {
    let mut settings = WriterSettings::default();
    settings.priorities[Source::ClusterMesh as usize] = settings.priorities[Source::Kubernetes as usize];
    let writer = writer(settings);
    with_cluster_ip(&writer, service(), vec![backend("10.0.0.1:80/TCP")]);

    let mut txn = writer.write();
    writer
        .release_backends(&mut txn, &name(), Source::ClusterMesh, &[addr("10.0.0.1:80/TCP")])
        .unwrap();
    txn.commit();

    assert_eq!(backends_of(&writer, VIP), ["10.0.0.1:80/TCP"]);
}

#[test]
fn clusters_do_not_take_each_others_backends() {
    let writer = writer(WriterSettings::default());
    with_cluster_ip(&writer, service(), vec![mesh("10.0.0.9:80/TCP")]);

    let mut txn = writer.write();
    writer
        .set_backends(&mut txn, &name(), Source::ClusterMesh, 4, vec![])
        .unwrap();
    txn.commit();

    assert_eq!(backends_of(&writer, VIP), ["10.0.0.9:80/TCP"]);
}

#[test]
fn of_backends_with_one_address_in_an_upsert_the_best_source_and_the_last_count() {
    let writer = writer(WriterSettings::default());
    let weighted = |weight, source| BackendParams {
        weight,
        source,
        ..backend("10.0.0.1:80/TCP")
    };
    let all = vec![
        weighted(1, Source::Kubernetes),
        weighted(2, Source::Kubernetes),
        weighted(3, Source::ClusterMesh),
    ];
    with_cluster_ip(&writer, service(), all);

    let txn = writer.db().read();
    let rows = writer.preferred_backends(&txn, &name());
    let weights: Vec<u16> = rows.iter().map(|row| row.params.weight).collect();
    assert_eq!(weights, [2]);
    assert_eq!(backends_of(&writer, VIP), ["10.0.0.1:80/TCP"]);
}

// Lookup tables are made once for a set, and memory holds it once.
#[test]
fn frontends_of_a_service_share_the_set_of_their_backends() {
    let writer = writer(WriterSettings::default());
    let wanted = [VIP, "172.16.0.1:80/TCP", "172.16.0.1:80/UDP"];
    let mut txn = writer.write();
    writer
        .upsert_backends(
            &mut txn,
            &name(),
            vec![backend("10.0.0.1:80/TCP"), backend("10.0.0.2:80/TCP")],
        )
        .unwrap();
    let frontends = wanted.map(|address| params(address, FrontendKind::ClusterIp));
    writer
        .upsert_service_and_frontends(&mut txn, service(), frontends.into())
        .unwrap();
    let after = txn.commit();

    let table = writer.frontends();
    let sets: Vec<_> = table.all(&after).map(|row| &row.backends).collect();
    assert!(sets[0].is_same(sets[1]));
    assert!(sets[2].is_empty());
}

#[test]
fn frontends_without_an_id_keep_their_order_across_services_when_the_node_changes() {
    let writer = writer(WriterSettings::default());
    let order = ["0.0.0.0:30090/TCP", "0.0.0.0:30010/TCP", "0.0.0.0:30050/TCP"];
    for (number, address) in order.iter().enumerate() {
        let service = Service::new(ServiceName::new("shop", &number.to_string()), Source::Kubernetes);
        let mut txn = writer.write();
        let wanted = vec![params(address, FrontendKind::NodePort)];
        writer
            .upsert_service_and_frontends(&mut txn, service, wanted)
            .unwrap();
        txn.commit();
    }

    super::serve_node_ports_at(&writer, "10.1.0.1");

    assert_eq!(super::by_sequence(&writer), order);
}

#[test]
fn host_ports_without_address_follow_the_addresses_of_the_node() {
    let writer = writer(WriterSettings::default());
    let mut txn = writer.write();
    let wanted = [
        ("0.0.0.0:8080/TCP", FrontendKind::HostPort),
        ("10.1.0.1:8081/TCP", FrontendKind::HostPort),
        (VIP, FrontendKind::ClusterIp),
    ];
    let wanted = wanted.map(|(address, kind)| params(address, kind));
    writer
        .upsert_service_and_frontends(&mut txn, service(), wanted.into())
        .unwrap();
    super::number_all(&writer, &mut txn);
    txn.commit();
    super::settle(&writer);

    super::serve_node_ports_at(&writer, "10.1.0.1");

    assert_eq!(super::pending(&writer), ["0.0.0.0:8080/TCP"]);
}

#[test]
fn a_new_zone_of_the_node_is_told_to_services_that_ask_for_zones() {
    let writer = placed();
    with_cluster_ip(&writer, close(), vec![]);
    let mut txn = writer.write();
    let other = Service::new(ServiceName::new("shop", "other"), Source::Kubernetes);
    let wanted = vec![params("10.50.0.10:80/TCP", FrontendKind::ClusterIp)];
    writer
        .upsert_service_and_frontends(&mut txn, other, wanted)
        .unwrap();
    super::number_all(&writer, &mut txn);
    txn.commit();
    super::settle(&writer);

    let mut txn = writer.write();
    let facts = NodeFacts {
        zone: Some("b".into()),
        ..writer.node(&txn)
    };
    writer.set_node(&mut txn, facts).unwrap();
    txn.commit();

    assert_eq!(super::pending(&writer), [VIP]);
}

#[test]
fn a_redirect_takes_effect_when_the_other_service_comes() {
    let writer = writer(WriterSettings::default());
    let target = ServiceName::new("shop", "target");
    with_cluster_ip(&writer, service(), vec![backend("10.0.0.1:80/TCP")]);
    let mut txn = writer.write();
    writer
        .upsert_backends(&mut txn, &target, vec![backend("10.0.0.7:80/TCP")])
        .unwrap();
    writer
        .set_redirect_to(&mut txn, &addr(VIP), Some(&target))
        .unwrap();
    txn.commit();
    let before = backends_of(&writer, VIP);

    let mut txn = writer.write();
    writer
        .upsert_service(&mut txn, Service::new(target, Source::Kubernetes))
        .unwrap();
    txn.commit();

    assert_eq!(before, ["10.0.0.1:80/TCP"]);
    assert_eq!(backends_of(&writer, VIP), ["10.0.0.7:80/TCP"]);
}

#[test]
fn redirects_to_proxies_survive_changes_of_the_service() {
    let writer = writer(WriterSettings::default());
    with_cluster_ip(&writer, service(), vec![]);
    let redirect = || -> Option<Arc<[ProxyRedirect]>> {
        let ports = [80].into();
        Some(
            [ProxyRedirect {
                proxy_port: 1000,
                ports,
            }]
            .into(),
        )
    };
    let set = || {
        super::settle(&writer);
        let mut txn = writer.write();
        writer.set_proxy_redirects(&mut txn, &name(), redirect()).unwrap();
        txn.commit();
        super::pending(&writer)
    };

    let pending = [set(), set()];
    with_cluster_ip(&writer, service(), vec![]);
    let mut txn = writer.write();
    let changed = Service {
        session_affinity: true,
        ..service()
    };
    writer.upsert_service(&mut txn, changed).unwrap();
    let after = txn.commit();

    assert_eq!(
        pending,
        [vec![VIP.to_owned()], vec![]],
        "the same again is nothing new"
    );
    let table = writer.frontends();
    let frontend = table.all(&after).next().unwrap();
    assert_eq!(frontend.service.proxy_redirects, redirect());
    assert!(frontend.service.session_affinity);
    assert_eq!(super::pending(&writer), [VIP]);
}

#[test]
fn frontends_have_backends_of_the_other_family_if_there_are_no_others_or_the_service_says_so() {
    let (v4, v6) = ("10.244.0.1:80/TCP", "[fd00::1]:80/TCP");
    let (vip4, vip6) = ("10.96.0.9:80/TCP", "[fd10::9]:80/TCP");
    let selected = |crosses_families: bool, nat_policy: NatPolicy, backends: &[&str]| {
        let writer = writer(WriterSettings {
            crosses_families,
            ..WriterSettings::default()
        });
        let mut txn = writer.write();
        let service = Service {
            nat_policy,
            ..service()
        };
        let frontends = [vip4, vip6].map(|vip| params(vip, FrontendKind::ClusterIp));
        writer
            .upsert_service_and_frontends(&mut txn, service, frontends.to_vec())
            .unwrap();
        let backends = backends.iter().map(|address| backend(address));
        writer
            .upsert_backends(&mut txn, &name(), backends.collect())
            .unwrap();
        txn.commit();
        [vip4, vip6].map(|vip| backends_of(&writer, vip).join(" "))
    };

    assert_eq!(selected(false, NatPolicy::Unset, &[v6]), ["", v6]);
    assert_eq!(selected(true, NatPolicy::Unset, &[v6]), [v6, v6]);
    assert_eq!(selected(true, NatPolicy::Unset, &[v4]), [v4, v4]);
    assert_eq!(selected(true, NatPolicy::Unset, &[v4, v6]), [v4, v6]);
    assert_eq!(selected(true, NatPolicy::None, &[v4]), [v4, ""]);
    assert_eq!(selected(true, NatPolicy::Nat46, &[v4, v6]), [v6, v6]);
    assert_eq!(selected(true, NatPolicy::Nat64, &[v4, v6]), [v4, v4]);
}
