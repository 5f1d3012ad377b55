// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::key::encoded;

/// Asserts the invariants of every node; returns the height.
fn check<K: NodeKeys<Key: Ord>, V: Clone>(
    node: &Node<K, V>,
    from: Option<&K::Key>,
    to: Option<&K::Key>,
) -> usize {
    let keys = match node {
        Node::Leaf(leaf) => {
            assert!(leaf.keys.len() > 0 && leaf.keys.len() == leaf.values.len());
            &leaf.keys
        }
        Node::Inner(inner) => {
            assert_eq!(inner.keys.len() + 1, inner.children.len());
            &inner.keys
        }
    };
    let all: Vec<K::Owned> = (0..keys.len()).map(|at| keys.owned(at)).collect();
    assert!(all.is_sorted_by(|a, b| a.borrow() < b.borrow()));
    assert!(all.iter().all(|key| from.is_none_or(|from| key.borrow() >= from)));
    assert!(all.iter().all(|key| to.is_none_or(|to| key.borrow() < to)));
    let Node::Inner(inner) = node else { return 0 };
    let heights: Vec<usize> = (0..inner.children.len())
        .map(|at| {
            let from = at.checked_sub(1).map(|at| all[at].borrow()).or(from);
            let to = all.get(at).map(|key| key.borrow()).or(to);
            check(&inner.children[at], from, to)
        })
        .collect();
    assert!(
        heights.windows(2).all(|pair| pair[0] == pair[1]),
        "all leaves are at one depth"
    );
    heights[0] + 1
}

fn entries<'a>(found: impl Iterator<Item = (KeyAt<'a, Numbers>, &'a u64)>) -> Vec<(u64, u64)> {
    found.map(|(key, value)| (key.number(), *value)).collect()
}

fn compare(tree: &Tree<Numbers, u64>, model: &BTreeMap<u64, u64>) {
    let mut whole = tree.clone();
    whole.settle();
    if let Some(root) = &whole.root {
        check(root, None, None);
    }
    let copied = |(key, value): (&u64, &u64)| (*key, *value);
    assert_eq!(tree.len(), model.len());
    assert!(entries(tree.iter()).into_iter().eq(model.iter().map(copied)));
    assert_eq!(
        entries(tree.first().into_iter()).pop(),
        model.first_key_value().map(copied)
    );
    for probe in (0..1500).step_by(37) {
        assert_eq!(tree.get(&probe), model.get(&probe));
        assert!(
            entries(tree.at_least(&probe))
                .into_iter()
                .eq(model.range(probe..).map(copied))
        );
    }
}

#[derive(Debug, Clone)]
enum Op {
    Insert(u64),
    /// Unless it is there.
    Add(u64),
    Remove(u64),
    Change(u64),
    /// Keys in a row.
    Fill(u64, u64),
    Clear(u64, u64),
    Snapshot,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0u64..1500).prop_map(Op::Insert),
        4 => (0u64..1500).prop_map(Op::Add),
        3 => (0u64..1500).prop_map(Op::Remove),
        2 => (0u64..1500).prop_map(Op::Change),
        2 => (0u64..1500, 1u64..300).prop_map(|(from, count)| Op::Fill(from, count)),
        2 => (0u64..1500, 1u64..400).prop_map(|(from, count)| Op::Clear(from, count)),
        1 => Just(Op::Snapshot),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_an_ordered_map(ops in proptest::collection::vec(op(), 1..60)) {
        let (mut tree, mut model) = (Tree::<Numbers, u64>::default(), BTreeMap::new());
        let mut snapshots = Vec::new();
        for (value, op) in ops.into_iter().enumerate() {
            let value = value as u64;
            match op {
                Op::Insert(key) => prop_assert_eq!(tree.insert(&key, value), model.insert(key, value)),
                Op::Add(key) => match tree.find(&key) {
                    Ok(found) => prop_assert_eq!(Some(found), model.get(&key)),
                    Err(place) => {
                        tree.fill(&place, &key, value);
                        prop_assert_eq!(model.insert(key, value), None);
                    }
                },
                Op::Remove(key) => prop_assert_eq!(tree.remove(&key), model.remove(&key)),
                Op::Change(key) => {
                    let (found, wanted) = (tree.get_mut(&key), model.get_mut(&key));
                    prop_assert_eq!(&found, &wanted);
                    found.into_iter().chain(wanted).for_each(|place| *place = value);
                }
                Op::Fill(from, count) => {
                    for key in from..from + count {
                        prop_assert_eq!(tree.insert(&key, value), model.insert(key, value));
                    }
                }
                Op::Clear(from, count) => {
                    for key in (from..from + count).rev() {
                        prop_assert_eq!(tree.remove(&key), model.remove(&key));
                    }
                }
                Op::Snapshot => snapshots.push((tree.clone(), model.clone())),
            }
            compare(&tree, &model);
        }
        for (tree, model) in &snapshots {
            compare(tree, model);
        }
    }
}

