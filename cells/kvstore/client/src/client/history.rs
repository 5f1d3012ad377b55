// SPDX-License-Identifier: Apache-2.0

//! Notices answers of another store than those before.
//!
//! Each replica of Cilium's clustermesh-apiserver runs an etcd of its own, whose revisions are unrelated to those of the
//! others. A watch that is resumed on another replica would miss events silently: a mesh client refuses its answers. So it does
//! if the store was set up anew or restored under the same id (the token that makes it is often a constant): then answers have
//! older revisions, or the last key that was read was not written at its revision. A list of such a store says nothing about
//! what the cluster has withdrawn; a new client reads it when its configuration and canaries are there.
//!
//! The own store is set up anew or restored from a snapshot now and then. Its client goes on, but what it has written is
//! gone, and what it has deleted may be back. It is noticed by the headers of answers, and by [own writes](super::witness) that
//! are missing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::past_writes::{PastWrite, PastWrites, contradicts};
use crate::backend::{
    Backend, BackendError, EndpointStatus, Grant, Op, OpResponse, RangeRequest, RangeResponse, Txn,
    TxnResponse, WatchRequest, WatchStream,
};
use crate::options::ClientKind;
use crate::types::{Header, KeyValue, LeaseId, Revision};

/// A store whose answers are compared with those before.
#[derive(Debug)]
pub(crate) struct ComparedBackend {
    inner: Arc<dyn Backend>,
    history: Arc<History>,
}

/// The state of the store by its answers.
#[derive(Debug)]
pub(crate) struct History {
    kind: ClientKind,
    /// Of the cluster that answered first, in clients of another cluster; of the last one in those of the own. The revision is
    /// the newest one. All zero before the first answer.
    latest: Mutex<Header>,
    /// How often the own store was replaced.
    replaced: watch::Sender<u64>,
    /// Writes to the own store that it must have.
    witnesses: Mutex<PastWrites>,
    /// The newest key that was read from the store of another cluster.
    read: Mutex<Option<PastWrite>>,
}

impl History {
    pub(crate) fn new(kind: ClientKind) -> Self {
        Self {
            kind,
            latest: Mutex::default(),
            replaced: watch::Sender::new(0),
            witnesses: Mutex::default(),
            read: Mutex::default(),
        }
    }

