// SPDX-License-Identifier: Apache-2.0

//! What clients do while a real etcd is killed, restarted, frozen, replaced.

use std::sync::Arc;
use std::time::Duration;

use skep_kvstore_client::testing::{PATIENCE, RunningClient, event_text, event_texts, next_event, options};
use skep_kvstore_client::{
    Backend, BackendError, Client, ClientKind, ClientOptions, ConnectionError, Lifetime,
};
use skep_kvstore_etcd::testing::{EtcdServer, Gate, Passes};
use skep_kvstore_etcd::{ConfigSource, Etcd, EtcdConfig, TransportOptions};

fn config(endpoints: &[String]) -> ConfigSource {
    let text = format!("endpoints: [{}]", endpoints.join(", "));
    ConfigSource::Config(EtcdConfig::parse("test".as_ref(), &text).expect("the endpoints are valid"))
}

fn address(server: &EtcdServer) -> String {
    format!("http://127.0.0.1:{}", server.port())
}

/// A store that does not wait long.
fn hasty(server: &EtcdServer) -> Arc<Etcd> {
    hasty_at(address(server))
}

fn hasty_at(address: String) -> Arc<Etcd> {
    let transport = TransportOptions {
        keepalive_interval: Duration::from_secs(1),
        keepalive_timeout: Duration::from_secs(1),
        request_timeout: Duration::from_secs(1),
        status_timeout: Duration::from_secs(1),
    };
    Arc::new(Etcd::new(config(&[address]), transport))
}

fn watchful() -> ClientOptions {
    ClientOptions {
        check_interval: Duration::from_millis(200),
        check_interval_failing: Duration::from_millis(200),
        ..options(ClientKind::Full)
    }
}

async fn eventually(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait)
        .await
        .unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}

#[tokio::test]
async fn a_restart_is_survived_by_watches_leases_and_locks() {
    let mut server = EtcdServer::start().await;
    let client = RunningClient::full(hasty(&server));
    client
        .put("r/a", "1", Lifetime::Leased)
        .await
        .expect("it is written");
    let lock = client.lock("r-lock").await.expect("it is locked");
    let mut watcher = client.list_and_watch("r/");
    assert_eq!(event_texts(&mut watcher, 2).await, ["create r/a=1", "listDone"]);

    server.kill();
    let error = client
        .put("r/a", "2", Lifetime::Leased)
        .await
        .expect_err("it is down");
    assert!(
        matches!(error.backend(), Some(BackendError::Unavailable { .. })),
        "{error:?}"
    );
    server.restart().await;

    eventually("the key is written", async || {
        client.put("r/a", "3", Lifetime::Leased).await.is_ok()
    })
    .await;
    // Nothing was missed, so nothing is listed again.
    assert_eq!(event_text(&next_event(&mut watcher).await), "modify r/a=3");
    client
        .locked(&lock)
        .put("r/b", "1", Lifetime::Leased)
        .await
        .expect("the lock is held");
    assert_eq!(event_text(&next_event(&mut watcher).await), "create r/b=1");
    lock.unlock().await.expect("it is unlocked");
    assert_eq!(client.status().leases, 1);
}

#[tokio::test]
async fn a_frozen_etcd_is_noticed_and_left_when_it_thaws() {
    let server = EtcdServer::start().await;
    let client = RunningClient::new(hasty(&server), watchful());
    client.wait_connected().await;
    eventually("all is well", async || client.status().is_healthy()).await;
    let text = client.status().to_string();
    let expected = format!(
        "etcd: 1/1 connected, leases=0, lock leases=1, has-quorum=true: {} - 3.",
        address(&server)
    );
    assert!(text.starts_with(&expected), "{text}");
    assert!(text.ends_with(" (Leader)"), "{text}");
    let mut watcher = client.list_and_watch("f/");
    assert_eq!(event_texts(&mut watcher, 1).await, ["listDone"]);

    server.freeze();
    let error = client.get("f/a").await.expect_err("it is frozen");
    assert!(error.is_transient(), "{error:?}");
    let failure = client.failed().await;
    assert!(
        matches!(
            failure,
            ConnectionError::NoEndpoint { .. } | ConnectionError::Quorum { .. }
        ),
        "{failure:?}"
    );
    server.thaw();

    eventually("the key is written", async || {
        client.put("f/a", "1", Lifetime::Permanent).await.is_ok()
    })
    .await;
    assert_eq!(event_text(&next_event(&mut watcher).await), "create f/a=1");
    eventually("all is well again", async || client.status().is_healthy()).await;
}

