// SPDX-License-Identifier: Apache-2.0

//! Pools and nodes without Kubernetes.

use serde_json::{Value, json};
use skep_k8s_crds::pools::PodPoolSpec;

use super::*;

mod random;

#[track_caller]
fn spec(spec: Value) -> PoolSpec {
    let spec: PodPoolSpec = serde_json::from_value(spec).unwrap();
    PoolSpec::new(&spec).unwrap()
}

fn v4(cidrs: &[&str], mask_size: u8) -> PoolSpec {
    spec(json!({ "ipv4": { "cidrs": cidrs, "maskSize": mask_size } }))
}

fn pools(name: &str, spec: PoolSpec) -> MultiPool {
    let mut pools = MultiPool::default();
    assert!(pools.upsert_pool(name, spec).unwrap());
    pools
}

fn asks(pool: &str, v4: u128, v6: u128) -> Request {
    Request {
        pool: pool.to_owned(),
        needed: [(Family::V4, v4), (Family::V6, v6)],
    }
}

fn has(pool: &str, cidrs: &[&str]) -> Allocation {
    Allocation {
        pool: pool.to_owned(),
        cidrs: cidrs.iter().map(ToString::to_string).collect(),
        ..Allocation::default()
    }
}

/// Assigns, and requires that nothing is missing.
#[track_caller]
fn assign(pools: &mut MultiPool, node: &str, spec: &[Allocation], requests: &[Request]) -> Vec<Allocation> {
    let assignment = pools.assign(node, spec, requests);
    assert_eq!((assignment.errors, assignment.duplicates), (vec![], vec![]));
    assignment.allocated
}

#[test]
fn allocates_until_the_addresses_suffice() {
    let mut pools = pools(
        "blue",
        spec(json!({
            "ipv4": { "cidrs": ["10.0.0.0/16"], "maskSize": 28 },
            "ipv6": { "cidrs": ["fd00::/64"], "maskSize": 124 },
        })),
    );

    let blue = [has("blue", &["10.0.0.0/28", "10.0.0.16/28", "fd00::/124"])];
    assert_eq!(assign(&mut pools, "n1", &[], &[asks("blue", 15, 14)]), blue);
    assert_eq!(
        assign(&mut pools, "n1", &blue, &[asks("blue", 28, 14)]),
        blue,
        "two prefixes have 28 addresses"
    );
    assert_eq!(
        assign(&mut pools, "n2", &[], &[asks("blue", 1, 0)]),
        [has("blue", &["10.0.0.32/28"])]
    );
    assert_eq!(assign(&mut pools, "n3", &[], &[asks("blue", 0, 0)]), []);
}

#[test]
fn first_and_last_addresses_count_where_the_pool_allows_them() {
    for (first, last, needed, prefixes) in [
        (false, false, 3, 2),
        (true, false, 3, 1),
        (true, true, 4, 1),
        (false, true, 4, 2),
    ] {
        let spec = spec(json!({
            "ipv4": { "cidrs": ["10.0.0.0/24"], "maskSize": 30 },
            "allowFirstIP": first, "allowLastIP": last,
        }));
        let mut pools = pools("p", spec);

        let allocated = assign(&mut pools, "n1", &[], &[asks("p", needed, 0)]);

        assert_eq!(allocated[0].cidrs.len(), prefixes, "{first} {last}");
        assert_eq!(
            (allocated[0].allow_first_ip, allocated[0].allow_last_ip),
            (first, last)
        );
    }
}

#[test]
fn prefixes_of_one_or_two_addresses_are_used_whole() {
    for (mask_size, prefixes) in [(32, 2), (31, 1)] {
        let mut pools = pools("p", v4(&["10.0.0.0/24"], mask_size));

        let allocated = assign(&mut pools, "n1", &[], &[asks("p", 2, 0)]);

        assert_eq!(allocated[0].cidrs.len(), prefixes, "/{mask_size}");
    }
}

#[test]
fn what_the_agent_removes_is_released_and_what_waits_to_be_written_is_not() {
    let mut pools = pools("p", v4(&["10.0.0.0/24"], 25));
    let first = assign(&mut pools, "n1", &[], &[asks("p", 1, 0)]);
    assert_eq!(
        assign(&mut pools, "n1", &[], &[asks("p", 1, 0)]),
        first,
        "the write failed"
    );
    assert!(!pools.take_released());

    let both = assign(&mut pools, "n1", &first, &[asks("p", 200, 0)]);
    assert_eq!(both, [has("p", &["10.0.0.0/25", "10.0.0.128/25"])]);
    pools.restore("n1", &both);
    let second = [has("p", &["10.0.0.128/25"])];
    assert_eq!(assign(&mut pools, "n1", &second, &[asks("p", 1, 0)]), second);

    assert!(pools.take_released());
    assert!(!pools.take_released(), "once");
    assert_eq!(
        assign(&mut pools, "n2", &[], &[asks("p", 1, 0)]),
        [has("p", &["10.0.0.0/25"])]
    );
}

