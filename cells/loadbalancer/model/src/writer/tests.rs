// SPDX-License-Identifier: Apache-2.0

//! Rules between the tables.

mod answers;
mod expansion;
mod model;
mod selection;

use super::*;
use crate::node::Addresses;
use crate::selection::ClusterAffinity;
use crate::types::{
    BackendParams, BackendState, BackendZone, FrontendKind, FrontendParams, TrafficDistribution,
    TrafficPolicy,
};
use statedb::reconciler::{Status, StatusKind};

fn writer(settings: WriterSettings) -> Writer {
    let db = Db::new();
    let tables = Tables::new(&db).unwrap();
    Writer::new(db, tables, settings)
}

fn addr(text: &str) -> L3n4Addr {
    text.parse().unwrap()
}

fn name() -> ServiceName {
    ServiceName::new("shop", "web")
}

fn service() -> Service {
    Service::new(name(), Source::Kubernetes)
}

fn params(address: &str, kind: FrontendKind) -> FrontendParams {
    let address = addr(address);
    FrontendParams {
        address,
        kind,
        port_name: "".into(),
        service_port: address.port(),
    }
}

fn backend(address: &str) -> BackendParams {
    BackendParams::new(addr(address), Source::Kubernetes)
}

fn backends_of(writer: &Writer, address: &str) -> Vec<String> {
    let txn = writer.db().read();
    let table = writer.frontends();
    let frontend = table
        .get(&txn, crate::FRONTENDS_BY_ADDRESS.key(&addr(address)))
        .unwrap();
    frontend
        .backends
        .iter()
        .map(|row| row.params.address.to_string())
        .collect()
}

fn number_all(writer: &Writer, txn: &mut WriteTxn) {
    let all: Vec<Frontend> = writer
        .frontends()
        .all(txn)
        .map(|row| Frontend::clone(row))
        .collect();
    for (frontend, id) in all.into_iter().zip(1..) {
        let numbered = Frontend { id, ..frontend };
        writer.0.tables.frontends.insert(txn, numbered).unwrap();
    }
}

fn settle(writer: &Writer) {
    let mut txn = writer.write();
    let all: Vec<Frontend> = writer
        .frontends()
        .all(&txn)
        .map(|row| Frontend::clone(row))
        .collect();
    for mut frontend in all {
        frontend.status = Status::done();
        writer.0.tables.frontends.insert(&mut txn, frontend).unwrap();
    }
    txn.commit();
}

/// A service of all clusters that prefers backends of some.
fn with_affinity(affinity: &str) -> Service {
    Service {
        annotations: [
            ("service.cilium.io/global", "true"),
            ("service.cilium.io/affinity", affinity),
        ]
        .into_iter()
        .collect(),
        ..service()
    }
}

fn set_node(writer: &Writer, facts: NodeFacts) {
    let mut txn = writer.write();
    writer.set_node(&mut txn, facts).unwrap();
    txn.commit();
}

// Makes this the only address that node ports are served at.
fn serve_node_ports_at(writer: &Writer, address: &str) {
    set_node(writer, at_addresses(&[(address, true)]));
}

/// A node with these addresses; whether they answer node ports.
fn at_addresses(addresses: &[(&str, bool)]) -> NodeFacts {
    let addresses = addresses.iter();
    let addresses: Addresses = addresses
        .map(|(text, is_node_port)| (text.parse().unwrap(), *is_node_port))
        .collect();
    NodeFacts {
        addresses: addresses.into(),
        ..NodeFacts::default()
    }
}

#[test]
fn facts_of_the_node_are_kept_only_with_their_transaction() {
    let writer = writer(WriterSettings::default());
    let facts = |zone: &str| NodeFacts {
        zone: Some(zone.into()),
        ..NodeFacts::default()
    };
    set_node(&writer, facts("a"));

    let mut aborted = writer.write();
    writer.set_node(&mut aborted, facts("b")).unwrap();
    let within = writer.node(&aborted).zone;
    let outside = writer.node(&writer.db().read()).zone;
    aborted.abort();

    assert_eq!(within.as_deref(), Some("b"));
    assert_eq!(outside.as_deref(), Some("a"));
    assert_eq!(writer.node(&writer.db().read()).zone.as_deref(), Some("a"));
}

