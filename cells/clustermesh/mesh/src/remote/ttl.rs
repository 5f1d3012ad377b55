// SPDX-License-Identifier: Apache-2.0

//! Withdraws services of a cluster that could not be reached for too long.

use std::time::Duration;

use skep_clustermesh_types::Kind;
use tokio::time::Instant;

use super::{Common, Slot};
use crate::state::RemoteState;

/// When services are withdrawn: once an outage, and only of a cluster that was reached before. Nodes, addresses and identities
/// stay: connections that are established live by them.
#[derive(Debug)]
pub(super) struct Ttl {
    after: Duration,
    was_connected: bool,
    due: Option<Instant>,
}

impl Ttl {
    /// Withdraws after that time; zero for never.
    pub(super) fn new(after: Duration) -> Self {
        Self {
            after,
            was_connected: false,
            due: None,
        }
    }

    /// The cluster is connected, and its configuration is known.
    pub(super) fn connected(&mut self) {
        self.was_connected = true;
        self.due = None;
    }

    pub(super) fn lost(&mut self) {
        if std::mem::take(&mut self.was_connected) && !self.after.is_zero() {
            self.due = Some(Instant::now() + self.after);
        }
    }

    /// Runs what connects again; services are withdrawn meanwhile if that takes too long.
    pub(super) async fn run<T>(
        &mut self,
        slots: &mut [Slot],
        common: &Common,
        state: &RemoteState,
        connecting: impl Future<Output = T>,
    ) -> T {
        let mut connecting = std::pin::pin!(connecting);
        while let Some(due) = self.due {
            tokio::select! {
                value = &mut connecting => return value,
                () = tokio::time::sleep_until(due) => {}
            }
            self.due = None;
            tracing::warn!(cluster = %state.name, after = ?self.after, "Removing services of remote cluster");
            for slot in &mut *slots {
                if matches!(
                    slot.kind,
                    Kind::Services | Kind::EndpointSlices | Kind::ServiceExports
                ) {
                    slot.store.drain();
                }
            }
            if let Some(lifecycle) = &common.lifecycle {
                lifecycle.withdrawn(&state.name);
            }
            common
                .metrics
                .remotes
                .revocations
                .with([state.name.as_str()])
                .inc();
        }
        connecting.await
    }
}