// A request that is not answered may have been done all the same, or be done later.
#[tokio::test]
async fn a_network_that_loses_one_direction_is_noticed_and_nothing_is_missed() {
    let server = EtcdServer::start().await;
    let gate = Gate::before(server.port()).await;
    let beside = RunningClient::full(hasty(&server));
    let through = hasty_at(format!("http://127.0.0.1:{}", gate.port()));
    let client = RunningClient::new(through, watchful());
    client.wait_connected().await;
    let mut watcher = client.list_and_watch("d/");
    assert_eq!(event_texts(&mut watcher, 1).await, ["listDone"]);

    for (at, passes) in [Passes::Requests, Passes::Answers, Passes::Nothing]
        .into_iter()
        .enumerate()
    {
        gate.set(passes);
        let own = format!("d/own{at}");
        let error = client
            .put(&own, "1", Lifetime::Permanent)
            .await
            .expect_err("it is not answered");
        assert!(error.is_transient(), "{passes:?}: {error:?}");
        client.failed().await;
        let other = format!("d/other{at}");
        beside
            .put(&other, "1", Lifetime::Permanent)
            .await
            .expect("the store is well");
        gate.set(Passes::All);

        eventually("all is well again", async || client.status().is_healthy()).await;
        let mut seen = Vec::new();
        while !seen.contains(&format!("create {other}=1")) {
            seen.push(event_text(&next_event(&mut watcher).await));
        }
        seen.retain(|text| !text.starts_with("create d/own"));
        assert_eq!(seen, [format!("create {other}=1")], "{passes:?}");
        assert_eq!(
            client
                .get(&other)
                .await
                .expect("it answers")
                .map(|item| item.value.len()),
            Some(1)
        );
    }
}

#[tokio::test]
async fn a_lease_that_ends_while_etcd_is_frozen_is_replaced() {
    let server = EtcdServer::start().await;
    let client = RunningClient::new(
        hasty(&server),
        ClientOptions {
            lease_ttl: Duration::from_secs(3),
            ..options(ClientKind::Full)
        },
    );
    for key in ["l/a", "l/b"] {
        client
            .put(key, "1", Lifetime::Leased)
            .await
            .expect("it is written");
    }
    let mut lost = client.lost_keys("l/");
    let old = client
        .get("l/a")
        .await
        .expect("it is read")
        .expect("it exists")
        .lease;

    server.freeze();
    let keys = tokio::time::timeout(PATIENCE, lost.next())
        .await
        .expect("the lease ends");
    server.thaw();

    assert_eq!(keys.iter().map(|key| &**key).collect::<Vec<_>>(), ["l/a", "l/b"]);
    for key in keys {
        eventually("the key is written", async || {
            client.put(&key, "2", Lifetime::Leased).await.is_ok()
        })
        .await;
    }
    // The end of the old lease, which may have been renewed by what was under way, does not take them.
    let _ = server.backend().revoke_lease(old).await;
    let items = client.list("l/").await.expect("it is read").items;
    assert_eq!(items.len(), 2);
    assert!(items.iter().all(|item| item.lease != old && item.value == "2"));
}

#[tokio::test]
async fn a_mesh_client_fails_when_etcd_is_replaced() {
    let mut server = EtcdServer::start().await;
    let client = RunningClient::mesh(hasty(&server));
    client.wait_connected().await;
    let id = client.status().cluster_id;
    let mut watcher = client.list_and_watch("m/");
    assert_eq!(event_texts(&mut watcher, 1).await, ["listDone"]);

    server.wipe();
    server.restart().await;

    let failure = tokio::time::timeout(PATIENCE, client.failed())
        .await
        .expect("it fails");
    let ConnectionError::Store {
        cause: BackendError::ClusterChanged { expected, found },
        ..
    } = failure
    else {
        panic!("{failure:?}");
    };
    assert_eq!(expected, id);
    assert_ne!(found, id);
}

