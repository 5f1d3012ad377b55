// SPDX-License-Identifier: Apache-2.0

//! Policies of the endpoints of a node: rules, identities and endpoints in, policy maps out.
//!
//! Changes are taken at once and computed by [`Policies::refresh`]: what a rule selects anew is resolved for its subjects
//! alone, and an identity that comes or goes changes its own entries in the maps of the policies that select it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hashbrown::HashMap;
use skep_identity::{NumericIdentity, Reserved};

use crate::{
    cache::{SelectorCache, SelectorId},
    filter::FilterKey,
    fqdn::FqdnSelector,
    l7::Secrets,
    labels::IdentityLabels,
    map_state::{EndpointFacts, Inputs, MapChange, MapState, NamedPorts, ProxyPorts},
    ports::{Ports, Protocol},
    resolve::{ResolveError, SubjectPolicy},
    rule::{Direction, ResourceId, Rule, RuleOrigin, RuleSet},
    selector::Selector,
    settings::{Enforcement, PolicySettings},
};

/// An identity of local endpoints.
#[derive(Clone, Debug, Default)]
pub struct LocalIdentity {
    labels: Arc<IdentityLabels>,
    endpoints: BTreeMap<u16, EndpointFacts>,
    policy: Arc<SubjectPolicy>,
    error: Option<ResolveError>,
    /// Revision of the rules that its policy follows from.
    revision: u64,
    /// Revision of the policy before; 0 for none.
    replaced: u64,
    /// Peers of its policy.
    selectors: Vec<SelectorId>,
    maps: BTreeMap<EndpointFacts, MapState>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Current,
    /// Maps must be computed anew.
    MapsStale,
    #[default]
    PolicyStale,
}

impl LocalIdentity {
    pub fn policy(&self) -> &SubjectPolicy {
        &self.policy
    }

    /// Why the rules cannot be applied: the policy is an earlier one.
    pub fn error(&self) -> Option<&ResolveError> {
        self.error.as_ref()
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Revision of the policy before; 0 for none.
    pub fn replaced(&self) -> u64 {
        self.replaced
    }

    pub fn labels(&self) -> &Arc<IdentityLabels> {
        &self.labels
    }

    /// Whether its policy has a port with this name of peers.
    fn uses_name(&self, name: &str, protocol: Protocol) -> bool {
        let is_it = |key: &FilterKey| {
            key.protocol == protocol && matches!(&key.ports, Ports::Name { name: known, .. } if known == name)
        };
        self.policy.egress.filters.keys().any(is_it)
    }
}

/// Changes of the maps of endpoints of one identity.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointChanges {
    pub identity: NumericIdentity,
    pub facts: EndpointFacts,
    /// Additions, then deletions.
    pub changes: Vec<MapChange>,
}

/// Uses of the selector of a peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerUses {
    /// Number of filters of local policies with it.
    pub filters: usize,
    pub origins: BTreeSet<Arc<RuleOrigin>>,
}

/// Where a rule is: its object, and its place there.
type RulePlace = (ResourceId, usize);

/// Rules, identities, endpoints, and what follows from them.
#[derive(Clone, Debug)]
pub struct Policies {
    settings: PolicySettings,
    secrets: Secrets,
    /// Grows with each change of rules.
    revision: u64,
    rules: BTreeMap<ResourceId, Vec<(SelectorId, Arc<Rule>)>>,
    /// Selectors of subjects, and local identities.
    subjects: SelectorCache,
    of_subject: HashMap<SelectorId, BTreeMap<RulePlace, Arc<Rule>>, foldhash::fast::FixedState>,
    peers: SelectorCache,
    /// Local identities whose policies have a peer.
    users: HashMap<SelectorId, BTreeSet<NumericIdentity>, foldhash::fast::FixedState>,
    ports: NamedPorts,
    local: BTreeMap<NumericIdentity, LocalIdentity>,
    endpoints: BTreeMap<u16, NumericIdentity>,
}

