// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use crate::key::{decode_network, encoded};

/// Asserts the invariants of every node; returns how many networks there are.
fn check<A: Address>(node: &Node<A, u32>, within: Option<(A, u8)>) -> usize {
    let places = node.places();
    let start = places.start();
    assert!(start.is_multiple_of(STRIDE) && places.base.and(A::mask(start)) == places.base);
    if let Some((base, bits)) = within {
        assert!(
            start > bits && places.base.common(base) >= bits,
            "inside of its parent"
        );
    }
    let own = places.whole.iter().flatten().count()
        + places
            .shorter
            .iter()
            .flat_map(|shorter| shorter.iter())
            .flatten()
            .count();
    assert_eq!(own == 0, places.is_empty());
    let Node::Inner(after, inner) = node else {
        assert!(own > 0, "a node without networks");
        assert!(matches!(node, Node::Leaf(after, _) if *after == places.after));
        return own;
    };
    assert_eq!(*after, places.after);
    let children: Vec<_> = inner.children.iter().flatten().collect();
    assert!(children.len() + own.min(1) > 1, "a node that decides on nothing");
    assert!(!children.is_empty(), "an inner node without children");
    for (digit, child) in inner.children.iter().enumerate() {
        let base = child.as_ref().map(|child| child.places().base);
        assert!(base.is_none_or(|base| places.digit(base) == digit));
    }
    let below = children
        .iter()
        .map(|child| check(child, Some((places.base, start))));
    below.sum::<usize>() + own
}

fn count<A: Address>(trie: &Trie<A, u32>) -> usize {
    let below = trie.root.as_ref().map_or(0, |root| check(root, None));
    below + usize::from(trie.all.is_some())
}

fn set(networks: &mut Networks<u32>, net: IpNet, object: Option<u32>) {
    let (addr, bits, _) = decode_network(&encoded(&net)).unwrap();
    networks.set(addr, bits as u8, object);
}

fn longest(model: &BTreeMap<IpNet, u32>, addr: IpAddr) -> Option<u32> {
    let held = model.iter().filter(|(net, _)| net.contains(&addr));
    held.max_by_key(|(net, _)| net.prefix_len())
        .map(|(_, &object)| object)
}

/// Addresses that lie close to each other, of both families.
pub(crate) fn addr() -> impl Strategy<Value = IpAddr> {
    let byte = || prop_oneof![Just(0u8), Just(1), Just(0x18), Just(128), Just(255)];
    prop_oneof![
        [byte(), byte(), byte(), byte()].prop_map(IpAddr::from),
        [byte(), byte(), byte(), byte()].prop_map(|[a, b, c, d]| {
            let mut octets = [0; 16];
            (octets[0], octets[1], octets[7], octets[15]) = (a, b, c, d);
            IpAddr::from(octets)
        }),
    ]
}

/// Their networks, of all lengths.
pub(crate) fn net() -> impl Strategy<Value = IpNet> {
    (addr(), 0u8..=128).prop_map(|(addr, bits)| {
        let most = if addr.is_ipv4() { 32 } else { 128 };
        IpNet::new(addr, bits % (most + 1)).unwrap().trunc()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn behave_like_a_look_at_every_network(
        nets in proptest::collection::vec(net(), 1..60),
        ops in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..5), 0..200),
        addrs in proptest::collection::vec(addr(), 20),
    ) {
        let (mut networks, mut model) = (Networks::default(), BTreeMap::new());
        let mut snapshots = Vec::new();
        for (object, (net, kind)) in (0..).zip(ops) {
            let net = *net.get(&nets);
            if kind < 3 {
                set(&mut networks, net, Some(object));
                model.insert(net, object);
            } else if model.remove(&net).is_some() {
                set(&mut networks, net, None);
            }
            if object % 40 == 0 {
                snapshots.push((networks.clone(), model.clone()));
            }
        }
        snapshots.push((networks, model));
        for (networks, model) in snapshots {
            prop_assert_eq!(count(&networks.ipv4) + count(&networks.ipv6), model.len());
            for addr in addrs.iter().copied().chain(nets.iter().map(IpNet::addr)) {
                prop_assert_eq!(networks.longest(addr).copied(), longest(&model, addr), "{}", addr);
            }
        }
    }
}

#[test]
fn an_ipv4_address_in_ipv6_form_is_in_networks_of_both() {
    let mut networks = Networks::default();
    let nets = ["::/0", "::ffff:0:0/80", "10.0.0.0/8", "::ffff:10.1.0.0/112"];
    for (net, object) in nets.into_iter().zip(1..) {
        set(&mut networks, net.parse().unwrap(), Some(object));
    }
    let found = |addr: &str| networks.longest(addr.parse().unwrap()).copied();

    assert_eq!(found("10.1.2.3"), Some(4));
    assert_eq!(found("::ffff:10.1.2.3"), Some(4));
    assert_eq!(found("::ffff:10.2.2.3"), Some(3));
    assert_eq!(found("::ffff:11.2.2.3"), Some(2));
    assert_eq!(found("11.2.2.3"), None);
    assert_eq!(found("2001:db8::1"), Some(1));
}

#[test]
fn clearing_all_networks_leaves_nothing() {
    let mut networks = Networks::default();
    let nets = [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.16.0.0/12",
        "10.16.1.0/30",
        "fd00::/8",
        "::/0",
    ];
    let nets = nets.map(|net| net.parse::<IpNet>().unwrap());
    nets.iter().for_each(|&net| set(&mut networks, net, Some(7)));

    nets.iter().for_each(|&net| set(&mut networks, net, None));

    assert!(networks.ipv4.root.is_none() && networks.ipv6.root.is_none());
    assert_eq!((networks.ipv4.all, networks.ipv6.all), (None, None));
}
