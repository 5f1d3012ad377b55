// SPDX-License-Identifier: Apache-2.0

//! Pod CIDRs of nodes.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn pool(v4: Option<(&str, u8)>, v6: Option<(&str, u8)>) -> ClusterPool {
    let family = |family, (network, mask): (&str, u8)| {
        let networks = vec![network.parse().unwrap()];
        (family, PrefixAllocator::new(family, networks, mask).unwrap())
    };
    let v4 = v4.map(|settings| family(Family::V4, settings));
    ClusterPool::new(
        v4.into_iter()
            .chain(v6.map(|settings| family(Family::V6, settings)))
            .collect(),
    )
}

fn assign(pool: &mut ClusterPool, node: &str, spec: &[&str]) -> (Vec<String>, String) {
    let spec: Vec<String> = spec.iter().map(|text| (*text).to_owned()).collect();
    let assignment = pool.assign(node, &spec);
    let error = assignment.error.map(|error| error.to_string());
    (assignment.pod_cidrs, error.unwrap_or_default())
}

fn cidrs(texts: &[&str]) -> (Vec<String>, String) {
    (
        texts.iter().map(|text| (*text).to_owned()).collect(),
        String::new(),
    )
}

#[test]
fn allocates_one_pod_cidr_of_each_family() {
    let mut pool = pool(Some(("10.9.0.0/16", 24)), Some(("fd00::/104", 120)));

    assert_eq!(
        assign(&mut pool, "ghost", &[]),
        cidrs(&["10.9.0.0/24", "fd00::/120"])
    );
    assert_eq!(
        assign(&mut pool, "n1", &[]),
        cidrs(&["10.9.1.0/24", "fd00::100/120"])
    );
}

#[test]
fn adds_the_second_family() {
    let mut pool = pool(Some(("10.9.0.0/16", 24)), Some(("fd00::/104", 120)));

    let second = assign(&mut pool, "n1", &["fd00::700/120"]);

    assert_eq!(second, cidrs(&["fd00::700/120", "10.9.0.0/24"]));
}

#[test]
fn leaves_a_spec_outside_the_pools_as_it_is() {
    let mut pool = pool(Some(("10.9.0.0/16", 24)), None);
    let error = |cidr: &str| format!("allocator not configured for the requested CIDR {cidr}");

    for spec in [&["172.31.0.0/24"][..], &["10.9.0.0/24", "fd00::/120"]] {
        let (kept, text) = assign(&mut pool, "n1", spec);
        assert_eq!(kept, spec);
        assert_eq!(text, error(spec[spec.len() - 1]));
    }
    let (kept, text) = assign(&mut pool, "n2", &["10.9.x.0/24"]);
    assert_eq!(
        (kept, text),
        (
            vec!["10.9.x.0/24".into()],
            "invalid CIDR address: 10.9.x.0/24".into()
        )
    );
}

#[test]
fn a_duplicate_is_replaced_at_once() {
    let mut pool = pool(Some(("10.9.0.0/23", 24)), None);
    assign(&mut pool, "n1", &["10.9.0.0/24"]);

    let loser = pool.assign("n2", &["10.9.0.0/24".to_owned()]);

    assert_eq!(loser.pod_cidrs, ["10.9.1.0/24"]);
    assert_eq!(
        loser.duplicates[0].to_string(),
        "10.9.0.0/24 overlaps 10.9.0.0/24, which `n1` holds"
    );
    let (third, error) = assign(&mut pool, "n3", &["10.9.0.0/24"]);
    assert_eq!((third.len(), error.as_str()), (0, "allocator full"));
    assert_eq!(
        assign(&mut pool, "n2", &["10.9.0.0/24"]),
        cidrs(&["10.9.1.0/24"]),
        "the same again"
    );
}

#[test]
fn what_could_not_be_written_stays_reserved() {
    let mut pool = pool(Some(("10.9.0.0/16", 24)), None);
    assign(&mut pool, "n1", &[]);
    assign(&mut pool, "n2", &[]);
    pool.remove("n1");

    assert_eq!(assign(&mut pool, "n2", &[]), cidrs(&["10.9.1.0/24"]));
    assert_eq!(
        assign(&mut pool, "n3", &[]),
        cidrs(&["10.9.0.0/24"]),
        "of the removed node"
    );
}

#[test]
fn a_spec_with_another_pod_cidr_releases_the_one_before() {
    let mut pool = pool(Some(("10.9.0.0/22", 24)), None);
    assign(&mut pool, "n1", &[]);

    assert_eq!(assign(&mut pool, "n1", &["10.9.3.0/24"]), cidrs(&["10.9.3.0/24"]));
    assert_eq!(assign(&mut pool, "n2", &[]), cidrs(&["10.9.0.0/24"]));
    assert_eq!(
        assign(&mut pool, "n2", &["10.9.0.0/23"]),
        cidrs(&["10.9.0.0/23"]),
        "it may overlap its own"
    );
    assert_eq!(assign(&mut pool, "n3", &[]), cidrs(&["10.9.2.0/24"]));
}

#[test]
fn restores_all_nodes_before_it_allocates() {
    let mut pool = pool(Some(("10.9.0.0/16", 24)), None);

    pool.restore("n2", &["10.9.0.0/24".to_owned()]);

    assert_eq!(assign(&mut pool, "n1", &[]), cidrs(&["10.9.1.0/24"]));
}

