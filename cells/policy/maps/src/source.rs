// SPDX-License-Identifier: Apache-2.0

//! Desired map state: of the policy engine, or for a node without one.

use std::{fmt::Debug, sync::Arc};

use skep_identity::NumericIdentity;
use statedb::Revision;
use tokio::sync::watch;

use crate::MapState;

/// The desired policy of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// Endpoints of one identity may share it.
    pub state: Arc<MapState>,
    /// Directions in which the policy is enforced: 1 ingress, 2 egress.
    pub enforced: u8,
    /// Revision of the rules that it follows from.
    pub revision: Revision,
}

/// Provides the desired map state of endpoints.
pub trait MapStates: Send + Sync + Debug {
    /// Desired policy of an endpoint with this identity; `None` until it is computed. Called for all endpoints at each change:
    /// it looks up what is computed.
    fn desired(&self, endpoint: u16, identity: NumericIdentity) -> Option<Desired>;

    /// Changes whenever what [`desired`](Self::desired) returns may have changed.
    fn changes(&self) -> watch::Receiver<Revision>;
}

/// Every endpoint may send and receive everything.
#[derive(Debug)]
pub struct AllowAll {
    desired: Desired,
    changes: watch::Sender<Revision>,
}

impl Default for AllowAll {
    fn default() -> Self {
        Self {
            desired: Desired {
                state: Arc::new(MapState::allow_all()),
                enforced: 0,
                revision: 1,
            },
            changes: watch::Sender::new(1),
        }
    }
}

impl MapStates for AllowAll {
    fn desired(&self, _: u16, _: NumericIdentity) -> Option<Desired> {
        Some(self.desired.clone())
    }

    fn changes(&self) -> watch::Receiver<Revision> {
        self.changes.subscribe()
    }
}
