// SPDX-License-Identifier: Apache-2.0

//! Changes of the lease, for those who wait for it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use skep_k8s_client::{ApiError, Change, Client, RawEvent, RawWatch, WatchOptions};
use skep_k8s_types::selector::FieldSelector;
use tokio::time::Instant;

use crate::lease::LEASES;

/// Pause after a watch that failed. Roles without the right to watch leases are common: such a replica polls.
const PAUSE: Duration = Duration::from_secs(30);

/// Watches the lease. With it a follower sees a released lease and each renewal at once.
pub(crate) struct Changes {
    client: Arc<dyn Client>,
    namespace: String,
    name: String,
    watch: Option<RawWatch>,
    not_before: Instant,
}

impl Changes {
    pub(crate) fn new(client: Arc<dyn Client>, namespace: &str, name: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            watch: None,
            not_before: Instant::now(),
        }
    }

    /// Waits for the next state of the lease; `None` if it was deleted.
    ///
    /// May be dropped at any time: the watch stays.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(watch) = &mut self.watch {
                match watch.next().await {
                    Some(Ok(RawEvent::Bookmark { .. })) => continue,
                    Some(Ok(RawEvent::Object(Change::Deleted, _))) => return None,
                    Some(Ok(RawEvent::Object(_, object))) => match object.to_value() {
                        Ok(lease) => return Some((*lease).clone()),
                        Err(error) => tracing::debug!(%error, "Invalid lease event"),
                    },
                    Some(Err(error)) => tracing::debug!(%error, "Lease watch failed"),
                    None => {}
                }
                self.watch = None;
                self.not_before = Instant::now() + PAUSE;
            }
            tokio::time::sleep_until(self.not_before).await;
            match self.open().await {
                Ok(watch) => self.watch = Some(watch),
                Err(error) => {
                    tracing::debug!(%error, "Cannot watch lease, polling it");
                    self.not_before = Instant::now() + PAUSE;
                }
            }
        }
    }

    async fn open(&mut self) -> Result<RawWatch, ApiError> {
        let options = WatchOptions {
            fields: FieldSelector::equal("metadata.name", &self.name),
            ..WatchOptions::default()
        };
        self.client.watch(&LEASES, &self.namespace, &options).await
    }
}
