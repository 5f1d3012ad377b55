// SPDX-License-Identifier: Apache-2.0

//! Slices that change in any way: the tables hold what their slices have.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use skep_k8s_client::ObjectEvent;
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{
    AddressType, Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForZone, Labels,
    Protocol,
};
use skep_loadbalancer_model::types::annotation::WEIGHT;
use skep_loadbalancer_model::types::{BackendParams, BackendState, L3n4Addr};
use skep_loadbalancer_model::{ServiceName, Writer};

use super::{frontends, object, service_json, web_slice, writer};
use crate::convert::{self, Interner, Rules};
use crate::{Batch, Event, ServiceReflector};

fn endpoint(number: u8) -> Endpoint {
    Endpoint {
        addresses: [format!("10.1.0.{number}").into()].into(),
        node_name: Some("node-1".into()),
        ..Endpoint::default()
    }
}

fn slice(name: &str, numbers: impl IntoIterator<Item = u8>) -> EndpointSlice {
    web_slice(name, numbers.into_iter().map(endpoint), port("http", 8080))
}

fn port(name: &str, number: i32) -> EndpointPort {
    EndpointPort {
        name: Some(name.into()),
        protocol: Protocol::Tcp,
        port: Some(number),
    }
}

fn upserted(slice: &EndpointSlice) -> Event {
    Event::Slice(ObjectEvent::Applied(Arc::new(slice.clone())))
}

fn write(reflector: &mut ServiceReflector, event: Event) {
    let mut batch = Batch::default();
    batch.push(event);
    reflector.write(&mut batch);
}

fn rows(writer: &Writer) -> Vec<(ServiceName, BackendParams)> {
    let snapshot = writer.db().read();
    let rows = writer.backends();
    rows.all(&snapshot)
        .map(|row| (row.service.clone(), unclaimed(&row.params)))
        .collect()
}

/// What a backend is, whichever slice says so.
fn unclaimed(params: &BackendParams) -> BackendParams {
    BackendParams {
        claimant: 0,
        ..params.clone()
    }
}

/// A change of a slice.
#[derive(Debug, Clone)]
enum Edit {
    Remove(usize),
    Insert(usize, u8),
    Address(usize, u8),
    Second(usize, u8),
    Malformed(usize),
    State(usize, u8),
    Node(usize, u8),
    Zone(usize, u8),
    Topology(usize, u8),
    Ports(u8),
    Weight(u8),
    Family(bool),
    Service(bool),
    Reverse,
    Cut,
    Refill(u8),
    Delete,
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = || 0usize..60;
    prop_oneof![
        4 => at().prop_map(Edit::Remove),
        4 => (at(), 0u8..100).prop_map(|(at, number)| Edit::Insert(at, number)),
        3 => (at(), 0u8..100).prop_map(|(at, number)| Edit::Address(at, number)),
        1 => (at(), 0u8..100).prop_map(|(at, number)| Edit::Second(at, number)),
        1 => at().prop_map(Edit::Malformed),
        4 => (at(), 0u8..27).prop_map(|(at, state)| Edit::State(at, state)),
        2 => (at(), 0u8..3).prop_map(|(at, node)| Edit::Node(at, node)),
        2 => (at(), 0u8..4).prop_map(|(at, zone)| Edit::Zone(at, zone)),
        1 => (at(), 0u8..4).prop_map(|(at, zone)| Edit::Topology(at, zone)),
        1 => (0u8..5).prop_map(Edit::Ports),
        1 => (0u8..3).prop_map(Edit::Weight),
        1 => any::<bool>().prop_map(Edit::Family),
        1 => any::<bool>().prop_map(Edit::Service),
        1 => Just(Edit::Reverse),
        1 => Just(Edit::Cut),
        2 => (0u8..60).prop_map(Edit::Refill),
        1 => Just(Edit::Delete),
    ]
}