fn pending(writer: &Writer) -> Vec<String> {
    let txn = writer.db().read();
    let table = writer.frontends();
    let rows = table
        .all(&txn)
        .filter(|row| row.status.kind == StatusKind::Pending);
    rows.map(|row| row.params.address.to_string()).collect()
}

const VIP: &str = "10.50.0.9:80/TCP";

fn with_cluster_ip(writer: &Writer, service: Service, backends: Vec<BackendParams>) {
    let mut txn = writer.write();
    let frontends = vec![params(VIP, FrontendKind::ClusterIp)];
    writer
        .upsert_service_and_frontends(&mut txn, service, frontends)
        .unwrap();
    writer.upsert_backends(&mut txn, &name(), backends).unwrap();
    txn.commit();
}

#[test]
fn refuses_a_taken_address_and_writes_nothing() {
    let writer = writer(WriterSettings::default());
    with_cluster_ip(&writer, service(), vec![]);
    let other = Service::new(ServiceName::new("shop", "other"), Source::Kubernetes);

    let mut txn = writer.write();
    let wanted = vec![
        params("10.50.0.8:80/TCP", FrontendKind::ClusterIp),
        params(VIP, FrontendKind::ClusterIp),
    ];
    let error = writer
        .upsert_service_and_frontends(&mut txn, other, wanted)
        .unwrap_err();
    let after = txn.commit();

    assert_eq!(
        error.to_string(),
        "10.50.0.9:80/TCP: frontend already owned by another service (shop/web)"
    );
    assert_eq!(
        (writer.services().len(&after), writer.frontends().len(&after)),
        (1, 1)
    );
}

#[test]
fn address_moves_in_one_transaction_once_released() {
    let writer = writer(WriterSettings::default());
    with_cluster_ip(&writer, service(), vec![]);
    let other = Service::new(ServiceName::new("shop", "other"), Source::Kubernetes);

    let mut txn = writer.write();
    writer.release_frontends(&mut txn, &name(), |_| false).unwrap();
    writer
        .upsert_service_and_frontends(&mut txn, other, vec![params(VIP, FrontendKind::ClusterIp)])
        .unwrap();
    let after = txn.commit();

    let table = writer.frontends();
    assert_eq!(
        table.all(&after).next().unwrap().service_name().as_str(),
        "shop/other"
    );
}

#[test]
fn what_is_the_same_is_left_alone() {
    let writer = writer(WriterSettings::default());
    with_cluster_ip(&writer, service(), vec![backend("10.0.0.1:80/TCP")]);
    settle(&writer);

    with_cluster_ip(&writer, service(), vec![backend("10.0.0.1:80/TCP")]);
    let untouched = pending(&writer);
    with_cluster_ip(
        &writer,
        Service {
            session_affinity: true,
            ..service()
        },
        vec![],
    );

    assert_eq!(untouched, Vec::<String>::new());
    assert_eq!(pending(&writer), [VIP]);
    assert_eq!(backends_of(&writer, VIP), ["10.0.0.1:80/TCP"]);
}

#[test]
fn replaces_the_set_of_frontends() {
    let writer = writer(WriterSettings::default());
    with_cluster_ip(&writer, service(), vec![]);

    let mut txn = writer.write();
    let wanted = vec![params("10.50.0.10:80/TCP", FrontendKind::ClusterIp)];
    writer
        .upsert_service_and_frontends(&mut txn, service(), wanted)
        .unwrap();
    let after = txn.commit();

    let table = writer.frontends();
    let all: Vec<String> = table
        .all(&after)
        .map(|row| row.params.address.to_string())
        .collect();
    assert_eq!(all, ["10.50.0.10:80/TCP"]);
}

#[test]
fn backends_may_come_first_and_stay_without_service() {
    let writer = writer(WriterSettings::default());
    let mut txn = writer.write();
    writer
        .upsert_backends(
            &mut txn,
            &name(),
            vec![backend("10.0.0.1:80/TCP"), backend("[fd00::1]:80/TCP")],
        )
        .unwrap();
    txn.commit();

    with_cluster_ip(&writer, service(), vec![]);
    assert_eq!(backends_of(&writer, VIP), ["10.0.0.1:80/TCP"]);
    let mut txn = writer.write();
    assert!(writer.delete_service_and_frontends(&mut txn, &name()).unwrap());
    let after = txn.commit();

    assert_eq!(
        (writer.frontends().len(&after), writer.backends().len(&after)),
        (0, 2)
    );
}

