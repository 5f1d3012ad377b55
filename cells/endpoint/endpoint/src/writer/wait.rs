// SPDX-License-Identifier: Apache-2.0

//! Waits for states of endpoints.

use statedb::{Obj, reconciler::StatusKind};

use super::Endpoints;
use crate::{Endpoint, EndpointState};

/// What became of an endpoint that was waited for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// It was not written. It is tried again.
    #[error("endpoint {id} is not ready: {cause}")]
    Failed { id: u16, cause: String },
    #[error("endpoint {id} was deleted")]
    Gone { id: u16 },
}

impl Endpoints {
    /// Waits until an endpoint is ready, or until it could not be written once.
    ///
    /// # Errors
    ///
    /// [`WaitError`]
    pub async fn wait_ready(&self, id: u16) -> Result<Obj<Endpoint>, WaitError> {
        loop {
            let snapshot = self.db.read();
            let (found, changed) = self.table.get_watch(&snapshot, Endpoint::BY_ID.key(&id));
            let row = found.cloned().ok_or(WaitError::Gone { id })?;
            match row.state() {
                EndpointState::Ready => return Ok(row),
                EndpointState::NotReady => {
                    return Err(WaitError::Failed {
                        id,
                        cause: row.status.error_text().to_owned(),
                    });
                }
                EndpointState::Disconnecting | EndpointState::Disconnected => {
                    return Err(WaitError::Gone { id });
                }
                _ => {}
            }
            drop(snapshot);
            changed.closed().await;
        }
    }

    /// Waits until an endpoint has an identity.
    ///
    /// # Errors
    ///
    /// [`WaitError::Gone`]
    pub async fn wait_identity(&self, id: u16) -> Result<Obj<Endpoint>, WaitError> {
        loop {
            let snapshot = self.db.read();
            let (found, changed) = self.table.get_watch(&snapshot, Endpoint::BY_ID.key(&id));
            let row = found.cloned().filter(|row| row.is_live());
            let row = row.ok_or(WaitError::Gone { id })?;
            if row.identity.is_some() {
                return Ok(row);
            }
            drop(snapshot);
            changed.closed().await;
        }
    }

    /// Waits until nothing is left of an endpoint, or until it could not be taken down once.
    ///
    /// # Errors
    ///
    /// [`WaitError::Failed`]
    pub async fn wait_gone(&self, id: u16) -> Result<(), WaitError> {
        loop {
            let snapshot = self.db.read();
            let (found, changed) = self.table.get_watch(&snapshot, Endpoint::BY_ID.key(&id));
            let Some(row) = found.cloned() else {
                return Ok(());
            };
            if row.status.kind == StatusKind::Error {
                return Err(WaitError::Failed {
                    id,
                    cause: row.status.error_text().to_owned(),
                });
            }
            drop(snapshot);
            changed.closed().await;
        }
    }
}
