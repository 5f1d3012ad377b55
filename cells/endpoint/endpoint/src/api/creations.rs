// SPDX-License-Identifier: Apache-2.0

//! Requests to create endpoints: a newer one for the same pod and interface cancels the older one, and nothing stays of one
//! whose client is gone.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{EndpointSpec, Endpoints};

/// `<namespace>/<pod>` and the interface in the pod.
type Name = (String, String);

/// Running requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Creations(Arc<Mutex<HashMap<Name, CancellationToken>>>);

impl Creations {
    /// Begins a request, and cancels an older one for the same pod.
    pub(super) fn begin(&self, spec: &EndpointSpec) -> Creation {
        let token = CancellationToken::new();
        let name = spec.pod_name().map(|pod| (pod, spec.container_interface.clone()));
        if let Some(name) = &name
            && let Some(older) = self.0.lock().insert(name.clone(), token.clone())
        {
            tracing::info!(pod = name.0, "Cancelled older request to create endpoint");
            older.cancel();
        }
        Creation {
            all: self.clone(),
            name,
            token,
        }
    }
}

/// A running request.
#[derive(Debug)]
pub(super) struct Creation {
    all: Creations,
    name: Option<Name>,
    token: CancellationToken,
}

impl Creation {
    /// Waits for a newer request.
    pub(super) async fn cancelled(&self) {
        self.token.cancelled().await;
    }
}

impl Drop for Creation {
    fn drop(&mut self) {
        // The entry of a newer one stays.
        if let Some(name) = self.name.take().filter(|_| !self.token.is_cancelled()) {
            self.all.0.lock().remove(&name);
        }
    }
}

/// An endpoint that is deleted unless its creation is completed. Its addresses stay allocated: who asked for it releases them,
/// or they expire.
#[derive(Debug)]
pub(super) struct Begun<'a> {
    endpoints: &'a Endpoints,
    id: Option<u16>,
}

impl<'a> Begun<'a> {
    pub(super) fn new(endpoints: &'a Endpoints, id: u16) -> Self {
        let id = Some(id);
        Self { endpoints, id }
    }

    pub(super) fn complete(mut self) {
        self.id = None;
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id
            && let Err(error) = self.endpoints.disconnect_with(id, true)
        {
            tracing::warn!(endpoint = id, %error, "Cannot delete endpoint whose creation failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_newer_request_cancels_the_older_one_of_the_same_pod() {
        let creations = Creations::default();
        let spec = |pod: &str| EndpointSpec {
            pod: pod.to_owned(),
            ..EndpointSpec::default()
        };
        let (older, other) = (creations.begin(&spec("a")), creations.begin(&spec("b")));

        let newer = creations.begin(&spec("a"));
        older.cancelled().await;
        drop(older);

        assert!(!newer.token.is_cancelled() && !other.token.is_cancelled());
        assert_eq!(creations.0.lock().len(), 2);
        drop((newer, other));
        assert!(creations.0.lock().is_empty());
    }
}