#[test]
fn of_two_nodes_with_one_network_the_later_loses_it() {
    let mut pools = pools("p", v4(&["10.0.0.0/24"], 26));
    pools.restore("n1", &[has("p", &["10.0.0.0/26"])]);

    let assignment = pools.assign(
        "n2",
        &[has("p", &["10.0.0.0/26", "10.0.0.64/26"])],
        &[asks("p", 100, 0)],
    );

    assert_eq!(
        assignment.allocated,
        [has("p", &["10.0.0.64/26", "10.0.0.128/26"])]
    );
    let text = assignment.duplicates[0].to_string();
    assert_eq!(text, "10.0.0.0/26 overlaps 10.0.0.0/26, which `n1` holds");
    assert_eq!(pools.allocated("n1"), Some(vec![has("p", &["10.0.0.0/26"])]));
}

#[test]
fn pools_have_addresses_of_their_own() {
    let mut pools = pools("a", v4(&["10.0.0.0/24"], 25));
    pools.upsert_pool("b", v4(&["10.1.0.0/24"], 26)).unwrap();

    let allocated = assign(&mut pools, "n1", &[], &[asks("b", 1, 0), asks("a", 1, 0)]);

    assert_eq!(
        allocated,
        [has("a", &["10.0.0.0/25"]), has("b", &["10.1.0.0/26"])]
    );
    pools.remove("n1");
    assert_eq!(pools.allocated("n1"), None);
    assert!(pools.take_released());
    let again = assign(&mut pools, "n2", &[], &[asks("a", 1, 0)]);
    assert_eq!(again, [has("a", &["10.0.0.0/25"])]);
}

#[test]
fn a_request_that_cannot_be_met_gets_what_there_is() {
    let mut pools = pools("p", v4(&["10.0.0.0/27"], 28));

    let assignment = pools.assign("n1", &[], &[asks("p", 100, 1), asks("none", 1, 0)]);

    assert_eq!(assignment.allocated, [has("p", &["10.0.0.0/28", "10.0.0.16/28"])]);
    let errors: Vec<String> = assignment.errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        [
            "unable to allocate from pool p (family v4): pool empty",
            "pool p has no networks of family v6",
            "cannot allocate from non-existing pool: none",
        ]
    );
    assert_eq!(pools.pools().collect::<Vec<_>>(), ["p"]);
}

#[test]
fn a_request_beyond_measure_ends() {
    let mut pools = pools(
        "p",
        spec(json!({ "ipv6": { "cidrs": ["fd00::/64"], "maskSize": 128 } })),
    );

    let assignment = pools.assign("n1", &[], &[asks("p", 0, u128::MAX)]);

    assert_eq!(assignment.allocated[0].cidrs.len(), 4096);
    let text = assignment.errors[0].to_string();
    assert_eq!(text, "pool p (family v6): more than 4096 networks requested");
}

#[test]
fn a_malformed_network_leaves_the_spec_as_it_is() {
    let mut pools = pools("p", v4(&["10.0.0.0/24"], 26));
    let good = [has("p", &["10.0.0.0/26"])];
    pools.restore("n1", &good);
    let spec = [has("p", &["10.0.0.0/33"])];

    let assignment = pools.assign("n1", &spec, &[asks("p", 10, 0)]);

    assert_eq!(assignment.allocated, spec);
    assert_eq!(
        assignment.errors[0].to_string(),
        "invalid CIDR address: 10.0.0.0/33"
    );
    assert_eq!(pools.allocated("n1").unwrap(), good, "nothing is released");
}

#[test]
fn networks_of_a_removed_pool_stay_until_the_agent_removes_them() {
    let mut pools = pools("p", v4(&["10.0.0.0/24"], 26));
    let spec = [Allocation {
        allow_first_ip: true,
        ..has("p", &["10.0.0.0/26"])
    }];
    pools.restore("n1", &spec);
    pools.remove_pool("p");

    assert_eq!(assign(&mut pools, "n1", &spec, &[asks("p", 63, 0)]), spec);
    let assignment = pools.assign("n1", &spec, &[asks("p", 64, 0)]);
    assert_eq!(assignment.allocated, spec, "with the flags that the node has");
    assert_eq!(
        assignment.errors[0].to_string(),
        "cannot allocate from non-existing pool: p"
    );

    // Another mask size is fine for a new pool; what is in use stays in use.
    pools.upsert_pool("p", v4(&["10.0.0.0/24"], 25)).unwrap();
    assert_eq!(
        assign(&mut pools, "n2", &[], &[asks("p", 10, 0)]),
        [has("p", &["10.0.0.128/25"])]
    );
    pools.remove_pool("p");
    pools.restore("n1", &[]);
    pools.remove("n2");
    assert!(pools.pools.is_empty(), "{:?}", pools.pools);
}

