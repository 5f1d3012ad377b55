// SPDX-License-Identifier: Apache-2.0

//! Deletes locks of identities whose holders do not release them.

use std::collections::HashMap;
use std::time::Duration;

use skep_kvstore_client::{Client, Error, KeyValue, LeaseId, Revision, keys};

use crate::layout::IdentityKeys;

/// Time between two rounds, as in Cilium's operator.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(25);

/// Deletes locks that have the same holder in two rounds: it may live, so that its lease does not end, and hang. One program
/// of a cluster runs it, the operator.
#[derive(Debug)]
pub struct LockSweep {
    client: Client,
    keys: IdentityKeys,
    /// Holders in the last round, by key.
    seen: HashMap<String, Holder>,
}

#[derive(Debug, PartialEq, Eq)]
struct Holder {
    revision: Revision,
    lease: LeaseId,
}

impl LockSweep {
    /// A sweep that has seen no lock.
    pub fn new(client: Client, keys: IdentityKeys) -> Self {
        Self {
            client,
            keys,
            seen: HashMap::new(),
        }
    }

    /// Deletes what holds a lock since the last round. Returns how many locks.
    ///
    /// # Errors
    ///
    /// If locks cannot be listed or deleted. The next round tries again.
    pub async fn round(&mut self) -> Result<usize, Error> {
        let listing = self.client.list(&keys::below(&self.keys.locks())).await?;
        let mut oldest: HashMap<&str, &KeyValue> = HashMap::new();
        for item in &listing.items {
            let Some((path, _lease)) = item.key.rsplit_once('/') else {
                continue;
            };
            let holder = oldest.entry(path).or_insert(item);
            if item.create_revision < holder.create_revision {
                *holder = item;
            }
        }
        let mut deleted = 0;
        let mut seen = HashMap::new();
        for item in oldest.into_values() {
            let holder = Holder {
                revision: item.mod_revision,
                lease: item.lease,
            };
            if self.seen.get(&*item.key) != Some(&holder) {
                seen.insert(item.key.to_string(), holder);
                continue;
            }
            if self.client.delete_if_unchanged(item).await? {
                tracing::warn!(key = %item.key, "Deleted stale lock");
                deleted += 1;
            }
        }
        self.seen = seen;
        Ok(deleted)
    }
}
