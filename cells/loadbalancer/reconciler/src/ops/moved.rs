// SPDX-License-Identifier: Apache-2.0

//! Backends that go from one service to another.
//!
//! A backend's id means its address, as an endpoint of the services that have it: flows of a service that lost it must not
//! be led to the pod that has the address next. As long as any service has it without a break, it is the same pod, and
//! keeps the id and its flows. If none has, the id is another one, within a round and over a restart.

use std::borrow::Cow;

use skep_loadbalancer_model::hash::{HashMap, HashSet};
use skep_loadbalancer_model::types::{BackendRow, BackendSet, Frontend, L3n4Addr, ServiceName};
use smallvec::SmallVec;

use super::Ops;
use crate::Settings;

/// Whether two services are of one object: a pod has a pseudo-service for each of its host ports.
pub(super) fn is_same_object(one: &ServiceName, other: &ServiceName) -> bool {
    let object = |name: &ServiceName| name.as_str().split(':').next().map(str::to_owned);
    one == other || object(one) == object(other)
}

impl Settings {
    // The frontend with the backends that its entries name.
    fn view<'a>(&self, frontend: &'a Frontend) -> Cow<'a, Frontend> {
        let frontend = frontend.with_kept_backends();
        match self.embedding {
            Some(embedding) => Cow::Owned(embedding.view(&frontend).into_owned()),
            None => frontend,
        }
    }
}

impl Ops {
    /// Drops backends from the frontends that lose them if other services get them in the same round. To be called before
    /// the round is planned.
    pub fn part_moved(&mut self, removed: &[L3n4Addr], updated: &[&Frontend]) {
        let views: Vec<Cow<'_, Frontend>> = updated
            .iter()
            .map(|frontend| self.settings.view(frontend))
            .collect();
        let moved = self.moved(removed, &views);
        if moved.is_empty() {
            return;
        }
        let has_moved = |address: &L3n4Addr| {
            let entry = self.entries.get(address);
            entry.is_some_and(|entry| entry.set.iter().any(|row| moved.contains(&row.params.address)))
        };
        let gone: Vec<L3n4Addr> = removed
            .iter()
            .copied()
            .filter(|address| has_moved(address))
            .collect();
        let parted: Vec<Frontend> = views
            .iter()
            .filter(|frontend| has_moved(frontend.address()))
            .map(|frontend| {
                let old = self.own_set(frontend);
                let kept = frontend.backends.iter().filter(|row| {
                    let address = &row.params.address;
                    !moved.contains(address) || old.is_some_and(|old| old.get(address).is_some())
                });
                Frontend {
                    backends: kept.cloned().collect(),
                    ..Frontend::clone(frontend)
                }
            })
            .collect();
        gone.iter().for_each(|address| self.remove(address));
        parted.iter().for_each(|frontend| self.upsert(frontend));
        // What failed is dirty, and planned again in the round.
        self.finish();
    }

    // Backends that services lose in a round, and only others get.
    fn moved(&self, removed: &[L3n4Addr], updated: &[Cow<'_, Frontend>]) -> HashSet<L3n4Addr> {
        let mut lost: HashMap<L3n4Addr, SmallVec<[&ServiceName; 1]>> = HashMap::default();
        let mut lose = |address: &L3n4Addr, new: Option<&Frontend>| {
            let Some(entry) = self.entries.get(address) else {
                return;
            };
            let new = new.filter(|new| is_same_object(&entry.service, &new.service.name));
            let is_kept =
                |row: &BackendRow| new.is_some_and(|new| new.backends.get(&row.params.address).is_some());
            for row in entry.set.iter().filter(|row| !is_kept(row)) {
                lost.entry(row.params.address).or_default().push(&entry.service);
            }
        };
        removed.iter().for_each(|address| lose(address, None));
        updated
            .iter()
            .for_each(|frontend| lose(frontend.address(), Some(frontend)));
        if lost.is_empty() {
            return HashSet::default();
        }
        let mut moved: HashMap<L3n4Addr, bool> = HashMap::default();
        for frontend in updated {
            let old = self.own_set(frontend);
            for row in &frontend.backends {
                let address = row.params.address;
                if let Some(losers) = lost.get(&address)
                    && old.is_none_or(|old| old.get(&address).is_none())
                {
                    let mut losers = losers.iter();
                    let is_other = !losers.any(|loser| is_same_object(loser, &frontend.service.name));
                    *moved.entry(address).or_insert(true) &= is_other;
                }
            }
        }
        moved.retain(|_, is_moved| *is_moved);
        moved.into_keys().collect()
    }

    // Backends that the maps have for a frontend of the same service.
    fn own_set(&self, frontend: &Frontend) -> Option<&BackendSet> {
        let entry = self.entries.get(frontend.address())?;
        is_same_object(&entry.service, &frontend.service.name).then_some(&entry.set)
    }

    /// Forgets ids of an earlier run that meant an endpoint or a frontend of another service. To be called after
    /// [`restore`](Self::restore) with all frontends that there are.
    pub fn forget_moved<'a>(&mut self, frontends: impl Iterator<Item = &'a Frontend>) {
        let mut named: HashSet<u32> = HashSet::default();
        for found in self.restored.values() {
            named.extend(found.backends.iter().copied());
        }
        for frontend in frontends {
            let twins = self
                .settings
                .embedding
                .map_or_else(Default::default, |embedding| embedding.twins(frontend));
            let view = self.settings.view(frontend);
            let expanded = frontend.node_addresses.as_deref().unwrap_or_default();
            let expanded = expanded.iter().chain(&twins);
            let addresses = expanded.map(|ip| frontend.address().with_ip(*ip));
            for address in addresses.chain([*frontend.address()]) {
                let Some(found) = self.restored.get_mut(&address) else {
                    continue;
                };
                let mut has_any = false;
                for id in &found.backends {
                    let backend = self.restored_backends.get(id);
                    if backend.is_some_and(|backend| view.backends.get(backend).is_some()) {
                        named.remove(id);
                        has_any = true;
                    }
                }
                if !has_any && !found.backends.is_empty() {
                    // None of its endpoints is left: another service may have the address now.
                    self.service_ids.forget(&address);
                    (found.master, found.has_table) = (None, false);
                    self.quarantines.remove(&address);
                }
            }
        }
        self.backend_ids.retain_restored(|id| !named.contains(&id));
    }
}
