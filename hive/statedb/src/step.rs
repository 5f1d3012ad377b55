// SPDX-License-Identifier: Apache-2.0

//! Moments between which commits and watches of different threads may come in any order. Tests try all orders; in
//! programs nothing happens at them.

/// What a thread is about to do, or has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wants the lock of a table's watches.
    Enter,
    /// Goes on with that lock held.
    Inside,
    /// Has released it.
    Left,
    /// Goes on without locks that others want.
    Outside,
}

/// Lets tests switch to another thread.
#[cfg(not(test))]
#[inline]
pub(crate) const fn at(_: Step) {}

#[cfg(test)]
pub(crate) use crate::tests::interleave::at;
