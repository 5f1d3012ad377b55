// SPDX-License-Identifier: Apache-2.0

//! However the tables came to be what they are: frontends have the backends they would have if all was written at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use statedb::reconciler::StatusKind;

use super::{addr, backend, settle};
use crate::node::NodeFacts;
use crate::selection::ClusterAffinity;
use crate::table::Tables;
use crate::types::{
    BackendParams, BackendState, BackendZone, Frontend, FrontendKind, FrontendParams, L3n4Addr, Service,
    ServiceName, Source, TrafficDistribution, TrafficPolicy,
};
use crate::writer::{Writer, WriterSettings};

const SERVICES: usize = 2;
const SOURCES: [Source; 2] = [Source::ClusterMesh, Source::Kubernetes];

#[derive(Debug, Clone)]
struct Look {
    is_ext_local: bool,
    is_int_local: bool,
    distribution: u8,
    is_checked: bool,
    affinity: u8,
    has_port_name: bool,
    /// Which of the frontends there are.
    frontends: u8,
}

#[derive(Debug, Clone)]
struct Spot {
    number: u8,
    source: usize,
    state: u8,
    is_named: bool,
    is_here: bool,
    zone: u8,
    is_udp: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Put(usize, Look),
    Delete(usize),
    Backends(usize, Vec<Spot>),
    Release(usize, usize, u8),
    Health(usize, u8, bool),
    Node(bool, u8),
    Redirect(usize, u8, bool),
}

fn look() -> impl Strategy<Value = Look> {
    (any::<(bool, bool, bool, bool)>(), 0u8..3, 0u8..4, 1u8..32).prop_map(
        |((is_ext_local, is_int_local, is_checked, has_port_name), distribution, affinity, frontends)| Look {
            is_ext_local,
            is_int_local,
            distribution,
            is_checked,
            affinity,
            has_port_name,
            frontends,
        },
    )
}

