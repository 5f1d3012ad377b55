// SPDX-License-Identifier: Apache-2.0

//! Table → maps.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use skep_bpf_maps::policy::{POLICIES, PolicyEntry, PolicyKey, policy_pin};
use skep_bpf_sys::MapError;
use skep_datapath_maps::{
    InstanceMaps, Maps, OuterMap,
    transaction::{Deletions, Owner, Stage as _, Transaction, Updates, WriteError},
};
use statedb::{
    Db, Obj,
    reconciler::{BatchOps, Config, Delete, Reconciler, Round, StatusKind, Update},
    row::BoxError,
};

use crate::{EndpointPolicy, MapState, MapStates, PolicyMaps, Realized, order::Plan, table::Kept};

/// The reconciler of table `policy-maps`.
pub type PolicyReconciler = Reconciler<EndpointPolicy, PolicyOps>;

type Policies = InstanceMaps<PolicyKey, PolicyEntry>;
type Outer = OuterMap<PolicyKey, PolicyEntry>;

/// Endpoints of a round: all of them wait for the last one.
const ROUND: usize = 64;

skep_datapath_maps::stages! {
    struct Stages {
        /// In the order of `order.rs`.
        early_deletions: Deletions<Policies>,
        updates: Updates<Policies>,
        deletions: Deletions<Policies>,
        late_updates: Updates<Policies>,
        late_deletions: Deletions<Policies>,
        outer: Updates<Outer>,
        outer_deletions: Deletions<Outer>,
    }
}

/// What the maps hold of an endpoint.
#[derive(Debug)]
struct Known {
    state: Arc<MapState>,
    /// Whether `skep_policies` leads to it.
    is_found: bool,
}

/// Writes policies to the maps.
#[derive(Debug)]
pub struct PolicyOps {
    outer: Outer,
    /// By endpoint; none where a write failed.
    known: HashMap<u16, Known>,
    /// What is written in place of a policy that exceeds its map, and the size of that, by endpoint.
    reduced: HashMap<u16, (Arc<MapState>, usize)>,
    is_locking_down: bool,
    pressure_threshold: f64,
    /// Entries of the largest desired policy.
    most: usize,
    kept: Kept,
    stages: Stages,
}

impl PolicyOps {
    fn new(maps: &Arc<Maps>, kept: Kept, settings: &crate::Config) -> Self {
        Self {
            outer: OuterMap::new(maps, &POLICIES),
            known: HashMap::new(),
            reduced: HashMap::new(),
            is_locking_down: settings.enable_endpoint_lockdown_on_policy_overflow,
            pressure_threshold: settings.bpf_policy_map_pressure_metrics_threshold,
            most: 0,
            kept,
            stages: Stages::default(),
        }
    }

    fn policies(&self) -> &Policies {
        self.outer.inner()
    }

    /// Opens the map of an endpoint and reads it, unless that was done before.
    fn read(&mut self, endpoint: u16) -> Result<(), MapError> {
        if !self.known.contains_key(&endpoint) {
            let map = self.policies().open(endpoint)?;
            let known = Known {
                state: Arc::new(map.entries()?.into_iter().collect()),
                is_found: self.outer.leads_to(endpoint)?,
            };
            self.known.insert(endpoint, known);
        }
        Ok(())
    }

