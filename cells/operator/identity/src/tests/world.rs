// SPDX-License-Identifier: Apache-2.0

//! Which identities are missing.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use skep_identity::{IdentityRange, Labels, NumericIdentity};
use skep_identity_labels::LabelFilter;
use skep_k8s_types::ObjectKey;

use crate::World;

fn world() -> World {
    let range = IdentityRange::between(NumericIdentity::new(256), NumericIdentity::new(259));
    World::new("alder", LabelFilter::default(), range)
}

fn pod(name: &str) -> ObjectKey {
    ObjectKey {
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn missing(world: &World) -> Vec<String> {
    world.missing().map(ToString::to_string).collect()
}

fn set(app: &str, team: &str) -> String {
    let team = match team {
        "" => String::new(),
        team => format!("k8s:io.cilium.k8s.namespace.labels.team={team};"),
    };
    format!(
        "k8s:app={app};{team}k8s:io.cilium.k8s.policy.cluster=alder;k8s:io.kubernetes.pod.namespace=shop;"
    )
}

fn labels(text: &str) -> Labels {
    text.parse().unwrap()
}

#[test]
fn a_label_set_is_missing_as_long_as_a_pod_has_it_and_no_identity_does() {
    let mut world = world();
    world.set_pod(pod("a"), [("app", "web")], "", Vec::new());
    assert_eq!(missing(&world), [""; 0], "labels of the namespace are not known");
    world.set_namespace("shop", []);
    world.set_pod(
        pod("b"),
        [("app", "web"), ("pod-template-hash", "6d5f")],
        "",
        Vec::new(),
    );
    assert_eq!(missing(&world), [set("web", "")]);
    assert!(world.missing_labels(&set("web", "")).is_some());

    world.set_identity(256, &labels(&set("web", "")));
    assert_eq!(missing(&world), [""; 0]);
    assert!(world.missing_labels(&set("web", "")).is_none());
    world.set_identity(257, &labels(&set("web", "")));
    world.remove_identity(256);
    assert_eq!(missing(&world), [""; 0], "another one has the labels");
    world.remove_identity(257);
    assert_eq!(missing(&world), [set("web", "")]);

    world.remove_pod(&pod("a"));
    assert_eq!(missing(&world), [set("web", "")]);
    world.remove_pod(&pod("b"));
    assert_eq!(missing(&world), [""; 0]);
}

#[test]
fn pods_with_named_ports_want_identities_with_and_without_them() {
    let mut world = world();
    world.set_namespace("shop", []);
    let ports = |port| skep_identity_labels::named_port_labels([("http", "TCP", port)]);
    world.set_pod(pod("a"), [("app", "web")], "", ports(8080));
    world.set_pod(pod("b"), [("app", "web")], "", ports(9090));
    let with = |port: u16| format!("gen:io.cilium.k8s.named-ports=http.TCP.{port};");
    // As texts they are sorted by key.
    let sorted = |port| labels(&(set("web", "") + &with(port))).to_string();
    let mut all = vec![set("web", ""), sorted(8080), sorted(9090)];
    all.sort_unstable();
    assert_eq!(missing(&world), all);

    world.set_identity(256, &labels(&set("web", "")));
    world.set_identity(257, &labels(&sorted(8080)));
    assert_eq!(missing(&world), [sorted(9090)]);
    assert!(world.wants(256) && world.wants(257));
    world.set_pod(pod("a"), [("app", "web")], "", Vec::new());
    assert!(world.wants(256) && !world.wants(257));
    world.remove_pod(&pod("b"));
    assert_eq!(missing(&world), [""; 0]);
    assert!(world.wants(256));
}

#[test]
fn labels_of_a_namespace_are_those_of_all_its_pods() {
    let mut world = world();
    world.set_namespace("shop", []);
    world.set_pod(pod("a"), [("app", "web")], "", Vec::new());
    world.set_pod(pod("b"), [("app", "db")], "", Vec::new());

    world.set_namespace("shop", [("team", "red")]);
    assert_eq!(missing(&world), [set("db", "red"), set("web", "red")]);
    world.remove_namespace("shop");
    assert_eq!(missing(&world), [""; 0]);
}

#[test]
fn ids_are_free_until_all_are_used() {
    let mut world = world();
    let mut rng = fastrand::Rng::with_seed(1);
    assert_eq!((world.free(), world.size()), (4, 4));
    for id in [256, 258, 70_000] {
        world.set_identity(id, &labels("k8s:a=b;"));
    }
    assert_eq!(world.free(), 2, "one is of another cluster");
    world.reserve(259);
    world.reserve(258);
    assert_eq!((world.free(), world.free_id(&mut rng)), (1, Some(257)));
    world.set_unreadable(257);
    assert_eq!((world.free(), world.free_id(&mut rng)), (0, None));
    world.release(259);
    world.release(258);
    assert_eq!((world.free(), world.free_id(&mut rng)), (1, Some(259)));
    world.remove_identity(257);
    assert_eq!(world.free(), 2);
}

#[derive(Clone, Debug)]
enum Step {
    Pod(u8, Option<u8>),
    Namespace(Option<u8>),
    Identity(u32, Option<(u8, u8)>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..5, prop::option::of(0u8..3)).prop_map(|(pod, app)| Step::Pod(pod, app)),
        1 => prop::option::of(0u8..3).prop_map(Step::Namespace),
        3 => (256u32..260, prop::option::of((0u8..3, 0u8..3))).prop_map(|(id, set)| Step::Identity(id, set)),
    ]
}

fn text(app: u8, team: u8) -> String {
    let team = if team == 0 {
        String::new()
    } else {
        team.to_string()
    };
    set(&app.to_string(), &team)
}

proptest! {
    /// The model computes what is missing anew after each step.
    #[test]
    fn what_is_missing_follows_from_pods_namespace_and_identities(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = world();
        let (mut pods, mut namespace, mut identities) = (BTreeMap::new(), None, BTreeMap::new());
        for step in steps {
            match step {
                Step::Pod(name, Some(app)) => {
                    world.set_pod(pod(&name.to_string()), [("app", &*app.to_string())], "", Vec::new());
                    pods.insert(name, app);
                }
                Step::Pod(name, None) => {
                    world.remove_pod(&pod(&name.to_string()));
                    pods.remove(&name);
                }
                Step::Namespace(Some(team)) => {
                    let team_text = team.to_string();
                    let label = (team > 0).then_some(("team", &*team_text));
                    world.set_namespace("shop", label);
                    namespace = Some(team);
                }
                Step::Namespace(None) => {
                    world.remove_namespace("shop");
                    namespace = None;
                }
                Step::Identity(id, Some((app, team))) => {
                    world.set_identity(id, &labels(&text(app, team)));
                    identities.insert(id, text(app, team));
                }
                Step::Identity(id, None) => {
                    world.remove_identity(id);
                    identities.remove(&id);
                }
            }
            let sets = pods.values().filter_map(|app| Some(text(*app, namespace?)));
            let known: BTreeSet<&String> = identities.values().collect();
            let wanted: BTreeSet<String> = sets.filter(|set| !known.contains(set)).collect();
            prop_assert_eq!(missing(&world), wanted.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(world.free(), 4 - identities.len());
        }
    }
}
