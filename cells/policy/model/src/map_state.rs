// SPDX-License-Identifier: Apache-2.0

//! Desired policy map of endpoints: entries of all identities and both directions.
//!
//! Identities that the same selectors select share their entries, which are computed once.

use std::{collections::BTreeMap, fmt, sync::Arc};

use hashbrown::{HashMap, HashSet};
use skep_identity::NumericIdentity;

use crate::{
    cache::{SelectorCache, SelectorId},
    entries::{Auth, Candidate, Entries, Features, MapEntry, Said},
    filter::{Filter, FilterKey, PeerPolicy, ProxyClass},
    levels::TierRange,
    ports::{Ports, Protocol, TrafficKey},
    resolve::{DirectionPolicy, SubjectPolicy},
    rule::Direction,
    selector::Selector,
};

/// Who gets redirected traffic, and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    pub port: u16,
    pub class: ProxyClass,
}

/// Ports of proxies.
pub trait ProxyPorts {
    /// The port of a proxy; `None` if there is none yet: what would be redirected is dropped.
    fn port(&self, class: &ProxyClass) -> Option<u16>;
}

/// Proxies by class.
impl ProxyPorts for BTreeMap<ProxyClass, u16> {
    fn port(&self, class: &ProxyClass) -> Option<u16> {
        self.get(class).copied()
    }
}

/// Ports of an endpoint by name and protocol.
pub type OwnPorts = BTreeMap<(String, Protocol), u16>;

/// Ports by name of all identities.
#[derive(Clone, Debug, Default)]
pub struct NamedPorts {
    /// With the number of pods that have it.
    ports: BTreeMap<(String, Protocol), BTreeMap<NumericIdentity, BTreeMap<u16, usize>>>,
}

impl NamedPorts {
    pub fn add(&mut self, identity: NumericIdentity, name: &str, protocol: Protocol, port: u16) {
        let ports = self
            .ports
            .entry((name.to_ascii_lowercase(), protocol))
            .or_default();
        *ports.entry(identity).or_default().entry(port).or_default() += 1;
    }

    pub fn remove(&mut self, identity: NumericIdentity, name: &str, protocol: Protocol, port: u16) {
        let key = (name.to_ascii_lowercase(), protocol);
        let Some(identities) = self.ports.get_mut(&key) else {
            return;
        };
        let Some(ports) = identities.get_mut(&identity) else {
            return;
        };
        if let Some(pods) = ports.get_mut(&port) {
            *pods -= 1;
        }
        ports.retain(|_, pods| *pods > 0);
        if ports.is_empty() {
            identities.remove(&identity);
        }
        if identities.is_empty() {
            self.ports.remove(&key);
        }
    }

    /// The port of an identity; `None` too if its pods have several.
    pub fn get(&self, identity: NumericIdentity, name: &str, protocol: Protocol) -> Option<u16> {
        let ports = self.ports.get(&(name.to_owned(), protocol))?.get(&identity)?;
        let mut ports = ports.keys();
        match (ports.next(), ports.next()) {
            (Some(port), None) => Some(*port),
            _ => None,
        }
    }

    /// Identities with a port of this name.
    pub fn identities(
        &self,
        name: &str,
        protocol: Protocol,
    ) -> impl Iterator<Item = NumericIdentity> + use<'_> {
        self.ports
            .get(&(name.to_owned(), protocol))
            .into_iter()
            .flat_map(|ports| ports.keys().copied())
    }
}

/// What the map of an endpoint depends on beside the policy of its identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointFacts {
    pub ports: OwnPorts,
    /// Redirects are left out: the endpoint of Envoy itself.
    pub without_redirects: bool,
}

/// What maps are computed from.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub peers: &'a SelectorCache,
    pub ports: &'a NamedPorts,
    pub proxies: &'a dyn ProxyPorts,
}

impl fmt::Debug for Inputs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inputs").finish_non_exhaustive()
    }
}

/// A redirect of an endpoint: one for each port that a name stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Redirect {
    pub direction: Direction,
    pub protocol: Protocol,
    /// First port of a range.
    pub port: u16,
    pub class: ProxyClass,
}

