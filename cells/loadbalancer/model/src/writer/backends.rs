// SPDX-License-Identifier: Apache-2.0

//! Operations on backends.

use std::time::SystemTime;

use statedb::WriteTxn;

use super::{Writer, WriterError};
use crate::types::{Backend, BackendParams, L3n4Addr, ServiceName, Source};
use crate::{BACKENDS_BY_KEY, BackendKey};

/// From so many rows on the service's rows are walked once instead of looked up one by one.
const WALK_FROM: usize = 16;

impl Writer {
    /// Adds or changes backends of a service, which need not exist yet. What is the same already is left alone; health
    /// survives.
    pub fn upsert_backends(
        &self,
        txn: &mut WriteTxn,
        service: &ServiceName,
        backends: Vec<BackendParams>,
    ) -> Result<(), WriterError> {
        let changed = self.put_backends(txn, service, backends)?;
        self.refresh(txn, service, &changed)
    }

    /// Makes `backends` the only backends of the service from this source and cluster.
    pub fn set_backends(
        &self,
        txn: &mut WriteTxn,
        service: &ServiceName,
        source: Source,
        cluster_id: u32,
        mut backends: Vec<BackendParams>,
    ) -> Result<(), WriterError> {
        backends.sort_by_key(|params| params.address);
        let query = BACKENDS_BY_KEY.key(&BackendKey::of_service(service));
        let rows = self.0.tables.backends.prefix(txn, query);
        let is_kept = |address: &L3n4Addr| {
            backends
                .binary_search_by(|params| params.address.cmp(address))
                .is_ok()
        };
        let is_ours = |claim: &BackendParams| claim.source == source && claim.cluster_id == cluster_id;
        let gone = rows.filter(|row| row.claims().iter().any(is_ours) && !is_kept(&row.params.address));
        let gone: Vec<L3n4Addr> = gone.map(|row| row.params.address).collect();
        let mut changed = self.drop_backends(txn, service, source, &gone, is_ours)?;
        changed.extend(self.put_backends(txn, service, backends)?);
        self.refresh(txn, service, &changed)
    }

    /// Removes backends of a service that a source does not name any more.
    pub fn release_backends(
        &self,
        txn: &mut WriteTxn,
        service: &ServiceName,
        source: Source,
        gone: &[L3n4Addr],
    ) -> Result<(), WriterError> {
        let is_ours = |claim: &BackendParams| claim.source == source;
        let changed = self.drop_backends(txn, service, source, gone, is_ours)?;
        self.refresh(txn, service, &changed)
    }

    /// Removes backends of a service that one object of a source does not name any more. What other objects say of them
    /// counts from then on.
    pub fn release_claims(
        &self,
        txn: &mut WriteTxn,
        service: &ServiceName,
        (source, claimant): (Source, u32),
        gone: &[L3n4Addr],
    ) -> Result<(), WriterError> {
        let is_ours = |claim: &BackendParams| (claim.source, claim.claimant) == (source, claimant);
        let changed = self.drop_backends(txn, service, source, gone, is_ours)?;
        self.refresh(txn, service, &changed)
    }

    /// Sets what a health checker found. Returns whether it is new.
    ///
    /// # Errors
    /// [`WriterError::BackendNotFound`].
    pub fn set_backend_health(
        &self,
        txn: &mut WriteTxn,
        service: &ServiceName,
        address: &L3n4Addr,
        is_healthy: bool,
    ) -> Result<bool, WriterError> {
        let query = BACKENDS_BY_KEY.key(&BackendKey::of_address(service, address));
        let row = self.0.tables.backends.prefix(txn, query).next().cloned();
        let row = row.ok_or_else(|| WriterError::BackendNotFound {
            service: service.clone(),
            address: *address,
        })?;
        if row.unhealthy != is_healthy && row.unhealthy_updated_at.is_some() {
            return Ok(false);
        }
        let unhealthy_updated_at = Some(Box::new(SystemTime::now()));
        let changed = Backend {
            unhealthy: !is_healthy,
            unhealthy_updated_at,
            ..Backend::clone(&row)
        };
        self.0.tables.backends.insert(txn, changed)?;
        self.refresh(txn, service, &[*address])?;
        Ok(true)
    }

