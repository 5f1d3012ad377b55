// SPDX-License-Identifier: Apache-2.0

//! `skep kvstore` against a real etcd.

use std::process::{Command, Output};

use skep_kvstore_etcd::testing::EtcdServer;

fn skep(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_skep"));
    command.args(args).output().expect("the program runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn error(args: &[&str]) -> String {
    let output = skep(args);
    assert!(!output.status.success(), "{args:?}: {}", stdout(&output));
    assert_eq!(stdout(&output), "");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sets, lists and deletes what others see.
#[tokio::test]
async fn keys_are_set_shown_and_deleted() {
    let server = EtcdServer::start().await;
    let option = format!("etcd.address=http://127.0.0.1:{},etcd.limit=2", server.port());
    let ok = |args: &[&str]| {
        let mut all = vec!["kvstore", "--kvstore", "etcd", "--kvstore-opt", &option];
        all.extend(args);
        let output = skep(&all);
        assert!(output.status.success(), "{args:?}: {output:?}");
        stdout(&output)
    };
    let fails = |args: &[&str]| {
        let mut all = vec!["kvstore", "--kvstore-opt", &option];
        all.extend(args);
        error(&all)
    };

    assert_eq!(ok(&["list"]), "");
    assert_eq!(ok(&["set", "cilium/a=1=2"]), "");
    ok(&["set", "--key", "cilium/k8s:app=cart;/n", "--value", "{}"]);
    ok(&["set", "--key", "cilium/empty"]);
    ok(&["set", "other=x"]);

    assert_eq!(ok(&["get", "cilium/a"]), "cilium/a => 1=2\n");
    assert_eq!(
        ok(&["get", "--recursive", "cilium/"]),
        "cilium/a => 1=2\ncilium/empty => \ncilium/k8s:app=cart;/n => {}\n"
    );
    assert_eq!(
        ok(&["list", "cilium/"]),
        "cilium/a\ncilium/empty\ncilium/k8s:app=cart;/n\n"
    );
    let listed: serde_json::Value = serde_json::from_str(&ok(&["list", "o", "-o", "json"])).expect("JSON");
    assert_eq!(listed, serde_json::json!(["other"]));
    let json: serde_json::Value = serde_json::from_str(&ok(&["get", "other", "-o", "json"])).expect("JSON");
    assert_eq!(json["other"]["Data"], "eA==");
    assert_eq!(json["other"]["LeaseID"], 0);
    assert_eq!(fails(&["get", "cilium"]), "skep: key `cilium` is not found\n");

    ok(&["delete", "cilium/a"]);
    assert_eq!(
        fails(&["delete", "cilium/a"]),
        "skep: key `cilium/a` is not found\n"
    );
    ok(&["delete", "--recursive", "cilium/"]);
    assert_eq!(ok(&["list"]), "other\n");
}

#[test]
fn wrong_stores_are_named() {
    let text = error(&["kvstore", "--kvstore", "consul", "list"]);
    assert_eq!(
        text,
        "skep: key-value store `consul` is not supported; use `etcd`\n"
    );

    let text = error(&[
        "kvstore",
        "--kvstore",
        "etcd",
        "--kvstore-opt",
        "etcd.qps=0",
        "list",
    ]);
    assert!(text.contains("`etcd.qps`: `0` is not"), "{text}");
    assert!(
        text.contains("either `etcd.config` or `etcd.address` is required"),
        "{text}"
    );

    let text = error(&["kvstore", "--kvstore-opt", "etcd.config=/no/such/file", "list"]);
    assert!(text.contains("/no/such/file"), "{text}");

    let text = error(&["-H", "/no/such/socket", "kvstore", "list"]);
    assert!(
        text.contains("--kvstore is not given") && text.contains("/no/such/socket"),
        "{text}"
    );

    let text = error(&["kvstore", "--kvstore-opt", "nothing", "list"]);
    assert!(text.contains("expected KEY=VALUE"), "{text}");

    // Port 1 of loopback refuses connections.
    let text = error(&[
        "kvstore",
        "--kvstore-opt",
        "etcd.address=http://127.0.0.1:1",
        "list",
    ]);
    assert!(text.contains("127.0.0.1:1"), "{text}");
}