proptest! {
    /// Whatever specs say: what nodes hold never overlaps, and a node that has a pod CIDR keeps it.
    #[test]
    fn nodes_never_share_addresses(
        steps in prop::collection::vec((0..5u8, prop::option::of((0..10u8, 22..=26u8)), any::<bool>()), 0..60)
    ) {
        let mut pool = pool(Some(("10.9.0.0/21", 24)), None);
        for (node, spec, removed) in steps {
            let node = format!("n{node}");
            if removed {
                pool.remove(&node);
                prop_assert!(pool.held(&node).is_empty());
                continue;
            }
            let spec: Vec<String> = spec.into_iter().map(|(at, mask)| format!("10.9.{at}.0/{mask}")).collect();
            let once = pool.assign(&node, &spec);
            let twice = pool.assign(&node, &once.pod_cidrs);
            prop_assert_eq!(&once.pod_cidrs, &twice.pod_cidrs);
            prop_assert!(twice.duplicates.is_empty());
            let all: Vec<IpNet> = pool.nodes().flat_map(|node| pool.held(node)).copied().collect();
            for (index, one) in all.iter().enumerate() {
                let shared = all[..index].iter().any(|other| one.contains(other) || other.contains(one));
                prop_assert!(!shared, "{:?}", all);
            }
            let used: Vec<IpNet> = pool.pools[&Family::V4].held().map(|(prefix, _)| *prefix).collect();
            prop_assert_eq!(used.len(), all.len(), "nothing is in use without a node");
        }
    }
}

/// Settings of the pool, of one start after another: networks of some overlap those of others.
const SETTINGS: [(&str, u8); 5] = [
    ("10.0.0.0/28", 30),
    ("10.0.0.0/26", 29),
    ("10.0.0.16/28", 30),
    ("10.0.0.8/29", 31),
    ("10.0.1.0/29", 30),
];

#[derive(Debug, Clone)]
enum Step {
    Restart(usize),
    /// A node is assigned; whether that is written.
    Assign(usize, bool),
    /// Another one writes the pod CIDRs of a node.
    Write(usize, BTreeSet<usize>),
    Gone(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let cidrs = prop::collection::btree_set(0..SETTINGS.len(), 0..3);
    prop_oneof![
        1 => (0..SETTINGS.len()).prop_map(Step::Restart),
        8 => (0..5usize, any::<bool>()).prop_map(|(node, is_written)| Step::Assign(node, is_written)),
        1 => (0..5usize, cidrs).prop_map(|(node, cidrs)| Step::Write(node, cidrs)),
        1 => (0..5usize).prop_map(Step::Gone),
    ]
}

fn is_disjoint(prefixes: &[IpNet]) -> bool {
    let overlap = |one: &IpNet, other: &IpNet| one.contains(other) || other.contains(one);
    let earlier = |at: usize| &prefixes[..at];
    let mut all = prefixes.iter().enumerate();
    all.all(|(at, one)| !earlier(at).iter().any(|other| overlap(one, other)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn pod_cidrs_never_overlap_whatever_the_pools_were(steps in prop::collection::vec(step(), 1..40)) {
        let mut specs: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut pods = pool(Some(SETTINGS[0]), None);
        let all = (0..5).map(|node| Step::Assign(node, true));
        for step in steps.into_iter().chain(all) {
            match step {
                Step::Restart(settings) => {
                    pods = pool(Some(SETTINGS[settings]), None);
                    specs.iter().for_each(|(node, spec)| pods.restore(node, spec));
                }
                Step::Assign(node, is_written) => {
                    let node = format!("n{node}");
                    let spec = specs.entry(node.clone()).or_default();
                    let assigned = pods.assign(&node, spec);
                    if is_written {
                        *spec = assigned.pod_cidrs;
                    }
                }
                Step::Write(node, cidrs) => {
                    let node = format!("n{node}");
                    let spec: Vec<String> = cidrs.iter().map(|at| SETTINGS[*at].0.to_owned()).collect();
                    pods.restore(&node, &spec);
                    specs.insert(node, spec);
                }
                Step::Gone(node) => {
                    pods.remove(&format!("n{node}"));
                    specs.remove(&format!("n{node}"));
                }
            }
            let held: Vec<IpNet> = specs.keys().flat_map(|node| pods.held(node)).copied().collect();
            prop_assert!(is_disjoint(&held), "{held:?}");
        }

        let written: Vec<IpNet> = specs.values().flatten().map(|text| text.parse().unwrap()).collect();
        prop_assert!(is_disjoint(&written), "{written:?}");
    }
}

#[test]
fn what_lies_outside_the_pools_is_in_use() {
    let mut pool = pool(Some(("10.9.0.0/16", 24)), None);
    // The network of an earlier setting, of which the pool is a part now.
    let (_, error) = assign(&mut pool, "old", &["10.8.0.0/15"]);
    assert_eq!(
        error,
        "allocator not configured for the requested CIDR 10.8.0.0/15"
    );

    assert_eq!(
        assign(&mut pool, "n1", &[]),
        (Vec::new(), "allocator full".to_owned())
    );
    pool.remove("old");
    assert_eq!(assign(&mut pool, "n1", &[]), cidrs(&["10.9.0.0/24"]));

    assign(&mut pool, "n2", &["172.31.0.0/24"]);
    assert_eq!(
        assign(&mut pool, "n3", &["172.31.0.0/25"]),
        cidrs(&["10.9.1.0/24"])
    );
}