    /// Adds or changes backends; of those with one address that one object names the last counts. Returns the addresses
    /// of what changed.
    fn put_backends(
        &self,
        txn: &mut WriteTxn,
        service: &ServiceName,
        mut backends: Vec<BackendParams>,
    ) -> Result<Vec<L3n4Addr>, WriterError> {
        let table = &self.0.tables.backends;
        let place = |params: &BackendParams| (params.address, self.priority(params.source));
        let mut wanted: Vec<Backend> = Vec::new();
        // Stable: of claims to one place the last one stays the last.
        backends.sort_by_key(place);
        let by_place = backends.chunk_by(|a, b| place(a) == place(b));
        if backends.len() < WALK_FROM {
            wanted.reserve_exact(backends.len());
            for claims in by_place {
                let (address, priority) = place(&claims[0]);
                let key = BackendKey::new(service, &address, priority);
                let old = table.get(txn, BACKENDS_BY_KEY.key(&key));
                wanted.extend(changed_row(service, priority, claims, old.map(|row| &**row)));
            }
        } else {
            let first = BackendKey::of_address(service, &backends[0].address);
            let of_service = BACKENDS_BY_KEY.key(&first);
            let mut rows = table
                .lower_bound(txn, of_service)
                .take_while(|row| row.service == *service)
                .peekable();
            // Of a service with backends, few change at a time.
            if rows.peek().is_none() {
                wanted.reserve_exact(backends.len());
            }
            for claims in by_place {
                let place = place(&claims[0]);
                let at = |row: &Backend| (row.params.address, row.source_priority);
                while rows.next_if(|row| at(row) < place).is_some() {}
                let old = rows.peek().filter(|row| at(row) == place);
                wanted.extend(changed_row(service, place.1, claims, old.map(|row| &***row)));
            }
        }
        let mut changed = Vec::with_capacity(wanted.len());
        for row in wanted {
            changed.push(row.params.address);
            table.insert(txn, row)?;
        }
        Ok(changed)
    }

    /// Removes the claims of a source to backends that `is_gone` matches, and backends without a claim then.
    fn drop_backends(
        &self,
        txn: &mut WriteTxn,
        service: &ServiceName,
        source: Source,
        gone: &[L3n4Addr],
        is_gone: impl Fn(&BackendParams) -> bool,
    ) -> Result<Vec<L3n4Addr>, WriterError> {
        let table = &self.0.tables.backends;
        let priority = self.priority(source);
        let mut changed = Vec::new();
        for address in gone {
            let key = BACKENDS_BY_KEY.key(&BackendKey::new(service, address, priority));
            let Some(row) = table.get(txn, key).cloned() else {
                continue;
            };
            let left = row.claims().iter().filter(|claim| !is_gone(claim));
            let left: Vec<BackendParams> = left.cloned().collect();
            if left.is_empty() {
                table.delete(txn, &row)?;
            } else if let Some(row) = row.with_claims(left) {
                table.insert(txn, row)?;
            } else {
                continue;
            }
            changed.push(*address);
        }
        Ok(changed)
    }

    fn refresh(
        &self,
        txn: &mut WriteTxn,
        service: &ServiceName,
        changed: &[L3n4Addr],
    ) -> Result<(), WriterError> {
        if changed.is_empty() {
            return Ok(());
        }
        self.refresh_frontends(txn, service)
    }
}

/// The row of an address with new claims to it, the last of each object; `None` if they say nothing new.
fn changed_row(
    service: &ServiceName,
    priority: u8,
    new: &[BackendParams],
    old: Option<&Backend>,
) -> Option<Backend> {
    match (old, new) {
        (Some(old), [only]) if old.claims.is_none() && old.params == *only => return None,
        (None, [only]) => {
            let row = Backend::new(service.clone(), only.clone());
            return Some(Backend {
                source_priority: priority,
                ..row
            });
        }
        _ => {}
    }
    let mut claims: Vec<BackendParams> = old.map_or_else(Vec::new, |old| old.claims().to_vec());
    for claim in new {
        match claims.iter_mut().find(|known| known.is_same_claimant(claim)) {
            Some(known) => *known = claim.clone(),
            None => claims.push(claim.clone()),
        }
    }
    match old {
        Some(old) => old.with_claims(claims),
        None => {
            let mut row = Backend::new(service.clone(), new.first()?.clone());
            row.source_priority = priority;
            Some(row.with_claims(claims).unwrap_or(row))
        }
    }
}