impl Policies {
    pub fn new(settings: PolicySettings) -> Self {
        Self {
            settings,
            secrets: Secrets::default(),
            revision: 1,
            rules: BTreeMap::new(),
            subjects: SelectorCache::default(),
            of_subject: HashMap::default(),
            peers: SelectorCache::default(),
            users: HashMap::default(),
            ports: NamedPorts::default(),
            local: BTreeMap::new(),
            endpoints: BTreeMap::new(),
        }
    }

    pub fn settings(&self) -> &PolicySettings {
        &self.settings
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Selectors of peers with the identities that they select.
    pub fn peers(&self) -> &SelectorCache {
        &self.peers
    }

    /// Selectors of subjects with the local identities that they select.
    pub fn subjects(&self) -> &SelectorCache {
        &self.subjects
    }

    /// Ports by name of all identities.
    pub fn named_ports(&self) -> &NamedPorts {
        &self.ports
    }

    /// Names whose addresses some policy must know.
    pub fn fqdn_selectors(&self) -> BTreeSet<FqdnSelector> {
        let selectors = self
            .peers
            .iter()
            .filter_map(|(_, cached)| cached.selector.names());
        selectors.cloned().collect()
    }

    /// Uses of the selectors of peers by local policies.
    pub fn peer_uses(&self) -> BTreeMap<&Selector, PeerUses> {
        let mut uses: BTreeMap<&Selector, PeerUses> = BTreeMap::new();
        let policies = self.local.values().flat_map(|local| {
            let directions = Direction::BOTH.map(|direction| local.policy.direction(direction));
            directions.into_iter().filter(|policy| policy.is_enforced)
        });
        for (peer, said) in policies.flat_map(|policy| policy.filters.values()).flatten() {
            let of_peer = uses.entry(peer).or_default();
            of_peer.filters += 1;
            of_peer.origins.extend(said.origins.iter().cloned());
        }
        uses
    }

    /// Rules with a subject.
    pub fn rules_with_subject(&self, subject: SelectorId) -> BTreeSet<Arc<RuleOrigin>> {
        let rules = self
            .of_subject
            .get(&subject)
            .into_iter()
            .flat_map(BTreeMap::values);
        rules.map(|rule| rule.origin.clone()).collect()
    }

    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.values().flatten().map(|(_, rule)| rule)
    }

    /// The rules of an object.
    pub fn rules_from(&self, resource: &ResourceId) -> impl Iterator<Item = &Arc<Rule>> {
        let rules = self.rules.get(resource).into_iter().flatten();
        rules.map(|(_, rule)| rule)
    }

    pub fn local(&self, identity: NumericIdentity) -> Option<&LocalIdentity> {
        self.local.get(&identity)
    }

    /// Identities of the endpoints.
    pub fn locals(&self) -> impl Iterator<Item = (NumericIdentity, &LocalIdentity)> {
        self.local.iter().map(|(identity, local)| (*identity, local))
    }

    pub fn endpoints(&self) -> impl Iterator<Item = (u16, NumericIdentity)> {
        self.endpoints
            .iter()
            .map(|(endpoint, identity)| (*endpoint, *identity))
    }

    /// Values of Secrets, where they are not left to the proxy.
    pub fn set_secrets(&mut self, secrets: Secrets) {
        self.secrets = secrets;
        self.settings.secrets_by_reference = false;
        self.recompute();
    }

    /// Changes where policies are enforced; false if that is the mode already. Everything is computed anew at the next
    /// [`refresh`](Self::refresh).
    pub fn set_enforcement(&mut self, mode: Enforcement) -> bool {
        if self.settings.enforcement == mode {
            return false;
        }
        self.settings.enforcement = mode;
        self.revision += 1;
        self.recompute_all();
        true
    }

