// SPDX-License-Identifier: Apache-2.0

//! Cookies of the network namespaces of pods, from the cell that creates endpoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use statedb::{Db, RwTable};
use tokio::sync::Notify;

use crate::SkipRedirects;
use crate::table::SKIP_BY_POD;

/// Where sources of cookies register. Cheap to clone.
///
/// Without the cookie of a pod its own traffic is redirected like any other, whatever the policy says. As long as no
/// source is registered the health of `local-redirect-policies` names the policies that ask for more.
#[derive(Debug, Clone, hive::Value)]
pub struct NetnsCookies {
    db: Db,
    table: RwTable<SkipRedirects>,
    sources: Arc<Sources>,
}

/// How many sources there are.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    registered: AtomicUsize,
    pub(crate) changed: Notify,
}

impl Sources {
    /// Whether any source is registered.
    pub(crate) fn any(&self) -> bool {
        self.registered.load(Ordering::Acquire) > 0
    }
}

impl NetnsCookies {
    pub(crate) fn new(db: Db, table: RwTable<SkipRedirects>) -> Self {
        Self {
            db,
            table,
            sources: Arc::default(),
        }
    }

    pub(crate) fn sources(&self) -> Arc<Sources> {
        self.sources.clone()
    }

    /// Registers a source, until it is dropped. Call it in a constructor: a policy that is looked at before is reported
    /// as one that cannot skip the traffic of its backends.
    #[must_use]
    pub fn register(&self) -> CookieSource {
        self.sources.registered.fetch_add(1, Ordering::AcqRel);
        self.sources.changed.notify_one();
        CookieSource(self.clone())
    }
}

/// A source of cookies: the cell that creates endpoints, and knows their network namespaces.
#[derive(Debug)]
pub struct CookieSource(NetnsCookies);

impl CookieSource {
    /// Sets the cookie of a pod (`namespace/name`); `None` when the pod is gone.
    ///
    /// # Errors
    ///
    /// If the row cannot be written.
    pub fn set(&self, pod: &str, cookie: Option<u64>) -> Result<(), statedb::Error> {
        let NetnsCookies { db, table, .. } = &self.0;
        let mut txn = db.write(&[table]);
        let row = table.get(&txn, SKIP_BY_POD.key(pod)).cloned();
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
            table.delete(&mut txn, &row)?;
        } else {
            table.insert(&mut txn, row.unwritten())?;
        }
        txn.commit();
        Ok(())
    }
}

impl Drop for CookieSource {
    fn drop(&mut self) {
        self.0.sources.registered.fetch_sub(1, Ordering::AcqRel);
        self.0.sources.changed.notify_one();
    }
}
