// SPDX-License-Identifier: Apache-2.0

//! Identities in the key-value store.

use std::sync::Arc;
use std::time::Duration;

use hive::JobCtx;
use skep_identity::NumericIdentity;
use skep_identity_kvstore::{IdentityDecoder, IdentityKeys, IdentityLabels};
use skep_kvstore_client::Client;
use skep_kvstore_store::{Observer, WatchStore, WatchStoreOptions, WatchStoreStatus};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{IdentityChange, Source};
use crate::table::ObjectFacts;

/// Changes that share a transaction at most.
const BATCH: usize = 1000;

/// How long readers of the table wait for the first list.
const PATIENCE: Duration = Duration::from_secs(60);

/// Passes changes on. The reader takes all that have come, so that there are as many as one list has at most.
struct Changes(UnboundedSender<IdentityChange>);

impl Changes {
    fn send(&self, change: IdentityChange) {
        // The receiver lives as long as the store is watched.
        let _ = self.0.send(change);
    }
}

impl Observer<NumericIdentity, IdentityLabels> for Changes {
    fn upsert(&mut self, id: &NumericIdentity, labels: &Arc<IdentityLabels>) {
        match labels.as_str().parse() {
            Ok(labels) => self.send(IdentityChange::Upsert(
                *id,
                Arc::new(labels),
                ObjectFacts::default(),
            )),
            Err(error) => {
                tracing::warn!(identity = %id, %error, "Ignoring identity with invalid labels");
                self.send(IdentityChange::Delete(*id));
            }
        }
    }

    fn delete(&mut self, id: &NumericIdentity, _labels: &Arc<IdentityLabels>) {
        self.send(IdentityChange::Delete(*id));
    }

    fn synced(&mut self) {
        self.send(IdentityChange::Synced);
    }
}

/// Keeps the table in step with the master keys. Does not return, unless the table cannot be written.
pub(super) async fn watch((client, source): &(Client, Source), cx: &JobCtx) -> Result<(), statedb::Error> {
    let (sender, receiver) = unbounded_channel();
    let options = WatchStoreOptions::new("local");
    let mut store = WatchStore::new(IdentityDecoder::own(), Changes(sender), options);
    let status = store.status();
    let masters = IdentityKeys::default().masters();
    tokio::select! {
        () = store.watch(client, &masters) => Ok(()),
        result = write(receiver, source.clone(), status, cx) => result,
        result = stop_waiting(source.clone()) => result,
    }
}

/// Marks the source as done after [`PATIENCE`]: an agent also works without its key-value store.
async fn stop_waiting(source: Source) -> Result<(), statedb::Error> {
    tokio::time::sleep(PATIENCE).await;
    source.write([IdentityChange::Synced])?;
    std::future::pending().await
}

async fn write(
    mut receiver: UnboundedReceiver<IdentityChange>,
    source: Source,
    status: WatchStoreStatus,
    cx: &JobCtx,
) -> Result<(), statedb::Error> {
    let mut changes = Vec::with_capacity(BATCH);
    while receiver.recv_many(&mut changes, BATCH).await > 0 {
        source.write(changes.drain(..))?;
        cx.health.ok(format!("{} identities", status.entries()));
    }
    Ok(())
}
