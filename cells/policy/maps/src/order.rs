// SPDX-License-Identifier: Apache-2.0

//! The order of the writes that make one state of a map another.
//!
//! A packet passes between two writes only if it passes before the first or after the last of them: an agent may be killed
//! there. For each identity, and for any identity, the entry with the longest prefix counts; of these two the one of higher
//! precedence. Within a state the longer prefix has the higher precedence.
//!
//! Without interruption: what restricts (denies, redirects, demands authentication) is added first, longest prefixes first, then
//! what allows; what only allowed is deleted; then entries are replaced that restrict less than before, and what restricted is
//! deleted. That is safe unless entries of both states combine to what neither has: an allowing entry within a restricting one of
//! the state before that another tree restricts afterwards, or several levels of precedence. Then, and if the map has no room for both
//! states, all but denies is deleted first and added last: packets may be dropped meanwhile.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use skep_bpf_maps::policy::{PolicyEntry, PolicyKey};
use zerocopy::network_endian::U16;

use crate::{Change, MapState};

type Row = (PolicyKey, PolicyEntry);

/// Comparisons of one update before it is taken for one that combines badly.
const COMPARISONS: usize = 1 << 20;

/// Writes in their order.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) early_deletions: Vec<PolicyKey>,
    pub(crate) updates: Vec<Row>,
    pub(crate) deletions: Vec<PolicyKey>,
    pub(crate) late_updates: Vec<Row>,
    pub(crate) late_deletions: Vec<PolicyKey>,
}

/// How much an entry restricts.
fn rank(entry: &PolicyEntry) -> u8 {
    match entry {
        entry if entry.is_deny() => 2,
        entry if entry.proxy_port != U16::ZERO || entry.auth_type() != 0 => 1,
        _ => 0,
    }
}

/// Whether it denies, redirects or demands authentication.
pub(crate) fn restricts(entry: &PolicyEntry) -> bool {
    rank(entry) > 0
}

fn direction(key: &PolicyKey) -> u8 {
    key.direction & 1
}

/// Protocol and port as 24 bits.
fn value(key: &PolicyKey) -> u32 {
    u32::from(key.proto) << 16 | u32::from(key.port.get())
}

/// Whether keys have packets in common, whatever their identities.
fn overlap(one: &PolicyKey, other: &PolicyKey) -> bool {
    let bits = one.bits().min(other.bits());
    (value(one) ^ value(other)) >> (24 - bits) == 0
}

fn covers(outer: &PolicyKey, inner: &PolicyKey) -> bool {
    outer.bits() <= inner.bits() && overlap(outer, inner)
}

/// What restricts in one direction, by identity, with its rank.
type Restrictions<'a> = BTreeMap<u32, Vec<(&'a PolicyKey, u8)>>;

fn restrictions(state: &MapState, of: u8) -> Restrictions<'_> {
    let mut found = Restrictions::new();
    for (key, entry) in state.entries() {
        if direction(key) == of && restricts(entry) {
            found.entry(key.identity).or_default().push((key, rank(entry)));
        }
    }
    found
}

/// Trees whose allowing entries are deleted first.
#[derive(Clone, Debug, Default)]
enum Interrupted {
    #[default]
    None,
    Identities(BTreeSet<u32>),
    All,
}

impl Interrupted {
    fn contains(&self, identity: u32) -> bool {
        match self {
            Self::None => false,
            Self::Identities(of) => of.contains(&identity),
            Self::All => true,
        }
    }
}

/// Changes in one direction.
struct Changes<'a> {
    before: &'a MapState,
    after: &'a MapState,
    direction: u8,
    list: Vec<Change>,
}