#[tokio::test]
async fn a_full_client_lists_again_when_etcd_is_replaced() {
    let mut server = EtcdServer::start().await;
    let client = RunningClient::full(hasty(&server));
    for key in ["n/a", "n/b"] {
        client
            .put(key, "1", Lifetime::Leased)
            .await
            .expect("it is written");
    }
    let mut lost = client.lost_keys("n/");
    let mut watcher = client.list_and_watch("n/");
    assert_eq!(event_texts(&mut watcher, 3).await[2], "listDone");

    server.wipe();
    server.restart().await;

    // The lease went with the data: whoever wrote the keys writes them again.
    eventually("another key is written", async || {
        client.put("other", "1", Lifetime::Leased).await.is_ok()
    })
    .await;
    let keys = tokio::time::timeout(PATIENCE, lost.next())
        .await
        .expect("the keys are reported");
    assert_eq!(keys.len(), 2);
    client
        .put("n/b", "2", Lifetime::Leased)
        .await
        .expect("it is written again");
    let mut seen = Vec::new();
    while !(seen.contains(&"delete n/a".to_owned())
        && seen.iter().any(|text: &String| text.ends_with("n/b=2")))
    {
        seen.push(event_text(&next_event(&mut watcher).await));
    }
}

#[tokio::test]
async fn endpoints_that_are_down_are_passed_over() {
    let server = EtcdServer::start().await;
    let live = address(&server);
    // Nothing listens on the discard port of this address.
    let dead = "http://127.0.0.1:9".to_owned();

    // The order is random.
    for at in 0..8 {
        let backend = Arc::new(Etcd::new(
            config(&[dead.clone(), live.clone()]),
            TransportOptions::default(),
        ));
        let client = RunningClient::new(backend, watchful());
        client
            .put("e/a", at.to_string(), Lifetime::Leased)
            .await
            .expect("it is written through the other endpoint");
        eventually("both are checked", async || client.status().endpoints.len() == 2).await;
        let status = client.status();
        assert_eq!((status.connected_endpoints(), status.endpoint_count), (1, 2));
        assert!(status.failure.is_none(), "one endpoint is enough");
        assert!(status.to_string().contains("127.0.0.1:9 - "), "{status}");
        client.stop().await;
    }
}

