// SPDX-License-Identifier: Apache-2.0

//! Sorted keys of one node: numbers, and byte strings that leave out what they share.

use std::{borrow::Borrow, cmp::Ordering, hint::black_box, ops::Range};

use smallvec::SmallVec;

use super::FAN;
use crate::key::KeyBytes;

/// Bytes of a node's texts kept without an allocation.
const INLINE: usize = 48;

/// The keys of one node in order. Positions are at most [`NodeKeys::len`], and a node holds at most [`FAN`] keys.
pub(crate) trait NodeKeys: Clone + Default {
    /// What is looked for.
    type Key: ?Sized + 'static;
    /// The same, prepared for several nodes.
    type Probe<'k>: Copy + From<&'k Self::Key>;
    /// A key on its own.
    type Owned: Borrow<Self::Key>;

    fn len(&self) -> usize;
    /// Returns how many keys are before `key`, and whether the next one is `key`.
    fn locate(&self, key: Self::Probe<'_>) -> (usize, bool);
    /// Returns how many keys are before `key` or equal to it.
    #[inline]
    fn up_to(&self, key: Self::Probe<'_>) -> usize {
        let (at, is_there) = self.locate(key);
        at + usize::from(is_there)
    }
    /// Returns how many keys are before `key` or start with it.
    fn through(&self, start: &Self::Key) -> usize;
    /// Puts `key` at its place.
    fn insert(&mut self, at: usize, key: &Self::Key);
    fn remove(&mut self, at: usize);
    /// Takes out the keys from `at` on.
    fn split_off(&mut self, at: usize) -> Self;
    /// Appends keys that come after all that are here.
    fn append(&mut self, other: &Self);
    /// A copy of the key at `at`.
    fn owned(&self, at: usize) -> Self::Owned;
    /// A short key after the last of `left` and not after `right`, which comes after all of `left`.
    fn between(left: &Self, right: &Self::Key) -> Self::Owned;
}

/// Keys that are numbers.
#[derive(Clone)]
pub(crate) struct Numbers {
    /// Unused places hold the largest number.
    keys: [u64; FAN],
    len: u8,
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            keys: [u64::MAX; FAN],
            len: 0,
        }
    }
}

/// Numbers looked at together.
const BLOCK: usize = 4;

impl Numbers {
    /// Returns the key at `at`.
    #[inline]
    pub(crate) fn get(&self, at: usize) -> u64 {
        self.keys[at]
    }
}

impl NodeKeys for Numbers {
    type Key = u64;
    type Probe<'k> = &'k u64;
    type Owned = u64;

    #[inline]
    fn len(&self) -> usize {
        usize::from(self.len)
    }

    #[inline]
    fn locate(&self, &key: &u64) -> (usize, bool) {
        // No branch: it would be mispredicted. First which block, then where in it.
        let is_after = |at: usize| usize::from(self.keys[at] < key);
        let mut block = 0;
        for last in (BLOCK - 1..FAN - 1).step_by(BLOCK) {
            block += is_after(last);
        }
        let from = block * BLOCK;
        let at = from + (from..from + BLOCK).map(is_after).sum::<usize>();
        (at, at < self.len() && self.keys[at] == key)
    }

    #[inline]
    fn through(&self, start: &u64) -> usize {
        self.up_to(start)
    }

    fn insert(&mut self, at: usize, key: &u64) {
        self.keys.copy_within(at..FAN - 1, at + 1);
        self.keys[at] = *key;
        self.len += 1;
    }

    fn remove(&mut self, at: usize) {
        self.keys.copy_within(at + 1.., at);
        self.keys[FAN - 1] = u64::MAX;
        self.len -= 1;
    }

    fn split_off(&mut self, at: usize) -> Self {
        let mut right = Self::default();
        let len = self.len();
        right.keys[..len - at].copy_from_slice(&self.keys[at..len]);
        right.len = (len - at) as u8;
        self.keys[at..].fill(u64::MAX);
        self.len = at as u8;
        right
    }

    fn append(&mut self, other: &Self) {
        let (len, more) = (self.len(), other.len());
        self.keys[len..len + more].copy_from_slice(&other.keys[..more]);
        self.len += other.len;
    }

    #[inline]
    fn owned(&self, at: usize) -> u64 {
        self.keys[at]
    }

    fn between(_: &Self, right: &u64) -> u64 {
        *right
    }
}

