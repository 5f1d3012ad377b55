// SPDX-License-Identifier: Apache-2.0

//! Keys, ranges, transactions.

use super::*;
use crate::backend::{Condition, Order};

/// Revisions grow with each write, and keys remember theirs.
pub async fn keys_have_revisions_and_versions(store: Store) {
    let store = &*store;
    let first = put(store, "revisions/a", "1").await.header.revision;
    let second = put(store, "revisions/a", "2").await.header.revision;
    let item = get(store, "revisions/a").await.expect("the key exists");

    assert_eq!(second, first.next());
    assert_eq!(item.value, "2");
    assert_eq!(
        (item.create_revision, item.mod_revision, item.version),
        (first, second, 2)
    );
    assert_eq!(item.lease, LeaseId::NONE);

    delete(store, "revisions/a").await;
    assert_eq!(get(store, "revisions/a").await, None);
    let again = put(store, "revisions/a", "").await.header;
    let item = get(store, "revisions/a").await.expect("the key exists again");
    assert_eq!(
        (item.create_revision, item.version, item.value.len()),
        (again.revision, 1, 0)
    );
    assert_ne!(again.cluster_id, 0);

    let nothing = delete(store, "revisions/none").await;
    assert_eq!(nothing.header.revision, again.revision, "nothing was written");
    assert_eq!(nothing.responses, [OpResponse::Delete { deleted: 0 }]);
}

/// Keys of a prefix come sorted by bytes, and those of siblings do not.
pub async fn prefixes_are_listed_in_order(store: Store) {
    let store = &*store;
    for key in [
        "list/b/",
        "list/b/2",
        "list/b/10",
        "list/b",
        "list/b-2/1",
        "list/c",
        "list/b/ä",
    ] {
        put(store, key, key).await;
    }

    let found = list(store, "list/b/").await;

    assert_eq!(names(&found), ["list/b/", "list/b/10", "list/b/2", "list/b/ä"]);
    assert_eq!(found.next, None);
    let mut keys_only = RangeRequest::new(KeyRange::prefix("list/"));
    keys_only.keys_only = true;
    let found = range(store, keys_only).await;
    assert_eq!(found.items.len(), 7);
    assert!(found.items.iter().all(|item| item.value.is_empty()));
}

/// Later pages do not see what was written after the first.
pub async fn pages_are_of_one_revision(store: Store) {
    let store = &*store;
    for at in 0..5 {
        put(store, &format!("pages/{at}"), "old").await;
    }
    let mut request = RangeRequest::new(KeyRange::prefix("pages/"));
    request.limit = 2;
    let first = range(store, request.clone()).await;
    assert_eq!(names(&first), ["pages/0", "pages/1"]);

    put(store, "pages/3", "new").await;
    put(store, "pages/9", "new").await;
    delete(store, "pages/4").await;

    request.revision = first.header.revision;
    request.range = request.range.starting_at(first.next.expect("there are more"));
    let second = range(store, request.clone()).await;
    assert_eq!(names(&second), ["pages/2", "pages/3"]);
    assert_eq!(second.items[1].value, "old");
    request.range = request.range.starting_at(second.next.expect("there is one more"));
    let third = range(store, request).await;
    assert_eq!(names(&third), ["pages/4"]);
    assert_eq!(third.next, None);
}

/// Locks need the oldest key, and the one before theirs.
pub async fn keys_are_ordered_by_creation(store: Store) {
    let store = &*store;
    for key in ["order/b", "order/c", "order/a"] {
        put(store, key, "").await;
    }
    put(store, "order/b", "changed").await;
    let a = get(store, "order/a").await.expect("the key exists");

    let mut request = RangeRequest::new(KeyRange::prefix("order/"));
    request.order = Order::OldestCreated;
    assert_eq!(
        names(&range(store, request.clone()).await),
        ["order/b", "order/c", "order/a"]
    );
    request.order = Order::NewestCreated;
    request.limit = 1;
    assert_eq!(names(&range(store, request.clone()).await), ["order/a"]);
    request.max_create_revision = Revision(a.create_revision.0 - 1);
    assert_eq!(names(&range(store, request).await), ["order/c"]);
}

/// All operations of a branch are done at one revision, and none of the other.
pub async fn transactions_do_all_or_nothing(store: Store) {
    let store = &*store;
    let put = |key: &str, value: &'static str| Op::Put {
        key: key.into(),
        value: value.into(),
        lease: LeaseId::NONE,
    };
    let txn = |value: &'static str| Txn {
        compares: vec![Compare::absent("txn/a".into())],
        then: vec![
            put("txn/a", value),
            put("txn/b", value),
            Op::Range(RangeRequest::new(KeyRange::prefix("txn/"))),
        ],
        otherwise: vec![
            Op::Range(RangeRequest::new(KeyRange::key("txn/a"))),
            Op::Delete(KeyRange::key("txn/b")),
        ],
    };

    let done = store.txn(txn("1")).await.expect("the transaction is done");
    assert!(done.succeeded);
    let [OpResponse::Put, OpResponse::Put, OpResponse::Range(written)] = &done.responses[..] else {
        panic!("{done:?}");
    };
    assert_eq!(
        names(written),
        ["txn/a", "txn/b"],
        "a transaction sees what it wrote"
    );
    assert!(
        written
            .items
            .iter()
            .all(|item| item.mod_revision == done.header.revision)
    );

    let refused = store.txn(txn("2")).await.expect("the transaction is done");
    assert!(!refused.succeeded);
    let [OpResponse::Range(present), OpResponse::Delete { deleted: 1 }] = &refused.responses[..] else {
        panic!("{refused:?}");
    };
    assert_eq!(present.items[0].value, "1");
    assert_eq!(names(&list(store, "txn/").await), ["txn/a"]);
}

