// SPDX-License-Identifier: Apache-2.0

//! Identities in the key-value store.

use std::sync::Arc;

use async_trait::async_trait;
use hive::JobCtx;
use parking_lot::Mutex;
use skep_identity::{Labels, NumericIdentity};
use skep_identity_kvstore::{AllocatorOptions, Identities, IdentityAllocator, IdentityLabels};
use skep_kvstore_client::Client;
use tokio::sync::{Notify, OnceCell};

use crate::error::AllocateError;
use crate::store::IdentityStore;

/// Identities in the key-value store, as soon as [`run`](Self::run) runs.
pub struct KeyIdentities {
    client: Client,
    allocator: OnceCell<IdentityAllocator>,
    /// Used before the start.
    early: Mutex<Vec<(Arc<Labels>, NumericIdentity)>>,
    started: Notify,
}

impl KeyIdentities {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            allocator: OnceCell::new(),
            early: Mutex::default(),
            started: Notify::new(),
        }
    }

    /// Reads the identities of the cluster, and keeps those in use alive. The options of the first call count.
    pub async fn run(&self, options: impl AsyncFnOnce() -> AllocatorOptions, cx: &JobCtx) {
        let start = async || {
            let options = options().await;
            IdentityAllocator::new(self.client.clone(), Identities::new(), (), options)
        };
        let allocator = self.allocator.get_or_init(start).await;
        for (labels, id) in self.early.lock().drain(..) {
            allocator.adopt(&text(&labels), id);
        }
        self.started.notify_waiters();
        cx.health.ok("Running");
        allocator.run().await;
    }

    async fn started(&self) -> IdentityAllocator {
        loop {
            let started = self.started.notified();
            if let Some(allocator) = self.allocator.get() {
                return allocator.clone();
            }
            started.await;
        }
    }
}

fn text(labels: &Labels) -> IdentityLabels {
    IdentityLabels::from(&*labels.to_string())
}

#[async_trait]
impl IdentityStore for KeyIdentities {
    async fn allocate(&self, labels: &Arc<Labels>) -> Result<NumericIdentity, AllocateError> {
        let allocator = self.started().await;
        Ok(allocator.allocate(&text(labels)).await?.id)
    }

    fn adopt(&self, labels: &Arc<Labels>, id: NumericIdentity) {
        let mut early = self.early.lock();
        match self.allocator.get() {
            Some(allocator) => allocator.adopt(&text(labels), id),
            None => early.push((labels.clone(), id)),
        }
    }

    fn release(&self, labels: &Arc<Labels>) {
        let mut early = self.early.lock();
        if let Some(allocator) = self.allocator.get() {
            if let Err(error) = allocator.release(&text(labels)) {
                tracing::debug!(%error, "Released an identity twice");
            }
        } else if let Some(at) = early.iter().position(|(adopted, _)| adopted == labels) {
            early.swap_remove(at);
        }
    }
}
