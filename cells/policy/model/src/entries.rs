// SPDX-License-Identifier: Apache-2.0

//! Map entries of one identity and direction.
//!
//! Entries of an identity depend on what rules say about it and on the entries of identity 0, of any peer, and on nothing
//! else: an identity that comes or goes changes no entry of another one, and the order of changes does not matter.

use crate::{
    filter::Origins,
    levels::TierRange,
    map_state::Proxy,
    ports::TrafficKey,
    rule::{AuthType, Tier, Verdict},
};
use std::sync::Arc;

/// What a rule says about the traffic of a key.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub key: TrafficKey,
    pub tier: Tier,
    pub said: Arc<Said>,
}

#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub verdict: Verdict,
    pub precedence: u32,
    pub range: TierRange,
    pub proxy: Option<Arc<Proxy>>,
    pub auth: Option<AuthType>,
    pub origins: Origins,
}

/// Authentication that an entry demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Auth {
    pub kind: AuthType,
    /// A rule says so for these very ports; else it follows from wider ones.
    pub is_explicit: bool,
}

/// An entry of a policy map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    pub precedence: u32,
    pub is_deny: bool,
    pub proxy: Option<Arc<Proxy>>,
    pub auth: Option<Auth>,
    pub origins: Origins,
}

impl MapEntry {
    fn of(said: &Said) -> Self {
        Self {
            precedence: said.precedence,
            is_deny: said.verdict == Verdict::Deny,
            proxy: said.proxy.clone(),
            auth: said.auth.map(|kind| Auth {
                kind,
                is_explicit: true,
            }),
            origins: said.origins.clone(),
        }
    }

    fn level(&self) -> u32 {
        self.precedence >> 8
    }

    fn is_explicit(&self) -> bool {
        self.auth.is_some_and(|auth| auth.is_explicit)
    }

    /// Adds what is said at the same level about the same key.
    fn merge(&mut self, other: &Self) {
        let port = |entry: &Self| entry.proxy.as_ref().map_or(u16::MAX, |proxy| proxy.port);
        if other.precedence > self.precedence
            || other.precedence == self.precedence && port(other) < port(self)
        {
            self.precedence = other.precedence;
            self.proxy = other.proxy.clone();
        }
        let rank = |auth: Option<Auth>| auth.map(|auth| (auth.is_explicit, auth.kind));
        if rank(other.auth) > rank(self.auth) {
            self.auth = other.auth;
        }
        self.origins.unite(&other.origins);
    }
}

/// Skips the rest of a tier for the traffic of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PassMark {
    key: TrafficKey,
    tier: Tier,
    precedence: u32,
    range: TierRange,
}

/// Entries of an identity, sorted by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entries {
    entries: Vec<(TrafficKey, MapEntry)>,
    tiers: Vec<Tier>,
    passes: Vec<PassMark>,
}

/// How entries of a direction depend on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features {
    /// Plain allows of one level: all are kept.
    pub is_plain: bool,
    pub has_auth: bool,
}

impl Entries {
    pub fn iter(&self) -> std::slice::Iter<'_, (TrafficKey, MapEntry)> {
        self.entries.iter()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn get(&self, key: TrafficKey) -> Option<&MapEntry> {
        Some(&self.entries[self.position(key).ok()?].1)
    }

    /// The entry with the longest prefix for some traffic.
    pub fn lookup(&self, key: TrafficKey) -> Option<&(TrafficKey, MapEntry)> {
        let covering = self.entries.iter().filter(|(known, _)| known.covers(key));
        covering.max_by_key(|(known, _)| known.length())
    }