#[test]
fn networks_of_an_unknown_pool_are_restored_before_the_pool_is_known() {
    let mut pools = MultiPool::default();
    pools.restore("n1", &[has("p", &["10.0.0.0/26"])]);

    assert!(pools.upsert_pool("p", v4(&["10.0.0.0/24"], 26)).unwrap());

    assert_eq!(
        assign(&mut pools, "n2", &[], &[asks("p", 1, 0)]),
        [has("p", &["10.0.0.64/26"])]
    );
}

#[test]
fn networks_can_be_added_to_and_removed_from_a_pool() {
    let mut pools = pools("p", v4(&["10.0.0.0/26"], 26));
    let first = assign(&mut pools, "n1", &[], &[asks("p", 1, 0)]);
    assert!(
        !pools.upsert_pool("p", v4(&["10.0.0.0/26"], 26)).unwrap(),
        "no change"
    );

    assert!(pools.upsert_pool("p", v4(&["10.1.0.0/26"], 26)).unwrap());

    let both = [has("p", &["10.0.0.0/26", "10.1.0.0/26"])];
    assert_eq!(assign(&mut pools, "n1", &first, &[asks("p", 100, 0)]), both);
}

#[test]
fn mask_size_and_ends_of_a_pool_cannot_be_changed() {
    let mut pools = pools("p", v4(&["10.0.0.0/24"], 26));

    let error = pools.upsert_pool("p", v4(&["10.0.0.0/24"], 27)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the mask size of family v4 cannot be changed from 26 to 27"
    );
    let ends = spec(json!({ "ipv4": { "cidrs": ["10.0.0.0/24"], "maskSize": 26 }, "allowLastIP": true }));
    let error = pools.upsert_pool("p", ends).unwrap_err();
    assert_eq!(error, PoolSpecError::EndsChanged);

    let allocated = assign(&mut pools, "n1", &[], &[asks("p", 1, 0)]);
    assert_eq!(allocated, [has("p", &["10.0.0.0/26"])]);
}

#[test]
fn specifications_that_are_not_valid_are_refused() {
    for (ipv4, expected) in [
        (
            json!({ "cidrs": ["10.0.0.0/33"], "maskSize": 24 }),
            "invalid CIDR address: 10.0.0.0/33",
        ),
        (
            json!({ "cidrs": ["fd00::/64"], "maskSize": 24 }),
            "network fd00::/64 is not of family v4",
        ),
        (
            json!({ "cidrs": ["10.0.0.0/25"], "maskSize": 24 }),
            "mask size 24 does not fit network 10.0.0.0/25",
        ),
        (
            json!({ "cidrs": ["10.0.0.0/16"], "maskSize": 300 }),
            "mask size 300 is not a prefix length of family v4",
        ),
        (
            json!({ "cidrs": ["10.0.0.0/16", "10.0.4.0/24"], "maskSize": 24 }),
            "network 10.0.4.0/24 overlaps 10.0.0.0/16",
        ),
    ] {
        let spec: PodPoolSpec = serde_json::from_value(json!({ "ipv4": ipv4 })).unwrap();

        assert_eq!(PoolSpec::new(&spec).unwrap_err().to_string(), expected);
    }
}

#[test]
fn pools_with_common_networks_share_none_with_two_nodes() {
    let mut pools = pools("old", v4(&["10.0.0.0/24"], 25));
    let first = assign(&mut pools, "n1", &[], &[asks("old", 1, 0)]);
    assert_eq!(first, [has("old", &["10.0.0.0/25"])]);

    pools.upsert_pool("new", v4(&["10.0.0.0/24"], 26)).unwrap();
    let second = assign(&mut pools, "n2", &[], &[asks("new", 1, 0)]);
    assert_eq!(second, [has("new", &["10.0.0.128/26"])]);
    pools.remove_pool("old");
    pools.upsert_pool("old", v4(&["10.0.0.0/24"], 27)).unwrap();
    let third = assign(&mut pools, "n3", &[], &[asks("old", 1, 0)]);
    assert_eq!(third, [has("old", &["10.0.0.192/27"])]);

    // What a node gives back, others can have, by whatever pool.
    assign(&mut pools, "n1", &first, &[]);
    assign(&mut pools, "n1", &[], &[]);
    let fourth = assign(&mut pools, "n4", &[], &[asks("new", 1, 0)]);
    assert_eq!(fourth, [has("new", &["10.0.0.0/26"])]);
    let duplicate = pools.assign("n5", &[has("old", &["10.0.0.0/28"])], &[]);
    assert_eq!((duplicate.allocated.len(), duplicate.duplicates.len()), (0, 1));
}