impl Changes<'_> {
    /// The entry of a key before.
    fn entry_before(&self, key: &PolicyKey) -> Option<PolicyEntry> {
        self.before.get(key)
    }

    /// Whether entries that restrict more have the higher precedence.
    fn is_one_level(&self) -> bool {
        let mut ranges = [(u32::MAX, 0); 3];
        let states = self.before.entries().iter().chain(self.after.entries());
        for (_, entry) in states.filter(|(key, _)| direction(key) == self.direction) {
            let (lowest, highest) = &mut ranges[usize::from(rank(entry))];
            *lowest = entry.precedence.min(*lowest);
            *highest = entry.precedence.max(*highest);
        }
        let [(_, plain), (redirect, most), (deny, _)] = ranges;
        plain < redirect && most.max(plain) < deny
    }

    fn interrupted(&self) -> Interrupted {
        let (before, after) = (
            restrictions(self.before, self.direction),
            restrictions(self.after, self.direction),
        );
        if self.list.is_empty() || (before.is_empty() && after.is_empty()) {
            return Interrupted::None;
        }
        let count: usize = before.values().chain(after.values()).map(Vec::len).sum();
        if self.list.len().saturating_mul(count) > COMPARISONS {
            return Interrupted::All;
        }
        let is_one_level = self.is_one_level();
        let mut trees = BTreeSet::new();
        for change in &self.list {
            let (key, new) = match change {
                Change::Add(key, entry) | Change::Replace(key, entry) => (key, Some(entry)),
                Change::Delete(key) => (key, None),
            };
            let is_bad = match is_one_level {
                true => new.is_some_and(|entry| combines(key, rank(entry), &before, &after)),
                false => {
                    let old = self.entry_before(key);
                    let of_restriction = old.as_ref().into_iter().chain(new).any(restricts);
                    let own = [&before, &after]
                        .into_iter()
                        .filter_map(|all| all.get(&key.identity));
                    of_restriction || own.flatten().any(|(known, _)| overlap(known, key))
                }
            };
            if is_bad {
                trees.insert(key.identity);
            }
        }
        let any_changes = || {
            self.list.iter().any(|change| match change {
                Change::Add(key, _) | Change::Replace(key, _) | Change::Delete(key) => key.identity == 0,
            })
        };
        let has_redirects = || {
            let mut all = before.values().chain(after.values()).flatten();
            all.any(|(_, rank)| *rank < 2)
        };
        match trees.is_empty() {
            true => Interrupted::None,
            // What another tree allows must not take the place of a redirect meanwhile.
            false if any_changes() || has_redirects() => Interrupted::All,
            false => Interrupted::Identities(trees),
        }
    }
}

/// A new entry is within one of its own tree before that restricts more, and another tree restricts more afterwards.
fn combines(key: &PolicyKey, new: u8, before: &Restrictions<'_>, after: &Restrictions<'_>) -> bool {
    let own = before.get(&key.identity);
    if !own.is_some_and(|own| own.iter().any(|(outer, rank)| *rank > new && covers(outer, key))) {
        return false;
    }
    let mut others = after
        .iter()
        .filter(|(identity, _)| (**identity == 0) != (key.identity == 0));
    others.any(|(_, keys)| {
        keys.iter()
            .any(|(other, rank)| *rank > new && overlap(other, key))
    })
}

impl Plan {
    /// The writes that make `before` the state `after`, in a map with room for `max` entries.
    pub(crate) fn new(before: &MapState, after: &MapState, max: usize) -> Self {
        let mut by_direction = [Vec::new(), Vec::new()];
        let mut added = 0;
        before.differences(after, |change| {
            let (Change::Add(key, _) | Change::Replace(key, _) | Change::Delete(key)) = &change;
            added += usize::from(matches!(change, Change::Add(..)));
            by_direction[usize::from(direction(key))].push(change);
        });
        let has_room = before.len() + added <= max;
        let mut plan = Self::default();
        for (direction, list) in (0..).zip(by_direction) {
            let changes = Changes {
                before,
                after,
                direction,
                list,
            };
            let interrupted = match has_room {
                true => changes.interrupted(),
                false => Interrupted::All,
            };
            plan.extend(&changes, &interrupted);
        }
        let longest_first = |(key, entry): &Row| (Reverse(rank(entry)), Reverse(key.prefix_len));
        plan.updates.sort_by_key(longest_first);
        plan.late_updates.sort_by_key(longest_first);
        plan.deletions.sort_by_key(|key| key.prefix_len);
        let rank_before = |key: &PolicyKey| before.get(key).as_ref().map(rank);
        plan.late_deletions
            .sort_by_key(|key| (rank_before(key), key.prefix_len));
        plan.early_deletions.sort_by_key(rank_before);
        plan
    }