    /// Stages what makes the map of an endpoint what is desired.
    fn stage(&mut self, owner: Owner, row: &EndpointPolicy) -> Result<(), MapError> {
        let Some(desired) = row.desired.as_ref().filter(|_| row.has_map()) else {
            return Ok(());
        };
        let endpoint = row.endpoint;
        let before = match row.status.kind {
            StatusKind::Refreshing => self.known.remove(&endpoint),
            _ => None,
        };
        self.read(endpoint)?;
        let known = &self.known[&endpoint];
        if before.is_some_and(|before| before.state != known.state) {
            tracing::warn!(
                endpoint,
                "the policy map was changed by another process, and is repaired"
            );
        }
        if !Arc::ptr_eq(&known.state, &desired.state) {
            let max = self.policies().open(endpoint)?.max_entries() as usize;
            let reduced = desired.state.reduced(max, self.is_locking_down).map(Arc::new);
            let plan = Plan::new(&known.state, reduced.as_ref().unwrap_or(&desired.state), max);
            let before = match reduced {
                Some(state) => self.reduced.insert(endpoint, (state, max)).map(|_| true),
                None => self.reduced.remove(&endpoint).map(|_| false),
            };
            let entries = desired.state.len();
            match (before, self.reduced.contains_key(&endpoint)) {
                (None, true) => tracing::warn!(
                    endpoint,
                    entries,
                    max,
                    is_locked_down = self.is_locking_down,
                    "policy map max entries limit exceeded"
                ),
                (Some(false), false) => {
                    tracing::info!(endpoint, entries, max, "the policy fits its map again")
                }
                _ => {}
            }
            if plan.interrupts() {
                tracing::info!(
                    endpoint,
                    "packets may be dropped while the policy map is rewritten"
                );
            }
            let stages = &mut self.stages;
            for (keys, stage) in [
                (plan.early_deletions, &mut stages.early_deletions),
                (plan.deletions, &mut stages.deletions),
                (plan.late_deletions, &mut stages.late_deletions),
            ] {
                for key in keys {
                    stage.push(owner, (endpoint, key));
                }
            }
            for (rows, stage) in [
                (plan.updates, &mut stages.updates),
                (plan.late_updates, &mut stages.late_updates),
            ] {
                for (key, entry) in rows {
                    stage.push(owner, ((endpoint, key), entry));
                }
            }
        }
        if !desired.state.is_open() && !known.is_found {
            self.stages.outer.push(owner, (endpoint, ()));
        }
        Ok(())
    }

    fn write(&mut self, txn: &mut Transaction) {
        let Self { outer, stages, .. } = self;
        let policies = outer.inner();
        txn.run(&mut stages.outer_deletions, outer);
        txn.run(&mut stages.early_deletions, policies);
        txn.run(&mut stages.updates, policies);
        txn.run(&mut stages.deletions, policies);
        txn.run(&mut stages.late_updates, policies);
        txn.run(&mut stages.late_deletions, policies);
        txn.run(&mut stages.outer, outer);
        stages.clear();
    }

    /// Reports how full the fullest map is: of those that exceed theirs, with what they should hold.
    fn report_pressure(&mut self) {
        let most = self.known.values().map(|known| known.state.len()).max();
        let most = most.unwrap_or_default().max(std::mem::take(&mut self.most));
        self.policies()
            .report_pressure(most as u32, self.pressure_threshold);
    }
}

/// A policy has more entries than its map. Raise the setting, or select fewer peers.
#[derive(Debug, thiserror::Error)]
#[error("map {map} is full ({max} entries, see bpf-policy-map-max)")]
struct Overflow {
    map: String,
    max: usize,
}

fn failed(error: MapError) -> WriteError {
    WriteError::new(error, 0)
}