    /// Replaces the rules of an object; none removes it. Returns the local identities that the old or the new ones select.
    pub fn replace(&mut self, resource: &ResourceId, set: Option<&RuleSet>) -> BTreeSet<NumericIdentity> {
        self.revision += 1;
        let mut affected = BTreeSet::new();
        let new: Vec<_> = set
            .into_iter()
            .flat_map(|set| &set.rules)
            .map(|rule| (self.subjects.add(&rule.subject.selector), rule.clone()))
            .collect();
        for (id, rule) in &new {
            let place = (resource.clone(), rule.origin.index);
            affected.extend(self.selected(*id, rule));
            self.of_subject
                .entry(*id)
                .or_default()
                .insert(place, rule.clone());
        }
        let old = match new.is_empty() {
            true => self.rules.remove(resource),
            false => self.rules.insert(resource.clone(), new.clone()),
        };
        for (id, rule) in old.into_iter().flatten() {
            affected.extend(self.selected(id, &rule));
            let is_replaced = new
                .iter()
                .any(|(other, one)| *other == id && one.origin.index == rule.origin.index);
            if !is_replaced && let Some(rules) = self.of_subject.get_mut(&id) {
                rules.remove(&(resource.clone(), rule.origin.index));
            }
            self.subjects.release(id);
            if self.subjects.get(id).is_none() {
                self.of_subject.remove(&id);
            }
        }
        for identity in &affected {
            self.mark(*identity, State::PolicyStale);
        }
        affected
    }

    fn selected(&self, id: SelectorId, rule: &Rule) -> Vec<NumericIdentity> {
        let is_of = |identity: &NumericIdentity| (*identity == NumericIdentity::HOST) == rule.subject.is_node;
        self.subjects.selection(id).filter(is_of).collect()
    }

    fn mark(&mut self, identity: NumericIdentity, state: State) {
        if let Some(local) = self.local.get_mut(&identity) {
            local.state = local.state.max(state);
        }
    }

    /// Everything is computed anew at the next [`refresh`](Self::refresh), at a new revision.
    pub fn recompute(&mut self) {
        self.bump_revision();
        self.recompute_all();
    }

