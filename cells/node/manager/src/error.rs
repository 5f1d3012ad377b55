// SPDX-License-Identifier: Apache-2.0

//! Why a module of this crate does not start.

use hive::SpawnError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Table(#[from] statedb::Error),
    #[error(transparent)]
    Job(#[from] SpawnError),
}