/// Keys that share much, little or nothing, and some that are the start of others.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let start = prop_oneof![
        Just(""),
        Just("ab"),
        Just("namespace/service-"),
        Just("namespace/service-of-a-very-long-name-that-goes-on-and-on-"),
    ];
    let end = prop_oneof![
        proptest::collection::vec(0u8..3, 0..12),
        (0u32..300).prop_map(|number| number.to_string().into_bytes()),
    ];
    (start, end).prop_map(|(start, end)| [start.as_bytes(), &end].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn finds_texts_that_start_alike(
        ops in proptest::collection::vec((0u8..3, text()), 1..400),
        probes in proptest::collection::vec(text(), 20),
    ) {
        let (mut tree, mut model) = (Tree::<Texts, usize>::default(), BTreeMap::new());
        let mut snapshots = Vec::new();
        for (number, (op, key)) in ops.into_iter().enumerate() {
            if number % 128 == 0 {
                snapshots.push((tree.clone(), model.clone()));
            }
            match op {
                0 => prop_assert_eq!(tree.remove(&key), model.remove(&key)),
                _ => prop_assert_eq!(tree.insert(&key, number), model.insert(key, number)),
            }
        }
        snapshots.push((tree.clone(), model.clone()));
        for (tree, model) in &snapshots {
            if let Some(root) = &tree.root {
                check(root, None, None);
            }
            prop_assert!(tree.iter().map(|(key, value)| (key.owned().to_vec(), *value)).eq(
                model.iter().map(|(key, value)| (key.clone(), *value))
            ));
        }
        for probe in probes {
            prop_assert_eq!(tree.get(&probe), model.get(&probe));
            prop_assert!(tree.at_least(&probe).map(|(_, value)| value).eq(
                model.range(probe.clone()..).map(|(_, value)| value)
            ));
            for end in [probe.len() / 2, probe.len().saturating_sub(1), probe.len()] {
                let start = &probe[..end];
                let within = model.range(start.to_vec()..).take_while(|(key, _)| key.starts_with(start));
                prop_assert!(tree.starting(start.into()).map(|(_, value)| value).eq(within.map(|(_, value)| value)));
            }
        }
        for (number, key) in model.into_keys().enumerate() {
            prop_assert!(tree.remove(&key).is_some());
            if number % 16 == 0 && let Some(root) = &tree.root {
                check(root, None, None);
            }
        }
        prop_assert!(tree.is_empty());
    }
}

/// The leaves' keys, for a look at how well they are kept.
fn leaves<V>(node: &Node<Texts, V>) -> Vec<&Texts> {
    match node {
        Node::Leaf(leaf) => vec![&leaf.keys],
        Node::Inner(inner) => inner.children.iter().flat_map(leaves).collect(),
    }
}

#[test]
fn nodes_keep_what_their_keys_share_once() {
    let mut tree = Tree::<Texts, ()>::default();
    for number in 0..1000 {
        tree.insert(
            format!("namespace/service-of-a-long-name-{number:04}").as_bytes(),
            (),
        );
    }
    tree.settle();
    for keys in leaves(tree.root.as_ref().unwrap()) {
        assert!(keys.skip > 33, "only the last digits differ");
        assert!(keys.bytes.len() <= 36 + FAN * 3);
    }
    for number in (0..1000).filter(|number| number % 8 != 0) {
        tree.remove(format!("namespace/service-of-a-long-name-{number:04}").as_bytes());
    }
    tree.settle();
    let left = leaves(tree.root.as_ref().unwrap());
    assert!(left.len() <= 125 / (FAN / 4), "small nodes were joined");
}

