// SPDX-License-Identifier: Apache-2.0

//! The value that everybody sees: read without waiting for anybody, replaced by one at a time.
//!
//! There are a few places, and a number that says which of them has the newest value. To replace it, another place is
//! filled, then the number is changed, then the old place is emptied. A reader copies the value that the number leads to
//! and is done if the number is still the same: the value was the newest one at some moment since it began. A place is
//! locked only while it is filled, emptied or copied from, and nobody waits for these locks: readers look at the number
//! again, which has changed then, and writers take another place.
//!
//! Writers of `arc_swap` look at nine places of every thread that has ever read anything: a tenth of a small commit with
//! one thread.

#[cfg(test)]
mod tests;

use std::{
    hint,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use parking_lot::RwLock;

use crate::step::{self, Step};

/// More than two are needed only while readers are kept from going on just when they copy a value.
const PLACES: usize = 8;

/// A value that is replaced now and then.
pub(crate) struct Current<T> {
    places: [RwLock<Option<Arc<T>>>; PLACES],
    /// Which place has the newest value. That place is not locked for writing.
    newest: AtomicUsize,
    /// A bit a place that could not be emptied, because it was being copied from.
    left: AtomicUsize,
}

impl<T> Current<T> {
    pub(crate) fn new(value: Arc<T>) -> Self {
        let mut value = Some(value);
        Self {
            places: std::array::from_fn(|_| RwLock::new(value.take())),
            newest: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
        }
    }

    /// The newest value.
    #[inline]
    pub(crate) fn load(&self) -> Arc<T> {
        loop {
            let at = self.newest.load(Ordering::Acquire);
            step::at(Step::Fine);
            let place = self.places[at].try_read();
            let value = place.as_deref().and_then(Option::clone);
            step::at(Step::Fine);
            drop(place);
            // The place may have been filled anew: with what is not the newest value yet.
            if let Some(value) = value
                && self.newest.load(Ordering::Acquire) == at
            {
                return value;
            }
            hint::spin_loop();
        }
    }

    /// Replaces the value; gives the old one. Not to be called by two at a time.
    pub(crate) fn swap(&self, value: Arc<T>) -> Arc<T> {
        if self.left.load(Ordering::Relaxed) != 0 {
            self.empty_left();
        }
        let old = self.newest.load(Ordering::Relaxed);
        let next = self.fill(old, value);
        step::at(Step::Fine);
        self.newest.store(next, Ordering::Release);
        step::at(Step::Fine);
        if let Some(mut place) = self.places[old].try_write() {
            return place.take().expect("the place of the newest value is full");
        }
        // Somebody copies it just now: it stays there until the next replacement.
        self.left.fetch_or(1 << old, Ordering::Relaxed);
        let value = self.places[old].read().clone();
        value.expect("the place is emptied or filled by the caller alone")
    }

    /// Empties the places that could not be emptied before.
    #[cold]
    fn empty_left(&self) {
        let left = self.left.load(Ordering::Relaxed);
        for (at, place) in self.places.iter().enumerate() {
            if left >> at & 1 == 1
                && let Some(mut place) = place.try_write()
            {
                *place = None;
                self.left.fetch_and(!(1 << at), Ordering::Relaxed);
            }
        }
    }

    /// Fills a place that is not the newest value's.
    fn fill(&self, newest: usize, value: Arc<T>) -> usize {
        loop {
            for (at, place) in self.places.iter().enumerate() {
                if at != newest
                    && let Some(mut place) = place.try_write()
                {
                    let left = place.replace(value);
                    step::at(Step::Fine);
                    drop(place);
                    if left.is_some() {
                        self.left.fetch_and(!(1 << at), Ordering::Relaxed);
                    }
                    return at;
                }
            }
            thread::yield_now();
        }
    }
}