    /// Checks that the store of another cluster is the one that was read, before what it says is compared with that. There is
    /// nothing to check in the own store, nor if history was compacted since and the key written again.
    ///
    /// # Errors
    ///
    /// [`BackendError::Replaced`] if it is not; and if it cannot be asked.
    pub(crate) async fn verify_read(&self, store: &dyn Backend) -> Result<(), BackendError> {
        let witness = self.read.lock().clone();
        let Some(witness) = witness else { return Ok(()) };
        match contradicts(store, &witness).await {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(witness.missing()),
            // The key itself may not be readable any more.
            Err(BackendError::Denied { .. } | BackendError::Invalid { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Notes keys that were read from the store of another cluster, after it was [verified](Self::verify_read).
    pub(crate) fn note_read<'a>(&self, items: impl Iterator<Item = &'a KeyValue>) {
        if self.kind == ClientKind::Full {
            return;
        }
        let Some(newest) = items.max_by_key(|item| item.mod_revision) else {
            return;
        };
        let mut read = self.read.lock();
        if read
            .as_ref()
            .is_none_or(|read| read.revision() < newest.mod_revision)
        {
            *read = Some(PastWrite::of_item(newest));
        }
    }

    /// Looks for the own writes in the own store: it was restored from a snapshot if it lacks one.
    pub(crate) async fn verify(&self, store: &dyn Backend) -> Result<(), BackendError> {
        let witnesses = self.witnesses.lock().all();
        for witness in &witnesses {
            if let Some(header) = contradicts(store, witness).await? {
                // The responses that were requested may have had it already.
                if self.witnesses.lock().all().contains(witness) {
                    self.compare(&header, true);
                }
                return Ok(());
            }
        }
        self.witnesses.lock().confirmed(&witnesses);
        Ok(())
    }

    /// Id of the cluster that other answers are not accepted of; 0 if there is none.
    pub(crate) fn pinned(&self) -> u64 {
        match self.kind {
            ClientKind::Mesh => self.latest.lock().cluster_id,
            ClientKind::Full => 0,
        }
    }

    pub(crate) fn replaced(&self) -> watch::Receiver<u64> {
        self.replaced.subscribe()
    }

    /// The newest revision that was seen.
    fn seen(&self) -> Header {
        *self.latest.lock()
    }

    /// Compares an answer with those that came before its request, which had `seen` this. Answers that wait for the store
    /// (all but watches) never have an older revision than that, and those to writes have a newer one.
    fn check(&self, seen: Header, header: &Header, is_write: bool) -> Result<(), BackendError> {
        match self.kind {
            ClientKind::Mesh if header.revision < seen.revision && header.cluster_id == seen.cluster_id => {
                Err(BackendError::Replaced {
                    reason: format!(
                        "its revision {} is older than {}, which was seen before",
                        header.revision, seen.revision
                    ),
                })
            }
            ClientKind::Mesh => self.refuse(header),
            ClientKind::Full => {
                let is_other = seen.cluster_id != 0 && seen.cluster_id != header.cluster_id;
                let oldest = if is_write {
                    seen.revision.next()
                } else {
                    seen.revision
                };
                self.compare(header, is_other || header.revision < oldest);
                Ok(())
            }
        }
    }

    fn refuse(&self, header: &Header) -> Result<(), BackendError> {
        if header.cluster_id == 0 {
            return Err(BackendError::NoHeader);
        }
        let mut latest = self.latest.lock();
        if latest.cluster_id == 0 {
            latest.cluster_id = header.cluster_id;
        }
        if latest.cluster_id == header.cluster_id {
            latest.revision = latest.revision.max(header.revision);
            return Ok(());
        }
        Err(BackendError::ClusterChanged {
            expected: latest.cluster_id,
            found: header.cluster_id,
        })
    }

    fn compare(&self, header: &Header, is_replaced: bool) {
        let mut latest = self.latest.lock();
        if is_replaced {
            tracing::warn!(
                cluster_id = format!("{:x}", header.cluster_id), revision = %header.revision, before = %latest.revision,
                "Kvstore was recreated or restored, rewriting all keys"
            );
            *latest = *header;
            self.witnesses.lock().clear();
            self.replaced.send_modify(|count| *count += 1);
        } else if latest.cluster_id == 0 || latest.revision < header.revision {
            *latest = *header;
        }
    }
}

/// A transaction without values and comparisons.
fn outline(txn: &Txn) -> Txn {
    let bare = |op: &Op| match op {
        Op::Put { key, lease, .. } => Op::Put {
            key: key.clone(),
            value: Bytes::new(),
            lease: *lease,
        },
        other => other.clone(),
    };
    Txn {
        compares: Vec::new(),
        then: txn.then.iter().map(bare).collect(),
        otherwise: txn.otherwise.iter().map(bare).collect(),
    }
}

/// Whether a transaction has changed the store.
fn wrote(response: &TxnResponse) -> bool {
    response.responses.iter().any(|response| match response {
        OpResponse::Put => true,
        OpResponse::Delete { deleted } => *deleted > 0,
        OpResponse::Range(_) => false,
    })
}

impl ComparedBackend {
    pub(crate) fn new(inner: Arc<dyn Backend>, history: Arc<History>) -> Self {
        Self { inner, history }
    }
}

#[async_trait]
impl Backend for ComparedBackend {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, BackendError> {
        let seen = self.history.seen();
        let response = self.inner.range(request).await?;
        self.history.check(seen, &response.header, false)?;
        Ok(response)
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, BackendError> {
        let seen = self.history.seen();
        let noted = (self.history.kind == ClientKind::Full).then(|| outline(&txn));
        let response = self.inner.txn(txn).await?;
        self.history.check(seen, &response.header, wrote(&response))?;
        if let Some(txn) = noted {
            self.history.witnesses.lock().note(&txn, &response);
        }
        Ok(response)
    }

    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, BackendError> {
        let stream = self.inner.watch(request).await?;
        if self.history.kind == ClientKind::Full {
            return Ok(stream);
        }
        let history = self.history.clone();
        let checked = stream.map(move |response| {
            let response = response?;
            history.refuse(&response.header)?;
            Ok(response)
        });
        Ok(checked.boxed())
    }

    async fn compact(&self, revision: Revision) -> Result<(), BackendError> {
        self.inner.compact(revision).await
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Grant, BackendError> {
        let seen = self.history.seen();
        let grant = self.inner.grant_lease(ttl).await?;
        self.history.check(seen, &grant.header, false)?;
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