#[test]
fn keys_in_order_fill_their_nodes() {
    let mut tree = Tree::<Texts, ()>::default();
    for key in 0..10_000u64 {
        tree.insert(&key.to_be_bytes(), ());
    }
    assert_eq!(
        leaves(tree.root.as_ref().unwrap()).len(),
        10_000usize.div_ceil(FAN)
    );
}

#[test]
fn keys_in_order_change_the_last_leaf_alone() {
    let mut tree = Tree::<Numbers, _>::default();
    let add = |tree: &mut Tree<Numbers, u64>, key| {
        assert_eq!(tree.insert(&key, key), None);
        let Some(Node::Inner(root)) = &tree.root else {
            return std::ptr::null();
        };
        Arc::as_ptr(root)
    };
    let changes = |roots: Vec<*const Inner<Numbers, u64>>| roots.chunk_by(|a, b| a == b).count();
    for key in 0..1000 {
        add(&mut tree, key);
    }

    let mut snapshots = Vec::new();
    let roots = (1000..1160).map(|key| {
        snapshots.push(tree.clone());
        add(&mut tree, key)
    });
    assert!(changes(roots.collect()) <= 160 / FAN + 1);

    for (at, snapshot) in snapshots.iter().enumerate() {
        assert_eq!(snapshot.iter().count(), 1000 + at);
        assert_eq!(snapshot.get(&(1000 + at as u64)), None);
        let last = 999 + at as u64;
        assert_eq!(entries(snapshot.at_least(&last)), [(last, last)]);
    }
    assert_eq!(tree.remove(&1159), Some(1159));
    assert_eq!((tree.get(&1159), tree.get(&1158)), (None, Some(&1158)));
}

#[test]
fn the_largest_heads_are_keys_like_others() {
    let mut tree = Tree::<Texts, _>::default();
    let keys: Vec<Vec<u8>> = (0..40u8)
        .map(|number| [&[0xff; 8][..], &[number]].concat())
        .collect();
    for (number, key) in keys.iter().enumerate() {
        assert_eq!(tree.get(key), None);
        tree.insert(key, number);
        tree.insert(&[number as u8], number);
    }

    assert!(
        keys.iter()
            .enumerate()
            .all(|(number, key)| tree.get(key) == Some(&number))
    );
    assert_eq!(tree.at_least(&keys[3]).count(), 37);
    assert!(keys.iter().all(|key| tree.remove(key).is_some()));
    assert_eq!(tree.len(), 40);
    let mut numbers = Tree::<Numbers, _>::default();
    numbers.insert(&u64::MAX, 1);
    assert_eq!((numbers.get(&u64::MAX), numbers.get(&1)), (Some(&1), None));
}

#[test]
fn the_empty_key_is_a_key_like_others() {
    let mut tree = Tree::<Texts, _>::default();
    for (number, key) in [&b""[..], b"\0", b"\0\0\0\0\0", b"a"].into_iter().enumerate() {
        assert_eq!(tree.get(key), None);
        tree.insert(key, number);
    }

    assert!(tree.iter().map(|(_, &number)| number).eq(0..4));
    assert_eq!(tree.starting(b"\0".as_slice().into()).count(), 2);
    assert_eq!(tree.remove(b""), Some(0));
    assert_eq!(tree.get(b""), None);
}

#[test]
fn long_equal_heads_are_told_apart() {
    let mut tree = Tree::<Texts, _>::default();
    let key = |number: u32| encoded(format!("namespace/service-{number:04}").as_str());
    for number in (0..500).rev() {
        tree.insert(&key(number), number);
    }

    assert!(tree.iter().map(|(_, &number)| number).eq(0..500));
    assert_eq!(tree.get(&key(77)), Some(&77));
    assert_eq!(tree.first().map(|(key, _)| key.owned()), Some(key(0)));
}
