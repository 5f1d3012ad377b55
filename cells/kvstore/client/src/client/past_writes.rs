// SPDX-License-Identifier: Apache-2.0

//! Writes by which the history of the store is recognized: own ones in the own store, those that were read in others.
//!
//! A store that was restored from a snapshot lacks the last writes before its end; others may have written so much since that
//! its revision says nothing. But what it has at the revision of such a write is another thing. A store is not stopped and
//! restored within [`GAP`], so that the last write before each pause is enough.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{Backend, BackendError, KeyRange, Op, OpResponse, RangeRequest, Txn, TxnResponse};
use crate::keys;
use crate::types::{Header, KeyValue, Revision};

/// Writes with a longer pause between them may be to a store before and after it was restored.
const GAP: Duration = Duration::from_millis(500);
/// Writes that are remembered at most; more than there are pauses between two checks.
const MOST: usize = 128;

/// What the store has at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PastWrite {
    range: KeyRange,
    revision: Revision,
    /// It was written then, or else deleted.
    is_put: bool,
}

/// The last changes of a transaction.
#[derive(Debug, Default)]
struct Last {
    put: Option<PastWrite>,
    delete: Option<PastWrite>,
}

/// Own writes since the last check.
#[derive(Debug, Default)]
pub(crate) struct PastWrites {
    kept: VecDeque<PastWrite>,
    last: Last,
    at: Option<Instant>,
}

impl PastWrite {
    /// A key as it was read.
    pub(crate) fn of_item(item: &KeyValue) -> Self {
        Self {
            range: KeyRange::key(&item.key),
            revision: item.mod_revision,
            is_put: true,
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) fn missing(&self) -> BackendError {
        let key = String::from_utf8_lossy(self.range.start());
        BackendError::Replaced {
            reason: format!(
                "`{key}` was not written at revision {}, as it was before",
                self.revision
            ),
        }
    }
}

impl PastWrites {
    /// Notes a transaction that was done.
    pub(crate) fn note(&mut self, txn: &Txn, response: &TxnResponse) {
        let changes = changes(txn, response);
        if changes.put.is_none() && changes.delete.is_none() {
            return;
        }
        let now = Instant::now();
        if self.at.is_some_and(|at| now.duration_since(at) >= GAP) {
            self.keep();
        }
        self.at = Some(now);
        self.last.put = changes.put.or(self.last.put.take());
        self.last.delete = changes.delete.or(self.last.delete.take());
    }

    fn keep(&mut self) {
        let Last { put, delete } = std::mem::take(&mut self.last);
        self.kept.extend(put.into_iter().chain(delete));
        while self.kept.len() > MOST {
            self.kept.pop_front();
        }
    }

    pub(crate) fn all(&self) -> Vec<PastWrite> {
        let last = self.last.put.iter().chain(&self.last.delete);
        self.kept.iter().chain(last).cloned().collect()
    }

    /// These were found to be so. The last ones are kept, for the next check.
    pub(crate) fn confirmed(&mut self, confirmed: &[PastWrite]) {
        self.kept.retain(|witness| !confirmed.contains(witness));
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The last key that was put, and the last range of which keys were deleted.
fn changes(txn: &Txn, response: &TxnResponse) -> Last {
    let ops = match response.succeeded {
        true => &txn.then,
        false => &txn.otherwise,
    };
    let revision = response.header.revision;
    let mut last = Last::default();
    // Locks come and go: the loss of one says less than that of the write before it.
    for (op, response) in ops.iter().zip(&response.responses).filter(|(op, _)| !is_lock(op)) {
        let witness = |range, is_put| PastWrite {
            range,
            revision,
            is_put,
        };
        match (op, response) {
            (Op::Put { key, .. }, OpResponse::Put) => last.put = Some(witness(KeyRange::key(key), true)),
            (Op::Delete(range), OpResponse::Delete { deleted: 1.. }) => {
                last.delete = Some(witness(range.clone(), false));
            }
            _ => {}
        }
    }
    last
}

fn is_lock(op: &Op) -> bool {
    let key = match op {
        Op::Put { key, .. } => key.as_bytes(),
        Op::Delete(range) => range.start().as_ref(),
        Op::Range(_) => return false,
    };
    let contains = |part: &[u8]| key.windows(part.len()).any(|window| window == part);
    key.starts_with(keys::INIT_LOCK.as_bytes()) || contains(b"/locks/") || contains(b"-lock/")
}

/// Whether the store has another history than that of the write: then its header.
pub(crate) async fn contradicts(
    store: &dyn Backend,
    witness: &PastWrite,
) -> Result<Option<Header>, BackendError> {
    let mut request = RangeRequest::new(witness.range.clone());
    request.limit = 1;
    request.keys_only = true;
    let then = RangeRequest {
        revision: witness.revision,
        ..request.clone()
    };
    match store.range(then).await {
        Ok(found) => {
            let is_so = match found.items.first() {
                Some(item) => witness.is_put && item.mod_revision == witness.revision,
                None => !witness.is_put,
            };
            Ok((!is_so).then_some(found.header))
        }
        // The state of then is not known any more. A key that is older than the write was not written.
        Err(BackendError::Compacted { .. }) => {
            let found = store.range(request).await?;
            let is_older = found
                .items
                .iter()
                .any(|item| item.mod_revision < witness.revision);
            Ok(is_older.then_some(found.header))
        }
        // Older stores are recognized by the headers of their answers.
        Err(BackendError::FutureRevision { .. }) => store.range(request).await.map(|_| None),
        Err(error) => Err(error),
    }
}
