// SPDX-License-Identifier: Apache-2.0

//! Backends that go from one service to another.
//!
//! A backend's id means its address, as an endpoint of the services that have it: flows of a service that lost it must not
//! be led to the pod that has the address next. As long as any service has it without a break, it is the same pod, and
//! keeps the id and its flows. If none has, the id is another one, within a round and over a restart.

use std::borrow::Cow;

use skep_loadbalancer_model::hash::HashSet;
use skep_loadbalancer_model::types::{Change, Frontend, L3n4Addr};

use super::Ops;
use crate::Settings;

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
    /// Drops backends from the frontends that lose them if others of the same round get them. To be called before the
    /// round is planned.
    pub fn part_moved(&mut self, removed: &[L3n4Addr], updated: &[&Frontend]) {
        let mut lost: HashSet<L3n4Addr> = HashSet::default();
        for address in removed {
            if let Some(entry) = self.entries.get(address) {
                lost.extend(entry.set.iter().map(|row| row.params.address));
            }
        }
        let views: Vec<Cow<'_, Frontend>> = updated
            .iter()
            .map(|frontend| self.settings.view(frontend))
            .collect();
        for frontend in &views {
            let Some(entry) = self.entries.get(frontend.address()) else {
                continue;
            };
            let changes = entry.set.diff(&frontend.backends);
            lost.extend(changes.filter_map(|change| match change {
                Change::Removed(row) => Some(row.params.address),
                _ => None,
            }));
        }
        if lost.is_empty() {
            return;
        }
        let mut moved: HashSet<L3n4Addr> = HashSet::default();
        for frontend in &views {
            let entry = self.entries.get(frontend.address());
            let gained = frontend.backends.iter().map(|row| row.params.address);
            moved.extend(gained.filter(|address| {
                lost.contains(address) && entry.is_none_or(|entry| entry.set.get(address).is_none())
            }));
        }
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
                let set = self.entries.get(frontend.address()).map(|entry| &entry.set);
                let is_old = |address: &L3n4Addr| set.is_some_and(|set| set.get(address).is_some());
                let kept = frontend.backends.iter().filter(|row| {
                    let address = &row.params.address;
                    is_old(address) || !moved.contains(address)
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
                if !has_any && !found.backends.is_empty() && !view.backends.is_empty() {
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