impl BatchOps<EndpointPolicy> for PolicyOps {
    fn batch(
        &mut self,
        _: &Round<'_>,
        deletes: &mut [Delete<EndpointPolicy>],
        updates: &mut [Update<EndpointPolicy>],
    ) {
        let mut txn = Transaction::default();
        for entry in &*deletes {
            let owner = txn.add_owner();
            let endpoint = entry.object.endpoint;
            if entry.object.has_map() && self.known.get(&endpoint).is_none_or(|known| known.is_found) {
                self.stages.outer_deletions.push(owner, endpoint);
            }
        }
        for entry in &*updates {
            let owner = txn.add_owner();
            if let Err(error) = self.stage(owner, &entry.object) {
                txn.fail(owner, failed(error));
            }
        }
        self.write(&mut txn);
        let mut errors = txn.finish();
        for (entry, error) in deletes.iter_mut().zip(&mut errors) {
            let endpoint = entry.object.endpoint;
            self.known.remove(&endpoint);
            self.reduced.remove(&endpoint);
            let removed = match error {
                None => self.outer.inner().unpin(endpoint).map_err(failed),
                Some(error) => Err(error),
            };
            entry.result = removed.map_err(Into::into);
        }
        for (entry, error) in updates.iter_mut().zip(errors) {
            let row = &mut entry.object;
            let has_map = row.has_map();
            let Some(desired) = &row.desired else { continue };
            if has_map {
                self.most = self.most.max(desired.state.len());
            }
            if let Some(error) = error {
                // What it holds is read at the next try.
                self.known.remove(&row.endpoint);
                entry.result = Err(error.into());
                continue;
            }
            let reduced = self.reduced.get(&row.endpoint);
            let written = reduced.map_or(&desired.state, |(state, _)| state);
            if let Some(known) = self.known.get_mut(&row.endpoint) {
                known.state = written.clone();
                known.is_found |= !desired.state.is_open();
            }
            row.realized = Some(Realized {
                revision: desired.revision,
                open: written.open(),
                enforced: desired.enforced,
            });
            if let Some(&(_, max)) = reduced
                && !self.is_locking_down
            {
                let map = policy_pin(row.endpoint);
                entry.result = Err(Overflow { map, max }.into());
            }
        }
        self.report_pressure();
    }

    fn prune(
        &mut self,
        _: &Round<'_>,
        rows: &mut dyn Iterator<Item = &Obj<EndpointPolicy>>,
    ) -> Result<(), BoxError> {
        let mut wanted: BTreeSet<u16> = rows.map(|row| row.endpoint).collect();
        wanted.extend(&*self.kept.lock());
        let mut txn = Transaction::default();
        let found = self.outer.instances()?;
        let mut removed: BTreeSet<u16> = self.policies().instances()?;
        removed.extend(&found);
        removed.retain(|endpoint| !wanted.contains(endpoint));
        for endpoint in &removed {
            let owner = txn.add_owner();
            if found.contains(endpoint) {
                self.stages.outer_deletions.push(owner, *endpoint);
            }
        }
        self.write(&mut txn);
        let mut failure = None;
        for (endpoint, error) in removed.iter().zip(txn.finish()) {
            self.known.remove(endpoint);
            let done = match error {
                None => self.policies().unpin(*endpoint).map_err(failed),
                Some(error) => Err(error),
            };
            failure = failure.or(done.err());
        }
        if !removed.is_empty() {
            tracing::info!(
                removed = removed.len(),
                "policies of endpoints that are gone were removed"
            );
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }
}

impl PolicyMaps {
    /// Policies in maps, and the reconciler to be run, with its settings changed by `timing`.
    ///
    /// # Errors
    ///
    /// [`statedb::Error`] if the database has a table of this name.
    pub fn new(
        db: Db,
        maps: &Arc<Maps>,
        source: Arc<dyn MapStates>,
        settings: &crate::Config,
        timing: impl FnOnce(Config) -> Config,
    ) -> Result<(Self, PolicyReconciler), statedb::Error> {
        let table = crate::table::new_table(db.clone())?;
        let kept = Kept::default();
        let config = timing(Config {
            round_size: ROUND,
            retry_max: Duration::from_secs(10),
            refresh_interval: Some(settings.bpf_policy_map_full_reconciliation_interval)
                .filter(|interval| !interval.is_zero()),
            // On request: those who have endpoints know when all of them are requested.
            prune_interval: None,
            blocking: true,
            ..Config::default()
        });
        let ops = PolicyOps::new(maps, kept.clone(), settings);
        let reconciler = Reconciler::new(&db, table.clone(), EndpointPolicy::STATUS, ops, config);
        let policies = Self {
            db,
            table,
            source,
            reconciler: reconciler.handle(),
            kept,
        };
        Ok((policies, reconciler))
    }
}