/// Keys that are byte strings.
///
/// Keys that are close to each other often start alike (`namespace/service-1234`): what all share is kept once. Of the
/// rest the first four bytes are compared as numbers, side by side in memory, which mostly decides.
///
/// What a look-up needs comes last, in a row, and before the values of the node: few lines of the cache.
#[repr(C)]
pub(crate) struct Texts {
    /// What all keys share, then the rest of each.
    pub(super) bytes: SmallVec<[u8; INLINE]>,
    /// Where the rest of each key ends in `bytes`: the next one starts there, the first after the shared bytes.
    ends: [u32; FAN],
    /// [`word`] of what all keys share.
    start: u64,
    /// Which bits of it count.
    mask: u64,
    /// How many bytes all keys share. May be less than they have in common.
    pub(super) skip: u32,
    len: u8,
    /// How many bytes each rest has, if all have as many, and these are in the heads.
    rest: u8,
    /// [`head`] of each key's rest; unused places hold the largest number.
    heads: [i32; FAN],
}

/// In place of the length of rests that differ in it, or are long.
const MIXED: u8 = u8::MAX;

impl Default for Texts {
    fn default() -> Self {
        Self {
            bytes: SmallVec::new(),
            ends: [0; FAN],
            start: 0,
            mask: 0,
            skip: 0,
            len: 0,
            rest: 0,
            heads: [i32::MAX; FAN],
        }
    }
}

impl Clone for Texts {
    fn clone(&self) -> Self {
        Self {
            bytes: SmallVec::from_slice(&self.bytes),
            ..*self
        }
    }
}

/// Bytes compared as one number.
const HEAD: usize = 4;

/// Returns the first bytes as a number that orders like them, but for ties: zeros stand for what is missing. Signed,
/// because baseline x86-64 compares only signed numbers several at a time.
#[inline]
fn head(rest: &[u8]) -> i32 {
    let first = match *rest {
        [a, b, c, d, ..] => [a, b, c, d],
        [a, b, c] => [a, b, c, 0],
        [a, b] => [a, b, 0, 0],
        [a] => [a, 0, 0, 0],
        [] => [0; HEAD],
    };
    (u32::from_be_bytes(first) ^ (1 << 31)) as i32
}

/// A key looked for.
#[derive(Clone, Copy)]
pub(crate) struct Probe<'k> {
    bytes: &'k [u8],
    /// [`word`] of the bytes.
    word: u64,
    /// What the compiler does not know to be 1, see [`Probe::after`].
    one: i32,
}

impl<'k> From<&'k [u8]> for Probe<'k> {
    #[inline]
    fn from(bytes: &'k [u8]) -> Self {
        Self {
            bytes,
            word: word(bytes),
            one: black_box(1),
        }
    }
}

impl<'k> Probe<'k> {
    /// Returns how many heads are before `head`. No branch: it would be mispredicted. Neither a mask, whose bits the
    /// compiler would count if it knew the numbers added: baseline x86-64 has no instruction for that.
    #[inline]
    fn after(self, head: i32, heads: &[i32; FAN]) -> usize {
        let before = heads.iter().map(|&other| if other < head { self.one } else { 0 });
        before.sum::<i32>() as usize
    }

    /// [`head`] of what comes after `skip` bytes, which are there.
    #[inline]
    fn head(self, skip: usize) -> i32 {
        if skip <= HEAD || self.bytes.len() <= 8 {
            let rest = self.word.checked_shl(8 * skip as u32).unwrap_or(0);
            return ((rest >> 32) as u32 ^ (1 << 31)) as i32;
        }
        head(&self.bytes[skip..])
    }
}

/// Returns the first eight bytes as a number; zeros stand for what is missing.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut first = [0; 8];
            first[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(first)
        }
    }
}

/// Compares rests of equal heads.
#[inline]
fn tie(kept: &[u8], rest: &[u8]) -> Ordering {
    let lengths = kept.len().cmp(&rest.len());
    if kept.len() <= HEAD && rest.len() <= HEAD {
        return lengths;
    }
    let tail = |bytes: &'_ [u8]| -> usize { bytes.len().min(HEAD) };
    kept[tail(kept)..].cmp(&rest[tail(rest)..]).then(lengths)
}

