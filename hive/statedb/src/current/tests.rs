// SPDX-License-Identifier: Apache-2.0

use std::sync::{Weak, atomic::AtomicU32};

use super::*;
use crate::tests::interleave::every_fine_order;

struct World {
    current: Current<u32>,
    /// Number of the last replacement begun, and of the last one done.
    begun: AtomicU32,
    done: AtomicU32,
}

fn world() -> World {
    World {
        current: Current::new(Arc::new(0)),
        begun: AtomicU32::new(0),
        done: AtomicU32::new(0),
    }
}

impl World {
    fn replace(&self, number: u32) -> Weak<u32> {
        self.begun.store(number, Ordering::SeqCst);
        let old = self.current.swap(Arc::new(number));
        self.done.store(number, Ordering::SeqCst);
        assert_eq!(*old + 1, number, "gives what it replaces");
        Arc::downgrade(&old)
    }

    /// A look, and whether what it found was the newest value at some moment of it.
    fn look(&self) -> u32 {
        let done = self.done.load(Ordering::SeqCst);
        let found = *self.current.load();
        let begun = self.begun.load(Ordering::SeqCst);
        assert!((done..=begun).contains(&found), "{done} to {begun}: {found}");
        found
    }
}

#[test]
fn every_order_of_looks_and_replacements_is_as_if_one_came_after_the_other() {
    let orders = every_fine_order(
        world,
        |world| [world.replace(1), world.replace(2)],
        |world| [world.look(), world.look()],
        |world, mut replaced, looks| {
            assert!(looks.is_sorted(), "no look goes back: {looks:?}");
            assert_eq!(world.look(), 2);
            // What was read while it was replaced is let go with the next replacement.
            let last = world.replace(3);
            assert_eq!(last.strong_count(), 0);
            replaced
                .iter_mut()
                .for_each(|old| assert_eq!(old.strong_count(), 0));
        },
    );
    assert!(orders > 500, "that many orders there are: {orders}");
}

#[test]
fn a_reader_in_the_way_is_avoided() {
    let world = world();
    let reading: Vec<_> = world
        .current
        .places
        .iter()
        .take(PLACES - 1)
        .map(RwLock::read)
        .collect();

    let old = world.replace(1);
    assert_eq!(
        (world.look(), old.strong_count()),
        (1, 1),
        "left where it is read"
    );
    drop(reading);
    world.replace(2);

    assert_eq!((world.look(), old.strong_count()), (2, 0));
}

#[test]
fn threads_never_see_an_older_value_after_a_newer_one() {
    let world = world();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut last = 0;
                while last < 20_000 {
                    let found = world.look();
                    assert!(found >= last, "{found} after {last}");
                    last = found;
                }
            });
        }
        (1..=20_000).for_each(|number| drop(world.replace(number)));
    });
}
