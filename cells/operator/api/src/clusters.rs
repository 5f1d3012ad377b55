// SPDX-License-Identifier: Apache-2.0

//! How the remote clusters are, for the API.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

type Status = Arc<dyn Fn() -> Value + Send + Sync>;

/// The answer to `GET /v1/cluster`. Only the leader connects to remote clusters, but all replicas have an API: the leader
/// says here how to answer.
#[derive(Default)]
pub struct RemoteClusters(Mutex<Option<Status>>);

impl fmt::Debug for RemoteClusters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_set = self.0.lock().is_some();
        formatter.debug_tuple("RemoteClusters").field(&is_set).finish()
    }
}

impl RemoteClusters {
    /// `status` is asked from now on. It returns an array, by the model of Cilium's API.
    pub fn set(&self, status: impl Fn() -> Value + Send + Sync + 'static) {
        *self.0.lock() = Some(Arc::new(status));
    }

    /// There are no remote clusters any longer.
    pub fn clear(&self) {
        *self.0.lock() = None;
    }

    /// The status of all of them; an empty array if this replica connects to none.
    pub fn status(&self) -> Value {
        let status = self.0.lock().clone();
        status.map_or_else(|| json!([]), |status| status())
    }
}
