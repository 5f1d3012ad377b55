// SPDX-License-Identifier: Apache-2.0

//! The client as a cell, with Cilium's flags.

use std::time::Duration;

use hive::{HealthEntry, Hive, Level, Settings, testing};
use skep_kvstore_client::testing::PATIENCE;
use skep_kvstore_client::{Client, Lifetime, keys};
use skep_kvstore_etcd::testing::EtcdServer;

fn hive() -> Hive {
    Hive::new([
        skep_kvstore_etcd::cell(),
        skep_kvstore_client::cell::metrics(),
        skep_base_limiter::cell(),
        skep_kvstore_client::cell::heartbeat_updater(),
    ])
    .root::<Client>()
}

async fn start(args: &[String]) -> (hive::Running, Client) {
    let running = testing::start_with(hive(), Settings::new().args(args)).await;
    let client = running.get::<Client>().expect("the cell provides a client");
    (running, client)
}

#[tokio::test]
async fn without_a_store_the_client_is_disabled() {
    let (running, client) = start(&[]).await;

    assert!(!client.is_enabled());

    testing::stop(running).await;
}

#[tokio::test]
async fn the_client_connects_and_the_heartbeat_is_written() {
    let server = EtcdServer::start().await;
    let (running, client) = start(&[
        "--kvstore=etcd".to_owned(),
        format!("--kvstore-opt=etcd.address=http://127.0.0.1:{}", server.port()),
        "--kvstore-opt=etcd.qps=100".to_owned(),
        "--kvstore-lease-ttl=30s".to_owned(),
        "--kvstore-max-consecutive-quorum-errors=4".to_owned(),
    ])
    .await;

    tokio::time::timeout(PATIENCE, client.wait_connected())
        .await
        .expect("it connects");

    let options = client.options();
    assert_eq!((options.rate.qps, options.max_quorum_errors), (100, 4));
    assert_eq!(options.lease_ttl, Duration::from_secs(30));
    client
        .put("a", "1", Lifetime::Leased)
        .await
        .expect("it is written");
    let beats = async {
        loop {
            if let Some(item) = client.get(keys::HEARTBEAT).await.expect("it is read") {
                return item;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let item = tokio::time::timeout(PATIENCE, beats)
        .await
        .expect("it is written");
    assert!(item.value.ends_with(b"Z"));
    testing::stop(running).await;
    let kept = server
        .backend()
        .range(skep_kvstore_client::RangeRequest::new(
            skep_kvstore_client::KeyRange::key("a"),
        ))
        .await
        .expect("it is read");
    assert_eq!(kept.items.len(), 1, "a stop leaves the keys to their lease");
}

/// Health of the connection of a program's client.
fn connection(running: &hive::Running) -> Option<HealthEntry> {
    let mut entries = running.health().entries().into_iter();
    entries.find(|entry| entry.id.to_string().ends_with("connection"))
}

fn is_connected(running: &hive::Running) -> bool {
    connection(running).is_some_and(|entry| entry.level == Level::Ok)
}

async fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let holds = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    // Checks are a minute apart while all is well.
    tokio::time::timeout(PATIENCE * 4, holds)
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"));
}

#[tokio::test]
async fn health_names_an_etcd_without_space_until_the_alarm_is_disarmed() {
    let server = EtcdServer::start_with_quota(4 << 20).await;
    let (running, client) = start(&[
        "--kvstore=etcd".to_owned(),
        format!("--kvstore-opt=etcd.address=http://127.0.0.1:{}", server.port()),
        "--kvstore-opt=etcd.qps=100".to_owned(),
    ])
    .await;
    wait("it connects", || is_connected(&running)).await;
    let block = "x".repeat(256 << 10);
    let mut written = 0;
    while client
        .put(&format!("fill/{written}"), block.clone(), Lifetime::Permanent)
        .await
        .is_ok()
    {
        written += 1;
        assert!(written < 100, "the data are smaller than the quota");
    }

    wait("health names it", || {
        connection(&running).is_some_and(|entry| {
            let error = entry.error.unwrap_or_default();
            entry.level == Level::Degraded
                && entry.message.contains("(alarm NOSPACE)")
                && error.contains("the store has no space left")
        })
    })
    .await;
    client
        .delete_prefix("fill/")
        .await
        .expect("deletions need no space");
    server.disarm().await;

    wait("health is well", || is_connected(&running)).await;
    testing::stop(running).await;
}

#[test]
fn faults_of_settings_are_named() {
    let report = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        hive()
            .plan(Settings::new().args(args))
            .err()
            .map(|report| report.to_string())
            .unwrap_or_default()
    };

    for (args, expected) in [
        (
            &["--kvstore=consul"][..],
            "`consul` is not supported; use `etcd`, or nothing for no store",
        ),
        (
            &["--kvstore=etcd"],
            "either `etcd.config` or `etcd.address` is required",
        ),
        (
            &["--kvstore=etcd", "--kvstore-opt=etcd.config=/a,etcd.Qps=1"],
            "unknown option `etcd.Qps`; known are etcd.address, ",
        ),
        (&["--kvstore-lease-ttl=5s"], "must be from 25s to 24h"),
    ] {
        let text = report(args);
        assert!(text.contains(expected), "{args:?}: {text}");
    }
}

#[tokio::test]
async fn a_malformed_file_stops_the_start_and_a_missing_one_does_not() {
    let folder = tempfile::tempdir().expect("there is a folder");
    let path = folder.path().join("etcd.yaml");
    let args = [
        "--kvstore=etcd".to_owned(),
        format!("--kvstore-opt=etcd.config={}", path.display()),
    ];
    let (running, client) = start(&args).await;
    assert!(client.is_enabled());
    testing::stop(running).await;

    std::fs::write(&path, "endpoints: []").expect("it is written");
    let built = hive()
        .plan(Settings::new().args(args))
        .expect("the settings are valid")
        .build();
    let Err(error) = built.expect("it is built").start().await else {
        panic!("the file is malformed");
    };
    assert!(error.to_string().contains("names no endpoints"), "{error}");
}
