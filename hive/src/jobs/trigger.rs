// SPDX-License-Identifier: Apache-2.0

//! Asking a timer job to run now.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tokio::time::Instant;

/// Asks a timer job for a run. Several requests before the run make one run; none is lost.
///
/// ```
/// let trigger = hive::Trigger::new();
/// trigger.trigger();
/// assert!(trigger.is_pending());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Trigger {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    notify: Notify,
    pending: Mutex<Option<Pending>>,
}

/// Requests not yet served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) first: Instant,
    pub(crate) last: Instant,
    pub(crate) count: u64,
}

impl Trigger {
    /// A trigger that has not been pulled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for a run.
    pub fn trigger(&self) {
        let now = Instant::now();
        let mut pending = crate::lock(&self.shared.pending);
        match &mut *pending {
            Some(pending) => {
                pending.last = now;
                pending.count += 1;
            }
            None => {
                *pending = Some(Pending {
                    first: now,
                    last: now,
                    count: 1,
                })
            }
        }
        drop(pending);
        self.shared.notify.notify_one();
    }

    /// Whether a run was asked for and has not started.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.pending().is_some()
    }

    pub(crate) fn pending(&self) -> Option<Pending> {
        *crate::lock(&self.shared.pending)
    }

    pub(crate) fn take(&self) -> Option<Pending> {
        crate::lock(&self.shared.pending).take()
    }

    /// Waits for the next request.
    pub(crate) async fn changed(&self) {
        self.shared.notify.notified().await;
    }
}
