// SPDX-License-Identifier: Apache-2.0

//! The allocator, by example and against a model.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn pool(networks: &[&str], mask_size: u8) -> PrefixAllocator {
    let networks: Vec<IpNet> = networks.iter().map(|text| net(text)).collect();
    PrefixAllocator::new(Family::of(&networks[0]), networks, mask_size).unwrap()
}

#[test]
fn allocates_in_order_of_networks_until_all_are_full() {
    let mut pool = pool(&["10.1.0.0/25", "10.0.0.0/25"], 26);

    let all: Vec<_> = (0..5).map(|_| pool.allocate("a")).collect();

    let expected = ["10.1.0.0/26", "10.1.0.64/26", "10.0.0.0/26", "10.0.0.64/26"];
    assert_eq!(all[..4], expected.map(|text| Some(net(text))));
    assert_eq!(all[4], None);
}

#[test]
fn allocates_what_was_released_first() {
    let mut pool = pool(&["10.0.0.0/22"], 24);
    let all: Vec<_> = (0..4).filter_map(|_| pool.allocate("a")).collect();

    assert!(pool.release(&all[2], "a"));
    assert!(pool.release(&all[1], "a"));

    assert_eq!(pool.allocate("b"), Some(all[1]));
    assert_eq!(pool.allocate("b"), Some(all[2]));
    assert_eq!(pool.allocate("b"), None);
}

#[test]
fn releases_only_what_the_owner_holds() {
    let mut pool = pool(&["10.0.0.0/24"], 24);
    pool.allocate("a");

    assert!(!pool.release(&net("10.0.0.0/24"), "b"));
    assert!(!pool.release(&net("10.0.0.0/25"), "a"));

    assert_eq!(pool.allocate("b"), None);
}

#[test]
fn restored_prefixes_of_other_lengths_are_not_allocated_again() {
    let mut pool = pool(&["10.0.0.0/21"], 24);
    pool.occupy(net("10.0.0.0/23"), "big").unwrap();
    pool.occupy(net("10.0.2.128/26"), "small").unwrap();

    assert_eq!(pool.allocate("a"), Some(net("10.0.3.0/24")));

    assert!(pool.release(&net("10.0.2.128/26"), "small"));
    assert_eq!(pool.allocate("b"), Some(net("10.0.2.0/24")));
}

#[test]
fn a_conflict_names_the_owner() {
    let mut pool = pool(&["10.0.0.0/16"], 24);
    pool.occupy(net("10.0.1.0/24"), "a").unwrap();

    assert_eq!(pool.occupy(net("10.0.1.0/24"), "a"), Ok(()));
    let error = pool.occupy(net("10.0.0.0/20"), "b").unwrap_err();

    assert_eq!(
        error.to_string(),
        "10.0.0.0/20 overlaps 10.0.1.0/24, which `a` holds"
    );
    let outside = pool.occupy(net("10.1.0.0/24"), "b").unwrap_err();
    assert_eq!(outside.to_string(), "10.1.0.0/24 is in no network of the pool");
}

#[test]
fn networks_that_do_not_fit_are_named() {
    let error = |networks: &[&str], mask| {
        let networks = networks.iter().map(|text| net(text)).collect();
        PrefixAllocator::new(Family::V4, networks, mask)
            .unwrap_err()
            .to_string()
    };

    assert_eq!(error(&["fd00::/64"], 24), "network fd00::/64 is not of family v4");
    assert_eq!(
        error(&["10.0.0.0/24"], 23),
        "mask size 23 does not fit network 10.0.0.0/24"
    );
    assert_eq!(
        error(&["10.0.0.0/24"], 33),
        "mask size 33 does not fit network 10.0.0.0/24"
    );
    assert_eq!(
        error(&["10.0.0.0/8", "10.1.0.0/16"], 24),
        "network 10.1.0.0/16 overlaps 10.0.0.0/8"
    );
}

#[test]
fn prefixes_of_removed_networks_stay_in_use() {
    let mut pool = pool(&["10.0.0.0/24", "10.1.0.0/24"], 24);
    let orphan = pool.allocate("a").unwrap();

    pool.set_networks(vec![net("10.1.0.0/24")]).unwrap();
    assert_eq!(pool.occupy(orphan, "a"), Ok(()), "still held");
    assert_eq!(pool.allocate("b"), Some(net("10.1.0.0/24")));

    pool.set_networks(vec![net("10.0.0.0/24")]).unwrap();
    assert_eq!(pool.allocate("b"), None, "the orphan is not allocated twice");
    assert!(pool.release(&orphan, "a"));
    assert_eq!(pool.allocate("b"), Some(orphan));
}

