// SPDX-License-Identifier: Apache-2.0

//! Table `policy-computations`: the policies of local identities, and when they were computed.

use serde_json::{Value, json};
use skep_identity::{NumericIdentity, Reserved};
use skep_policy_model::policies::LocalIdentity;
use statedb::{Db, Index, Revision, Row, RwTable, row::BoxError};

use crate::state::Inner;

/// The last computation of the policy of an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyComputation {
    pub identity: NumericIdentity,
    /// Revision of its policy.
    pub new: Revision,
    /// Revision of the policy before; 0 for none.
    pub old: Revision,
    /// Revision of the rules at the computation.
    pub revision: Revision,
    /// Why rules are not applied; empty if they are.
    pub error: String,
}

impl PolicyComputation {
    pub const BY_IDENTITY: Index<Self, u32> =
        Index::new("identity", |row, keys| keys.add(&row.identity.get()));

    fn new(identity: NumericIdentity, local: &LocalIdentity) -> Self {
        Self {
            identity,
            new: local.revision(),
            old: local.replaced(),
            revision: local.revision(),
            error: local
                .error()
                .map(|error| hive::error_chain(error).to_string())
                .unwrap_or_default(),
        }
    }

    fn name(&self) -> String {
        let reserved = Reserved::ALL.iter().find(|one| one.identity() == self.identity);
        reserved.map_or_else(|| self.identity.to_string(), |one| one.name().to_owned())
    }
}

impl Row for PolicyComputation {
    fn header() -> &'static [&'static str] {
        &[
            "Identity",
            "NewPolicy",
            "OldPolicy",
            "Revision",
            "NeedsRelease",
            "Err",
        ]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.name(),
            self.new.to_string(),
            self.old.to_string(),
            self.revision.to_string(),
            false.to_string(),
            self.error.clone(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({
            "Identity": self.identity.get(),
            "NewPolicy": self.new,
            "OldPolicy": self.old,
            "Revision": self.revision,
            "NeedsRelease": false,
            "Err": self.error,
        }))
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<PolicyComputation>, statedb::Error> {
    RwTable::builder("policy-computations")
        .primary(PolicyComputation::BY_IDENTITY)
        .build(&db)
}

impl Inner {
    /// Writes the rows of identities whose policies were computed, or that are gone.
    pub(crate) fn write_computations(&self) -> Result<(), statedb::Error> {
        let mut state = self.state.lock();
        let computed = std::mem::take(&mut state.computed);
        let rows: Vec<_> = computed
            .into_iter()
            .map(|identity| {
                let local = state.policies.local(identity);
                (
                    identity,
                    local.map(|local| PolicyComputation::new(identity, local)),
                )
            })
            .collect();
        drop(state);
        if rows.is_empty() {
            return Ok(());
        }
        let mut txn = self.db.write(&[&self.computations]);
        for (identity, row) in rows {
            let key = PolicyComputation::BY_IDENTITY.key(&identity.get());
            let before = self.computations.get(&txn, key).cloned();
            match row {
                Some(row) if before.as_deref() != Some(&row) => {
                    _ = self.computations.insert(&mut txn, row)?
                }
                Some(_) => {}
                None => {
                    let key = PolicyComputation::BY_IDENTITY.key(&identity.get());
                    self.computations.delete_by(&mut txn, key)?;
                }
            }
        }
        txn.commit();
        Ok(())
    }
}