fn spot() -> impl Strategy<Value = Spot> {
    (0u8..6, 0usize..2, 0u8..4, any::<(bool, bool, bool)>(), 0u8..3).prop_map(
        |(number, source, state, (is_named, is_here, is_udp), zone)| Spot {
            number,
            source,
            state,
            is_named,
            is_here,
            zone,
            is_udp,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let of = 0..SERVICES;
    prop_oneof![
        3 => (of.clone(), look()).prop_map(|(service, look)| Step::Put(service, look)),
        1 => of.clone().prop_map(Step::Delete),
        4 => (of.clone(), prop::collection::vec(spot(), 1..5)).prop_map(|(service, all)| Step::Backends(service, all)),
        2 => (of.clone(), 0usize..2, 0u8..6).prop_map(|(service, source, number)| Step::Release(service, source, number)),
        2 => (of.clone(), 0u8..6, any::<bool>()).prop_map(|(service, number, up)| Step::Health(service, number, up)),
        1 => (any::<bool>(), 0u8..3).prop_map(|(is_here, zone)| Step::Node(is_here, zone)),
        1 => (of, 0u8..5, any::<bool>()).prop_map(|(service, frontend, on)| Step::Redirect(service, frontend, on)),
    ]
}

fn name(at: usize) -> ServiceName {
    ServiceName::new("shop", ["a", "b"][at])
}

fn zone(number: u8) -> Option<&'static str> {
    [None, Some("east"), Some("west")][usize::from(number)]
}

fn service(at: usize, look: &Look) -> Service {
    let local = |is_local| match is_local {
        true => TrafficPolicy::Local,
        false => TrafficPolicy::Cluster,
    };
    let mut annotations: Vec<(&str, &str)> = Vec::new();
    annotations.extend(look.is_checked.then_some(("checked", "yes")));
    if look.affinity > 0 {
        annotations.push(("service.cilium.io/global", "true"));
        let affinity = ["none", "local", "remote"][usize::from(look.affinity) - 1];
        annotations.push(("service.cilium.io/affinity", affinity));
    }
    Service {
        ext_traffic_policy: local(look.is_ext_local),
        int_traffic_policy: local(look.is_int_local),
        traffic_distribution: [
            TrafficDistribution::Default,
            TrafficDistribution::PreferClose,
            TrafficDistribution::PreferSameNode,
        ][usize::from(look.distribution)],
        annotations: annotations.into_iter().collect(),
        ..Service::new(name(at), Source::Kubernetes)
    }
}

fn frontend(at: usize, number: u8, look: &Look) -> FrontendParams {
    let (text, kind) = [
        ("10.50.0.N:80/TCP", FrontendKind::ClusterIp),
        ("10.50.0.N:81/TCP", FrontendKind::ClusterIp),
        ("10.50.0.N:80/UDP", FrontendKind::ClusterIp),
        ("172.16.0.N:80/TCP", FrontendKind::LoadBalancer),
        ("172.16.0.N:80/TCP/i", FrontendKind::LoadBalancer),
    ][usize::from(number)];
    let address = addr(&text.replace('N', &(at + 1).to_string()));
    let is_named = look.has_port_name && number.is_multiple_of(2);
    FrontendParams {
        address,
        kind,
        port_name: if is_named { "http" } else { "" }.into(),
        service_port: address.port(),
    }
}

fn frontends(at: usize, look: &Look) -> Vec<FrontendParams> {
    let numbers = (0..5).filter(|number| look.frontends & (1 << number) != 0);
    numbers.map(|number| frontend(at, number, look)).collect()
}

fn params(spot: &Spot) -> BackendParams {
    let proto = if spot.is_udp { "UDP" } else { "TCP" };
    let hints: &[&str] = match spot.zone {
        0 => &[],
        1 => &["east"],
        _ => &["west"],
    };
    BackendParams {
        source: SOURCES[spot.source],
        state: BackendState::from_number(spot.state).unwrap(),
        port_names: spot.is_named.then_some("http").into_iter().collect(),
        node_name: Some(if spot.is_here { "here" } else { "there" }.into()),
        zone: Some(Arc::new(BackendZone {
            zone: "east".into(),
            for_zones: hints.iter().copied().collect(),
        })),
        ..backend(&format!("10.0.0.{}:80/{proto}", spot.number))
    }
}

/// What was written, in the simplest form.
#[derive(Default)]
struct Model {
    services: BTreeMap<usize, Look>,
    // With what a checker found.
    backends: BTreeMap<(usize, L3n4Addr, usize), (BackendParams, Option<bool>)>,
    node: NodeFacts,
    redirects: BTreeMap<L3n4Addr, usize>,
}

fn new_writer() -> Writer {
    let db = statedb::Db::new();
    let tables = Tables::new(&db).unwrap();
    let settings = WriterSettings {
        has_topology: true,
        ..WriterSettings::default()
    };
    let writer = Writer::new(db, tables, settings);
    writer.set_backend_filter(Arc::new(ClusterAffinity));
    writer.set_health_checked(|service| service.annotations.get("checked").is_some());
    writer
}

impl Model {
    fn step(&mut self, writer: &Writer, step: &Step) {
        let mut txn = writer.write();
        match step {
            Step::Put(at, look) => {
                let wanted = frontends(*at, look);
                self.redirects.retain(|address, _| {
                    (0..5).all(|number| frontend(*at, number, look).address != *address)
                        || wanted.iter().any(|params| params.address == *address)
                });
                writer
                    .upsert_service_and_frontends(&mut txn, service(*at, look), wanted)
                    .unwrap();
                self.services.insert(*at, look.clone());
            }
            // One that others are redirected to leaves them what they had: not told by the final state.
            Step::Delete(at) if !self.redirects.values().any(|target| target == at) => {
                writer.delete_service_and_frontends(&mut txn, &name(*at)).unwrap();
                if let Some(look) = self.services.remove(at) {
                    let own = frontends(*at, &look);
                    self.redirects
                        .retain(|address, _| own.iter().all(|params| params.address != *address));
                }
            }
            Step::Backends(at, spots) => {
                let all: Vec<BackendParams> = spots.iter().map(params).collect();
                for (params, spot) in all.iter().zip(spots) {
                    let entry = self.backends.entry((*at, params.address, spot.source));
                    let health = entry.or_insert((params.clone(), None)).1;
                    self.backends
                        .insert((*at, params.address, spot.source), (params.clone(), health));
                }
                writer.upsert_backends(&mut txn, &name(*at), all).unwrap();
            }
            Step::Release(at, source, number) => {
                for proto in ["TCP", "UDP"] {
                    let address = addr(&format!("10.0.0.{number}:80/{proto}"));
                    writer
                        .release_backends(&mut txn, &name(*at), SOURCES[*source], &[address])
                        .unwrap();
                    self.backends.remove(&(*at, address, *source));
                }
            }
            Step::Health(at, number, is_healthy) => {
                let address = addr(&format!("10.0.0.{number}:80/TCP"));
                let best = (0..2)
                    .rev()
                    .find(|source| self.backends.contains_key(&(*at, address, *source)));
                let result = writer.set_backend_health(&mut txn, &name(*at), &address, *is_healthy);
                assert_eq!(result.is_ok(), best.is_some());
                if let Some(row) = best.and_then(|source| self.backends.get_mut(&(*at, address, source))) {
                    row.1 = Some(*is_healthy);
                }
            }
            Step::Node(is_here, number) => {
                self.node = NodeFacts {
                    name: if *is_here { "here" } else { "elsewhere" }.into(),
                    zone: zone(*number).map(Into::into),
                    ..NodeFacts::default()
                };
                writer.set_node(&mut txn, self.node.clone()).unwrap();
            }
            Step::Redirect(at, number, is_on) => {
                let other = 1 - *at;
                let Some(look) = self
                    .services
                    .get(at)
                    .filter(|look| look.frontends & (1 << number) != 0)
                else {
                    return;
                };
                let address = frontend(*at, *number, look).address;
                if *is_on && self.services.contains_key(&other) {
                    writer
                        .set_redirect_to(&mut txn, &address, Some(&name(other)))
                        .unwrap();
                    self.redirects.insert(address, other);
                } else {
                    writer.set_redirect_to(&mut txn, &address, None).unwrap();
                    self.redirects.remove(&address);
                }
            }
            Step::Delete(_) => {}
        }
        txn.commit();
    }

    /// A writer that was told the final state, and nothing else.
    fn at_once(&self) -> Writer {
        let writer = new_writer();
        let mut txn = writer.write();
        writer.set_node(&mut txn, self.node.clone()).unwrap();
        // The best source comes last, so that each health is noted in its own row.
        for ((at, address, _), (params, health)) in &self.backends {
            writer
                .upsert_backends(&mut txn, &name(*at), vec![params.clone()])
                .unwrap();
            if let Some(is_healthy) = health {
                writer
                    .set_backend_health(&mut txn, &name(*at), address, *is_healthy)
                    .unwrap();
            }
        }
        for (at, look) in &self.services {
            writer
                .upsert_service_and_frontends(&mut txn, service(*at, look), frontends(*at, look))
                .unwrap();
        }
        for (address, target) in &self.redirects {
            writer
                .set_redirect_to(&mut txn, address, Some(&name(*target)))
                .unwrap();
        }
        txn.commit();
        writer
    }
}

/// What frontends have, by address, and whether they are pending.
fn state(writer: &Writer) -> BTreeMap<String, (String, bool)> {
    let txn = writer.db().read();
    let text = |frontend: &Frontend| {
        let rows = |set: &crate::types::BackendSet| -> Vec<String> {
            set.iter()
                .map(|row| format!("{:?} unhealthy={}", row.params, row.unhealthy))
                .collect()
        };
        format!(
            "{:?} {:?} {:#?} to check {:#?}",
            frontend.service.ext_traffic_policy,
            frontend.service.annotations,
            rows(&frontend.backends),
            rows(&frontend.health_check_backends)
        )
    };
    let table = writer.frontends();
    table
        .all(&txn)
        .map(|frontend| {
            let is_pending = frontend.status.kind == StatusKind::Pending;
            (frontend.params.address.to_string(), (text(frontend), is_pending))
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_way_leads_to_the_same_backends(steps in prop::collection::vec(step(), 1..25)) {
        let writer = new_writer();
        let mut model = Model::default();
        for (at, step) in steps.iter().enumerate() {
            let before = state(&writer);
            settle(&writer);
            model.step(&writer, step);

            let after = state(&writer);
            for (address, (text, is_pending)) in &after {
                let is_same = before.get(address).is_some_and(|(old, _)| old == text);
                prop_assert!(is_same || *is_pending, "step {at}: {address} is not pending");
            }
            let wanted = state(&model.at_once());
            let backends = |all: BTreeMap<String, (String, bool)>| -> BTreeMap<String, String> {
                all.into_iter().map(|(address, (text, _))| (address, text)).collect()
            };
            prop_assert_eq!(backends(after), backends(wanted), "after step {}", at);
        }
    }
}