#[test]
fn of_one_address_in_a_batch_the_last_counts() {
    let weighted = |weight| BackendParams {
        weight,
        ..backend("10.0.0.1:80/TCP")
    };
    let weights = |writer: &Writer| -> Vec<u16> {
        let txn = writer.db().read();
        let rows = writer.backends().all(&txn).take(1).cloned().collect::<Vec<_>>();
        rows.iter().map(|row| row.params.weight).collect()
    };
    let few: Vec<BackendParams> = Vec::new();
    let many: Vec<BackendParams> = (2..=50).map(|n| backend(&format!("10.0.0.{n}:80/TCP"))).collect();
    for others in [few, many] {
        let writer = writer(WriterSettings::default());
        with_cluster_ip(&writer, service(), vec![weighted(1)]);
        for batch in [[5, 1], [1, 5], [5, 7], [7, 5]] {
            let mut all: Vec<BackendParams> = batch.map(weighted).into();
            all.splice(1..1, others.clone());
            with_cluster_ip(&writer, service(), all);
            assert_eq!(
                weights(&writer),
                [batch[1]],
                "{batch:?} with {} others",
                others.len()
            );
        }
    }
}

// A packet to an address of the node is not one to a service, whatever the port: no wildcard entry then.
#[test]
fn virtual_ips_that_the_node_has_or_has_no_more_are_pending() {
    let writer = writer(WriterSettings::default());
    let mut txn = writer.write();
    let service = Service {
        ext_traffic_policy: TrafficPolicy::Local,
        ..service()
    };
    let frontends = [
        (VIP, FrontendKind::ClusterIp),
        ("172.16.0.1:80/TCP", FrontendKind::LoadBalancer),
        ("172.16.0.1:80/TCP/i", FrontendKind::LoadBalancer),
        ("172.16.0.1:81/TCP", FrontendKind::ExternalIps),
        ("0.0.0.0:30080/TCP", FrontendKind::NodePort),
    ];
    let frontends = frontends.map(|(address, kind)| params(address, kind));
    writer
        .upsert_service_and_frontends(&mut txn, service, frontends.into())
        .unwrap();
    number_all(&writer, &mut txn);
    txn.commit();
    let after = |addresses: &[&str]| {
        settle(&writer);
        let mut txn = writer.write();
        let addresses: Vec<(&str, bool)> = addresses.iter().map(|text| (*text, false)).collect();
        writer.set_node(&mut txn, at_addresses(&addresses)).unwrap();
        txn.commit();
        pending(&writer)
    };

    assert_eq!(after(&["10.1.0.1"]), Vec::<String>::new());
    assert_eq!(after(&["10.1.0.1", "10.50.0.9"]), [VIP]);
    assert_eq!(after(&["172.16.0.1", "10.50.0.9"]), ["172.16.0.1:80/TCP"]);
    assert_eq!(after(&[]), [VIP, "172.16.0.1:80/TCP"]);
}

#[test]
fn best_source_wins_until_it_goes() {
    let writer = writer(WriterSettings::default());
    let mesh = |state| BackendParams {
        source: Source::ClusterMesh,
        state,
        ..backend("10.0.0.1:80/TCP")
    };
    with_cluster_ip(
        &writer,
        service(),
        vec![mesh(BackendState::Terminating), backend("10.0.0.1:80/TCP")],
    );
    let state = |writer: &Writer| {
        let txn = writer.db().read();
        let table = writer.frontends();
        let row = table.all(&txn).next().unwrap().clone();
        row.backends.iter().next().unwrap().params.state
    };

    let with_both = state(&writer);
    let mut txn = writer.write();
    writer
        .release_backends(&mut txn, &name(), Source::Kubernetes, &[addr("10.0.0.1:80/TCP")])
        .unwrap();
    txn.commit();

    assert_eq!(
        (with_both, state(&writer)),
        (BackendState::Active, BackendState::Terminating)
    );
}

