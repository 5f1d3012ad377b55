// SPDX-License-Identifier: Apache-2.0

//! Why a module of this crate does not start.

use hive::SpawnError;

/// Why sources cannot be followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// A source is registered twice.
    #[error(transparent)]
    Table(#[from] statedb::Error),
    /// The module has stopped.
    #[error(transparent)]
    Job(#[from] SpawnError),
}