impl Edit {
    fn apply(self, slice: &mut EndpointSlice) {
        let mut endpoints = std::mem::take(&mut slice.endpoints).into_vec();
        let count = endpoints.len();
        let mut with = |at: usize, change: &dyn Fn(&mut Endpoint)| {
            if let Some(endpoint) = endpoints.get_mut(at) {
                change(endpoint);
            }
        };
        let condition = |digit: u8| [None, Some(false), Some(true)][usize::from(digit % 3)];
        match self {
            Self::Remove(at) if at < count => drop(endpoints.remove(at)),
            Self::Insert(at, number) => endpoints.insert(at.min(count), endpoint(number)),
            Self::Address(at, number) => with(at, &|it| it.addresses = endpoint(number).addresses),
            Self::Second(at, number) => with(at, &|it| {
                let texts = [number, number.wrapping_add(1)].map(|n| format!("10.1.0.{n}").into());
                it.addresses = texts.into();
            }),
            Self::Malformed(at) => with(at, &|it| it.addresses = ["nowhere".into()].into()),
            Self::State(at, state) => with(at, &|it| {
                it.conditions = EndpointConditions {
                    ready: condition(state),
                    serving: condition(state / 3),
                    terminating: condition(state / 9),
                };
            }),
            Self::Node(at, node) => with(at, &|it| {
                it.node_name = (node > 0).then(|| format!("node-{node}").into());
            }),
            Self::Zone(at, zone) => with(at, &|it| {
                it.zone = (zone > 0).then(|| format!("zone-{}", zone / 2).into());
                let name = format!("zone-{zone}").into();
                let for_zones = [ForZone { name }].into();
                it.hints = (zone % 2 == 1).then(|| Box::new(EndpointHints { for_zones }));
            }),
            Self::Topology(at, zone) => with(at, &|it| {
                let keys = ["kubernetes.io/hostname", "topology.kubernetes.io/zone", "other"];
                let labels = keys.into_iter().take(usize::from(zone));
                it.deprecated_topology = labels.map(|key| (key, "there")).collect();
            }),
            Self::Ports(0) => slice.ports = [].into(),
            Self::Ports(1) => slice.ports = [port("http", 8080)].into(),
            Self::Ports(2) => slice.ports = [port("web", 8080)].into(),
            Self::Ports(3) => slice.ports = [port("http", 8080), port("admin", 9090)].into(),
            Self::Ports(_) => slice.ports = [port("http", 8080), port("web", 8080)].into(),
            Self::Weight(0) => slice.metadata.annotations = Labels::default(),
            Self::Weight(weight) => {
                let weight = (weight - 1).to_string();
                let pairs = [(WEIGHT, weight.as_str())];
                slice.metadata.annotations = pairs.into_iter().collect();
            }
            Self::Family(true) => slice.address_type = AddressType::V4,
            Self::Family(false) => slice.address_type = AddressType::Fqdn,
            Self::Service(is_web) => {
                let name = if is_web { "web" } else { "api" };
                let pairs = [("kubernetes.io/service-name", name)];
                slice.metadata.labels = pairs.into_iter().collect();
            }
            Self::Reverse => endpoints.reverse(),
            Self::Cut => endpoints.truncate(10),
            Self::Refill(first) => endpoints = (first..first + 40).map(endpoint).collect(),
            Self::Remove(_) | Self::Delete => {}
        }
        slice.endpoints = endpoints.into();
    }
}

/// What the tables are to hold: what the slices that are left say, in whatever order they came to say it.
fn expected(slices: &BTreeMap<String, EndpointSlice>) -> Vec<(ServiceName, BackendParams)> {
    let mut claims: BTreeMap<(String, L3n4Addr), Vec<BackendParams>> = BTreeMap::new();
    for slice in slices.values().rev() {
        let converted = convert::endpoint_slice(slice, &Rules::default(), &mut Interner::default()).unwrap();
        for params in converted.backends {
            let key = (converted.service.as_str().to_owned(), params.address);
            claims.entry(key).or_default().push(params);
        }
    }
    let merged = claims.into_iter().map(|((service, _), claims)| {
        let name = service.split_once('/').unwrap();
        let params = BackendParams::of_claims(&claims).unwrap();
        (ServiceName::new(name.0, name.1), params)
    });
    merged.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn backends_are_those_of_the_slices_after_any_change(
        edits in prop::collection::vec((0usize..8, edit(), any::<bool>()), 1..80),
    ) {
        let writer = writer();
        let mut reflector = ServiceReflector::new(writer.clone(), Rules::default());
        let mut slices = [slice("a", 0..40), slice("b", 35..80), slice("c", 30..44)];
        let mut left = BTreeMap::new();
        let mut batch = Batch::default();
        for slice in &slices {
            batch.push(upserted(slice));
            left.insert(slice.metadata.name.to_string(), slice.clone());
        }
        for (which, edit, is_batch_done) in edits {
            // Most edits are of the large ones.
            let slice = &mut slices[[0, 0, 0, 0, 1, 1, 1, 2][which]];
            if let Edit::Delete = edit {
                batch.push(Event::Slice(ObjectEvent::Deleted(ObjectKey::of(slice), None)));
                left.remove(slice.metadata.name.as_str());
            } else {
                edit.apply(slice);
                batch.push(upserted(slice));
                left.insert(slice.metadata.name.to_string(), slice.clone());
            }
            if is_batch_done {
                reflector.write(&mut batch);
                prop_assert_eq!(rows(&writer), expected(&left));
            }
        }
    }
}

