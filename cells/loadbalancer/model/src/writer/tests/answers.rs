// SPDX-License-Identifier: Apache-2.0

//! The table "Which endpoints get traffic" of docs/socket-load-balancing.md, cell by cell.

use std::sync::Arc;

use super::{addr, name, params, service, writer};
use crate::FRONTENDS_BY_ADDRESS;
use crate::node::NodeFacts;
use crate::selection::ClusterAffinity;
use crate::types::{
    Backend, BackendParams, BackendState, BackendZone, Frontend, FrontendKind, L3n4Addr, Service, Source,
    TrafficDistribution, TrafficPolicy,
};
use crate::writer::{Writer, WriterSettings};

const PAGE: &str = include_str!("../../../../../../docs/socket-load-balancing.md");

/// Cells of the rows below the heading, without the head of the table.
fn rows(heading: &str) -> Vec<Vec<&'static str>> {
    let section = PAGE.split_once(heading).unwrap().1;
    let lines = section.lines().skip_while(|line| !line.starts_with('|'));
    let lines = lines.take_while(|line| line.starts_with('|')).skip(2);
    lines
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

const PROTOCOLS: [&str; 2] = ["TCP", "UDP"];
const FRONTENDS: [(&str, FrontendKind); 7] = [
    ("10.96.0.1:80/{}", FrontendKind::ClusterIp),
    ("0.0.0.0:30080/{}", FrontendKind::NodePort),
    ("0.0.0.0:30080/{}/i", FrontendKind::NodePort),
    ("192.0.2.1:80/{}", FrontendKind::LoadBalancer),
    ("192.0.2.1:80/{}/i", FrontendKind::LoadBalancer),
    ("198.51.100.1:80/{}", FrontendKind::ExternalIps),
    ("198.51.100.1:80/{}/i", FrontendKind::ExternalIps),
];

/// A writer on node `here` in zone `a`.
fn placed() -> Writer {
    let writer = writer(WriterSettings {
        has_topology: true,
        ..WriterSettings::default()
    });
    writer.set_backend_filter(Arc::new(ClusterAffinity));
    let facts = NodeFacts {
        name: "here".into(),
        zone: Some("a".into()),
        ..NodeFacts::default()
    };
    super::set_node(&writer, facts);
    writer
}

/// A ready endpoint.
fn endpoint(number: u8, proto: &str, node: &str, zone: &str) -> BackendParams {
    BackendParams {
        node_name: Some(node.into()),
        zone: Some(Arc::new(BackendZone {
            zone: zone.into(),
            for_zones: [zone].into_iter().collect(),
        })),
        ..BackendParams::new(addr(&format!("10.0.0.{number}:80/{proto}")), Source::Kubernetes)
    }
}

fn serve(writer: &Writer, service: Service, backends: Vec<BackendParams>) {
    let kinds = FRONTENDS.iter();
    let frontends = kinds
        .flat_map(|(text, kind)| PROTOCOLS.map(|proto| params(&text.replace("{}", proto), *kind)))
        .collect();
    let mut txn = writer.write();
    writer
        .upsert_service_and_frontends(&mut txn, service, frontends)
        .unwrap();
    writer.upsert_backends(&mut txn, &name(), backends).unwrap();
    txn.commit();
}

fn all_frontends(writer: &Writer, proto: &str) -> Vec<Frontend> {
    let txn = writer.db().read();
    let table = writer.frontends();
    let get = |(text, _): &(&str, FrontendKind)| {
        let address = addr(&text.replace("{}", proto));
        Frontend::clone(table.get(&txn, FRONTENDS_BY_ADDRESS.key(&address)).unwrap())
    };
    FRONTENDS.iter().map(get).collect()
}

/// The endpoint of a row, with what a health checker found; `None`: it is in no slice any more.
fn claimed(row: &str, proto: &str) -> Option<(BackendParams, bool)> {
    let ready = endpoint(1, proto, "here", "a");
    let in_state = |state| BackendParams {
        state,
        ..ready.clone()
    };
    let params = match row {
        "ready" | "quarantined by a health checker" => ready,
        "ready, others are preferred" => endpoint(1, proto, "there", "b"),
        "ending" => in_state(BackendState::Terminating),
        "ended" => in_state(BackendState::TerminatingNotServing),
        "not ready" | "weight 0" => in_state(BackendState::Maintenance),
        "in no slice" => return None,
        other => panic!("{other}: not in the test"),
    };
    Some((params, row.starts_with("quarantined")))
}

fn preferring(distribution: TrafficDistribution) -> Service {
    Service {
        traffic_distribution: distribution,
        ..service()
    }
}

/// A writer with the endpoint of a row, and others.
fn with(row: &str, proto: &str, service: Service, others: &[BackendParams]) -> Writer {
    let writer = placed();
    let claimed = claimed(row, proto);
    let params = claimed.iter().map(|(params, _)| params.clone());
    serve(&writer, service, params.chain(others.iter().cloned()).collect());
    if let Some((params, true)) = &claimed {
        let mut txn = writer.write();
        writer
            .set_backend_health(&mut txn, &name(), &params.address, false)
            .unwrap();
        txn.commit();
    }
    writer
}

fn has<'a>(mut rows: impl Iterator<Item = &'a crate::types::BackendRow>, address: &L3n4Addr) -> bool {
    rows.any(|row| row.params.address == *address)
}

/// One answer for all frontends.
fn agreed(frontends: &[Frontend], answer: impl Fn(&Frontend) -> bool) -> &'static str {
    let answers: Vec<bool> = frontends.iter().map(answer).collect();
    assert!(answers.iter().all(|each| *each == answers[0]), "{answers:?}");
    if answers[0] { "yes" } else { "no" }
}

