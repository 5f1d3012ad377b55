// SPDX-License-Identifier: Apache-2.0

//! What a client does over time.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lease::LeaseManager;
use super::lock::PendingUnlock;
use super::{Client, lock, monitor};
use crate::backend::BackendError;
use crate::operation::Operation;

/// Pause before a lock whose release failed is released again.
const UNLOCK_RETRY: Duration = Duration::from_secs(1);
/// How long the end of the locks may take when the client stops.
const STOP: Duration = Duration::from_secs(2);

/// Renews leases, releases dropped locks, watches the heartbeat and checks the store, as long as its client is used.
///
/// Without it operations work, but leases end, and the client never counts as connected.
#[derive(Clone, Debug)]
#[must_use = "without its driver a client does not keep its leases alive"]
pub struct Driver {
    client: Client,
    unlocks: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<PendingUnlock>>>,
}

impl Driver {
    pub(super) fn new(client: Client, unlocks: mpsc::UnboundedReceiver<PendingUnlock>) -> Self {
        Self {
            client,
            unlocks: Arc::new(tokio::sync::Mutex::new(unlocks)),
        }
    }

    /// Runs until the token is cancelled. Then locks are released; leased keys stay until their lease ends, so that a
    /// restart does not delete them.
    pub async fn run(&self, token: CancellationToken) {
        let client = &self.client;
        if !client.is_enabled() {
            token.cancelled().await;
            return;
        }
        let work = async {
            tokio::join!(
                monitor::run(client),
                renew(client, &client.inner.leases),
                renew(client, &client.inner.lock_leases),
                lose_leases(client),
                self.unlock(),
            )
        };
        tokio::select! {
            _ = work => {}
            () = token.cancelled() => {}
        }
        let _ = tokio::time::timeout(STOP, end_locks(client)).await;
    }

    async fn unlock(&self) {
        let mut unlocks = self.unlocks.lock().await;
        let mut pending = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(unlock) = unlocks.recv() => pending.push(remove(&self.client, unlock)),
                Some(()) = pending.next() => {}
                else => return,
            }
        }
    }
}

/// Removes the key of a lock, or waits until its lease has ended.
async fn remove(client: &Client, unlock: PendingUnlock) {
    let leases = &client.inner.lock_leases;
    while leases.lease_of(&unlock.path).is_some() {
        match lock::remove(client, &unlock.key).await {
            Ok(()) => break,
            Err(error) => {
                tracing::debug!(client = client.name(), lock = %unlock.path, error = %error, "Unable to release lock");
                tokio::time::sleep(UNLOCK_RETRY).await;
            }
        }
    }
    leases.release(&unlock.path);
}

/// Drops all leases when the store is replaced: it may not have them, or not with all keys.
async fn lose_leases(client: &Client) {
    let mut replaced = client.replaced();
    while replaced.changed().await.is_ok() {
        for leases in [&client.inner.leases, &client.inner.lock_leases] {
            for lease in leases.all() {
                leases.lost(lease, &[]);
            }
        }
    }
}

async fn renew(client: &Client, leases: &LeaseManager) {
    let mut renewals = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = leases.wait_due() => {
                for lease in leases.due(Instant::now()) {
                    renewals.push(async move {
                        let asked = Instant::now();
                        let patience = leases.patience(lease, asked);
                        let call = client.inner.backend.keep_alive(lease);
                        let result = match tokio::time::timeout(patience, call).await {
                            Ok(result) => result,
                            Err(_) => Err(BackendError::Timeout { after: patience }),
                        };
                        (lease, asked, result)
                    });
                }
            }
            Some((lease, asked, result)) = renewals.next() => {
                client.record(Operation::KeepAlive, false, "lease", result.is_ok(), asked);
                match result {
                    Ok(ttl) => leases.renewed(lease, asked, ttl),
                    Err(BackendError::LeaseNotFound { .. }) => {
                        tracing::warn!(client = client.name(), %lease, "Lease expired early");
                        leases.lost(lease, &[]);
                    }
                    Err(error) => {
                        tracing::debug!(client = client.name(), %lease, error = %error, "Unable to renew lease");
                        leases.not_renewed(lease, Instant::now());
                    }
                }
            }
        }
    }
}

/// Ends the leases of locks, so that others need not wait for them.
async fn end_locks(client: &Client) {
    for lease in client.inner.lock_leases.all() {
        if let Err(error) = client.inner.backend.revoke_lease(lease).await {
            tracing::debug!(client = client.name(), %lease, error = %error, "Unable to revoke lease of locks");
        }
        client.inner.lock_leases.lost(lease, &[]);
    }
}