/// The kinds of endpoints that may claim one address, the best one first.
const STATES: [[bool; 3]; 4] = [
    // Ready, serving, terminating.
    [true, true, false],
    [false, true, true],
    [false, false, true],
    [false, false, false],
];

fn in_state([ready, serving, terminating]: [bool; 3]) -> Endpoint {
    Endpoint {
        conditions: EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        },
        ..endpoint(1)
    }
}

// Consumers read all slices of a service and remove duplicates: the ready one counts, then the serving one.
#[test]
fn of_several_claims_to_an_address_the_best_counts_in_every_order_until_it_goes() {
    let states = |writer: &Writer| -> Vec<BackendState> {
        let rows = rows(writer);
        rows.iter().map(|(_, params)| params.state).collect()
    };
    let expected = [
        BackendState::Active,
        BackendState::Terminating,
        BackendState::TerminatingNotServing,
        BackendState::Maintenance,
    ];
    let slice_in = |at: usize| {
        web_slice(
            &format!("s{at}"),
            [in_state(STATES[at])].into_iter(),
            port("http", 8080),
        )
    };
    for order in permutations() {
        for is_one_batch in [false, true] {
            let writer = writer();
            let mut reflector = ServiceReflector::new(writer.clone(), Rules::default());
            let mut batch = Batch::default();
            for at in order {
                batch.push(upserted(&slice_in(at)));
                if !is_one_batch {
                    reflector.write(&mut batch);
                }
            }
            reflector.write(&mut batch);
            assert_eq!(states(&writer), [expected[0]], "{order:?}");

            // Something that changes nothing is said again, then the best goes.
            for (best, expected) in expected.iter().enumerate() {
                let mut annotated = slice_in(3);
                annotated.metadata.annotations = [("note", "x")].into_iter().collect();
                write(&mut reflector, upserted(&annotated));
                assert_eq!(states(&writer), [*expected], "{order:?} without {best}");
                let gone = ObjectKey::of(&slice_in(best));
                write(&mut reflector, Event::Slice(ObjectEvent::Deleted(gone, None)));
            }
            assert_eq!(states(&writer), []);
        }
        let endpoints = order.map(|at| in_state(STATES[at]));
        let writer = writer();
        let mut reflector = ServiceReflector::new(writer.clone(), Rules::default());
        write(
            &mut reflector,
            upserted(&web_slice("one", endpoints.into_iter(), port("http", 8080))),
        );
        assert_eq!(states(&writer), [expected[0]], "{order:?} in one slice");
    }
}

fn permutations() -> impl Iterator<Item = [usize; 4]> {
    let all = (0..256usize).map(|n| [n & 3, n >> 2 & 3, n >> 4 & 3, n >> 6]);
    all.filter(|order| (0..4).all(|at| order.contains(&at)))
}

#[test]
fn endpoints_of_a_slice_come_change_and_go() {
    let writer = writer();
    let mut reflector = ServiceReflector::new(writer.clone(), Rules::default());
    let service = object(service_json("web", "10.96.0.1"));
    write(&mut reflector, Event::Service(ObjectEvent::Applied(service)));
    let of = |numbers: &mut dyn Iterator<Item = u8>| {
        let backends: Vec<String> = numbers
            .map(|number| format!("10.1.0.{number}:8080/TCP"))
            .collect();
        [format!("10.96.0.1:80/TCP shop/web [{}]", backends.join(" "))]
    };
    for count in [51, 50] {
        write(&mut reflector, upserted(&slice("a", 0..count)));
        assert_eq!(frontends(&writer), of(&mut (0..count)));
    }
    let before = rows(&writer);

    write(
        &mut reflector,
        upserted(&slice("a", (0..50).filter(|number| *number != 7))),
    );
    assert_eq!(frontends(&writer), of(&mut (0..50).filter(|number| *number != 7)));

    // At the end, as the controller of slices does it.
    write(
        &mut reflector,
        upserted(&slice("a", (0..50).filter(|number| *number != 7).chain([7]))),
    );
    assert_eq!(frontends(&writer), of(&mut (0..50)));
    assert_eq!(rows(&writer), before);
}