/// What the table has to say of an endpoint.
fn answers(row: &str, proto: &str) -> [&'static str; 5] {
    let address = addr(&format!("10.0.0.1:80/{proto}"));
    let beside = endpoint(2, proto, "here", "a");
    let distribution = match row.ends_with("preferred") {
        true => TrafficDistribution::PreferClose,
        false => TrafficDistribution::Default,
    };
    let takes_calls = |others: &[BackendParams]| {
        let writer = with(row, proto, preferring(distribution), others);
        agreed(&all_frontends(&writer, proto), |frontend| {
            has(frontend.selectable_backends(), &address)
        })
    };
    let writer = with(
        row,
        proto,
        preferring(distribution),
        std::slice::from_ref(&beside),
    );
    let frontends = all_frontends(&writer, proto);
    let find = |frontend: &Frontend| -> Option<Backend> {
        let all = frontend.with_kept_backends().into_owned();
        all.backends.get(&address).map(|row| Backend::clone(row))
    };
    let (packets, sockets) = match proto {
        // A connection ends with its backend's entry; sockets are connected to the backend itself.
        "TCP" => (agreed(&frontends, |frontend| find(frontend).is_some()), "yes"),
        _ => (
            agreed(&frontends, |frontend| {
                find(frontend).is_some_and(|row| row.params.state.map_flags() <= 1)
            }),
            agreed(&frontends, |frontend| {
                find(frontend).is_some_and(|row| row.is_alive())
            }),
        ),
    };
    // It alone is where a preference looks, and a ready one elsewhere.
    let elsewhere = endpoint(3, proto, "there", "b");
    let has_effect = [
        TrafficDistribution::PreferSameNode,
        TrafficDistribution::PreferClose,
    ]
    .map(|distribution| {
        let writer = with(
            row,
            proto,
            preferring(distribution),
            std::slice::from_ref(&elsewhere),
        );
        agreed(&all_frontends(&writer, proto), |frontend| {
            !has(frontend.backends.iter(), &elsewhere.address)
        })
    });
    assert_eq!(has_effect[0], has_effect[1], "{row}");
    let counts = claimed(row, proto).is_some()
        && frontends.iter().all(|frontend| {
            find(frontend).is_some_and(|row| row.is_active_healthy() && row.is_on_node("here"))
        });
    assert_eq!(
        has_effect[0] == "yes",
        counts,
        "{row}: preference and health answer"
    );
    [
        takes_calls(&[beside]),
        takes_calls(&[]),
        packets,
        sockets,
        has_effect[0],
    ]
}

#[test]
fn the_table_in_the_docs_says_what_each_endpoint_gets() {
    let table = rows("## Which endpoints get traffic");
    assert_eq!(table.len(), 8);
    for cells in table {
        let [row, _, beside, alone, tcp, udp_packets, udp_sockets, counts] = cells[..] else {
            panic!("eight columns: {cells:?}")
        };
        assert_eq!(
            answers(row, "TCP"),
            [beside, alone, tcp, "yes", counts],
            "{row}, TCP"
        );
        assert_eq!(
            answers(row, "UDP"),
            [beside, alone, udp_packets, udp_sockets, counts],
            "{row}, UDP"
        );
    }
}

/// Preferences of all kinds, and a health checker that has not looked yet, are about new connections.
#[test]
fn connections_stay_with_an_endpoint_that_is_not_preferred_any_more() {
    let first = endpoint(1, "TCP", "there", "b");
    let second = endpoint(2, "TCP", "here", "a");
    let ended = BackendParams {
        zone: None,
        state: BackendState::Terminating,
        ..endpoint(1, "TCP", "here", "a")
    };
    let mesh = BackendParams {
        source: Source::ClusterMesh,
        cluster_id: 3,
        ..first.clone()
    };
    let topology = [
        TrafficDistribution::PreferClose,
        TrafficDistribution::PreferSameNode,
    ];
    let cases = topology
        .into_iter()
        .flat_map(|distribution| [&first, &ended].map(|params| (preferring(distribution), params.clone())));
    for (service, params) in cases.chain([(super::with_affinity("Local"), mesh)]) {
        let writer = placed();
        serve(
            &writer,
            service.clone(),
            vec![BackendParams {
                state: BackendState::Active,
                ..params.clone()
            }],
        );
        serve(&writer, service, vec![params.clone(), second.clone()]);

        for frontend in all_frontends(&writer, "TCP") {
            let new: Vec<L3n4Addr> = frontend
                .selectable_backends()
                .map(|row| row.params.address)
                .collect();
            assert_eq!(new, [second.address]);
            assert!(
                frontend
                    .with_kept_backends()
                    .backends
                    .get(&params.address)
                    .is_some()
            );
        }
    }
}

#[test]
fn the_table_in_the_docs_says_which_policy_counts() {
    let table = rows("Which policy counts");
    let policies = [TrafficPolicy::Cluster, TrafficPolicy::Local];
    for ext in policies {
        for int in policies {
            let writer = placed();
            let service = Service {
                ext_traffic_policy: ext,
                int_traffic_policy: int,
                ..service()
            };
            serve(&writer, service, vec![]);
            for frontend in all_frontends(&writer, "UDP") {
                let text = frontend.address().to_string();
                let from = if text.ends_with("/i") { "within" } else { "outside" };
                let kind = frontend.params.kind.as_str();
                let row = table
                    .iter()
                    .find(|cells| cells[0] == kind && [from, "anywhere"].contains(&cells[1]));
                let expected = match row.unwrap()[2] {
                    "external" => ext,
                    "internal" => int,
                    "always Cluster" => TrafficPolicy::Cluster,
                    other => panic!("{other}"),
                };
                assert_eq!(frontend.traffic_policy(), Some(expected), "{text}");
            }
        }
    }
}