impl Redirect {
    /// Its id in an endpoint.
    pub fn id(&self, endpoint: u16) -> String {
        let listener = match &self.class {
            ProxyClass::Listener(name) => name,
            _ => "",
        };
        let Self {
            direction,
            protocol,
            port,
            ..
        } = self;
        format!("{endpoint}:{}:{protocol}:{port}:{listener}", direction.name())
    }
}

/// A row of a policy map.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapRow<'a> {
    pub direction: Direction,
    /// 0 for any.
    pub identity: NumericIdentity,
    pub key: TrafficKey,
    pub entry: &'a MapEntry,
}

/// A difference between two states of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct MapChange {
    pub direction: Direction,
    pub identity: NumericIdentity,
    pub key: TrafficKey,
    /// The entry that is added or replaced; `None` for one that is deleted.
    pub entry: Option<MapEntry>,
}

/// What a filter says about one peer.
#[derive(Clone, Debug)]
struct Template {
    ports: Ports,
    protocol: Protocol,
    tier: crate::rule::Tier,
    said: Arc<Said>,
}

impl Template {
    fn candidates(&self, named: u16) -> impl Iterator<Item = Candidate> {
        let (protocol, tier) = (self.protocol, self.tier);
        self.ports
            .prefixes(named)
            .into_iter()
            .map(move |(port, bits)| Candidate {
                key: TrafficKey::new(protocol, port, bits),
                tier,
                said: self.said.clone(),
            })
    }
}

/// Templates that apply to an identity, with the port that a name stands for.
type TemplateSet = Vec<(u32, u16)>;

/// Entries of a direction.
#[derive(Clone, Debug, Default)]
struct DirectionMap {
    features: Features,
    templates: Vec<Template>,
    by_selector: HashMap<SelectorId, Vec<u32>, foldhash::fast::FixedState>,
    /// Templates of any peer for ports that have a number for each identity.
    named_of_any: Vec<u32>,
    wide: Vec<Candidate>,
    any: Entries,
    shared: HashMap<TemplateSet, Arc<Entries>, foldhash::fast::FixedState>,
    identities: BTreeMap<NumericIdentity, Arc<Entries>>,
}

/// Policy map of endpoints of one identity, with equal [`EndpointFacts`].
#[derive(Clone, Debug, Default)]
pub struct MapState {
    ingress: DirectionMap,
    egress: DirectionMap,
    /// Redirects whose ports are numbers.
    redirects: Vec<Redirect>,
    skipped: usize,
}