#[test]
fn the_ends_of_the_address_space_can_be_used() {
    let mut v4 = pool(&["0.0.0.0/0"], 1);
    assert_eq!(v4.allocate("a"), Some(net("0.0.0.0/1")));
    assert_eq!(v4.allocate("a"), Some(net("128.0.0.0/1")));
    assert_eq!(v4.allocate("a"), None);

    let mut v6 = pool(&["::/0"], 0);
    assert_eq!(v6.allocate("a"), Some(net("::/0")));
    assert_eq!(v6.allocate("a"), None);

    let mut hosts = pool(&["ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127"], 128);
    assert!(hosts.allocate("a").is_some() && hosts.allocate("a").is_some());
    assert_eq!(hosts.allocate("a"), None);
}

#[derive(Debug, Clone)]
enum Step {
    Allocate(u8),
    Occupy(u8, u8, u8),
    Release(u8),
    Swap(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..4u8).prop_map(Step::Allocate),
        2 => (0..4u8, any::<u8>(), 25..=32u8).prop_map(|(owner, at, length)| Step::Occupy(owner, at, length)),
        2 => any::<u8>().prop_map(Step::Release),
        1 => any::<bool>().prop_map(Step::Swap),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    /// The model: each address of 10.0.0.0/24 with its owner. A prefix is free if all its addresses are.
    #[test]
    fn behaves_as_a_list_of_addresses(steps in steps()) {
        let both = || vec![net("10.0.0.128/25"), net("10.0.0.0/26")];
        let mut networks = both();
        let mut pool = PrefixAllocator::new(Family::V4, both(), 28).unwrap();
        let mut addresses = [None::<u8>; 256];
        let mut held: BTreeMap<IpNet, u8> = BTreeMap::new();
        let range = |prefix: &IpNet| {
            let (first, last) = bounds(prefix);
            (first & 255) as usize..=(last & 255) as usize
        };
        for step in steps {
            match step {
                Step::Allocate(owner) => {
                    let expected = networks.iter().flat_map(|network| network.subnets(28).unwrap())
                        .find(|prefix| addresses[range(prefix)].iter().all(Option::is_none));
                    prop_assert_eq!(pool.allocate(&owner.to_string()), expected);
                    if let Some(prefix) = expected {
                        addresses[range(&prefix)].fill(Some(owner));
                        held.insert(prefix, owner);
                    }
                }
                Step::Occupy(owner, at, length) => {
                    let prefix = IpNet::new(Ipv4Addr::new(10, 0, 0, at).into(), length).unwrap().trunc();
                    let free = addresses[range(&prefix)].iter().all(Option::is_none);
                    let inside = networks.iter().any(|network| network.contains(&prefix));
                    let again = held.get(&prefix) == Some(&owner);
                    prop_assert_eq!(pool.occupy(prefix, &owner.to_string()).is_ok(), again || (free && inside));
                    if free && inside {
                        addresses[range(&prefix)].fill(Some(owner));
                        held.insert(prefix, owner);
                    }
                }
                Step::Release(which) => {
                    let Some((prefix, owner)) = held.iter().nth(usize::from(which) % held.len().max(1)) else {
                        continue;
                    };
                    let (prefix, owner) = (*prefix, *owner);
                    prop_assert!(pool.release(&prefix, &owner.to_string()));
                    held.remove(&prefix);
                    addresses[range(&prefix)].fill(None);
                }
                Step::Swap(all) => {
                    networks = both();
                    networks.truncate(if all { 2 } else { 1 });
                    pool.set_networks(networks.clone()).unwrap();
                }
            }
            let now: BTreeMap<IpNet, u8> =
                pool.held().map(|(prefix, owner)| (*prefix, owner.parse().unwrap())).collect();
            prop_assert_eq!(&now, &held);
            let prefixes = networks.iter().flat_map(|network| network.subnets(28).unwrap());
            let free = prefixes.filter(|prefix| addresses[range(prefix)].iter().all(Option::is_none));
            prop_assert_eq!(pool.free(), free.count() as u128);
        }
    }
}
