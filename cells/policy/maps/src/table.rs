// SPDX-License-Identifier: Apache-2.0

//! Table `policy-maps`, and the one owner of writes to it.

use std::{collections::BTreeSet, fmt, sync::Arc};

use parking_lot::Mutex;
use serde_json::{Value, json};
use skep_identity::NumericIdentity;
use statedb::{
    Db, Index, Obj, ReadTxn, Revision, Row, RwTable, Table, WriteTxn,
    reconciler::{ReconcilerHandle, Status, StatusField, StatusKind},
    row::BoxError,
};

use crate::{Desired, MapStates};

/// What the map of an endpoint holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Realized {
    /// Revision of the rules.
    pub revision: Revision,
    /// Flags of `skep_endpoints` for the directions in which programs do not look the policy up.
    pub open: u8,
    /// Directions in which it is enforced, whose verdicts are events: 1 ingress, 2 egress.
    pub enforced: u8,
}

/// The policy of an endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointPolicy {
    pub endpoint: u16,
    pub identity: NumericIdentity,
    /// `None` until it is computed.
    pub desired: Option<Desired>,
    /// What was written last.
    pub realized: Option<Realized>,
    pub status: Status,
}

impl EndpointPolicy {
    pub const BY_ENDPOINT: Index<Self, u16> = Index::new("endpoint", |row, keys| keys.add(&row.endpoint));
    pub(crate) const STATUS: StatusField<Self> = StatusField {
        get: |row| row.status.clone(),
        set: |row, status| row.status = status,
    };

    /// Whether programs ask it: the proxy alone enforces that of the listener of Ingresses.
    pub(crate) fn has_map(&self) -> bool {
        self.identity != NumericIdentity::INGRESS
    }

    /// Leaves nothing to be written if the map already holds this policy, of an earlier revision.
    fn keep_written(&mut self, before: &Self) {
        let (Some(desired), Some(known)) = (&self.desired, &before.desired) else {
            return;
        };
        let is_same = self.identity == before.identity
            && desired.enforced == known.enforced
            && (Arc::ptr_eq(&desired.state, &known.state) || desired.state == known.state);
        if before.status.kind == StatusKind::Done
            && is_same
            && let Some(realized) = &mut self.realized
        {
            realized.revision = desired.revision;
            self.status = before.status.clone();
        }
    }

    /// What is realized, if it is what is desired.
    pub fn current(&self) -> Option<Realized> {
        let is_written = matches!(self.status.kind, StatusKind::Done | StatusKind::Refreshing);
        self.realized.filter(|_| is_written)
    }
}

impl Row for EndpointPolicy {
    fn header() -> &'static [&'static str] {
        &[
            "Endpoint", "Identity", "Entries", "Revision", "Realized", "Status",
        ]
    }

    fn cells(&self) -> Vec<String> {
        let desired = self.desired.as_ref();
        let text = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
        vec![
            self.endpoint.to_string(),
            self.identity.to_string(),
            text(desired.map(|desired| desired.state.len() as u64)),
            text(desired.map(|desired| desired.revision)),
            text(self.realized.map(|realized| realized.revision)),
            self.status.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({
            "Endpoint": self.endpoint,
            "Identity": self.identity.get(),
            "Entries": self.desired.as_ref().map(|desired| desired.state.len()),
            "Revision": self.desired.as_ref().map(|desired| desired.revision),
            "RealizedRevision": self.realized.map(|realized| realized.revision),
            "Status": serde_json::to_value(&self.status)?,
        }))
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<EndpointPolicy>, statedb::Error> {
    RwTable::builder("policy-maps")
        .primary(EndpointPolicy::BY_ENDPOINT)
        .build(&db)
}

/// Endpoints without a row whose maps are kept.
pub(crate) type Kept = Arc<Mutex<BTreeSet<u16>>>;

/// Policies of endpoints, for who has the endpoints.
#[derive(Clone, hive::Value)]
pub struct PolicyMaps {
    pub(crate) db: Db,
    pub(crate) table: RwTable<EndpointPolicy>,
    pub(crate) source: Arc<dyn MapStates>,
    pub(crate) reconciler: ReconcilerHandle,
    pub(crate) kept: Kept,
}

impl PolicyMaps {
    /// The table, to read and watch.
    pub fn table(&self) -> Table<EndpointPolicy> {
        self.table.reader()
    }

    pub fn get(&self, txn: &impl ReadTxn, endpoint: u16) -> Option<Obj<EndpointPolicy>> {
        self.table
            .get(txn, EndpointPolicy::BY_ENDPOINT.key(&endpoint))
            .cloned()
    }

    /// Requests the policies of endpoints with these identities: they are kept as desired until they are
    /// [released](Self::release).
    pub fn request(
        &self,
        endpoints: impl IntoIterator<Item = (u16, NumericIdentity)>,
    ) -> Result<(), statedb::Error> {
        self.request_in(self.db.write(&[&self.table]), endpoints)
    }

    fn request_in(
        &self,
        mut txn: WriteTxn,
        endpoints: impl IntoIterator<Item = (u16, NumericIdentity)>,
    ) -> Result<(), statedb::Error> {
        let mut is_changed = false;
        for (endpoint, identity) in endpoints {
            let desired = self.source.desired(endpoint, identity);
            let before = self.get(&txn, endpoint);
            if before
                .as_ref()
                .is_some_and(|row| row.identity == identity && row.desired == desired)
            {
                continue;
            }
            let mut row = EndpointPolicy {
                endpoint,
                identity,
                status: match desired {
                    Some(_) => Status::pending(),
                    None => Status::default(),
                },
                realized: before.as_ref().and_then(|row| row.realized),
                desired,
            };
            if let Some(before) = before {
                row.keep_written(&before);
            }
            self.table.insert(&mut txn, row)?;
            is_changed = true;
        }
        if is_changed {
            txn.commit();
        }
        Ok(())
    }

    /// Requests again what has been requested: desired policies may have changed.
    pub fn update(&self) -> Result<(), statedb::Error> {
        let txn = self.db.write(&[&self.table]);
        let rows = self.table.all(&txn).map(|row| (row.endpoint, row.identity));
        let rows: Vec<_> = rows.collect();
        self.request_in(txn, rows)
    }

    /// Removes the policies of endpoints, to which no program is attached any more. Waits until that was tried.
    pub async fn release(&self, endpoints: impl IntoIterator<Item = u16>) -> Result<(), statedb::Error> {
        let revision = {
            let mut txn = self.db.write(&[&self.table]);
            for endpoint in endpoints {
                self.table
                    .delete_by(&mut txn, EndpointPolicy::BY_ENDPOINT.key(&endpoint))?;
            }
            self.table.revision(&txn.commit())
        };
        self.reconciler.wait_until_reconciled(revision).await;
        Ok(())
    }

    /// Removes the policies of all other endpoints than those that were requested, and these.
    pub fn prune(&self, kept: BTreeSet<u16>) {
        *self.kept.lock() = kept;
        self.reconciler.prune();
    }

    /// Progress of the reconciler.
    pub fn reconciler(&self) -> &ReconcilerHandle {
        &self.reconciler
    }
}

impl fmt::Debug for PolicyMaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyMaps")
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}