impl MapState {
    /// Computes the map.
    pub fn compute(policy: &SubjectPolicy, facts: &EndpointFacts, inputs: &Inputs<'_>) -> Self {
        let mut made = Self::default();
        for direction in Direction::BOTH {
            let policy = policy.direction(direction);
            let mut map = DirectionMap {
                features: Features {
                    is_plain: policy.is_plain(),
                    has_auth: policy.has_auth(),
                },
                ..DirectionMap::default()
            };
            for (key, filter) in &policy.filters {
                made.add_filter(&mut map, direction, policy, key, filter, facts, inputs);
            }
            map.fill(inputs);
            match direction {
                Direction::Ingress => made.ingress = map,
                Direction::Egress => made.egress = map,
            }
        }
        made.redirects.sort_unstable();
        made.redirects.dedup();
        made
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one loop")]
    fn add_filter(
        &mut self,
        map: &mut DirectionMap,
        direction: Direction,
        policy: &DirectionPolicy,
        key: &FilterKey,
        filter: &Filter,
        facts: &EndpointFacts,
        inputs: &Inputs<'_>,
    ) {
        let ports = match (&key.ports, direction) {
            (Ports::Name { name, end }, Direction::Ingress) => {
                match facts.ports.get(&(name.clone(), key.protocol)) {
                    Some(port) if *end == 0 => Some(Ports::Number { port: *port, end: 0 }),
                    Some(port) => Some(Ports::Number {
                        port: *port,
                        end: *end,
                    }),
                    None => None,
                }
            }
            // The end of a range is not looked at there.
            (Ports::Name { name, .. }, Direction::Egress) => Some(Ports::Name {
                name: name.clone(),
                end: 0,
            }),
            (ports, _) => Some(ports.clone()),
        };
        let any = filter
            .iter()
            .find(|(selector, _)| selector.is_wildcard())
            .map(|(_, policy)| policy);
        let elided = any.filter(|_| key.ports.is_specific());
        let range = policy
            .tiers
            .get(&key.tier)
            .copied()
            .unwrap_or(TierRange { first: 0, last: 0 });
        // Peers of which the same is said share a template, and their identities entries.
        let mut made: Vec<(Arc<PeerPolicy>, u32)> = Vec::new();
        for (selector, said) in filter {
            let class = ProxyClass::of(said, direction);
            if class.is_some() && facts.without_redirects {
                continue;
            }
            let Some(ports) = ports.clone() else {
                self.skipped += usize::from(class.is_some());
                continue;
            };
            let proxy = match &class {
                None => None,
                Some(class) => {
                    let Some(port) = inputs.proxies.port(class) else {
                        self.skipped += 1;
                        continue;
                    };
                    self.add_redirect(direction, key, &ports, class, selector, inputs);
                    Some(Arc::new(Proxy {
                        port,
                        class: class.clone(),
                    }))
                }
            };
            if !selector.is_wildcard() && elided.is_some_and(|any| any.is_equivalent(said)) {
                continue;
            }
            let is_named = matches!(ports, Ports::Name { .. });
            let same = made
                .iter()
                .find(|(known, _)| Arc::ptr_eq(known, said) || known == said);
            let at = match same {
                Some((_, at)) if !selector.is_wildcard() => *at,
                _ => {
                    let at = u32::try_from(map.templates.len()).unwrap_or(u32::MAX);
                    map.templates.push(Template {
                        ports,
                        protocol: key.protocol,
                        tier: key.tier,
                        said: Arc::new(Said {
                            verdict: said.verdict,
                            precedence: said.precedence(),
                            range,
                            proxy,
                            auth: said.auth,
                            origins: said.origins.clone(),
                        }),
                    });
                    if !selector.is_wildcard() {
                        made.push((said.clone(), at));
                    }
                    at
                }
            };
            match (selector.is_wildcard(), is_named) {
                (true, true) => map.named_of_any.push(at),
                (true, false) => {
                    let template = &map.templates[at as usize];
                    map.wide.extend(template.candidates(0));
                }
                (false, _) => {
                    if let Some(id) = inputs.peers.id_of(selector) {
                        map.by_selector.entry(id).or_default().push(at);
                    }
                }
            }
        }
    }

    fn add_redirect(
        &mut self,
        direction: Direction,
        key: &FilterKey,
        ports: &Ports,
        class: &ProxyClass,
        selector: &Selector,
        inputs: &Inputs<'_>,
    ) {
        let mut add = |port| {
            self.redirects.push(Redirect {
                direction,
                protocol: key.protocol,
                port,
                class: class.clone(),
            });
        };
        let Ports::Name { name, .. } = ports else {
            if let Ports::Number { port, .. } | Ports::Exact { port, .. } = ports {
                add(*port);
            }
            return;
        };
        let mut numbers: Vec<u16> = match (selector.is_wildcard(), inputs.peers.id_of(selector)) {
            (true, _) => inputs
                .ports
                .identities(name, key.protocol)
                .filter_map(|identity| inputs.ports.get(identity, name, key.protocol))
                .collect(),
            (false, id) => id
                .into_iter()
                .flat_map(|id| inputs.peers.selection(id))
                .filter_map(|identity| inputs.ports.get(identity, name, key.protocol))
                .collect(),
        };
        numbers.sort_unstable();
        numbers.dedup();
        numbers.iter().for_each(|port| add(*port));
        self.skipped += usize::from(numbers.is_empty());
    }

    /// Computes the entries of identities that selectors begin or cease to select anew. Returns what changes: additions, then
    /// deletions.
    pub fn update(
        &mut self,
        identities: impl IntoIterator<Item = NumericIdentity> + Clone,
        inputs: &Inputs<'_>,
    ) -> Vec<MapChange> {
        let mut changes = Vec::new();
        for direction in Direction::BOTH {
            let map = match direction {
                Direction::Ingress => &mut self.ingress,
                Direction::Egress => &mut self.egress,
            };
            for identity in identities.clone() {
                map.update(direction, identity, inputs, &mut changes);
            }
        }
        changes.sort_by_key(|change| change.entry.is_none());
        changes
    }

    fn direction(&self, direction: Direction) -> &DirectionMap {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// All rows, sorted.
    pub fn rows(&self) -> impl Iterator<Item = MapRow<'_>> {
        Direction::BOTH.into_iter().flat_map(|direction| {
            let map = self.direction(direction);
            let any = (NumericIdentity::UNKNOWN, &map.any);
            let identities = map
                .identities
                .iter()
                .map(|(identity, entries)| (*identity, &**entries));
            std::iter::once(any)
                .chain(identities)
                .flat_map(move |(identity, entries)| {
                    entries.iter().map(move |(key, entry)| MapRow {
                        direction,
                        identity,
                        key: *key,
                        entry,
                    })
                })
        })
    }

    pub fn len(&self) -> usize {
        Direction::BOTH
            .map(|direction| {
                let map = self.direction(direction);
                map.any.len()
                    + map
                        .identities
                        .values()
                        .map(|entries| entries.len())
                        .sum::<usize>()
            })
            .iter()
            .sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Redirects with a proxy.
    pub fn redirects(&self) -> &[Redirect] {
        &self.redirects
    }

    /// Redirects without a proxy, or without the port that they name: what they are for is dropped.
    pub fn skipped_redirects(&self) -> usize {
        self.skipped
    }

    /// Differences to an earlier state: additions, then deletions.
    pub fn changes_since(&self, before: &Self) -> Vec<MapChange> {
        let mut changes = Vec::new();
        for direction in Direction::BOTH {
            let (map, old) = (self.direction(direction), before.direction(direction));
            diff(
                direction,
                NumericIdentity::UNKNOWN,
                Some(&old.any),
                Some(&map.any),
                &mut changes,
            );
            let identities: HashSet<_> = map.identities.keys().chain(old.identities.keys()).collect();
            for identity in identities {
                let of = |map: &'_ DirectionMap| map.identities.get(identity).cloned();
                diff(
                    direction,
                    *identity,
                    of(old).as_deref(),
                    of(map).as_deref(),
                    &mut changes,
                );
            }
        }
        changes.sort_by_key(|change| {
            (
                change.entry.is_none(),
                change.direction,
                change.identity,
                change.key,
            )
        });
        changes
    }

    /// What happens to a packet.
    pub fn lookup(
        &self,
        direction: Direction,
        identity: NumericIdentity,
        protocol: Protocol,
        port: u16,
    ) -> Option<Lookup<'_>> {
        let map = self.direction(direction);
        let key = TrafficKey::new(protocol, port, 16);
        let own = map
            .identities
            .get(&identity)
            .and_then(|entries| entries.lookup(key));
        let any = map.any.lookup(key);
        let (identity, found, other) = match (own, any) {
            (None, None) => return None,
            (Some(own), None) => (identity, own, None),
            (None, Some(any)) => (NumericIdentity::UNKNOWN, any, None),
            // Nothing is stronger: programs look no further.
            (Some(own), Some(_)) if own.1.precedence == u32::MAX => (identity, own, None),
            (Some(own), Some(any)) => {
                let (one, two) = (own.1.precedence, any.1.precedence);
                match two > one || two == one && any.0.length() > own.0.length() {
                    true => (NumericIdentity::UNKNOWN, any, Some(own)),
                    false => (identity, own, Some(any)),
                }
            }
        };
        let (key, entry) = found;
        let mut auth = entry.auth;
        if !auth.is_some_and(|auth| auth.is_explicit)
            && let Some((_, other)) = other
            && other.precedence == entry.precedence
            && other.auth.map(|auth| auth.kind) > auth.map(|auth| auth.kind)
        {
            auth = other.auth.map(|auth| Auth {
                is_explicit: false,
                ..auth
            });
        }
        Some(Lookup {
            row: MapRow {
                direction,
                identity,
                key: *key,
                entry,
            },
            auth,
        })
    }
}

/// The entry that decides about a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lookup<'a> {
    pub row: MapRow<'a>,
    /// Authentication of the packet, which another entry may demand.
    pub auth: Option<Auth>,
}

