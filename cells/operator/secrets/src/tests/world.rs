// SPDX-License-Identifier: Apache-2.0

//! Which Secrets are copied.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use skep_k8s_crds::policy::Rule;
use skep_k8s_types::ObjectKey;

use crate::{PolicyKind, World};

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn rule(ports: Value) -> Rule {
    let rule = json!({"endpointSelector": {}, "egress": [{"toPorts": [ports]}]});
    serde_json::from_value(rule).unwrap()
}

fn tls(namespace: Option<&str>, name: &str) -> Rule {
    rule(json!({"terminatingTLS": {"secret": {"namespace": namespace, "name": name}}}))
}

fn copies(world: &World) -> Vec<&str> {
    world.copies().collect()
}

#[test]
fn certificates_and_header_values_are_named_by_policies() {
    let mut world = World::new("cilium-secrets");
    let ports = json!({
        "terminatingTLS": {"secret": {"name": "own"}},
        "originatingTLS": {"secret": {"namespace": "trust", "name": "ca"}},
        "rules": {"http": [{"headerMatches": [
            {"name": "X-Token", "secret": {"namespace": "", "name": "token"}},
            {"name": "X-Plain", "value": "1"},
        ]}]},
    });
    let ingress = json!({"endpointSelector": {}, "ingress": [{"toPorts": [
        {"terminatingTLS": {"secret": {"namespace": "cilium-secrets", "name": "there"}}},
    ]}, {}]});
    let rules = [rule(ports), serde_json::from_value(ingress).unwrap()];

    let changed = world.set_policy(PolicyKind::Namespaced, key("shop", "web"), &rules);

    assert_eq!(
        copies(&world),
        ["shop-own", "shop-token", "trust-ca"],
        "what is there needs no copy"
    );
    assert_eq!(changed.len(), 3);
    assert_eq!(world.original("trust-ca"), Some(&key("trust", "ca")));
    assert_eq!(world.faults(), [""; 0]);
    let changed = world.remove_policy(PolicyKind::Namespaced, &key("shop", "web"));
    assert_eq!((copies(&world), changed.len()), (vec![], 3));
}

#[test]
fn a_secret_is_copied_as_long_as_one_policy_names_it() {
    let mut world = World::new("cilium-secrets");
    world.set_policy(PolicyKind::Namespaced, key("shop", "a"), [&tls(None, "own")]);
    world.set_policy(PolicyKind::Clusterwide, key("", "a"), [&tls(Some("shop"), "own")]);
    world.remove_policy(PolicyKind::Namespaced, &key("shop", "a"));
    assert_eq!(copies(&world), ["shop-own"]);
    let changed = world.set_policy(
        PolicyKind::Clusterwide,
        key("", "a"),
        [&tls(Some("shop"), "other")],
    );
    assert_eq!(copies(&world), ["shop-other"]);
    assert_eq!(
        changed,
        BTreeSet::from(["shop-other".to_owned(), "shop-own".to_owned()])
    );
}

#[test]
fn what_cannot_be_copied_is_told() {
    let mut world = World::new("cilium-secrets");
    world.set_policy(PolicyKind::Clusterwide, key("", "all"), [&tls(None, "own")]);
    world.set_policy(PolicyKind::Namespaced, key("a-b", "p"), [&tls(None, "c")]);
    world.set_policy(PolicyKind::Namespaced, key("a", "p"), [&tls(None, "b-c")]);
    let long = "x".repeat(253);
    world.set_policy(PolicyKind::Namespaced, key("a", "long"), [&tls(None, &long)]);

    assert_eq!(
        world.original("a-b-c"),
        Some(&key("a", "b-c")),
        "the first one in order"
    );
    assert_eq!(
        world.faults(),
        [
            "policy `all` names no namespace of Secret `own`".to_owned(),
            "`a-b/c`: its copy `a-b-c` is that of `a/b-c`".to_owned(),
            format!("`a-{long}` is longer than 253 characters"),
        ]
    );
    world.remove_policy(PolicyKind::Namespaced, &key("a", "p"));
    assert_eq!(world.original("a-b-c"), Some(&key("a-b", "c")));
}

#[test]
fn copies_follow_from_the_policies_that_are_left() {
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut world = World::new("cilium-secrets");
    let mut model: BTreeMap<ObjectKey, Vec<String>> = BTreeMap::new();
    for _ in 0..2_000 {
        let policy = key("shop", &rng.u32(0..5).to_string());
        if rng.u32(0..3) == 0 {
            world.remove_policy(PolicyKind::Namespaced, &policy);
            model.remove(&policy);
        } else {
            let names: Vec<String> = (0..rng.u32(0..4)).map(|_| rng.u32(0..6).to_string()).collect();
            let rules: Vec<Rule> = names.iter().map(|name| tls(None, name)).collect();
            world.set_policy(PolicyKind::Namespaced, policy.clone(), &rules);
            model.insert(policy, names);
        }
        let named: BTreeSet<String> = model
            .values()
            .flatten()
            .map(|name| format!("shop-{name}"))
            .collect();
        assert!(
            copies(&world).into_iter().eq(named.iter().map(String::as_str)),
            "seed {seed}"
        );
    }
}