#[test]
fn set_backends_removes_those_of_the_same_source_and_cluster_only() {
    let writer = writer(WriterSettings::default());
    let mesh = BackendParams {
        source: Source::ClusterMesh,
        cluster_id: 3,
        ..backend("10.0.0.9:80/TCP")
    };
    with_cluster_ip(
        &writer,
        service(),
        vec![backend("10.0.0.1:80/TCP"), backend("10.0.0.2:80/TCP"), mesh],
    );

    let mut txn = writer.write();
    writer
        .set_backends(
            &mut txn,
            &name(),
            Source::Kubernetes,
            0,
            vec![backend("10.0.0.2:80/TCP")],
        )
        .unwrap();
    txn.commit();

    assert_eq!(backends_of(&writer, VIP), ["10.0.0.2:80/TCP", "10.0.0.9:80/TCP"]);
}

#[test]
fn port_names_families_and_policies_decide() {
    let writer = writer(WriterSettings::default());
    set_node(
        &writer,
        NodeFacts {
            name: "here".into(),
            ..NodeFacts::default()
        },
    );
    let named = |address, names: &[&str], node: &str| BackendParams {
        port_names: names.iter().copied().collect(),
        node_name: Some(node.into()),
        ..backend(address)
    };
    let http = FrontendParams {
        port_name: "http".into(),
        ..params(VIP, FrontendKind::ClusterIp)
    };
    let external = FrontendParams {
        port_name: "http".into(),
        ..params("172.16.0.1:80/TCP", FrontendKind::LoadBalancer)
    };
    let service = Service {
        ext_traffic_policy: TrafficPolicy::Local,
        ..service()
    };
    let mut txn = writer.write();
    writer
        .upsert_service_and_frontends(&mut txn, service, vec![http, external])
        .unwrap();
    writer
        .upsert_backends(
            &mut txn,
            &name(),
            vec![
                named("10.0.0.1:80/TCP", &["http"], "here"),
                named("10.0.0.2:80/TCP", &["dns"], "here"),
                named("10.0.0.3:80/TCP", &[], "there"),
                named("10.0.0.4:80/UDP", &["http"], "here"),
            ],
        )
        .unwrap();
    txn.commit();

    assert_eq!(backends_of(&writer, VIP), ["10.0.0.1:80/TCP", "10.0.0.3:80/TCP"]);
    assert_eq!(backends_of(&writer, "172.16.0.1:80/TCP"), ["10.0.0.1:80/TCP"]);
}

#[test]
fn zones_follow_hints_and_the_node() {
    let writer = writer(WriterSettings {
        has_topology: true,
        ..WriterSettings::default()
    });
    let node = |zone: Option<&str>| NodeFacts {
        name: "here".into(),
        zone: zone.map(Into::into),
        ..NodeFacts::default()
    };
    let hinted = |address, zones: &[&str], state| BackendParams {
        zone: Some(Arc::new(BackendZone {
            zone: "a".into(),
            for_zones: zones.iter().copied().collect(),
        })),
        state,
        ..backend(address)
    };
    let service = Service {
        traffic_distribution: TrafficDistribution::PreferClose,
        ..service()
    };
    with_cluster_ip(
        &writer,
        service,
        vec![
            hinted("10.0.0.1:80/TCP", &["a"], BackendState::Active),
            hinted("10.0.0.2:80/TCP", &["b"], BackendState::Active),
            hinted("10.0.0.3:80/TCP", &[], BackendState::Terminating),
        ],
    );
    let mut seen = vec![backends_of(&writer, VIP).len()];
    for zone in [Some("a"), Some("b"), Some("c"), None] {
        let mut txn = writer.write();
        writer.set_node(&mut txn, node(zone)).unwrap();
        txn.commit();
        seen.push(backends_of(&writer, VIP).len());
    }

    assert_eq!(seen, [3, 1, 1, 3, 3]);
}

