// SPDX-License-Identifier: Apache-2.0

//! Waiting for an address that a service of another source has.

use std::time::Duration;

use skep_loadbalancer_model::types::Frontend;
use statedb::{Db, Table, Watch};

/// Shortest time between two attempts to get an address that another service has.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// When to try again. A watch is open before an attempt, so that an address is noticed that becomes free right after
/// it was refused.
pub(super) struct AddressWaiter {
    db: Db,
    frontends: Table<Frontend>,
    watch: Option<Watch>,
}

impl AddressWaiter {
    pub(super) fn new(db: Db, frontends: Table<Frontend>) -> Self {
        Self {
            db,
            frontends,
            watch: None,
        }
    }

    /// To be called before an attempt to get what is waited for.
    pub(super) fn begin(&mut self) {
        self.watch = Some(self.frontends.table_watch(&self.db.read()));
    }

    /// To be called after frontends were written. True if something was refused for the first time: then it is to be
    /// tried once more, since no watch was open.
    pub(super) fn attempted(&mut self, is_waiting: bool) -> bool {
        if !is_waiting {
            self.watch = None;
        } else if self.watch.is_none() {
            self.begin();
            return true;
        }
        false
    }

    /// Returns when an address may be free; never if nothing is waited for.
    pub(super) async fn wait(&self) {
        match &self.watch {
            Some(watch) => {
                watch.closed().await;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            None => std::future::pending().await,
        }
    }
}