    fn position(&self, key: TrafficKey) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&key, |(known, _)| *known)
    }

    /// Entries of identity 0, or beside those of identity 0 (`any`), whose candidates are `wide`.
    pub(crate) fn compute(
        features: Features,
        mut own: Vec<Candidate>,
        any: Option<(&Entries, &[Candidate])>,
    ) -> Self {
        let mut made = Self::default();
        let no_entries = Entries::default();
        let (any, wide) = any.unwrap_or((&no_entries, &[]));
        let has_passes = !any.passes.is_empty() || own.iter().any(|one| one.said.verdict == Verdict::Pass);
        sort(&mut own);
        if !has_passes {
            for candidate in own {
                let entry = MapEntry::of(&candidate.said);
                match features.has_auth && !entry.is_deny {
                    true => made.insert_with_auth(any, candidate.key, candidate.tier, entry),
                    false => made.insert(features, any, candidate.key, candidate.tier, entry),
                }
            }
            return made;
        }
        // Tier by tier: passes of one raise what later tiers say.
        let mut all: Vec<(Candidate, bool)> = own.into_iter().map(|candidate| (candidate, true)).collect();
        all.extend(wide.iter().cloned().map(|candidate| (candidate, false)));
        all.sort_by(|(one, _), (other, _)| order(one).cmp(&order(other)));
        for (candidate, is_own) in all {
            match (candidate.said.verdict, is_own) {
                (Verdict::Pass, true) => made.add_pass(any, &candidate),
                (Verdict::Pass, false) => {}
                (_, is_own) => made.insert_behind_passes(features, any, &candidate, is_own),
            }
        }
        made
    }

    /// Whether an entry with this precedence has no effect beside another one that covers its key.
    fn is_covered(&self, any: &Self, key: TrafficKey, entry: &MapEntry) -> bool {
        let covers = |known: TrafficKey, other: &MapEntry, is_other_key: bool| {
            known.covers(key)
                && (other.precedence > entry.precedence
                    || is_other_key && entry.is_deny && other.is_deny && other.precedence == entry.precedence)
        };
        self.entries
            .iter()
            .any(|(known, other)| *known != key && covers(*known, other, true))
            || any
                .entries
                .iter()
                .any(|(known, other)| covers(*known, other, true))
    }

    fn insert(&mut self, features: Features, any: &Self, key: TrafficKey, tier: Tier, entry: MapEntry) {
        if !features.is_plain {
            if self.is_covered(any, key, &entry) {
                return;
            }
            self.remove_covered(key, &entry);
        }
        self.put(key, tier, entry);
    }

    /// Removes what has no effect beside a new entry.
    fn remove_covered(&mut self, key: TrafficKey, entry: &MapEntry) {
        let is_kept = |(known, other): &(TrafficKey, MapEntry)| {
            *known == key
                || !key.covers(*known)
                || !(other.precedence < entry.precedence
                    || entry.is_deny && other.is_deny && other.precedence == entry.precedence)
        };
        if self.entries.iter().all(is_kept) {
            return;
        }
        let kept: Vec<bool> = self.entries.iter().map(is_kept).collect();
        let mut at = kept.iter();
        self.entries.retain(|_| *at.next().unwrap_or(&true));
        let mut at = kept.iter();
        self.tiers.retain(|_| *at.next().unwrap_or(&true));
    }

    fn put(&mut self, key: TrafficKey, tier: Tier, entry: MapEntry) {
        let at = match self.position(key) {
            Err(at) => {
                self.entries.insert(at, (key, entry));
                self.tiers.insert(at, tier);
                return;
            }
            Ok(at) => at,
        };
        let known = &mut self.entries[at].1;
        if known.level() == entry.level() && known.is_deny == entry.is_deny {
            known.merge(&entry);
        } else if entry.precedence > known.precedence {
            *known = entry;
            self.tiers[at] = tier;
        }
    }

    /// Adds an allow where rules demand authentication. Wider keys come first: an entry takes redirect and
    /// precedence of a wider one that would win, and inherits the authentication of the nearest one that says so.
    fn insert_with_auth(&mut self, any: &Self, key: TrafficKey, tier: Tier, mut entry: MapEntry) {
        let is_denied = |(known, other): &(TrafficKey, MapEntry)| {
            other.is_deny && known.covers(key) && other.precedence > entry.precedence
        };
        if any.entries.iter().any(is_denied) {
            return;
        }
        let mut covering: Vec<&(TrafficKey, MapEntry)> = self
            .entries
            .iter()
            .filter(|(known, _)| *known != key && known.covers(key))
            .collect();
        covering.sort_by_key(|(known, _)| std::cmp::Reverse(known.length()));
        let mut inherited = None;
        for (_, other) in covering {
            if other.precedence > entry.precedence {
                if other.is_deny || !entry.is_explicit() {
                    return;
                }
                entry.precedence = other.precedence;
                entry.proxy = other.proxy.clone();
                break;
            }
            if inherited.is_none()
                && let Some(auth) = other.auth.filter(|auth| auth.is_explicit)
                && other.level() >= entry.level()
            {
                inherited = Some(Auth {
                    is_explicit: false,
                    ..auth
                });
            }
        }
        if !entry.is_explicit() {
            entry.auth = inherited;
        }
        self.put(key, tier, entry);
    }

    fn add_pass(&mut self, any: &Self, candidate: &Candidate) {
        let Candidate { key, tier, said } = candidate;
        let mark = PassMark {
            key: *key,
            tier: *tier,
            precedence: said.precedence,
            range: said.range,
        };
        let is_decided = |entries: &Self| {
            let verdicts = entries.entries.iter().zip(&entries.tiers);
            verdicts.into_iter().any(|((known, entry), of)| {
                of == tier && known.covers(*key) && entry.precedence > said.precedence
            }) || entries.passes.iter().any(|other| {
                other.tier == *tier && other.key.covers(*key) && other.precedence >= said.precedence
            })
        };
        if !is_decided(self) && !is_decided(any) {
            self.passes.push(mark);
        }
    }

    /// Adds a verdict: raised by the passes of earlier tiers that cover its key, and for the keys of narrower passes.
    fn insert_behind_passes(&mut self, features: Features, any: &Self, candidate: &Candidate, is_own: bool) {
        let Candidate { key, tier, said } = candidate;
        let passes: Vec<PassMark> = self.passes.iter().chain(&any.passes).copied().collect();
        let mut keys = Vec::new();
        if is_own {
            keys.push(*key);
        }
        // What is said about any peer is there as an entry of identity 0: here only where a pass of this identity raises it.
        let narrower = if is_own { &passes } else { &self.passes };
        for mark in narrower.iter().filter(|mark| mark.tier < *tier) {
            if let Some(both) = key.intersection(mark.key)
                && !keys.contains(&both)
            {
                keys.push(both);
            }
        }
        for at in keys {
            let mut entry = MapEntry::of(said);
            let covering = |mark: &&PassMark| mark.key.covers(at);
            let is_passed = passes
                .iter()
                .filter(covering)
                .any(|mark| mark.tier == *tier && mark.precedence > said.precedence);
            if is_passed {
                continue;
            }
            let mut tiers: Vec<Tier> = passes
                .iter()
                .map(|mark| mark.tier)
                .filter(|one| one < tier)
                .collect();
            tiers.sort_unstable();
            tiers.dedup();
            let mut is_raised = false;
            for of in tiers.into_iter().rev() {
                let strongest = passes
                    .iter()
                    .filter(covering)
                    .filter(|mark| mark.tier == of)
                    .max_by_key(|mark| mark.precedence);
                if let Some(mark) = strongest {
                    // Behind the pass, in the room that its tier has there.
                    let skipped = mark.range.last - ((u32::MAX >> 8) - (mark.precedence >> 8));
                    entry.precedence += skipped << 8;
                    is_raised = true;
                }
            }
            if at != *key && !is_raised {
                continue;
            }
            self.insert(features, any, at, *tier, entry);
        }
    }
}

/// Tiers ascending; of a tier what wins first, wider keys before narrower ones.
fn order(candidate: &Candidate) -> (Tier, std::cmp::Reverse<u32>, u8, TrafficKey) {
    (
        candidate.tier,
        std::cmp::Reverse(candidate.said.precedence),
        candidate.key.length(),
        candidate.key,
    )
}

/// Wider keys first where precedences are equal.
fn sort(candidates: &mut [Candidate]) {
    candidates.sort_by(|one, other| {
        let by = |candidate: &Candidate| {
            (
                std::cmp::Reverse(candidate.said.precedence),
                candidate.key.length(),
                candidate.key,
            )
        };
        by(one).cmp(&by(other))
    });
}
