// SPDX-License-Identifier: Apache-2.0

//! Leases.

use super::*;

/// The shortest time that stores grant is a few seconds at most.
const SHORT: Duration = Duration::from_secs(1);

async fn grant(store: &dyn Backend, ttl: Duration) -> LeaseId {
    let grant = store.grant_lease(ttl).await.expect("the lease is granted");
    assert!(grant.ttl >= ttl, "{grant:?}");
    assert_ne!(grant.id, LeaseId::NONE);
    grant.id
}

/// A lease that is not renewed ends, its keys are deleted, and watches see it.
pub async fn leases_end_with_their_keys(store: Store) {
    let store = &*store;
    let lease = grant(store, SHORT).await;
    let start = put_leased(store, "lease/a", "1", lease)
        .await
        .expect("the key is written")
        .header
        .revision
        .next();
    assert_eq!(get(store, "lease/a").await.expect("the key exists").lease, lease);
    let mut stream = watch(store, "lease/", start).await;

    assert_eq!(texts(&changes(&mut stream, 1).await), ["delete lease/a"]);

    assert_eq!(get(store, "lease/a").await, None);
    let error = store.keep_alive(lease).await.expect_err("the lease has ended");
    assert!(matches!(error, BackendError::LeaseNotFound { .. }), "{error:?}");
}

/// A lease that is renewed outlives its time.
pub async fn leases_that_are_kept_alive_stay(store: Store) {
    let store = &*store;
    let granted = store.grant_lease(SHORT).await.expect("the lease is granted");
    put_leased(store, "alive/a", "", granted.id)
        .await
        .expect("the key is written");

    for _ in 0..6 {
        tokio::time::sleep(granted.ttl / 3).await;
        let ttl = store.keep_alive(granted.id).await.expect("the lease is renewed");
        assert_eq!(ttl, granted.ttl);
    }

    assert!(get(store, "alive/a").await.is_some());
    wait_gone(store, "alive/a").await;
}

/// Revoking deletes the keys at one revision.
pub async fn revoked_leases_delete_their_keys(store: Store) {
    let store = &*store;
    let lease = grant(store, PATIENCE).await;
    for key in ["revoked/b", "revoked/a"] {
        put_leased(store, key, "", lease)
            .await
            .expect("the key is written");
    }
    let before = put(store, "revoked/kept", "").await.header.revision;

    store.revoke_lease(lease).await.expect("the lease is revoked");

    let left = list(store, "revoked/").await;
    assert_eq!(names(&left), ["revoked/kept"]);
    assert_eq!(left.header.revision, before.next());
    let error = store.revoke_lease(lease).await.expect_err("the lease has ended");
    assert!(matches!(error, BackendError::LeaseNotFound { .. }), "{error:?}");
}

/// A key cannot be attached to a lease that does not exist, and is not written then.
pub async fn unknown_leases_are_refused(store: Store) {
    let store = &*store;
    let unknown = LeaseId(0x7777);

    let error = put_leased(store, "unknown/a", "", unknown)
        .await
        .expect_err("the lease does not exist");

    let BackendError::LeaseNotFound { lease } = error else {
        panic!("{error:?}");
    };
    assert_eq!(lease, unknown);
    assert_eq!(get(store, "unknown/a").await, None);
}

/// A key has the lease that it was last written with.
pub async fn keys_change_their_lease(store: Store) {
    let store = &*store;
    let old = grant(store, PATIENCE).await;
    let new = grant(store, PATIENCE).await;
    for key in ["change/other", "change/none", "change/same"] {
        put_leased(store, key, "", old).await.expect("the key is written");
    }
    put_leased(store, "change/other", "", new)
        .await
        .expect("the key is written");
    put(store, "change/none", "").await;

    store.revoke_lease(old).await.expect("the lease is revoked");
    assert_eq!(
        names(&list(store, "change/").await),
        ["change/none", "change/other"]
    );

    store.revoke_lease(new).await.expect("the lease is revoked");
    assert_eq!(names(&list(store, "change/").await), ["change/none"]);
}