/// Returns how many bytes two byte strings start with in common.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Texts {
    #[inline]
    fn shared(&self) -> &[u8] {
        &self.bytes[..self.skip as usize]
    }

    /// Returns where the rest of the key at `at` starts.
    #[inline]
    fn start(&self, at: usize) -> usize {
        match at.checked_sub(1) {
            None => self.skip as usize,
            Some(before) => self.ends[before] as usize,
        }
    }

    /// Returns what the key at `at` has after the shared bytes.
    #[inline]
    fn rest(&self, at: usize) -> &[u8] {
        &self.bytes[self.start(at)..self.ends[at] as usize]
    }

    /// Returns whether `key` starts with the shared bytes.
    #[inline]
    fn holds(&self, key: Probe<'_>) -> bool {
        let skip = self.skip as usize;
        // Eight bytes are compared at once.
        let differs = (key.word ^ self.start) & self.mask;
        differs == 0 && key.bytes.len() >= skip && (skip <= 8 || self.holds_long(key.bytes))
    }

    #[inline(never)]
    fn holds_long(&self, key: &[u8]) -> bool {
        key[8..self.skip as usize] == self.shared()[8..]
    }

    /// Returns how many keys are before `key`, which does not start with the shared bytes: all or none.
    #[cold]
    fn around(&self, key: &[u8]) -> usize {
        if key < self.shared() { 0 } else { self.len() }
    }

    fn with_shared(shared: &[&[u8]], capacity: usize) -> Self {
        let mut bytes = SmallVec::with_capacity(capacity);
        for part in shared {
            bytes.extend_from_slice(part);
        }
        let unknown = u64::MAX.checked_shr(8 * bytes.len() as u32).unwrap_or(0);
        Self {
            skip: bytes.len() as u32,
            start: word(&bytes),
            mask: !unknown,
            bytes,
            ..Self::default()
        }
    }

    /// Appends a key whose rest is `front` and `back`.
    fn push(&mut self, front: &[u8], back: &[u8]) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(front);
        self.bytes.extend_from_slice(back);
        let at = self.len();
        self.heads[at] = head(&self.bytes[from..]);
        self.ends[at] = self.bytes.len() as u32;
        self.count(front.len() + back.len());
    }

    /// Counts a key whose rest has `len` bytes.
    fn count(&mut self, len: usize) {
        let rest = if len <= HEAD { len as u8 } else { MIXED };
        if self.len == 0 {
            self.rest = rest;
        } else if self.rest != rest {
            self.rest = MIXED;
        }
        self.len += 1;
    }

    /// Appends keys of another node that start with what is shared here.
    fn push_all(&mut self, other: &Self, range: Range<usize>) {
        let (skip, shared) = (self.skip as usize, other.shared());
        for at in range {
            let rest = other.rest(at);
            match skip.checked_sub(shared.len()) {
                None => self.push(&shared[skip..], rest),
                Some(more) => self.push(&[], &rest[more..]),
            }
        }
    }

    /// Some of the keys, sharing all that they can.
    fn part(&self, range: Range<usize>) -> Self {
        let Some(last) = range.len().checked_sub(1).map(|more| range.start + more) else {
            return Self::default();
        };
        let first = self.rest(range.start);
        let more = if last > range.start {
            common(first, self.rest(last))
        } else {
            0
        };
        let share = self.skip as usize + more;
        let rests = self.ends[last] as usize - self.start(range.start) - more * range.len();
        let mut part = Self::with_shared(&[self.shared(), &first[..more]], share + rests);
        part.push_all(self, range);
        part
    }

    /// Has all keys share `share` bytes, with room for `more` bytes.
    fn reshape(&mut self, share: usize, more: usize) {
        let old = std::mem::take(self);
        let whole = old.owned(0);
        let grown = (old.skip as usize).saturating_sub(share) * old.len();
        *self = Self::with_shared(&[&whole[..share]], old.bytes.len() + grown + more);
        self.push_all(&old, 0..old.len());
    }
}

impl NodeKeys for Texts {
    type Key = [u8];
    type Probe<'k> = Probe<'k>;
    type Owned = KeyBytes;

    #[inline]
    fn len(&self) -> usize {
        usize::from(self.len)
    }

