// SPDX-License-Identifier: Apache-2.0

//! Assignment of endpoints to slices.

use std::collections::BTreeSet;

use skep_k8s_types::slim::Str;

use super::assign::{Changes, assign};
use super::object::Endpoint;

fn endpoint(number: usize) -> Endpoint {
    Endpoint {
        addresses: vec![Str::new(format!("10.0.{}.{}", number / 250, number % 250))],
        ..Endpoint::default()
    }
}

fn endpoints(numbers: impl IntoIterator<Item = usize>) -> Vec<Endpoint> {
    numbers.into_iter().map(endpoint).collect()
}

fn changes(existing: &[Vec<Endpoint>], desired: &[Endpoint], most: usize) -> Changes {
    let existing: Vec<&[Endpoint]> = existing.iter().map(Vec::as_slice).collect();
    assign(&existing, desired, most)
}

fn writes(changes: &Changes) -> usize {
    changes.create.len() + changes.update.len() + changes.delete.len()
}

fn apply(existing: &mut Vec<Vec<Endpoint>>, changes: Changes) {
    for (at, slice) in changes.update {
        existing[at] = slice;
    }
    for at in changes.delete.iter().rev() {
        existing.remove(*at);
    }
    existing.extend(changes.create);
}

#[test]
fn slices_are_filled_and_then_created() {
    let none = changes(&[], &endpoints(0..5), 2);
    assert_eq!(none.create.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);

    let existing = [endpoints(0..2), endpoints(2..3)];
    let added = changes(&existing, &endpoints(0..4), 2);
    assert_eq!(added.update.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(writes(&added), 1);
}

#[test]
fn a_slice_that_is_written_anyway_is_filled() {
    let existing = [endpoints(0..3), endpoints(3..5)];
    let replaced = changes(&existing, &endpoints([0, 1, 3, 4, 9]), 3);

    assert_eq!(replaced.update.keys().collect::<Vec<_>>(), [&0]);
    assert_eq!(writes(&replaced), 1);
}

#[test]
fn a_slice_without_endpoints_is_deleted() {
    let existing = [endpoints(0..2), endpoints(2..3)];

    assert_eq!(changes(&existing, &endpoints(0..2), 2).delete, [1]);
    assert_eq!(changes(&existing, &[], 2).delete, [0, 1]);
    assert_eq!(
        changes(&existing, &endpoints([0, 1, 7]), 2).update.len(),
        1,
        "it is used again"
    );
}

#[test]
fn an_endpoint_that_differs_is_written() {
    let mut changed = endpoint(0);
    changed.zone = Some(Str::new("elm"));

    let changes = changes(&[endpoints(0..2)], &[changed.clone(), endpoint(1)], 2);

    assert_eq!(changes.update[&0], [changed, endpoint(1)]);
}

#[test]
fn duplicates_and_slices_that_are_too_long_are_repaired() {
    let mut existing = vec![endpoints(0..5), endpoints(0..2)];
    let desired = endpoints(0..5);

    let changes = changes(&existing, &desired, 3);

    apply(&mut existing, changes);
    check(&existing, &desired, 3, "repaired");
}

#[track_caller]
fn check(slices: &[Vec<Endpoint>], desired: &[Endpoint], most: usize, context: &str) {
    let key = |endpoint: &Endpoint| endpoint.addresses[0].clone();
    let all: Vec<Str> = slices.iter().flatten().map(key).collect();
    let unique: BTreeSet<Str> = all.iter().cloned().collect();
    assert_eq!(all.len(), unique.len(), "each once: {context}");
    assert_eq!(unique, desired.iter().map(key).collect(), "{context}");
    assert!(
        slices.iter().all(|slice| (1..=most).contains(&slice.len())),
        "{context}"
    );
}

#[test]
fn any_sequence_of_changes_keeps_slices_whole_with_few_writes() {
    let seed = 11_2026;
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..300 {
        let most = random.usize(1..12);
        let mut slices: Vec<Vec<Endpoint>> = Vec::new();
        let mut desired: BTreeSet<usize> = (0..random.usize(0..60)).collect();
        for step in 0..40 {
            let context = format!("seed {seed}, round {round}, step {step}");
            let (mut added, mut removed) = (0, 0);
            for _ in 0..random.usize(0..4) {
                let number = random.usize(0..80);
                if random.bool() {
                    added += usize::from(desired.insert(number));
                } else {
                    removed += usize::from(desired.remove(&number));
                }
            }
            let endpoints = endpoints(desired.iter().copied());
            let changes = changes(&slices, &endpoints, most);
            if step > 0 {
                // Each removal writes one slice; what is new goes there, into one other slice, or into new ones.
                let most_writes = removed + added.div_ceil(most);
                assert!(writes(&changes) <= most_writes, "{context}: {changes:?}");
            }
            apply(&mut slices, changes);
            check(&slices, &endpoints, most, &context);
            let again = self::changes(&slices, &endpoints, most);
            assert_eq!(again, Changes::default(), "{context}");
        }
    }
}