#[test]
fn same_node_is_preferred_while_it_has_one() {
    let writer = writer(WriterSettings {
        has_topology: true,
        ..WriterSettings::default()
    });
    set_node(
        &writer,
        NodeFacts {
            name: "here".into(),
            ..NodeFacts::default()
        },
    );
    let on = |address, node: &str| BackendParams {
        node_name: Some(node.into()),
        ..backend(address)
    };
    let service = Service {
        traffic_distribution: TrafficDistribution::PreferSameNode,
        ..service()
    };
    with_cluster_ip(
        &writer,
        service,
        vec![on("10.0.0.1:80/TCP", "here"), on("10.0.0.2:80/TCP", "there")],
    );

    let with_local = backends_of(&writer, VIP);
    let mut txn = writer.write();
    writer
        .release_backends(&mut txn, &name(), Source::Kubernetes, &[addr("10.0.0.1:80/TCP")])
        .unwrap();
    txn.commit();

    assert_eq!(
        (with_local, backends_of(&writer, VIP)),
        (vec!["10.0.0.1:80/TCP".into()], vec!["10.0.0.2:80/TCP".into()])
    );
}

#[test]
fn health_checked_backends_wait_for_their_first_result() {
    let writer = writer(WriterSettings::default());
    writer.set_health_checked(|service| service.annotations.get("checked").is_some());
    let service = Service {
        annotations: [("checked", "yes")].into_iter().collect(),
        ..service()
    };
    with_cluster_ip(&writer, service, vec![backend("10.0.0.1:80/TCP")]);

    let before = backends_of(&writer, VIP);
    let report = |is_healthy| {
        let mut txn = writer.write();
        let is_new = writer
            .set_backend_health(&mut txn, &name(), &addr("10.0.0.1:80/TCP"), is_healthy)
            .unwrap();
        txn.commit();
        is_new
    };
    let news = [report(true), report(true), report(false)];

    assert_eq!(before, Vec::<String>::new());
    assert_eq!(news, [true, false, true]);
    assert_eq!(backends_of(&writer, VIP), ["10.0.0.1:80/TCP"]);
}

#[test]
fn redirected_frontend_uses_the_other_service_while_it_exists() {
    let writer = writer(WriterSettings::default());
    with_cluster_ip(&writer, service(), vec![backend("10.0.0.1:80/TCP")]);
    let target = ServiceName::new("shop", "lrp:local-redirect");
    let redirect = |target: Option<&ServiceName>| {
        let mut txn = writer.write();
        writer.set_redirect_to(&mut txn, &addr(VIP), target).unwrap();
        txn.commit();
    };

    redirect(Some(&target));
    let without_service = backends_of(&writer, VIP);
    let mut txn = writer.write();
    writer
        .upsert_service(&mut txn, Service::new(target.clone(), Source::Kubernetes))
        .unwrap();
    writer
        .upsert_backends(&mut txn, &target, vec![backend("10.0.0.7:80/TCP")])
        .unwrap();
    txn.commit();
    let redirected = backends_of(&writer, VIP);
    redirect(None);

    assert_eq!(without_service, ["10.0.0.1:80/TCP"]);
    assert_eq!(redirected, ["10.0.0.7:80/TCP"]);
    assert_eq!(backends_of(&writer, VIP), ["10.0.0.1:80/TCP"]);
}

fn by_sequence(writer: &Writer) -> Vec<String> {
    let txn = writer.db().read();
    let table = writer.frontends();
    let mut rows: Vec<_> = table.all(&txn).collect();
    rows.sort_by_key(|row| row.sequence);
    rows.iter().map(|row| row.params.address.to_string()).collect()
}

// The reconciler allocates ids by sequence. What changes some of a service's frontends before it came to them must not
// move these behind the others: which happened first would decide about ids.
#[test]
fn frontends_without_an_id_keep_their_order() {
    let writer = writer(WriterSettings::default());
    let order = [
        "0.0.0.0:30053/UDP",
        "0.0.0.0:30080/TCP",
        "10.50.0.9:53/UDP",
        "[fd00::1]:80/TCP",
    ];
    let kind = |address: &&str| match address.starts_with('0') {
        true => FrontendKind::NodePort,
        false => FrontendKind::ClusterIp,
    };
    let mut txn = writer.write();
    let wanted = order
        .iter()
        .map(|address| params(address, kind(address)))
        .collect();
    writer
        .upsert_service_and_frontends(&mut txn, service(), wanted)
        .unwrap();
    txn.commit();
    assert_eq!(by_sequence(&writer), order);

    for backend_address in ["10.0.0.5:53/UDP", "10.0.0.5:80/TCP", "[fd00::5]:80/TCP"] {
        let mut txn = writer.write();
        writer
            .upsert_backends(&mut txn, &name(), vec![backend(backend_address)])
            .unwrap();
        txn.commit();
        assert_eq!(by_sequence(&writer), order, "after {backend_address}");
    }
    serve_node_ports_at(&writer, "10.1.0.1");
    assert_eq!(by_sequence(&writer), order, "after a change of the node");

    // With ids only those that change are touched.
    let mut txn = writer.write();
    number_all(&writer, &mut txn);
    txn.commit();
    settle(&writer);
    let mut txn = writer.write();
    writer
        .upsert_backends(&mut txn, &name(), vec![backend("10.0.0.6:53/UDP")])
        .unwrap();
    txn.commit();
    assert_eq!(pending(&writer), ["0.0.0.0:30053/UDP", "10.50.0.9:53/UDP"]);
}

