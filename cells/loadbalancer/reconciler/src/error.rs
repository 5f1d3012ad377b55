// SPDX-License-Identifier: Apache-2.0

//! Why a frontend could not be brought into the maps.

use crate::maps::MapError;

/// Why a frontend is not as it should be. It is tried again with growing intervals.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReconcileError {
    /// Session affinity cannot be combined with a proxy redirect. Remove one of them.
    #[error("invalid feature combination: SessionAffinity with proxy redirection is not supported")]
    AffinityWithProxy,
    /// A loopback host port cannot be combined with proxy delegation. Remove one of them.
    #[error("invalid feature combination: HostPort loopback with proxy delegation is not supported")]
    LoopbackWithDelegation,
    /// Every service or backend id is taken. Remove services.
    #[error("no ID available")]
    NoId,
    /// The affinity timeout does not fit into 24 bits.
    #[error("session affinity timeout of {0} seconds is larger than 16777215")]
    AffinityTimeout(u64),
    /// A map refused an entry.
    #[error(transparent)]
    Map(#[from] MapError),
}
