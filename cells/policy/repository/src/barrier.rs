// SPDX-License-Identifier: Apache-2.0

//! Policy maps know an identity before addresses have it.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
};

use skep_ipcache::IdentityUser;
use skep_policy_maps::PolicyMaps;
use statedb::Revision;

use crate::Repository;

pub(crate) struct Maps {
    repository: Repository,
    maps: PolicyMaps,
    /// Identities up to this revision are in the maps.
    realized: AtomicU64,
}

impl Maps {
    pub(crate) fn new(repository: Repository, maps: PolicyMaps) -> Self {
        Self {
            repository,
            maps,
            realized: AtomicU64::new(0),
        }
    }
}

impl IdentityUser for Maps {
    fn wait(&self, revision: Revision) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            if self.realized.load(Ordering::Acquire) >= revision {
                return;
            }
            let inner = &self.repository.0;
            let mut known = inner.known.subscribe();
            // Until all is listed, maps are those of the run before.
            if *known.borrow() == 0 || known.wait_for(|known| *known >= revision).await.is_err() {
                return;
            }
            if let Err(error) = self.maps.update() {
                tracing::error!(%error, "Failed to update policies");
                return;
            }
            let table = self.maps.table();
            let desired = table.revision(&inner.db.read());
            self.maps.reconciler().wait_until_reconciled(desired).await;
            self.realized.fetch_max(revision, Ordering::AcqRel);
        })
    }
}
