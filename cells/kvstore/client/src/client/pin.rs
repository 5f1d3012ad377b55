// SPDX-License-Identifier: Apache-2.0

//! Refuses answers of another etcd cluster than the first.
//!
//! Each replica of Cilium's clustermesh-apiserver runs an etcd of its own, whose revisions are unrelated to those of the
//! others. A watch that is resumed on another replica would miss events silently.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;

use crate::backend::{
    Backend, BackendError, EndpointStatus, Grant, RangeRequest, RangeResponse, Txn, TxnResponse,
    WatchRequest, WatchStream,
};
use crate::types::{Header, LeaseId, Revision};

/// A store whose answers must all come from one etcd cluster.
#[derive(Debug)]
pub(crate) struct PinnedBackend {
    inner: Arc<dyn Backend>,
    pin: Arc<Pin>,
}

/// The id of the cluster that answered first; 0 before.
#[derive(Debug, Default)]
pub(crate) struct Pin(AtomicU64);

impl Pin {
    pub(crate) fn id(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn check(&self, header: &Header) -> Result<(), BackendError> {
        if header.cluster_id == 0 {
            return Err(BackendError::NoHeader);
        }
        match self
            .0
            .compare_exchange(0, header.cluster_id, Ordering::AcqRel, Ordering::Acquire)
        {
            Err(expected) if expected != header.cluster_id => Err(BackendError::ClusterChanged {
                expected,
                found: header.cluster_id,
            }),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl PinnedBackend {
    pub(crate) fn new(inner: Arc<dyn Backend>, pin: Arc<Pin>) -> Self {
        Self { inner, pin }
    }
}

#[async_trait]
impl Backend for PinnedBackend {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, BackendError> {
        let response = self.inner.range(request).await?;
        self.pin.check(&response.header)?;
        Ok(response)
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, BackendError> {
        let response = self.inner.txn(txn).await?;
        self.pin.check(&response.header)?;
        Ok(response)
    }

    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, BackendError> {
        let stream = self.inner.watch(request).await?;
        let pin = self.pin.clone();
        let checked = stream.map(move |response| {
            let response = response?;
            pin.check(&response.header)?;
            Ok(response)
        });
        Ok(checked.boxed())
    }

    async fn compact(&self, revision: Revision) -> Result<(), BackendError> {
        self.inner.compact(revision).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Grant, BackendError> {
        let grant = self.inner.grant_lease(ttl).await?;
        self.pin.check(&grant.header)?;
        Ok(grant)
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<Duration, BackendError> {
        self.inner.keep_alive(lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), BackendError> {
        self.inner.revoke_lease(lease).await
    }

    async fn endpoints(&self) -> Vec<EndpointStatus> {
        self.inner.endpoints().await
    }

    fn addresses(&self) -> Vec<String> {
        self.inner.addresses()
    }
}
