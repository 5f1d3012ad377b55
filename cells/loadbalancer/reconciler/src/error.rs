// SPDX-License-Identifier: Apache-2.0

//! Why a frontend could not be brought into the maps.

use std::sync::Arc;

use skep_bpf_sys::MapError;
use skep_datapath_maps::transaction::WriteError;

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
    /// An entry was not written or deleted. If its map is full, raise the limit named after the map
    /// (`bpf-lb-*-map-max`), or remove services.
    #[error(transparent)]
    Write(WriteError),
    /// A map cannot be read.
    #[error(transparent)]
    Read(Arc<MapError>),
    /// The failure was injected by a test.
    #[cfg(any(test, feature = "testing"))]
    #[error("faulty")]
    Injected,
}

impl From<WriteError> for ReconcileError {
    fn from(error: WriteError) -> Self {
        #[cfg(any(test, feature = "testing"))]
        if error.cause().is_injected() {
            return Self::Injected;
        }
        Self::Write(error)
    }
}

impl From<MapError> for ReconcileError {
    fn from(error: MapError) -> Self {
        Self::Read(Arc::new(error))
    }
}

impl ReconcileError {
    /// Whether a map was full.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Write(error) if error.is_full())
    }

    /// The map that was full.
    pub(super) fn full_map(&self) -> Option<&str> {
        match self {
            Self::Write(error) if error.is_full() => Some(error.map()),
            _ => None,
        }
    }
}