    fn extend(&mut self, changes: &Changes<'_>, interrupted: &Interrupted) {
        let is_everything = matches!(interrupted, Interrupted::All);
        let mut kept = BTreeSet::new();
        for (key, entry) in changes.before.entries() {
            let is_here = direction(key) == changes.direction && interrupted.contains(key.identity);
            if is_here && !entry.is_deny() {
                self.early_deletions.push(*key);
                kept.insert(*key);
            }
        }
        for change in &changes.list {
            match *change {
                Change::Add(key, entry) if interrupted.contains(key.identity) && !entry.is_deny() => {
                    self.late_updates.push((key, entry));
                }
                Change::Add(key, entry) => self.updates.push((key, entry)),
                Change::Replace(key, entry) => {
                    let old = changes.entry_before(&key);
                    let is_weaker = old.is_some_and(|old| {
                        rank(&entry) < rank(&old)
                            || (restricts(&entry) && restricts(&old) && entry.precedence < old.precedence)
                    });
                    let waits = match interrupted.contains(key.identity) {
                        true => !entry.is_deny(),
                        false => is_weaker,
                    };
                    kept.remove(&key);
                    match waits {
                        true => self.late_updates.push((key, entry)),
                        false => self.updates.push((key, entry)),
                    }
                }
                Change::Delete(key) if kept.remove(&key) => {}
                // Nothing is allowed meanwhile.
                Change::Delete(key) if is_everything => self.early_deletions.push(key),
                Change::Delete(key) if interrupted.contains(key.identity) => self.deletions.push(key),
                Change::Delete(key) => match changes.entry_before(&key).as_ref().is_some_and(restricts) {
                    true => self.late_deletions.push(key),
                    false => self.deletions.push(key),
                },
            }
        }
        // Those that are as before, and were deleted for a while.
        for key in kept {
            if let Some(entry) = changes.after.get(&key) {
                self.late_updates.push((key, entry));
            }
        }
    }