#[test]
fn virtual_ip_on_a_node_port_is_skipped() {
    let writer = writer(WriterSettings::default());
    let mut txn = writer.write();
    writer
        .set_node(&mut txn, at_addresses(&[("10.1.0.1", true)]))
        .unwrap();
    let wanted = ["10.1.0.1:30000/TCP", "10.1.0.1:80/TCP", "172.16.0.1:30000/TCP"]
        .map(|address| params(address, FrontendKind::LoadBalancer));
    writer
        .upsert_service_and_frontends(&mut txn, service(), wanted.into())
        .unwrap();
    let after = txn.commit();

    let table = writer.frontends();
    assert_eq!(
        table
            .all(&after)
            .map(|row| row.params.address.to_string())
            .collect::<Vec<_>>(),
        ["10.1.0.1:80/TCP", "172.16.0.1:30000/TCP"]
    );
}

#[test]
fn clusters_are_chosen_by_affinity() {
    let writer = writer(WriterSettings::default());
    writer.set_backend_filter(Arc::new(ClusterAffinity));
    let mesh = BackendParams {
        source: Source::ClusterMesh,
        cluster_id: 3,
        ..backend("10.0.0.9:80/TCP")
    };
    with_cluster_ip(&writer, service(), vec![backend("10.0.0.1:80/TCP"), mesh]);
    let mut seen = vec![backends_of(&writer, VIP).join(" ")];
    for affinity in ["none", "local", "remote"] {
        with_cluster_ip(&writer, with_affinity(affinity), vec![]);
        seen.push(backends_of(&writer, VIP).join(" "));
    }
    with_cluster_ip(&writer, with_affinity("local"), vec![]);
    let mut txn = writer.write();
    writer
        .set_backend_health(&mut txn, &name(), &addr("10.0.0.1:80/TCP"), false)
        .unwrap();
    txn.commit();
    seen.push(backends_of(&writer, VIP).join(" "));

    let (local, remote, both) = (
        "10.0.0.1:80/TCP",
        "10.0.0.9:80/TCP",
        "10.0.0.1:80/TCP 10.0.0.9:80/TCP",
    );
    assert_eq!(seen, [local, both, local, remote, both]);
}

#[test]
fn changes_of_many_backends_give_the_same_as_one_by_one() {
    let (bulk, single) = (
        writer(WriterSettings::default()),
        writer(WriterSettings::default()),
    );
    let all: Vec<BackendParams> = (1..=200)
        .map(|n| backend(&format!("10.0.0.{n}:80/TCP")))
        .collect();
    with_cluster_ip(&bulk, service(), all.clone());
    with_cluster_ip(&single, service(), vec![]);
    for params in all.iter().rev() {
        let mut txn = single.write();
        single
            .upsert_backends(&mut txn, &name(), vec![params.clone()])
            .unwrap();
        txn.commit();
    }
    for writer in [&bulk, &single] {
        let changed: Vec<BackendParams> = all
            .iter()
            .step_by(3)
            .map(|params| BackendParams {
                weight: 7,
                ..params.clone()
            })
            .collect();
        let mut txn = writer.write();
        writer.upsert_backends(&mut txn, &name(), changed).unwrap();
        writer
            .release_backends(&mut txn, &name(), Source::Kubernetes, &[addr("10.0.0.5:80/TCP")])
            .unwrap();
        txn.commit();
    }

    assert_eq!(backends_of(&bulk, VIP).len(), 199);
    assert_eq!(backends_of(&bulk, VIP), backends_of(&single, VIP));
}
