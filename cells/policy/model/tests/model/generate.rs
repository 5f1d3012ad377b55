// SPDX-License-Identifier: Apache-2.0

//! Random rules, and the peers that they may be about. The tests of the programs use them as well.

use std::sync::Arc;

use proptest::prelude::*;
use skep_identity::{Labels, NumericIdentity};
use skep_policy_model::{Context, IdentityLabels, PolicyObject, PolicySettings};

use super::reference::{Direction, Peer, PeerRule, PortRule, Rule, Tier, Verdict};

pub(crate) fn labels(peer: Peer) -> Arc<IdentityLabels> {
    let text = match peer {
        Peer::Host => "reserved:host;".to_owned(),
        Peer::World => "reserved:world;".to_owned(),
        Peer::Wide => "cidr:10.0.0.0/8;reserved:world;".to_owned(),
        Peer::Narrow => "cidr:10.1.0.0/16;reserved:world;".to_owned(),
        Peer::Pod { app, namespace } => format!(
            "k8s:app=a{app};k8s:io.cilium.k8s.namespace.labels.name=n{namespace};\
             k8s:io.cilium.k8s.policy.cluster=default;k8s:io.kubernetes.pod.namespace=n{namespace};"
        ),
    };
    Arc::new(IdentityLabels::from(&text.parse::<Labels>().unwrap()))
}

pub(crate) fn identity(peer: Peer) -> NumericIdentity {
    NumericIdentity::new(match peer {
        Peer::Host => 1,
        Peer::World => 2,
        Peer::Wide => 0x0100_0001,
        Peer::Narrow => 0x0100_0002,
        Peer::Pod { app, namespace } => 1000 + u32::from(app) * 10 + u32::from(namespace),
    })
}

/// The subject is the pod of app 0 in namespace 0.
pub(crate) const SUBJECT: Peer = Peer::Pod { app: 0, namespace: 0 };
pub(crate) fn parse(rule: &Rule, number: usize) -> PolicyObject {
    let object = rule.to_object(number);
    let context = Context {
        settings: &PolicySettings::default(),
        services: &[],
    };
    PolicyObject::parse(&object, &context).unwrap_or_else(|error| panic!("{error}: {object}"))
}

pub(crate) fn rule() -> impl Strategy<Value = Rule> {
    let peers = prop_oneof![
        3 => Just(PeerRule::Any),
        3 => (0_u8..3).prop_map(PeerRule::App),
        2 => (0_u8..3).prop_map(PeerRule::NotApp),
        3 => (0_u8..2).prop_map(PeerRule::Namespace),
        1 => Just(PeerRule::World),
        1 => Just(PeerRule::Wide),
        1 => Just(PeerRule::Narrow),
    ];
    let ports = prop_oneof![
        3 => Just(PortRule::All),
        4 => (78_u16..84).prop_map(PortRule::Tcp),
        3 => (78_u16..84, 1_u16..6).prop_map(|(start, more)| PortRule::Range(start, start + more)),
        1 => Just(PortRule::AllTcp),
        1 => Just(PortRule::Udp(80)),
        1 => Just(PortRule::AnyProtocol(80)),
    ];
    let tier = prop_oneof![
        3 => Just(Tier::Normal),
        2 => Just(Tier::Admin),
        1 => Just(Tier::Baseline),
    ];
    let direction = prop_oneof![Just(Direction::Ingress), Just(Direction::Egress)];
    let verdict = prop_oneof![3 => Just(Verdict::Allow), 2 => Just(Verdict::Deny), 2 => Just(Verdict::Pass)];
    let flags = (any::<bool>(), proptest::bool::weighted(0.8), 0_u8..4);
    (tier, direction, verdict, peers, ports, flags).prop_map(
        |(tier, direction, verdict, peers, ports, (http, default_deny, priority))| {
            Rule {
                tier,
                direction,
                verdict,
                peers,
                ports,
                http,
                default_deny,
                priority,
            }
            .possible()
        },
    )
}

pub(crate) fn all_peers() -> Vec<Peer> {
    let pods = (0..3).flat_map(|app| (0..2).map(move |namespace| Peer::Pod { app, namespace }));
    [Peer::Host, Peer::World, Peer::Wide, Peer::Narrow]
        .into_iter()
        .chain(pods)
        .collect()
}
