// SPDX-License-Identifier: Apache-2.0

//! Cookies of the network namespaces of pods, from the cell that creates endpoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

#[derive(Debug, Default)]
pub(crate) struct Sources {
    registered: AtomicUsize,
    /// Those of them that have not delivered yet.
    awaited: AtomicUsize,
    pub(crate) changed: Notify,
}

impl Sources {
    pub(crate) fn any(&self) -> bool {
        self.registered.load(Ordering::Acquire) > 0
    }
}

impl NetnsCookies {
    #[must_use]
    pub fn new(db: Db, table: RwTable<SkipRedirects>) -> Self {
        Self {
            db,
            table,
            sources: Arc::default(),
        }
    }

    pub(crate) fn sources(&self) -> Arc<Sources> {
        self.sources.clone()
    }

    /// Whether all sources have [delivered](CookieSource::delivered).
    #[must_use]
    pub fn are_complete(&self) -> bool {
        self.sources.awaited.load(Ordering::Acquire) == 0
    }

    /// Registers a source, until it is dropped. Call it in a constructor: a policy that is looked at before is reported
    /// as one that cannot skip the traffic of its backends.
    #[must_use]
    pub fn register(&self) -> CookieSource {
        self.sources.registered.fetch_add(1, Ordering::AcqRel);
        self.sources.awaited.fetch_add(1, Ordering::AcqRel);
        self.sources.changed.notify_one();
        CookieSource {
            cookies: self.clone(),
            has_delivered: AtomicBool::new(false),
        }
    }
}

/// A source of cookies: the cell that creates endpoints, and knows their network namespaces.
#[derive(Debug)]
pub struct CookieSource {
    cookies: NetnsCookies,
    has_delivered: AtomicBool,
}

impl CookieSource {
    /// Sets the cookie of a pod (`namespace/name`); `None` when the pod is gone.
    pub fn set(&self, pod: &str, cookie: Option<u64>) -> Result<(), statedb::Error> {
        let NetnsCookies { db, table, .. } = &self.cookies;
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
        match (cookie, row.frontends.is_empty()) {
            (None, true) => drop(table.delete(&mut txn, &row)?),
            // The controller asks something of the maps when it sets redirects.
            (Some(_), true) => drop(table.insert(&mut txn, row)?),
            (_, false) => drop(table.insert(&mut txn, row.unwritten())?),
        }
        txn.commit();
        Ok(())
    }

    /// The cookies of all pods that are there are set. Before each source has delivered, no entry of the skip maps is deleted:
    /// after a restart, that of a pod whose cookie is not known yet would be.
    pub fn delivered(&self) {
        if !self.has_delivered.swap(true, Ordering::AcqRel) {
            self.cookies.sources.awaited.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for CookieSource {
    fn drop(&mut self) {
        self.delivered();
        self.cookies.sources.registered.fetch_sub(1, Ordering::AcqRel);
        self.cookies.sources.changed.notify_one();
    }
}
