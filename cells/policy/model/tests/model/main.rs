// SPDX-License-Identifier: Apache-2.0

//! Random policies: maps and a reference evaluator agree about every packet, and a map that followed changes is the one
//! that is computed at once.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod generate;
mod reference;

use std::collections::BTreeMap;

use generate::{SUBJECT, all_peers, identity, labels, parse, rule};
use proptest::prelude::*;
use reference::{Direction, Packet, Peer, PortRule, Rule, Verdict, World};
use skep_policy_model::{
    Content, Context, EndpointFacts, MapState, Policies, PolicyObject, PolicySettings, Protocol,
    entries::MapEntry, filter::ProxyClass, map_state::MapChange, object::Class, ports::TrafficKey,
};

type Proxies = BTreeMap<ProxyClass, u16>;

fn proxies() -> Proxies {
    use skep_policy_model::Direction::{Egress, Ingress};
    BTreeMap::from([(ProxyClass::Http(Ingress), 1), (ProxyClass::Http(Egress), 2)])
}

const ENDPOINT: u16 = 1;

fn engine(peers: &[Peer]) -> Policies {
    let mut policies = Policies::new(PolicySettings::default());
    policies.update_identities(
        peers.iter().map(|peer| (identity(*peer), labels(*peer))),
        [],
        &proxies(),
    );
    policies.set_endpoint(
        ENDPOINT,
        identity(SUBJECT),
        labels(SUBJECT),
        EndpointFacts::default(),
    );
    policies
}

fn apply(policies: &mut Policies, object: &PolicyObject) {
    let Content::Rules(rules) = &object.content else {
        panic!("no rules")
    };
    policies.replace(&object.resource, Some(rules));
}

/// Rows of a map, as texts without what may differ in pass marks.
fn rows(map: &MapState) -> BTreeMap<(skep_policy_model::Direction, u32, TrafficKey), MapEntry> {
    let rows = map.rows();
    rows.map(|row| ((row.direction, row.identity.get(), row.key), row.entry.clone()))
        .collect()
}

fn peer() -> impl Strategy<Value = Peer> {
    prop_oneof![
        Just(Peer::Host),
        Just(Peer::World),
        Just(Peer::Wide),
        Just(Peer::Narrow),
        (0_u8..3, 0_u8..2).prop_map(|(app, namespace)| Peer::Pod { app, namespace }),
    ]
}

fn packets() -> Vec<(Protocol, u16)> {
    let tcp = (77..90).map(|port| (Protocol::TCP, port));
    tcp.chain([
        (Protocol::UDP, 80),
        (Protocol::UDP, 81),
        (Protocol::SCTP, 80),
        (Protocol::ICMP, 8),
    ])
    .collect()
}

fn decided(map: &MapState, packet: &Packet) -> &'static str {
    let direction = match packet.direction {
        Direction::Ingress => skep_policy_model::Direction::Ingress,
        Direction::Egress => skep_policy_model::Direction::Egress,
    };
    match map.lookup(
        direction,
        identity(packet.peer),
        Protocol(packet.protocol),
        packet.port,
    ) {
        None => "drop",
        Some(found) if found.row.entry.is_deny => "drop",
        Some(found) if found.row.entry.proxy.is_some() => "redirect",
        Some(_) => "allow",
    }
}

proptest! {
    #[test]
    fn maps_and_the_reference_agree(rules in proptest::collection::vec(rule(), 0..8)) {
        let mut policies = engine(&all_peers());
        for (number, rule) in rules.iter().enumerate() {
            apply(&mut policies, &parse(rule, number));
        }
        policies.refresh(&proxies());
        let map = policies.map_of(ENDPOINT).unwrap();
        let world = World { rules: &rules };
        for direction in [Direction::Ingress, Direction::Egress] {
            for peer in all_peers() {
                for (protocol, port) in packets() {
                    let packet = Packet { direction, peer, protocol: protocol.0, port };
                    prop_assert_eq!(decided(map, &packet), world.decide(&packet), "{:?}", packet);
                }
            }
        }
    }

    #[test]
    fn maps_that_follow_changes_are_those_computed_at_once(
        rules in proptest::collection::vec(rule(), 1..8),
        changes in proptest::collection::vec((any::<bool>(), peer(), 0_usize..8), 0..20),
    ) {
        let mut policies = engine(&[Peer::Host]);
        let mut peers = vec![Peer::Host];
        let mut present = Vec::new();
        let mut followed = BTreeMap::new();
        for (is_rule, peer, number) in changes {
            if is_rule {
                let number = number % rules.len();
                let object = parse(&rules[number], number);
                match present.iter().position(|known| *known == number) {
                    Some(at) => {
                        present.remove(at);
                        policies.replace(&object.resource, None);
                    }
                    None => {
                        present.push(number);
                        apply(&mut policies, &object);
                    }
                }
                policies.refresh(&proxies());
                followed = policies.map_of(ENDPOINT).map(rows).unwrap_or_default();
            } else if peers.contains(&peer) {
                peers.retain(|known| *known != peer);
                follow(&mut followed, policies.update_identities([], [identity(peer)], &proxies()));
            } else {
                peers.push(peer);
                let added = [(identity(peer), labels(peer))];
                follow(&mut followed, policies.update_identities(added, [], &proxies()));
            }
        }
        policies.refresh(&proxies());
        let found = policies.map_of(ENDPOINT).map(rows).unwrap();
        let mut afresh = engine(&peers);
        present.iter().rev().for_each(|number| apply(&mut afresh, &parse(&rules[*number], *number)));
        afresh.refresh(&proxies());
        prop_assert_eq!(&found, &rows(afresh.map_of(ENDPOINT).unwrap()));
        if !followed.is_empty() {
            prop_assert_eq!(&followed, &found, "reported changes lead to the map");
        }
    }

    /// Nothing that an object says makes the conversion panic.
    #[test]
    fn objects_are_accepted_or_refused(text in "[ -~]{0,40}", number in any::<i64>(), which in 0_usize..12) {
        let mut object = Rule::default().to_object(0);
        let paths = [
            "/metadata/name", "/spec/endpointSelector/matchLabels/app", "/spec/ingress/0/toPorts/0/ports/0/port",
            "/spec/ingress/0/toPorts/0/ports/0/protocol", "/spec/ingress/0/toPorts/0/ports/0/endPort",
            "/spec/ingress/0/fromEndpoints/0", "/spec/ingress/0/fromEndpoints", "/spec/ingress/0", "/spec/ingress",
            "/spec/endpointSelector", "/spec", "/kind",
        ];
        for value in [serde_json::json!(text), serde_json::json!(number), serde_json::json!([text]), serde_json::json!(null)] {
            if let Some(field) = object.pointer_mut(paths[which]) {
                *field = value;
            }
            let context = Context { settings: &PolicySettings::default(), services: &[] };
            if let Err(error) = PolicyObject::parse(&object, &context) {
                prop_assert!(error.class == Class::Decode || !error.field.is_empty(), "{}", error);
            }
        }
    }
}