#[tokio::test]
async fn users_log_in_with_a_password() {
    let server = EtcdServer::start().await;
    let mut admin = etcd_client::Client::connect([address(&server)], None)
        .await
        .expect("etcd answers");
    admin
        .user_add("root", "secret", None)
        .await
        .expect("the user is added");
    admin.role_add("root").await.expect("the role is added");
    admin
        .user_grant_role("root", "root")
        .await
        .expect("the role is granted");
    admin.auth_enable().await.expect("users must log in");
    let login = |user: &str| {
        let text = format!("endpoints: [{}]\n{user}", address(&server));
        let config = EtcdConfig::parse("test".as_ref(), &text).expect("it is valid");
        RunningClient::full(Arc::new(Etcd::new(
            ConfigSource::Config(config),
            TransportOptions::default(),
        )))
    };

    let root = login("username: root\npassword: secret\n");
    root.put("u/a", "1", Lifetime::Leased)
        .await
        .expect("it is written");

    for user in ["", "username: root\npassword: wrong\n"] {
        let error = login(user)
            .put("u/a", "2", Lifetime::Permanent)
            .await
            .expect_err("it is denied");
        assert!(
            matches!(error.backend(), Some(BackendError::Denied { .. })),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_missing_file_is_waited_for() {
    let server = EtcdServer::start().await;
    let folder = tempfile::tempdir().expect("there is a folder");
    let path = folder.path().join("etcd.yaml");
    let backend = Arc::new(Etcd::new(
        ConfigSource::File(path.clone()),
        TransportOptions::default(),
    ));
    let client = RunningClient::full(backend.clone());
    let error = client.get("a").await.expect_err("there is no file");
    assert_eq!(
        hive::error_chain(&error),
        format!(
            "kvstore: cannot get `a`: cannot reach {path}: cannot read `{path}`: No such file or directory (os error 2)",
            path = path.display()
        )
    );
    assert_eq!(backend.addresses(), [path.display().to_string()]);

    std::fs::write(&path, format!("endpoints: [{}]", address(&server))).expect("it is written");

    tokio::time::timeout(PATIENCE, client.wait_connected())
        .await
        .expect("the file is read");
    assert_eq!(backend.addresses(), [address(&server)]);
}

/// Writes until etcd refuses it for lack of space.
async fn fill(client: &Client) {
    let block = "x".repeat(256 << 10);
    for at in 0..100 {
        let key = format!("fill/{at}");
        if let Err(error) = client.put(&key, block.clone(), Lifetime::Permanent).await {
            assert!(
                matches!(error.backend(), Some(BackendError::NoSpace)),
                "{error:?}"
            );
            return;
        }
    }
    panic!("the data are smaller than the quota");
}

/// Deletes what [`fill`] wrote, and makes etcd take writes again.
async fn make_space(server: &EtcdServer, client: &Client) {
    client
        .delete_prefix("fill/")
        .await
        .expect("deletions need no space");
    server.disarm().await;
}

/// What was written stays readable and keeps its lease; what is refused is written when there is space again.
#[tokio::test]
async fn an_etcd_without_space_refuses_writes_by_name_and_loses_nothing() {
    let server = EtcdServer::start_with_quota(4 << 20).await;
    let client = RunningClient::new(hasty(&server), watchful());
    client
        .put("s/a", "1", Lifetime::Leased)
        .await
        .expect("it is written");
    let mut watcher = client.list_and_watch("s/");
    assert_eq!(event_texts(&mut watcher, 2).await, ["create s/a=1", "listDone"]);
    eventually("all is well", async || client.status().is_healthy()).await;
    // Without deadlines: to write much takes its time.
    let filler = RunningClient::mesh(server.backend());

    fill(&filler).await;

    let error = client
        .put("s/b", "1", Lifetime::Leased)
        .await
        .expect_err("there is no space");
    let text = hive::error_chain(&error);
    assert!(text.ends_with("the store has no space left"), "{text}");
    let read = client.get("s/a").await.expect("it is readable");
    assert_eq!(&read.expect("it is there").value[..], b"1");
    eventually("the status names it", async || {
        let text = client.status().to_string();
        text.contains("has-quorum=true, the store has no space left: ")
            && text.ends_with(" (Leader) (alarm NOSPACE)")
    })
    .await;
    let status = client.status();
    assert!(!status.is_healthy() && status.failure.is_none(), "{status:?}");

    assert!(client.delete("s/a").await.expect("deletions need no space"));
    assert_eq!(event_text(&next_event(&mut watcher).await), "delete s/a");
    make_space(&server, &filler).await;

    eventually("it is written", async || {
        client.put("s/b", "2", Lifetime::Leased).await.is_ok()
    })
    .await;
    assert_eq!(event_text(&next_event(&mut watcher).await), "create s/b=2");
    eventually("the status is well", async || client.status().is_healthy()).await;
    let text = client.status().to_string();
    assert!(text.ends_with(" (Leader)"), "{text}");
}

/// The client waits for the lease of its locks, which needs space.
#[tokio::test]
async fn a_client_that_starts_at_an_etcd_without_space_says_so_and_connects_later() {
    let server = EtcdServer::start_with_quota(4 << 20).await;
    let filler = RunningClient::mesh(server.backend());
    fill(&filler).await;

    let client = RunningClient::new(hasty(&server), watchful());
    eventually("the status names it", async || {
        client.status().to_string()
            == "Waiting for initial connection to be established: the store has no space left"
    })
    .await;
    make_space(&server, &filler).await;

    tokio::time::timeout(PATIENCE, client.wait_connected())
        .await
        .expect("it connects");
    eventually("all is well", async || client.status().is_healthy()).await;
}