    /// Packets may be dropped between the writes that pass before and after them.
    pub(crate) fn interrupts(&self) -> bool {
        !self.early_deletions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use skep_bpf_maps::policy::POLICY_STATIC_BITS;

    use super::*;

    type Map = BTreeMap<PolicyKey, PolicyEntry>;

    fn key(identity: u32, proto: u8, bits: u32, port: u16) -> PolicyKey {
        let value = (u32::from(proto) << 16 | u32::from(port)) & (0xff_ffff << (24 - bits));
        PolicyKey {
            prefix_len: POLICY_STATIC_BITS + bits,
            identity,
            direction: 0,
            proto: (value >> 16) as u8,
            port: U16::new(value as u16),
        }
    }

    fn entry(rank: u8, precedence: u32) -> PolicyEntry {
        PolicyEntry {
            proxy_port: U16::new((rank == 1).into()),
            flags: u8::from(rank == 2),
            auth: 0,
            precedence,
            cookie: 0,
        }
    }

    /// The verdict of the program: 0 denied, 1 restricted, 2 allowed.
    fn verdict(map: &Map, identity: u32, packet: &PolicyKey) -> u8 {
        let longest = |identity: u32| {
            let of_tree = map
                .iter()
                .filter(|(known, _)| known.identity == identity && covers(known, packet));
            of_tree.max_by_key(|(known, _)| known.prefix_len)
        };
        let (exact, any) = (longest(identity), longest(0));
        let found = match (exact, any) {
            (Some(exact), Some(any)) => {
                let key = |(key, entry): (&PolicyKey, &PolicyEntry)| (entry.precedence, key.prefix_len);
                if key(any) > key(exact) { any } else { exact }
            }
            (exact, any) => match exact.or(any) {
                Some(found) => found,
                None => return 0,
            },
        };
        2 - rank(found.1)
    }

    /// A state in which a longer prefix has no lower precedence, as the resolver makes them.
    fn random_state(random: &mut fastrand::Rng, levels: u32) -> MapState {
        let mut map = Map::new();
        for _ in 0..random.usize(0..10) {
            let bits = [0, 8, 20, 24][random.usize(0..4)];
            let key = key(random.u32(0..3), 6, bits, 80 + random.u16(0..3));
            let rank = random.u8(0..3);
            let precedence = random.u32(1..=levels) * 10 + u32::from(rank);
            map.insert(key, entry(rank, precedence));
        }
        let all = map.clone();
        map.retain(|key, entry| {
            let mut outer = all
                .iter()
                .filter(|(other, _)| other.identity == key.identity && *other != key);
            !outer.any(|(other, known)| covers(other, key) && known.precedence > entry.precedence)
        });
        map.into_iter().collect()
    }

    fn steps(plan: &Plan) -> Vec<Change> {
        let delete = |keys: &[PolicyKey]| keys.iter().copied().map(Change::Delete).collect::<Vec<_>>();
        let update = |rows: &[Row]| -> Vec<Change> {
            rows.iter()
                .map(|(key, entry)| Change::Add(*key, *entry))
                .collect()
        };
        [
            delete(&plan.early_deletions),
            update(&plan.updates),
            delete(&plan.deletions),
            update(&plan.late_updates),
            delete(&plan.late_deletions),
        ]
        .concat()
    }

    /// Applies the writes one by one; at most how many entries there were.
    #[track_caller]
    fn check(before: &MapState, after: &MapState, plan: &Plan) -> usize {
        let of = |state: &MapState| state.entries().iter().copied().collect::<Map>();
        let (first, last) = (of(before), of(after));
        let mut map = first.clone();
        let mut most = map.len();
        for step in steps(plan) {
            match step {
                Change::Add(key, entry) | Change::Replace(key, entry) => _ = map.insert(key, entry),
                Change::Delete(key) => assert!(map.remove(&key).is_some(), "{key:?} deleted twice"),
            }
            most = most.max(map.len());
            for identity in 1..4 {
                for packet in [key(0, 17, 24, 80), key(0, 6, 24, 9000)]
                    .into_iter()
                    .chain((80..84).map(|port| key(0, 6, 24, port)))
                {
                    let [one, now, other] = [&first, &map, &last].map(|map| verdict(map, identity, &packet));
                    assert!(
                        now <= one.max(other),
                        "identity {identity} {packet:?}: {one}, {now} after {step:?}, {other}\n{before:?}\n{after:?}"
                    );
                }
            }
        }
        assert_eq!(map, last);
        most
    }

    #[test]
    fn no_moment_allows_more_than_before_or_after() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        println!("seed {seed}");
        let mut interrupted = 0;
        for _ in 0..5_000 {
            let levels = random.u32(1..4);
            let (before, after) = (
                random_state(&mut random, levels),
                random_state(&mut random, levels),
            );

            let plan = Plan::new(&before, &after, 1000);

            check(&before, &after, &plan);
            interrupted += u32::from(plan.interrupts());
        }
        assert!(interrupted > 0);
    }

    #[test]
    fn a_map_without_room_for_both_states_is_never_exceeded() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            let (before, after) = (random_state(&mut random, 1), random_state(&mut random, 1));
            let max = before.len().max(after.len());

            let most = check(&before, &after, &Plan::new(&before, &after, max));

            assert!(most <= max, "{most} of {max}");
        }
    }

    #[test]
    fn denies_come_first_and_go_last_without_interruption() {
        let state = |rows: &[Row]| rows.iter().copied().collect::<MapState>();
        let (allow, deny) = ((key(0, 6, 8, 0), entry(0, 10)), (key(7, 6, 24, 80), entry(2, 12)));
        let other = (key(9, 6, 24, 81), entry(0, 10));

        let plan = Plan::new(&state(&[allow]), &state(&[deny, other]), 100);
        assert_eq!(plan.updates, [deny, other]);
        assert_eq!(plan.deletions, [allow.0]);
        assert!(!plan.interrupts());
        let plan = Plan::new(&state(&[deny, other]), &state(&[allow]), 100);
        assert_eq!(
            (plan.updates.as_slice(), plan.deletions.as_slice()),
            ([allow].as_slice(), [other.0].as_slice())
        );
        assert_eq!(plan.late_deletions, [deny.0]);
    }
}
