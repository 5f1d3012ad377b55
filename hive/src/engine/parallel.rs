// SPDX-License-Identifier: Apache-2.0

//! Starting and stopping what does not depend on each other at the same time.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::ops::{ControlFlow, Range};
use std::pin::Pin;
use std::task::Poll;

use super::Engine;

/// A future for one unit.
pub(super) type UnitFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The steps of one constructor.
pub(super) struct Unit {
    pub(super) steps: Range<usize>,
    /// Units whose objects this one uses.
    pub(super) needs: Vec<usize>,
}

impl Engine {
    /// The units of a lifecycle, in the order of construction.
    pub(super) fn units(&self, lifecycle: u32) -> Vec<Unit> {
        let mut units: Vec<Unit> = Vec::new();
        let mut unit_of: HashMap<u32, usize> = HashMap::new();
        for (index, step) in self.lifetimes[lifecycle as usize].steps.iter().enumerate() {
            // Steps of a constructor stand together.
            match unit_of.get(&step.node) {
                Some(unit) => units[*unit].steps.end = index + 1,
                None => {
                    unit_of.insert(step.node, units.len());
                    units.push(Unit {
                        steps: index..index + 1,
                        needs: Vec::new(),
                    });
                }
            }
        }
        // Constructors without steps hand on what they need.
        let mut through: HashMap<u32, BTreeSet<usize>> = HashMap::new();
        for &node in &self.graph.order {
            let mut needs = BTreeSet::new();
            for edge in self.graph.edges_of(node) {
                match unit_of.get(edge) {
                    Some(unit) => drop(needs.insert(*unit)),
                    None => needs.extend(through.get(edge).into_iter().flatten()),
                }
            }
            match unit_of.get(&node) {
                Some(unit) => units[*unit].needs = needs.into_iter().collect(),
                None => drop(through.insert(node, needs)),
            }
        }
        units
    }
}

/// For each unit those that need it.
pub(super) fn dependents(needs: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut dependents = vec![Vec::new(); needs.len()];
    for (unit, needs) in needs.iter().enumerate() {
        for need in needs {
            dependents[*need].push(unit);
        }
    }
    dependents
}

/// Runs a future for each unit, once those for which it waits are done. `done` may end it early, which drops
/// the futures that are not done.
pub(super) async fn run_units<'a, T>(
    waits: &[Vec<usize>],
    mut run: impl FnMut(usize) -> UnitFuture<'a, T>,
    mut done: impl FnMut(T) -> ControlFlow<()>,
) {
    let waiters = dependents(waits);
    let mut left: Vec<usize> = waits.iter().map(Vec::len).collect();
    let mut active: Vec<(usize, UnitFuture<'a, T>)> = (0..left.len())
        .filter(|unit| left[*unit] == 0)
        .map(|unit| (unit, run(unit)))
        .collect();
    poll_fn(|cx| {
        let mut at = 0;
        while at < active.len() {
            let (unit, future) = &mut active[at];
            let Poll::Ready(output) = future.as_mut().poll(cx) else {
                at += 1;
                continue;
            };
            let unit = *unit;
            drop(active.remove(at));
            if done(output).is_break() {
                return Poll::Ready(());
            }
            for waiter in &waiters[unit] {
                left[*waiter] -= 1;
                if left[*waiter] == 0 {
                    // At the end, so that it is polled in this round.
                    active.push((*waiter, run(*waiter)));
                }
            }
        }
        if active.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependents_turn_needs_around() {
        let needs = [vec![], vec![0], vec![0, 1]];
        assert_eq!(dependents(&needs), [vec![1, 2], vec![2], vec![]]);
    }

    #[tokio::test(start_paused = true)]
    async fn units_run_as_soon_as_their_needs_are_done() {
        // 2 needs 0; 3 needs 1 and 2; unit n takes n + 1 seconds.
        let waits = [vec![], vec![], vec![0], vec![1, 2]];
        let begun = tokio::time::Instant::now();
        let mut ends = Vec::new();
        run_units(
            &waits,
            |unit| {
                Box::pin(async move {
                    tokio::time::sleep(std::time::Duration::from_secs(unit as u64 + 1)).await;
                    unit
                })
            },
            |unit| {
                ends.push((unit, begun.elapsed().as_secs()));
                ControlFlow::Continue(())
            },
        )
        .await;
        assert_eq!(ends, [(0, 1), (1, 2), (2, 4), (3, 8)]);
    }
}