impl DirectionMap {
    fn fill(&mut self, inputs: &Inputs<'_>) {
        self.any = Entries::compute(self.features, self.wide.clone(), None);
        let mut sets: BTreeMap<NumericIdentity, TemplateSet> = BTreeMap::new();
        for (selector, templates) in &self.by_selector {
            for identity in inputs.peers.selection(*selector) {
                let set = sets.entry(identity).or_default();
                set.extend(
                    templates
                        .iter()
                        .filter_map(|at| self.applied(*at, identity, inputs)),
                );
            }
        }
        for at in &self.named_of_any {
            let template = &self.templates[*at as usize];
            if let Ports::Name { name, .. } = &template.ports {
                let known = |identity: &NumericIdentity| inputs.peers.labels(*identity).is_some();
                for identity in inputs.ports.identities(name, template.protocol).filter(known) {
                    sets.entry(identity)
                        .or_default()
                        .extend(self.applied(*at, identity, inputs));
                }
            }
        }
        for (identity, mut set) in sets {
            set.sort_unstable();
            set.dedup();
            let entries = self.entries(set);
            if !entries.is_empty() {
                self.identities.insert(identity, entries);
            }
        }
    }

    /// A template with the port that its name stands for.
    fn applied(&self, at: u32, identity: NumericIdentity, inputs: &Inputs<'_>) -> Option<(u32, u16)> {
        let template = &self.templates[at as usize];
        match &template.ports {
            Ports::Name { name, .. } => Some((at, inputs.ports.get(identity, name, template.protocol)?)),
            _ => Some((at, 0)),
        }
    }