/// Each condition holds and fails as in etcd, also for keys that do not exist.
pub async fn comparisons_see_what_is_stored(store: Store) {
    let store = &*store;
    put(store, "compare/a", "old").await;
    let revision = put(store, "compare/a", "x").await.header.revision;
    let item = get(store, "compare/a").await.expect("the key exists");
    let cases = [
        ("compare/a", Condition::CreateRevision(item.create_revision), true),
        ("compare/a", Condition::CreateRevision(revision), false),
        ("compare/a", Condition::CreateRevision(Revision::NONE), false),
        ("compare/a", Condition::ModRevision(revision), true),
        ("compare/a", Condition::ModRevision(item.create_revision), false),
        ("compare/a", Condition::Value("x".into()), true),
        ("compare/a", Condition::Value("".into()), false),
        ("compare/a", Condition::Lease(LeaseId::NONE), true),
        ("compare/a", Condition::Lease(LeaseId(7)), false),
        ("compare/none", Condition::CreateRevision(Revision::NONE), true),
        ("compare/none", Condition::ModRevision(Revision::NONE), true),
        ("compare/none", Condition::ModRevision(revision), false),
        ("compare/none", Condition::Lease(LeaseId::NONE), true),
        ("compare/none", Condition::Value("".into()), false),
        ("compare/", Condition::NoneBelow, false),
        ("compare/a", Condition::NoneBelow, false),
        ("compare/a/", Condition::NoneBelow, true),
        ("compare/none", Condition::NoneBelow, true),
    ];
    for (key, condition, expected) in cases {
        let compare = Compare {
            key: key.into(),
            condition,
        };
        let txn = Txn {
            compares: vec![compare.clone()],
            ..Txn::default()
        };
        let response = store.txn(txn).await.expect("the comparison is done");
        assert_eq!(response.succeeded, expected, "{compare:?}");
    }
}

/// A transaction that puts a key twice is refused as a whole.
pub async fn a_key_is_put_once_in_a_transaction(store: Store) {
    let store = &*store;
    let op = Op::Put {
        key: "twice/a".into(),
        value: Bytes::new(),
        lease: LeaseId::NONE,
    };
    let txn = Txn {
        then: vec![op.clone(), op],
        ..Txn::default()
    };

    let error = store.txn(txn).await.expect_err("the transaction is refused");

    assert!(matches!(error, BackendError::Invalid { .. }), "{error:?}");
    assert_eq!(get(store, "twice/a").await, None);
}

/// Deleting a prefix is one write.
pub async fn ranges_are_deleted_at_one_revision(store: Store) {
    let store = &*store;
    for key in ["gone/a", "gone/b", "gone2/a"] {
        put(store, key, "").await;
    }
    let before = list(store, "gone").await.header.revision;

    let response = store
        .txn(Txn::one(Op::Delete(KeyRange::prefix("gone/"))))
        .await
        .expect("the keys are deleted");

    assert_eq!(response.responses, [OpResponse::Delete { deleted: 2 }]);
    assert_eq!(response.header.revision, before.next());
    assert_eq!(names(&list(store, "gone").await), ["gone2/a"]);
}

/// A response is not bounded by what transports have as their default, 4 MiB.
pub async fn large_lists_arrive_whole(store: Store) {
    let store = &*store;
    let value = "x".repeat(1 << 20);
    for at in 0..6 {
        put(store, &format!("large/{at}"), &value).await;
    }

    let found = list(store, "large/").await;

    assert_eq!(
        found.items.iter().map(|item| item.value.len()).sum::<usize>(),
        6 << 20
    );
}

/// What is compacted cannot be read; what came after can.
pub async fn compacted_revisions_cannot_be_read(store: Store) {
    let store = &*store;
    let first = put(store, "compact/a", "1").await.header.revision;
    let second = put(store, "compact/a", "2").await.header.revision;
    put(store, "compact/b", "1").await;
    let last = put(store, "compact/a", "3").await.header.revision;

    store.compact(second).await.expect("the store is compacted");

    let mut request = RangeRequest::new(KeyRange::key("compact/a"));
    request.revision = first;
    let error = store.range(request.clone()).await.expect_err("it is compacted");
    assert!(matches!(error, BackendError::Compacted { .. }), "{error:?}");
    request.revision = second;
    assert_eq!(range(store, request.clone()).await.items[0].value, "2");
    request.revision = Revision(last.0 + 100);
    let error = store.range(request).await.expect_err("it is in the future");
    assert!(matches!(error, BackendError::FutureRevision { .. }), "{error:?}");
    let error = store.compact(first).await.expect_err("it is compacted already");
    assert!(matches!(error, BackendError::Compacted { .. }), "{error:?}");
    let error = store
        .compact(Revision(last.0 + 100))
        .await
        .expect_err("it is in the future");
    assert!(matches!(error, BackendError::FutureRevision { .. }), "{error:?}");
}
