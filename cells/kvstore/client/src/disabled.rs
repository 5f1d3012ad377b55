// SPDX-License-Identifier: Apache-2.0

//! The store of a program that has none.

use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{
    Backend, BackendError, EndpointStatus, Grant, RangeRequest, RangeResponse, Txn, TxnResponse,
    WatchRequest, WatchStream,
};
use crate::types::{LeaseId, Revision};

#[derive(Clone, Copy, Debug)]
pub(crate) struct DisabledBackend;

#[async_trait]
impl Backend for DisabledBackend {
    fn kind(&self) -> &'static str {
        "disabled"
    }

    async fn range(&self, _: RangeRequest) -> Result<RangeResponse, BackendError> {
        Err(BackendError::Disabled)
    }

    async fn txn(&self, _: Txn) -> Result<TxnResponse, BackendError> {
        Err(BackendError::Disabled)
    }

    async fn watch(&self, _: WatchRequest) -> Result<WatchStream, BackendError> {
        Err(BackendError::Disabled)
    }

    async fn compact(&self, _: Revision) -> Result<(), BackendError> {
        Err(BackendError::Disabled)
    }

    async fn grant_lease(&self, _: Duration) -> Result<Grant, BackendError> {
        Err(BackendError::Disabled)
    }

    async fn keep_alive(&self, _: LeaseId) -> Result<Duration, BackendError> {
        Err(BackendError::Disabled)
    }

    async fn revoke_lease(&self, _: LeaseId) -> Result<(), BackendError> {
        Err(BackendError::Disabled)
    }

    async fn endpoints(&self) -> Vec<EndpointStatus> {
        Vec::new()
    }

    fn addresses(&self) -> Vec<String> {
        Vec::new()
    }
}
