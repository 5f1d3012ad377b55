// SPDX-License-Identifier: Apache-2.0

//! Map entries of one identity and direction.
//!
//! Entries of an identity depend on what rules say about it and on the entries of identity 0, of any peer, and on nothing
//! else: an identity that comes or goes changes no entry of another one, and the order of changes does not matter.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    filter::Origins,
    levels::{self, TierRange},
    map_state::Proxy,
    ports::TrafficKey,
    rule::{AuthType, Tier, Verdict},
};

/// What a rule says about the traffic of a key.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub key: TrafficKey,
    pub tier: Tier,
    pub said: Arc<Said>,
}

/// Tier, and precedence before passes raise it.
type Place = (Tier, u32);

impl Candidate {
    fn place(&self) -> Place {
        (self.tier, self.said.precedence)
    }
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
    /// Where rules say so, beside each entry.
    places: Vec<Place>,
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
        if !has_passes {
            match features.has_auth {
                true => own.sort_by_key(|one| (one.key.length(), one.key, Reverse(one.said.precedence))),
                false => own.sort_by_key(|one| (Reverse(one.said.precedence), one.key.length(), one.key)),
            }
            for candidate in own {
                let entry = MapEntry::of(&candidate.said);
                match features.has_auth && !entry.is_deny {
                    true => made.insert_with_auth(any, candidate.key, candidate.place(), entry),
                    false => made.insert(features, any, candidate.key, candidate.place(), entry),
                }
            }
            return made;
        }
        made.compute_with_passes(features, any, own, wide);
        made
    }

    /// Tier by tier: passes of one raise what later tiers say, for the keys of passes too that are narrower.
    fn compute_with_passes(
        &mut self,
        features: Features,
        any: &Self,
        own: Vec<Candidate>,
        wide: &[Candidate],
    ) {
        let place = |one: &Candidate| (one.tier, Reverse(one.said.precedence), one.key.length(), one.key);
        let mut all: Vec<(Candidate, bool)> = own.into_iter().map(|candidate| (candidate, true)).collect();
        all.extend(wide.iter().cloned().map(|candidate| (candidate, false)));
        all.sort_by_key(|(candidate, _)| place(candidate));
        for of_tier in all.chunk_by(|(one, _), (other, _)| one.tier == other.tier) {
            let mut direct = BTreeSet::new();
            for (candidate, _) in of_tier.iter().filter(|(_, is_own)| *is_own) {
                if candidate.said.verdict == Verdict::Pass {
                    self.add_pass(any, candidate);
                    continue;
                }
                direct.insert(candidate.key);
                self.insert_behind_passes(features, any, candidate, candidate.key, false);
            }
            let verdicts = of_tier
                .iter()
                .filter(|(candidate, _)| candidate.said.verdict != Verdict::Pass);
            for (candidate, is_own) in verdicts {
                let earlier = |mark: &&PassMark| mark.tier < candidate.tier;
                // What is said about any peer is an entry of identity 0: here only where a pass of this identity raises it.
                let is_raised = |key: &TrafficKey| {
                    self.passes
                        .iter()
                        .filter(earlier)
                        .any(|mark| mark.key.covers(*key))
                };
                let mut keys: Vec<TrafficKey> = self
                    .passes
                    .iter()
                    .chain(&any.passes)
                    .filter(earlier)
                    .filter_map(|mark| candidate.key.intersection(mark.key))
                    .filter(|key| {
                        if *is_own {
                            *key != candidate.key
                        } else {
                            is_raised(key)
                        }
                    })
                    .collect();
                keys.sort_unstable();
                keys.dedup();
                for key in keys {
                    self.insert_behind_passes(features, any, candidate, key, direct.contains(&key));
                }
            }
        }
    }

    /// Whether an entry with this precedence has no effect beside another one that covers its key.
    fn is_covered(&self, any: &Self, key: TrafficKey, entry: &MapEntry) -> bool {
        let covers = |(known, other): &(TrafficKey, MapEntry)| {
            let is_same_deny = entry.is_deny && other.is_deny && other.precedence == entry.precedence;
            known.covers(key) && (other.precedence > entry.precedence || is_same_deny)
        };
        self.entries.iter().any(|other| other.0 != key && covers(other)) || any.entries.iter().any(covers)
    }

    fn insert(&mut self, features: Features, any: &Self, key: TrafficKey, place: Place, entry: MapEntry) {
        if !features.is_plain {
            if self.is_covered(any, key, &entry) {
                return;
            }
            self.remove_covered(key, &entry);
        }
        self.put(key, place, entry);
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
        self.places.retain(|_| *at.next().unwrap_or(&true));
    }

    fn put(&mut self, key: TrafficKey, place: Place, entry: MapEntry) {
        let at = match self.position(key) {
            Err(at) => {
                self.entries.insert(at, (key, entry));
                self.places.insert(at, place);
                return;
            }
            Ok(at) => at,
        };
        let known = &mut self.entries[at].1;
        if known.level() == entry.level() && known.is_deny == entry.is_deny {
            known.merge(&entry);
        } else if entry.precedence > known.precedence {
            *known = entry;
            self.places[at] = place;
        }
    }

    /// Adds an allow where rules demand authentication. Wider keys come first: an entry takes redirect and
    /// precedence of a wider one that would win, and inherits the authentication of the nearest one that says so.
    fn insert_with_auth(&mut self, any: &Self, key: TrafficKey, place: Place, mut entry: MapEntry) {
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
        covering.sort_by_key(|(known, _)| Reverse(known.length()));
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
        self.put(key, place, entry);
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
            let verdicts = entries.entries.iter().zip(&entries.places);
            verdicts.into_iter().any(|((known, _), (of, precedence))| {
                of == tier && known.covers(*key) && *precedence > said.precedence
            }) || entries.passes.iter().any(|other| {
                other.tier == *tier && other.key.covers(*key) && other.precedence >= said.precedence
            })
        };
        if !is_decided(self) && !is_decided(any) {
            self.passes.push(mark);
        }
    }

    /// Adds what a candidate says about a key, raised by the passes of earlier tiers that cover it. `is_said_directly` if
    /// a rule of the tier is about this very key.
    fn insert_behind_passes(
        &mut self,
        features: Features,
        any: &Self,
        candidate: &Candidate,
        key: TrafficKey,
        is_said_directly: bool,
    ) {
        let Candidate { tier, said, .. } = candidate;
        let mut entry = MapEntry::of(said);
        // The strongest pass of each tier.
        let mut marks: BTreeMap<Tier, PassMark> = BTreeMap::new();
        for mark in self
            .passes
            .iter()
            .chain(&any.passes)
            .filter(|mark| mark.key.covers(key))
        {
            if mark.tier == *tier && mark.precedence > said.precedence {
                return;
            }
            let strongest = marks.entry(mark.tier).or_insert(*mark);
            if mark.precedence > strongest.precedence {
                *strongest = *mark;
            }
        }
        for mark in marks.range(..*tier).map(|(_, mark)| mark) {
            // Into the room behind the pass.
            entry.precedence += (mark.range.last - levels::level(mark.precedence)) << 8;
        }
        // What rules say about these very ports is not added to by what wider ones say as well.
        if is_said_directly
            && self
                .get(key)
                .is_some_and(|known| known.precedence >= entry.precedence)
        {
            return;
        }
        self.insert(features, any, key, candidate.place(), entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{filter::ProxyClass, ports::Protocol, rule::Direction};

    const HTTP: u8 = levels::redirect(101);
    const CRD: u8 = levels::redirect(126);
    const PLAIN: u8 = levels::ALLOW;

    fn candidate(key: (u16, u8), level: u32, low: u8, auth: Option<AuthType>) -> Candidate {
        let key = match key {
            (0, 0) => TrafficKey::new(Protocol::TCP, 0, 0),
            (port, bits) => TrafficKey::new(Protocol::TCP, port, bits),
        };
        let class = match low {
            HTTP => Some(ProxyClass::Http(Direction::Ingress)),
            CRD => Some(ProxyClass::Listener("l".into())),
            _ => None,
        };
        Candidate {
            key,
            tier: Tier::NORMAL,
            said: Arc::new(Said {
                verdict: Verdict::Allow,
                precedence: levels::precedence(level, low),
                range: TierRange { first: 0, last: 9 },
                proxy: class.map(|class| Arc::new(Proxy { port: 1, class })),
                auth,
                origins: Origins::default(),
            }),
        }
    }

    fn everything(mut candidate: Candidate) -> Candidate {
        candidate.key = TrafficKey::ANY;
        candidate
    }

    /// Keys with redirect and authentication, in words.
    fn state(candidates: &[Candidate]) -> Vec<String> {
        let features = Features {
            is_plain: false,
            has_auth: true,
        };
        let mut turned = candidates.to_vec();
        turned.reverse();
        let made = Entries::compute(features, candidates.to_vec(), None);
        assert_eq!(
            made,
            Entries::compute(features, turned, None),
            "order does not matter"
        );
        made.iter()
            .map(|(key, entry)| {
                let class = entry
                    .proxy
                    .as_ref()
                    .map_or(String::new(), |proxy| format!(" {}", proxy.class));
                let auth = entry.auth.map_or(String::new(), |auth| {
                    format!(" {}{}", auth.kind.name(), if auth.is_explicit { "!" } else { "" })
                });
                format!("{key}{class}{auth}")
            })
            .collect()
    }

    #[test]
    fn authentication_is_inherited_and_redirects_are_taken_over() {
        let (spire, fail) = (Some(AuthType::Required), Some(AuthType::AlwaysFail));
        let (tcp, twelve, port, next) = ((0, 0), (80, 12), (80, 16), (81, 16));

        assert_eq!(
            state(&[
                everything(candidate(tcp, 0, PLAIN, fail)),
                candidate(port, 0, HTTP, None)
            ]),
            [
                "*/0/0 test-always-fail!",
                "TCP/80/16 http-ingress test-always-fail"
            ]
        );
        let both = ["TCP/80/16 http-ingress spire!", "TCP/81/16 http-ingress spire!"];
        assert_eq!(
            state(&[
                candidate(tcp, 0, HTTP, None),
                candidate(twelve, 0, CRD, None),
                candidate(port, 0, PLAIN, spire),
                candidate(next, 0, PLAIN, spire),
            ]),
            ["TCP/0/0 http-ingress", both[0], both[1]]
        );
        assert_eq!(
            state(&[
                candidate(tcp, 0, HTTP, None),
                candidate(twelve, 0, CRD, spire),
                candidate(port, 0, PLAIN, spire),
                candidate(next, 0, PLAIN, spire),
            ]),
            [
                "TCP/0/0 http-ingress",
                "TCP/80/12 http-ingress spire!",
                both[0],
                both[1]
            ]
        );
        assert_eq!(
            state(&[
                candidate(tcp, 0, HTTP, None),
                candidate(twelve, 0, CRD, spire),
                candidate(port, 0, PLAIN, None),
            ]),
            ["TCP/0/0 http-ingress", "TCP/80/12 http-ingress spire!"]
        );
        assert_eq!(
            state(&[
                everything(candidate(tcp, 2, PLAIN, spire)),
                candidate(tcp, 2, PLAIN, None),
                candidate(port, 1, PLAIN, None),
            ]),
            ["*/0/0 spire!", "TCP/0/0 spire", "TCP/80/16"]
        );
    }
}
