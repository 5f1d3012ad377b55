// SPDX-License-Identifier: Apache-2.0

//! Claims of the addresses of names in the ipcache, with the labels of the selectors that match.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
};

use ipnet::IpNet;
use jiff::Timestamp;
use skep_identity::{Label, LabelSource, Labels, Reserved};
use skep_identity_cache::LocalIdentity;
use skep_ipcache::{Claim, IpcacheEntry, Owner, Prefix, ResourceId, Source};
use skep_policy_model::fqdn::{FqdnSelector, NameMatcher, canonical_name};
use smallvec::SmallVec;
use statedb::{WriteTxn, reconciler::StatusKind};

use super::{Answer, EndpointNames, Inner, KnownName, Selected, State};
use crate::cache::{DnsName, NameCache};

fn owner(name: &str) -> Owner {
    Owner::new(
        Source::Generated,
        ResourceId::new("daemon", "fqdn-name-manager", name),
    )
}

fn prefix(address: IpAddr) -> Prefix {
    Prefix::cidr(IpNet::from(address))
}

impl Inner {
    /// Takes an answer into the caches. Returns prefixes that must be written before the answer is passed on.
    pub(super) fn take(
        &self,
        endpoint: u16,
        name: &str,
        answer: &Answer,
        now: Timestamp,
    ) -> Result<Vec<Prefix>, statedb::Error> {
        let mut state = self.state.lock();
        let state = &mut *state;
        self.sync(state);
        let ttl = answer.ttl.max(self.config.min_ttl);
        let name: DnsName = match state.names.get_key_value(name) {
            Some((known, _)) => known.clone(),
            None => name.into(),
        };
        let limit = self.config.max_ips_per_name;
        let names = state.endpoints.entry(endpoint).or_insert_with(|| EndpointNames {
            cache: NameCache::new(limit),
            ..EndpointNames::default()
        });
        names.is_dirty = true;
        if names
            .cache
            .update(&name, answer.addresses.iter().copied(), ttl, now)
        {
            names.zombies.remove(&name, answer.addresses.iter().copied());
        }
        let known = state.names.entry(name.clone()).or_default();
        let new: Vec<IpAddr> = answer
            .addresses
            .iter()
            .copied()
            .filter(|address| !known.addresses.contains(address))
            .collect();
        known.addresses.extend(new.iter().copied());
        let written = |prefix: &Prefix| self.is_written(*prefix);
        if new.is_empty() {
            // Of an answer whose wait was cut short.
            return Ok(match known.labels {
                None => Vec::new(),
                Some(_) => answer
                    .addresses
                    .iter()
                    .map(|address| prefix(*address))
                    .filter(|prefix| !written(prefix))
                    .collect(),
            });
        }
        if known.labels.is_none() {
            known.labels = Self::labels(&state.exact, &state.selectors, &name);
        }
        let Some(labels) = known.labels.clone() else {
            return Ok(Vec::new());
        };
        let mut txn = self.ipcache.write();
        for address in &new {
            self.claim(&mut txn, &name, *address, &labels)?;
        }
        txn.commit();
        Ok(answer.addresses.iter().map(|address| prefix(*address)).collect())
    }

    fn claim(
        &self,
        txn: &mut WriteTxn,
        name: &str,
        address: IpAddr,
        labels: &Arc<Labels>,
    ) -> Result<(), statedb::Error> {
        let claim = Claim::labels(owner(name), labels.clone());
        self.ipcache.upsert(txn, prefix(address), claim).map(drop)
    }

    /// Whether the map has what the table says of a prefix.
    fn is_written(&self, prefix: Prefix) -> bool {
        let snapshot = self.ipcache.db().read();
        let table = self.ipcache.table();
        table
            .get(&snapshot, IpcacheEntry::BY_PREFIX.key(&prefix))
            .is_none_or(|row| row.status.kind == StatusKind::Done)
    }

    pub(super) async fn wait_written(&self, prefixes: &[Prefix]) {
        let table = self.ipcache.table();
        for prefix in prefixes {
            loop {
                let watch = {
                    let snapshot = self.ipcache.db().read();
                    let (row, watch) = table.get_watch(&snapshot, IpcacheEntry::BY_PREFIX.key(prefix));
                    if row.is_none_or(|row| row.status.kind == StatusKind::Done) {
                        break;
                    }
                    watch
                };
                watch.closed().await;
            }
        }
    }

    /// Labels of the selectors that match a name.
    fn labels(
        exact: &HashMap<String, BTreeSet<FqdnSelector>>,
        selectors: &BTreeMap<FqdnSelector, Selected>,
        name: &str,
    ) -> Option<Arc<Labels>> {
        let of_name = exact
            .get(name)
            .into_iter()
            .flatten()
            .filter_map(|selector| selectors.get(selector));
        let of_patterns = selectors
            .iter()
            .filter(|(selector, _)| selector.match_name.is_empty())
            .map(|(_, selected)| selected)
            .filter(|selected| selected.matcher.matches(name));
        let labels: Labels = of_name
            .chain(of_patterns)
            .map(|selected| selected.label.clone())
            .collect();
        (!labels.is_empty()).then(|| Arc::new(labels))
    }

