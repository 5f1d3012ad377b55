// SPDX-License-Identifier: Apache-2.0

//! Cookies of the network namespaces of pods: what whoever creates endpoints tells.

use statedb::reconciler::Status;
use statedb::{Db, RwTable};

use crate::SkipRedirects;
use crate::table::SKIP_BY_POD;

/// Takes cookies of pods. Cheap to clone.
///
/// Without the cookie of a pod its own traffic is redirected like any other, whatever the policy says.
#[derive(Debug, Clone, hive::Value)]
pub struct NetnsCookies {
    db: Db,
    table: RwTable<SkipRedirects>,
}

impl NetnsCookies {
    pub(crate) fn new(db: Db, table: RwTable<SkipRedirects>) -> Self {
        Self { db, table }
    }

    /// Notes the cookie of a pod (`namespace/name`); `None` when the pod is gone.
    ///
    /// # Errors
    ///
    /// If the table refuses the row.
    pub fn set(&self, pod: &str, cookie: Option<u64>) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        let row = self.table.get(&txn, SKIP_BY_POD.key(pod)).cloned();
        let mut row = match row {
            Some(row) if row.cookie == cookie => return Ok(()),
            Some(row) => (*row).clone(),
            None if cookie.is_none() => return Ok(()),
            None => SkipRedirects {
                pod: pod.into(),
                ..SkipRedirects::default()
            },
        };
        row.cookie = cookie;
        if cookie.is_none() && row.frontends.is_empty() {
            self.table.delete(&mut txn, &row)?;
        } else {
            row.status = Status::pending();
            self.table.insert(&mut txn, row)?;
        }
        txn.commit();
        Ok(())
    }
}