    /// Begins a revision with the same rules. Returns it.
    pub fn bump_revision(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    /// Everything is computed anew at the next [`refresh`](Self::refresh), at the current revision.
    pub fn recompute_all(&mut self) {
        self.local
            .values_mut()
            .for_each(|local| local.state = State::PolicyStale);
    }

    /// As [`recompute_all`](Self::recompute_all), of one identity.
    pub fn recompute_identity(&mut self, identity: NumericIdentity) {
        self.mark(identity, State::PolicyStale);
    }

    /// Maps are computed anew: proxies have other ports.
    pub fn recompute_maps(&mut self) {
        for local in self.local.values_mut() {
            local.state = local.state.max(State::MapsStale);
        }
    }

    /// Adds an endpoint, or changes its identity or facts.
    pub fn set_endpoint(
        &mut self,
        endpoint: u16,
        identity: NumericIdentity,
        labels: Arc<IdentityLabels>,
        facts: EndpointFacts,
    ) {
        if self
            .endpoints
            .get(&endpoint)
            .is_some_and(|known| *known != identity)
        {
            self.remove_endpoint(endpoint);
        }
        self.endpoints.insert(endpoint, identity);
        let local = self.local.entry(identity).or_default();
        if local.labels != labels || local.endpoints.is_empty() {
            local.labels = labels.clone();
            local.state = State::PolicyStale;
            self.subjects.update([(identity, labels)], []);
        }
        local.endpoints.insert(endpoint, facts);
        local.state = local.state.max(State::MapsStale);
    }

    pub fn remove_endpoint(&mut self, endpoint: u16) {
        let Some(identity) = self.endpoints.remove(&endpoint) else {
            return;
        };
        let Some(local) = self.local.get_mut(&identity) else {
            return;
        };
        local.endpoints.remove(&endpoint);
        local.state = local.state.max(State::MapsStale);
        if !local.endpoints.is_empty() {
            return;
        }
        let selectors = std::mem::take(&mut local.selectors);
        self.local.remove(&identity);
        self.subjects.update([], [identity]);
        self.release(identity, selectors);
    }

    fn release(&mut self, identity: NumericIdentity, selectors: Vec<SelectorId>) {
        for id in selectors {
            self.peers.release(id);
            let Some(users) = self.users.get_mut(&id) else {
                continue;
            };
            users.remove(&identity);
            if users.is_empty() {
                self.users.remove(&id);
            }
        }
    }

    /// A pod has a port with a name.
    pub fn add_named_port(&mut self, identity: NumericIdentity, name: &str, protocol: Protocol, port: u16) {
        self.change_names(identity, name, protocol, |ports, name| {
            ports.add(identity, name, protocol, port)
        });
    }

    pub fn remove_named_port(
        &mut self,
        identity: NumericIdentity,
        name: &str,
        protocol: Protocol,
        port: u16,
    ) {
        self.change_names(identity, name, protocol, |ports, name| {
            ports.remove(identity, name, protocol, port)
        });
    }

    /// Maps follow if the name stands for another port then.
    fn change_names(
        &mut self,
        identity: NumericIdentity,
        name: &str,
        protocol: Protocol,
        change: impl FnOnce(&mut NamedPorts, &str),
    ) {
        let name = name.to_ascii_lowercase();
        let before = self.ports.get(identity, &name, protocol);
        change(&mut self.ports, &name);
        if self.ports.get(identity, &name, protocol) == before {
            return;
        }
        for local in self
            .local
            .values_mut()
            .filter(|local| local.uses_name(&name, protocol))
        {
            local.state = local.state.max(State::MapsStale);
        }
    }

    /// Adds and deletes identities of peers; one that is known gets new labels. Returns what changes in maps.
    pub fn update_identities(
        &mut self,
        added: impl IntoIterator<Item = (NumericIdentity, Arc<IdentityLabels>)>,
        deleted: impl IntoIterator<Item = NumericIdentity>,
        proxies: &dyn ProxyPorts,
    ) -> Vec<EndpointChanges> {
        let changed = self.peers.update(added, deleted).changed;
        let mut touched: BTreeMap<NumericIdentity, Vec<NumericIdentity>> = BTreeMap::new();
        for (identity, selectors) in changed {
            let mut users: Vec<NumericIdentity> = selectors
                .iter()
                .filter_map(|id| self.users.get(id))
                .flatten()
                .copied()
                .collect();
            users.sort_unstable();
            users.dedup();
            for user in users {
                touched.entry(user).or_default().push(identity);
            }
        }
        let inputs = Inputs {
            peers: &self.peers,
            ports: &self.ports,
            proxies,
        };
        let mut all = Vec::new();
        for (user, identities) in touched {
            let Some(local) = self.local.get_mut(&user) else {
                continue;
            };
            for (facts, map) in &mut local.maps {
                let changes = map.update(identities.iter().copied(), &inputs);
                if !changes.is_empty() {
                    all.push(EndpointChanges {
                        identity: user,
                        facts: facts.clone(),
                        changes,
                    });
                }
            }
        }
        all
    }

    /// Computes what is stale. Returns the local identities whose policies or maps were computed.
    pub fn refresh(&mut self, proxies: &dyn ProxyPorts) -> Vec<NumericIdentity> {
        let stale = self
            .local
            .iter()
            .filter(|(_, local)| local.state != State::Current);
        let stale: Vec<NumericIdentity> = stale.map(|(identity, _)| *identity).collect();
        for identity in &stale {
            self.refresh_one(*identity, proxies);
        }
        stale
    }

    fn refresh_one(&mut self, identity: NumericIdentity, proxies: &dyn ProxyPorts) {
        let Some(local) = self.local.get(&identity) else {
            return;
        };
        if local.state == State::PolicyStale {
            let rules = self.rules_of(identity);
            let resolved = SubjectPolicy::resolve(&rules, &local.labels, &self.settings, &self.secrets);
            let revision = self.revision;
            match resolved {
                Ok(policy) => self.set_policy(identity, policy),
                // What it had stays; one that had nothing keeps a map without entries.
                Err(error) => {
                    if let Some(local) = self.local.get_mut(&identity) {
                        local.error = Some(error);
                    }
                }
            }
            if let Some(local) = self.local.get_mut(&identity) {
                local.replaced = std::mem::replace(&mut local.revision, revision);
            }
        }
        let inputs = Inputs {
            peers: &self.peers,
            ports: &self.ports,
            proxies,
        };
        let Some(local) = self.local.get_mut(&identity) else {
            return;
        };
        let facts: BTreeSet<EndpointFacts> = local.endpoints.values().cloned().collect();
        let policy = &local.policy;
        local.maps = facts
            .into_iter()
            .map(|facts| {
                let map = MapState::compute(policy, &facts, &inputs);
                (facts, map)
            })
            .collect();
        local.state = State::Current;
    }

    fn set_policy(&mut self, identity: NumericIdentity, policy: SubjectPolicy) {
        // The default of a direction that is open has no peers.
        let peers: BTreeSet<&Selector> = Direction::BOTH
            .iter()
            .map(|direction| policy.direction(*direction))
            .filter(|policy| policy.is_enforced)
            .flat_map(|policy| policy.filters.values())
            .flat_map(BTreeMap::keys)
            .collect();
        let selectors: Vec<SelectorId> = peers.into_iter().map(|peer| self.peers.add(peer)).collect();
        for id in &selectors {
            self.users.entry(*id).or_default().insert(identity);
        }
        let Some(local) = self.local.get_mut(&identity) else {
            return;
        };
        let old = std::mem::replace(&mut local.selectors, selectors.clone());
        local.policy = Arc::new(policy);
        local.error = None;
        let kept: BTreeSet<SelectorId> = selectors.into_iter().collect();
        for id in old {
            self.peers.release(id);
            if !kept.contains(&id)
                && let Some(users) = self.users.get_mut(&id)
            {
                users.remove(&identity);
                if users.is_empty() {
                    self.users.remove(&id);
                }
            }
        }
    }

    /// Rules that select a local identity.
    pub fn rules_of(&self, identity: NumericIdentity) -> Vec<Arc<Rule>> {
        let is_host = self
            .local
            .get(&identity)
            .is_some_and(|local| local.labels.is_reserved(Reserved::Host));
        let selectors = self.subjects.selectors_of(identity).iter();
        let rules = selectors
            .filter_map(|id| self.of_subject.get(id))
            .flat_map(BTreeMap::values);
        rules
            .filter(|rule| rule.subject.is_node == is_host)
            .cloned()
            .collect()
    }

    /// The number of a port that a rule names: of the endpoint for ingress, of the peer for egress.
    pub(crate) fn named_port(
        &self,
        endpoint: u16,
        direction: Direction,
        peer: NumericIdentity,
        name: &str,
        protocol: Protocol,
    ) -> Option<u16> {
        if direction == Direction::Egress {
            return self.ports.get(peer, name, protocol);
        }
        let local = self.local.get(self.endpoints.get(&endpoint)?)?;
        let facts = local.endpoints.get(&endpoint)?;
        facts.ports.get(&(name.to_owned(), protocol)).copied()
    }

    /// The map of an endpoint, once it is computed.
    pub fn map_of(&self, endpoint: u16) -> Option<&MapState> {
        let local = self.local.get(self.endpoints.get(&endpoint)?)?;
        local.maps.get(local.endpoints.get(&endpoint)?)
    }
}