    #[inline(always)]
    fn locate(&self, key: Probe<'_>) -> (usize, bool) {
        if !self.holds(key) {
            return (self.around(key.bytes), false);
        }
        let skip = self.skip as usize;
        let head = key.head(skip);
        let at = key.after(head, &self.heads);
        if self.heads.get(at) != Some(&head) {
            return (at, false);
        }
        // Mostly all is in the head.
        if key.bytes.len() - skip == usize::from(self.rest) && at < self.len() {
            return (at, true);
        }
        self.locate_tied(at, head, key.bytes)
    }

    fn through(&self, start: &[u8]) -> usize {
        let shared = self.shared();
        if shared.starts_with(start) {
            return self.len();
        }
        if !self.holds(start.into()) {
            return self.around(start);
        }
        let start = &start[self.skip as usize..];
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            let rest = self.rest(middle);
            if rest < start || rest.starts_with(start) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    fn insert(&mut self, at: usize, key: &[u8]) {
        let share = match self.len() {
            0 => {
                *self = Self::default();
                0
            }
            // The second key: what both share is as good as what any two do.
            1 => common(&self.owned(0), key),
            _ => common(self.shared(), key),
        };
        if share != self.skip as usize {
            self.reshape(share, key.len());
        }
        let rest = &key[share..];
        if self.bytes.capacity() - self.bytes.len() < rest.len() {
            // Doubling, as usual, would mostly be too much: nodes hold few keys.
            let some_more = (FAN - 1 - self.len()).div_ceil(3);
            self.bytes.reserve_exact(rest.len() * (1 + some_more));
        }
        let (from, len) = (self.start(at), self.len());
        self.bytes.insert_from_slice(from, rest);
        for end in &mut self.ends[at..len] {
            *end += rest.len() as u32;
        }
        self.ends.copy_within(at..FAN - 1, at + 1);
        self.ends[at] = (from + rest.len()) as u32;
        self.heads.copy_within(at..FAN - 1, at + 1);
        self.heads[at] = head(rest);
        self.count(rest.len());
    }

    fn remove(&mut self, at: usize) {
        let (from, to) = (self.start(at), self.ends[at] as usize);
        self.bytes.drain(from..to);
        self.ends.copy_within(at + 1.., at);
        self.heads.copy_within(at + 1.., at);
        self.heads[FAN - 1] = i32::MAX;
        self.len -= 1;
        let len = self.len();
        for end in &mut self.ends[at..len] {
            *end -= (to - from) as u32;
        }
    }

    fn split_off(&mut self, at: usize) -> Self {
        let right = self.part(at..self.len());
        *self = self.part(0..at);
        right
    }

    fn append(&mut self, other: &Self) {
        let Some(last) = other.len().checked_sub(1) else {
            return;
        };
        if self.len() == 0 {
            *self = other.clone();
            return;
        }
        let (first, last) = (self.owned(0), other.owned(last));
        let share = common(&first, &last);
        let grown = |part: &Self| part.bytes.len() + (part.skip as usize).saturating_sub(share) * part.len();
        let mut joined = Self::with_shared(&[&first[..share]], grown(self) + grown(other));
        joined.push_all(self, 0..self.len());
        joined.push_all(other, 0..other.len());
        *self = joined;
    }

    fn owned(&self, at: usize) -> KeyBytes {
        let mut key = KeyBytes::from_slice(self.shared());
        key.extend_from_slice(self.rest(at));
        key
    }

    fn between(left: &Self, right: &[u8]) -> KeyBytes {
        let last = left.owned(left.len() - 1);
        KeyBytes::from_slice(&right[..common(&last, right) + 1])
    }
}

impl Texts {
    /// [`NodeKeys::locate`] among the keys from `from` on that share `head`.
    #[inline(never)]
    fn locate_tied(&self, from: usize, head: i32, key: &[u8]) -> (usize, bool) {
        if from >= self.len() {
            return (from, false);
        }
        let rest = &key[self.skip as usize..];
        // Mostly no other key has this head, and all is in it.
        let kept = self.ends[from] as usize - self.start(from);
        if kept <= HEAD && kept == rest.len() {
            return (from, true);
        }
        let tied = self.heads[from..self.len()]
            .iter()
            .take_while(|&&other| other == head)
            .count();
        let (mut from, mut to) = (from, from + tied);
        while from < to {
            let middle = from.midpoint(to);
            match tie(self.rest(middle), rest) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return (middle, true),
                Ordering::Greater => to = middle,
            }
        }
        (from, false)
    }
}