    fn entries(&mut self, set: TemplateSet) -> Arc<Entries> {
        if let Some(entries) = self.shared.get(&set) {
            return entries.clone();
        }
        let own = set
            .iter()
            .flat_map(|(at, port)| self.templates[*at as usize].candidates(*port))
            .collect();
        // Sets of identities that are gone.
        if self.shared.len() > 2 * self.identities.len() + 64 {
            self.shared.retain(|_, entries| Arc::strong_count(entries) > 1);
        }
        let entries = Arc::new(Entries::compute(
            self.features,
            own,
            Some((&self.any, &self.wide)),
        ));
        self.shared.insert(set, entries.clone());
        entries
    }

    fn update(
        &mut self,
        direction: Direction,
        identity: NumericIdentity,
        inputs: &Inputs<'_>,
        changes: &mut Vec<MapChange>,
    ) {
        let selectors = inputs.peers.selectors_of(identity);
        let templates = selectors
            .iter()
            .filter_map(|id| self.by_selector.get(id))
            .flatten();
        let is_known = inputs.peers.labels(identity).is_some();
        let templates = templates.chain(self.named_of_any.iter().filter(|_| is_known));
        let mut set: TemplateSet = templates
            .filter_map(|at| self.applied(*at, identity, inputs))
            .collect();
        set.sort_unstable();
        set.dedup();
        let new = match set.is_empty() {
            true => None,
            false => Some(self.entries(set)).filter(|entries| !entries.is_empty()),
        };
        let old = match new.clone() {
            Some(new) => self.identities.insert(identity, new),
            None => self.identities.remove(&identity),
        };
        diff(direction, identity, old.as_deref(), new.as_deref(), changes);
    }
}

/// Adds what makes the entries of an identity others.
fn diff(
    direction: Direction,
    identity: NumericIdentity,
    old: Option<&Entries>,
    new: Option<&Entries>,
    changes: &mut Vec<MapChange>,
) {
    let change = |key: &TrafficKey, entry: Option<&MapEntry>| MapChange {
        direction,
        identity,
        key: *key,
        entry: entry.cloned(),
    };
    for (key, entry) in new.into_iter().flat_map(Entries::iter) {
        if old.and_then(|old| old.get(*key)) != Some(entry) {
            changes.push(change(key, Some(entry)));
        }
    }
    for (key, _) in old.into_iter().flat_map(Entries::iter) {
        if new.is_none_or(|new| new.get(*key).is_none()) {
            changes.push(change(key, None));
        }
    }
}