    /// Follows the selectors of policies, if they have changed.
    pub(super) fn sync(&self, state: &mut State) {
        let generation = self.repository.selector_generation();
        if state.generation == generation {
            return;
        }
        let Some(used) = self.repository.name_selectors() else {
            return;
        };
        state.generation = generation;
        let added = used
            .iter()
            .filter(|selector| !state.selectors.contains_key(*selector))
            .cloned()
            .collect();
        // Endpoints that are restored later may use the others.
        let removed = match self.is_complete.load(Ordering::Acquire) {
            false => BTreeSet::new(),
            true => state
                .selectors
                .keys()
                .filter(|selector| !used.contains(*selector))
                .cloned()
                .collect(),
        };
        self.change_selectors(state, added, removed);
    }

    pub(super) fn change_selectors(
        &self,
        state: &mut State,
        added: BTreeSet<FqdnSelector>,
        removed: BTreeSet<FqdnSelector>,
    ) {
        let mut changed: Vec<(FqdnSelector, NameMatcher)> = Vec::new();
        for selector in removed {
            if let Some(selected) = state.selectors.remove(&selector) {
                if !selector.match_name.is_empty() {
                    let name = canonical_name(&selector.match_name);
                    if let Some(of_name) = state.exact.get_mut(&name) {
                        of_name.remove(&selector);
                        if of_name.is_empty() {
                            state.exact.remove(&name);
                        }
                    }
                }
                changed.push((selector, selected.matcher));
            }
        }
        for selector in added {
            if state.selectors.contains_key(&selector) {
                continue;
            }
            let Ok(label) = Label::new(LabelSource::Fqdn, selector.label_key(), "") else {
                continue;
            };
            let matcher = selector.matcher();
            if !selector.match_name.is_empty() {
                let name = canonical_name(&selector.match_name);
                state.exact.entry(name).or_default().insert(selector.clone());
            }
            let selected = Selected {
                matcher: matcher.clone(),
                _identities: self.preallocate(&label),
                label,
            };
            state.selectors.insert(selector.clone(), selected);
            changed.push((selector, matcher));
        }
        if changed.is_empty() || state.names.is_empty() {
            return;
        }
        let mut affected: BTreeSet<DnsName> = BTreeSet::new();
        for (selector, matcher) in &changed {
            match selector.match_name.is_empty() {
                true => affected.extend(state.names.keys().filter(|name| matcher.matches(name)).cloned()),
                false => {
                    let name = canonical_name(&selector.match_name);
                    affected.extend(
                        state
                            .names
                            .get_key_value(name.as_str())
                            .map(|(name, _)| name.clone()),
                    );
                }
            }
        }
        self.refresh_or_log(state, &affected);
    }

    /// Identities of addresses with this label alone.
    fn preallocate(&self, label: &Label) -> Vec<LocalIdentity> {
        let Some(identities) = self
            .identities
            .as_ref()
            .filter(|_| self.config.preallocate_identities)
        else {
            return Vec::new();
        };
        let worlds: &[Reserved] = match self.ipv4 && self.ipv6 {
            true => &[Reserved::WorldIpv4, Reserved::WorldIpv6],
            false => &[Reserved::World],
        };
        let allocated = worlds.iter().map(|world| {
            let labels: Labels = [label.clone(), (*world).into()].into_iter().collect();
            identities.allocate(&Arc::new(labels))
        });
        allocated
            .filter_map(|allocated| {
                allocated
                    .inspect_err(|error| {
                        tracing::warn!(%error, "Failed to allocate the identity of an FQDN selector");
                    })
                    .ok()
            })
            .collect()
    }

    /// As [`refresh`](Self::refresh). Returns the names that are gone.
    pub(super) fn refresh_or_log(&self, state: &mut State, names: &BTreeSet<DnsName>) -> Vec<DnsName> {
        self.refresh(state, names).unwrap_or_else(|error| {
            tracing::error!(%error, "Failed to claim addresses of names");
            Vec::new()
        })
    }

    /// Claims for some names what the caches of all endpoints have, and gives back the rest. Returns the names that are gone.
    fn refresh(&self, state: &mut State, names: &BTreeSet<DnsName>) -> Result<Vec<DnsName>, statedb::Error> {
        let mut gone = Vec::new();
        if names.is_empty() {
            return Ok(gone);
        }
        let mut of_zombies: HashMap<&DnsName, BTreeSet<IpAddr>> = HashMap::new();
        for (address, zombie) in state.endpoints.values().flat_map(|names| names.zombies.iter()) {
            for name in zombie.names.iter().filter(|name| names.contains(*name)) {
                of_zombies.entry(name).or_default().insert(address);
            }
        }
        let mut txn = self.ipcache.write();
        for name in names {
            let mut now: BTreeSet<IpAddr> = of_zombies.remove(name).unwrap_or_default();
            for endpoint in state.endpoints.values() {
                now.extend(endpoint.cache.get(name).iter().map(|record| record.address));
            }
            let labels = Self::labels(&state.exact, &state.selectors, name);
            let (before, was_claimed) = match state.names.get(name) {
                Some(known) => (known.addresses.clone(), known.labels.clone()),
                None => (SmallVec::new(), None),
            };
            if was_claimed.is_some() {
                for address in &before {
                    if labels.is_none() || !now.contains(address) {
                        self.ipcache.delete(&mut txn, prefix(*address), &owner(name))?;
                    }
                }
            }
            if let Some(labels) = &labels {
                for address in &now {
                    self.claim(&mut txn, name, *address, labels)?;
                }
            }
            match now.is_empty() {
                true => {
                    if state.names.remove(name).is_some() {
                        gone.push(name.clone());
                    }
                }
                false => {
                    let known = KnownName {
                        addresses: now.into_iter().collect(),
                        labels,
                    };
                    state.names.insert(name.clone(), known);
                }
            }
        }
        txn.commit();
        Ok(gone)
    }
}
