// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Op {
    Add(u16),
    Replace(u32),
    Remove(u32),
    /// Numbers in a row.
    Clear(u32, u32),
    Snapshot,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1u16..400).prop_map(Op::Add),
        3 => any::<u32>().prop_map(Op::Replace),
        3 => any::<u32>().prop_map(Op::Remove),
        2 => (any::<u32>(), 1u32..600).prop_map(|(from, count)| Op::Clear(from, count)),
        1 => Just(Op::Snapshot),
    ]
}

fn compare(slots: &Slots<u64>, model: &BTreeMap<Slot, u64>, until: Slot) {
    assert_eq!(slots.len as usize, model.len());
    let mut walk = slots.walk();
    for slot in 0..until + 40 {
        assert_eq!(slots.get(slot), model.get(&slot), "{slot}");
        assert_eq!(walk.get(slot), model.get(&slot), "{slot}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_a_map(ops in proptest::collection::vec(op(), 1..60)) {
        let (mut slots, mut model) = (Slots::<u64>::default(), BTreeMap::new());
        let (mut next, mut most) = (0u64, 0);
        let mut snapshots = Vec::new();
        for op in ops {
            let until = model.last_key_value().map_or(0, |(slot, _)| *slot + 1);
            match op {
                Op::Add(count) => {
                    for _ in 0..count {
                        let slot = slots.add(next);
                        prop_assert_eq!(model.insert(slot, next), None, "a number of its own");
                        next += 1;
                    }
                }
                Op::Replace(slot) => {
                    let slot = slot % (until + 20);
                    prop_assert_eq!(slots.replace(slot, next), model.get(&slot).copied());
                    model.entry(slot).and_modify(|value| *value = next);
                    next += 1;
                }
                Op::Remove(slot) => {
                    let slot = slot % (until + 20);
                    prop_assert_eq!(slots.remove(slot), model.remove(&slot));
                }
                Op::Clear(from, count) => {
                    let from = from % (until + 20);
                    for slot in from..from + count {
                        prop_assert_eq!(slots.remove(slot), model.remove(&slot));
                    }
                }
                Op::Snapshot => snapshots.push((slots.clone(), model.clone())),
            }
            most = most.max(model.len());
            let until = model.last_key_value().map_or(0, |(slot, _)| *slot + 1);
            prop_assert!(until as usize <= most + FAN, "numbers are allocated again");
            compare(&slots, &model, until);
        }
        for (slots, model) in &snapshots {
            compare(slots, model, model.last_key_value().map_or(0, |(slot, _)| *slot + 1));
        }
    }
}

#[test]
fn clones_share_what_does_not_change() {
    let mut slots = Slots::default();
    (0..1000u64).for_each(|value| assert_eq!(u64::from(slots.add(value)), value));
    let before = slots.clone();

    slots.replace(500, 7);

    let same = (0..1000).filter(|&slot| std::ptr::eq(slots.get(slot).unwrap(), before.get(slot).unwrap()));
    assert_eq!(same.count(), 1000 - FAN);
    assert_eq!((slots.get(500), before.get(500)), (Some(&7), Some(&500)));
}

#[test]
fn an_empty_array_keeps_nothing() {
    let mut slots = Slots::default();
    (0..1000u64).for_each(|value| assert_eq!(u64::from(slots.add(value)), value));
    (0..1000).for_each(|slot| assert!(slots.remove(slot).is_some()));

    assert!(slots.root.is_none() && slots.tail_from == 0);
    assert_eq!(slots.add(1), 0);
}
