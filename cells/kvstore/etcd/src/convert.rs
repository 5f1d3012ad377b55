// SPDX-License-Identifier: Apache-2.0

//! Between the types of the trait and those of etcd's protocol.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use etcd_client as etcd;
use etcd_client::{CompareOp, SortOrder, SortTarget};
use skep_kvstore_client::{
    BackendError, Change, Compare, Condition, Header, KeyRange, KeyValue, LeaseId, Op, OpResponse, Order,
    RangeRequest, RangeResponse, Revision, Txn, TxnResponse,
};

pub(crate) fn header(header: Option<&etcd::ResponseHeader>) -> Result<Header, BackendError> {
    header
        .map(|header| Header {
            cluster_id: header.cluster_id(),
            revision: Revision(header.revision()),
        })
        .ok_or(BackendError::NoHeader)
}

/// The alarms in what an endpoint reports as wrong: `memberID:10501334649042878790 alarm:NOSPACE `. Each member reports those
/// of all.
pub(crate) fn alarms(errors: &[String]) -> Vec<String> {
    let words = errors.iter().flat_map(|error| error.split_whitespace());
    let mut alarms: Vec<String> = words
        .filter_map(|word| word.strip_prefix("alarm:"))
        .map(str::to_owned)
        .collect();
    alarms.sort_unstable();
    alarms.dedup();
    alarms
}

pub(crate) fn get_options(request: &RangeRequest) -> etcd::GetOptions {
    let mut options = etcd::GetOptions::new()
        .with_limit(i64::try_from(request.limit).unwrap_or(i64::MAX))
        .with_revision(request.revision.0)
        .with_max_create_revision(request.max_create_revision.0);
    if !request.range.end().is_empty() {
        options = options.with_range(request.range.end().to_vec());
    }
    if request.keys_only {
        options = options.with_keys_only();
    }
    match request.order {
        Order::Key => options.with_sort(SortTarget::Key, SortOrder::Ascend),
        Order::OldestCreated => options.with_sort(SortTarget::Create, SortOrder::Ascend),
        Order::NewestCreated => options.with_sort(SortTarget::Create, SortOrder::Descend),
    }
}

pub(crate) fn range_response(header: Header, order: Order, mut response: etcd::GetResponse) -> RangeResponse {
    let has_more = response.more() && order == Order::Key;
    let pairs = response.take_kvs();
    let next = pairs.last().filter(|_| has_more).map(|last| after(last.key()));
    RangeResponse {
        header,
        items: pairs.into_iter().filter_map(key_value).collect(),
        next,
    }
}

/// The first key after this one.
fn after(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

/// A key; none if it is no UTF-8.
fn key_value(pair: etcd::KeyValue) -> Option<KeyValue> {
    let (create, modified, version, lease) = (
        pair.create_revision(),
        pair.mod_revision(),
        pair.version(),
        pair.lease(),
    );
    let (key, value) = pair.into_key_value();
    Some(KeyValue {
        key: text(&key)?.into(),
        value: value.into(),
        create_revision: Revision(create),
        mod_revision: Revision(modified),
        version,
        lease: LeaseId(lease),
    })
}

fn text(key: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(key).ok();
    if text.is_none() {
        tracing::warn!(key = %String::from_utf8_lossy(key), "Ignoring etcd key that is not UTF-8");
    }
    text
}

pub(crate) fn change(event: &etcd::Event) -> Option<Change> {
    let pair = event.kv()?;
    match event.event_type() {
        etcd::EventType::Put => key_value(pair.clone()).map(Change::Put),
        etcd::EventType::Delete => Some(Change::Delete {
            key: text(pair.key())?.into(),
            revision: Revision(pair.mod_revision()),
        }),
    }
}

pub(crate) fn txn(txn: &Txn) -> etcd::Txn {
    etcd::Txn::new()
        .when(txn.compares.iter().map(compare).collect::<Vec<_>>())
        .and_then(txn.then.iter().map(op).collect::<Vec<_>>())
        .or_else(txn.otherwise.iter().map(op).collect::<Vec<_>>())
}

fn compare(compare: &Compare) -> etcd::Compare {
    let key = compare.key.as_bytes();
    match &compare.condition {
        Condition::CreateRevision(revision) => {
            etcd::Compare::create_revision(key, CompareOp::Equal, revision.0)
        }
        Condition::ModRevision(revision) => etcd::Compare::mod_revision(key, CompareOp::Equal, revision.0),
        Condition::Value(value) => etcd::Compare::value(key, CompareOp::Equal, value.to_vec()),
        Condition::Lease(lease) => etcd::Compare::lease(key, CompareOp::Equal, lease.0),
        // Needs etcd 3.3. A range without keys is compared as a key that does not exist.
        Condition::NoneBelow => {
            let end = KeyRange::prefix(&compare.key).end().to_vec();
            etcd::Compare::version(key, CompareOp::Equal, 0).with_range(end)
        }
    }
}

fn op(op: &Op) -> etcd::TxnOp {
    match op {
        Op::Put { key, value, lease } => {
            let options = (*lease != LeaseId::NONE).then(|| etcd::PutOptions::new().with_lease(lease.0));
            etcd::TxnOp::put(key.as_bytes(), value.to_vec(), options)
        }
        Op::Delete(range) => etcd::TxnOp::delete(range.start().to_vec(), delete_options(range)),
        Op::Range(request) => etcd::TxnOp::get(request.range.start().to_vec(), Some(get_options(request))),
    }
}

fn delete_options(range: &KeyRange) -> Option<etcd::DeleteOptions> {
    (!range.end().is_empty()).then(|| etcd::DeleteOptions::new().with_range(range.end().to_vec()))
}

pub(crate) fn txn_response(txn: &Txn, response: &etcd::TxnResponse) -> Result<TxnResponse, BackendError> {
    let header = header(response.header())?;
    let ops = if response.succeeded() {
        &txn.then
    } else {
        &txn.otherwise
    };
    let answers = response.op_responses();
    if answers.len() != ops.len() {
        return Err(BackendError::Invalid {
            reason: format!("{} answers to {} operations", answers.len(), ops.len()),
        });
    }
    let responses = ops
        .iter()
        .zip(answers)
        .map(|(op, answer)| op_response(header, op, answer))
        .collect::<Result<_, _>>()?;
    Ok(TxnResponse {
        header,
        succeeded: response.succeeded(),
        responses,
    })
}

fn op_response(header: Header, op: &Op, answer: etcd::TxnOpResponse) -> Result<OpResponse, BackendError> {
    match (op, answer) {
        (Op::Put { .. }, etcd::TxnOpResponse::Put(_)) => Ok(OpResponse::Put),
        (Op::Delete(_), etcd::TxnOpResponse::Delete(response)) => Ok(OpResponse::Delete {
            deleted: u64::try_from(response.deleted()).unwrap_or_default(),
        }),
        (Op::Range(request), etcd::TxnOpResponse::Get(response)) => {
            Ok(OpResponse::Range(range_response(header, request.order, response)))
        }
        _ => Err(BackendError::Invalid {
            reason: "an answer of a transaction is of another kind than its operation".to_owned(),
        }),
    }
}

/// Whole seconds, at least one, as leases have them.
pub(crate) fn seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1)
}