/// Carries reported changes out.
fn follow(
    rows: &mut BTreeMap<(skep_policy_model::Direction, u32, TrafficKey), MapEntry>,
    changes: Vec<skep_policy_model::policies::EndpointChanges>,
) {
    for MapChange {
        direction,
        identity,
        key,
        entry,
    } in changes.into_iter().flat_map(|changes| changes.changes)
    {
        match entry {
            Some(entry) => rows.insert((direction, identity.get(), key), entry),
            None => rows.remove(&(direction, identity.get(), key)),
        };
    }
}

#[test]
fn conflicts_name_the_rules_and_leave_the_policy_as_it_was() {
    let mut policies = engine(&all_peers());
    let http = Rule {
        http: true,
        ..Rule::default()
    };
    apply(&mut policies, &parse(&http, 0));
    policies.refresh(&proxies());
    let before = rows(policies.map_of(ENDPOINT).unwrap());
    let mut object = Rule::default().to_object(1);
    object["spec"]["ingress"][0]["toPorts"][0]["serverNames"] = serde_json::json!(["a.example.com"]);
    let context = Context {
        settings: &PolicySettings::default(),
        services: &[],
    };
    apply(&mut policies, &PolicyObject::parse(&object, &context).unwrap());
    policies.refresh(&proxies());

    let local = policies.local(identity(SUBJECT)).unwrap();
    let error = local.error().unwrap().to_string();
    assert!(
        error.starts_with("cnp/n0/p1: spec.ingress[0] and cnp/n0/p0: spec.ingress[0]: cannot merge L7"),
        "{error}"
    );
    assert_eq!(rows(policies.map_of(ENDPOINT).unwrap()), before);
}

#[test]
fn explanations_name_object_and_field() {
    let mut policies = engine(&all_peers());
    let allow = Rule {
        ports: PortRule::All,
        ..Rule::default()
    };
    let deny = Rule {
        verdict: Verdict::Deny,
        ports: PortRule::Tcp(80),
        ..Rule::default()
    };
    apply(&mut policies, &parse(&allow, 0));
    apply(&mut policies, &parse(&deny, 1));
    policies.refresh(&proxies());
    let api = identity(Peer::Pod { app: 1, namespace: 0 });
    let explain = |port| {
        let ingress = skep_policy_model::Direction::Ingress;
        policies
            .explain(ENDPOINT, ingress, api, Protocol::TCP, port)
            .unwrap()
    };

    let denied = explain(80);
    assert_eq!(denied.decision.to_string(), "denied");
    let (decided, other) = (&denied.rules[0], &denied.rules[1]);
    assert_eq!(decided.origin.resource.as_ref().unwrap().as_str(), "cnp/n0/p1");
    assert_eq!(&*decided.origin.field, "spec.ingressDeny[0]");
    assert!(decided.has_decided && !other.has_decided);
    assert_eq!(&*other.origin.field, "spec.ingress[0]");

    assert_eq!(explain(81).rules.len(), 1);
    assert_eq!(explain(81).decision.to_string(), "allowed");
    let ingress = skep_policy_model::Direction::Ingress;
    let world = policies
        .explain(ENDPOINT, ingress, identity(Peer::World), Protocol::TCP, 80)
        .unwrap();
    assert_eq!(world.decision.to_string(), "dropped, no policy allows it");
    assert!(world.rules.is_empty() && world.selecting.len() == 2);
}
