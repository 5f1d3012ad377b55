// SPDX-License-Identifier: Apache-2.0

//! The entries of a policy map.

use std::{cmp::Ordering, collections::BTreeMap};

use skep_bpf_maps::{
    endpoint::endpoint_flags,
    policy::{POLICY_STATIC_BITS, PolicyEntry, PolicyKey},
};
use zerocopy::network_endian::U16;

use crate::order::restricts;

/// Precedence of an entry of the highest tier that allows.
const ALLOW: u32 = 0xffff_ff01;

/// Entries of a policy map, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapState(Vec<(PolicyKey, PolicyEntry)>);

/// A difference between two states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Add(PolicyKey, PolicyEntry),
    Replace(PolicyKey, PolicyEntry),
    Delete(PolicyKey),
}

/// Of several entries of a key the last.
impl FromIterator<(PolicyKey, PolicyEntry)> for MapState {
    fn from_iter<I: IntoIterator<Item = (PolicyKey, PolicyEntry)>>(entries: I) -> Self {
        let entries: BTreeMap<_, _> = entries.into_iter().collect();
        Self(entries.into_iter().collect())
    }
}

impl MapState {
    /// A policy that allows everything in both directions.
    pub fn allow_all() -> Self {
        let entry = PolicyEntry {
            proxy_port: U16::ZERO,
            flags: 0,
            auth: 0,
            precedence: ALLOW,
            cookie: 0,
        };
        let any = |direction| PolicyKey {
            prefix_len: POLICY_STATIC_BITS,
            identity: 0,
            direction,
            proto: 0,
            port: U16::ZERO,
        };
        [0, 1]
            .map(|direction| (any(direction), entry))
            .into_iter()
            .collect()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entry of a key.
    pub fn get(&self, key: &PolicyKey) -> Option<PolicyEntry> {
        let index = self.0.binary_search_by(|(known, _)| known.cmp(key)).ok()?;
        Some(self.0[index].1)
    }

    /// What a map with room for `max` entries gets of a policy that has more: what restricts, and the first entries that allow; or
    /// nothing but denies, if the endpoint is locked down, or even what restricts does not fit. `None` if all of it fits.
    pub(crate) fn reduced(&self, max: usize, is_locked_down: bool) -> Option<Self> {
        if self.len() <= max {
            return None;
        }
        let count = self.0.iter().filter(|(_, entry)| restricts(entry)).count();
        if is_locked_down || count > max {
            return Some(Self::lockdown());
        }
        let mut room = max - count;
        let kept = self.0.iter().filter(|(_, entry)| {
            let fits = restricts(entry) || room > 0;
            room -= usize::from(fits && !restricts(entry));
            fits
        });
        Some(Self(kept.copied().collect()))
    }

    /// A policy that denies everything: what an endpoint gets whose policy exceeds its map, if it is locked down.
    pub(crate) fn lockdown() -> Self {
        let entry = PolicyEntry {
            proxy_port: U16::ZERO,
            flags: 1 | 8 << 3,
            auth: 0,
            precedence: u32::MAX,
            cookie: 0,
        };
        let key = |direction, proto| PolicyKey {
            prefix_len: POLICY_STATIC_BITS + 8,
            identity: 0,
            direction,
            proto,
            port: U16::ZERO,
        };
        // TCP, UDP, SCTP: what no entry matches is denied.
        let keys = [6, 17, 132].map(|proto| [key(0, proto), key(1, proto)]);
        keys.into_iter().flatten().map(|key| (key, entry)).collect()
    }

    pub fn entries(&self) -> &[(PolicyKey, PolicyEntry)] {
        &self.0
    }

    /// Flags of `skep_endpoints` for the directions with one entry, which allows everything: programs do not look it up.
    pub fn open(&self) -> u8 {
        let is_open = |direction: u8| {
            let mut of_direction = self.0.iter().filter(|(key, _)| key.direction & 1 == direction);
            let allows_all = |(key, entry): &(PolicyKey, PolicyEntry)| {
                let is_plain = entry.proxy_port == U16::ZERO && entry.auth_type() == 0 && !entry.is_deny();
                key.identity == 0 && key.bits() == 0 && is_plain
            };
            of_direction.next().is_some_and(allows_all) && of_direction.next().is_none()
        };
        let flag = |direction, flag| if is_open(direction) { flag } else { 0 };
        flag(0, endpoint_flags::OPEN_INGRESS) | flag(1, endpoint_flags::OPEN_EGRESS)
    }

    /// Whether programs look it up in no direction.
    pub fn is_open(&self) -> bool {
        self.open() == endpoint_flags::OPEN_INGRESS | endpoint_flags::OPEN_EGRESS
    }

    /// Calls `change` with what makes `self` the other state.
    pub fn differences(&self, to: &Self, mut change: impl FnMut(Change)) {
        let (mut old, mut new) = (self.0.iter().peekable(), to.0.iter().peekable());
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((one, _)), Some((other, _))) => one.cmp(other),
            };
            let before = if order.is_le() { old.next() } else { None };
            let after = if order.is_ge() { new.next() } else { None };
            match (before, after) {
                (Some((key, _)), None) => change(Change::Delete(*key)),
                (None, Some((key, entry))) => change(Change::Add(*key, *entry)),
                (Some((_, old)), Some((key, new))) if old != new => change(Change::Replace(*key, *new)),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_make_one_state_the_other() {
        let [(any, allow), egress] = MapState::allow_all().0[..] else {
            panic!()
        };
        let of = |identity| PolicyKey { identity, ..any };
        let deny = PolicyEntry { flags: 1, ..allow };
        let one: MapState = [(of(1), allow), (of(2), allow), (of(3), allow)]
            .into_iter()
            .collect();
        let other: MapState = [(of(0), deny), (of(2), deny), (of(3), allow), egress]
            .into_iter()
            .collect();
        let mut changes = Vec::new();

        one.differences(&other, |change| changes.push(change));
        changes.sort_by_key(|change| matches!(change, Change::Delete(_)));

        let expected = [
            Change::Add(of(0), deny),
            Change::Add(egress.0, egress.1),
            Change::Replace(of(2), deny),
            Change::Delete(of(1)),
        ];
        assert_eq!(changes, expected);
        one.differences(&one, |change| panic!("{change:?}"));
    }

    #[test]
    fn directions_are_open_that_one_plain_entry_allows() {
        let all = MapState::allow_all();
        let [ingress, egress] = all.0[..] else { panic!() };
        let state = |entries: &[(PolicyKey, PolicyEntry)]| entries.iter().copied().collect::<MapState>();
        let of_one = (
            PolicyKey {
                identity: 3211,
                ..ingress.0
            },
            ingress.1,
        );
        let denied = PolicyEntry {
            flags: 1,
            ..ingress.1
        };

        assert!(all.is_open());
        assert_eq!(state(&[of_one, egress]).open(), endpoint_flags::OPEN_EGRESS);
        assert_eq!(state(&[ingress, of_one]).open(), 0, "one entry of two");
        assert_eq!(state(&[]).open(), 0, "no entry allows nothing");
        assert_eq!(state(&[(ingress.0, denied)]).open(), 0);
    }
}
