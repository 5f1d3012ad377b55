// SPDX-License-Identifier: Apache-2.0

//! `skep kvstore` against a real etcd.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
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
    assert_eq!(fails(&["get", "cilium"]), "Error: key `cilium` is not found\n");

    ok(&["delete", "cilium/a"]);
    assert_eq!(
        fails(&["delete", "cilium/a"]),
        "Error: key `cilium/a` is not found\n"
    );
    ok(&["delete", "--recursive", "cilium/"]);
    assert_eq!(ok(&["list"]), "other\n");
}

#[tokio::test]
async fn the_connection_to_the_store_is_checked_step_by_step() {
    let server = EtcdServer::start().await;
    let folder = tempfile::tempdir().expect("there is a folder");
    let path = folder.path().join("etcd.config");
    let check = |port: u16| {
        std::fs::write(&path, format!("endpoints: [\"http://127.0.0.1:{port}\"]")).expect("it is written");
        let config = format!("--etcd-config={}", path.display());
        skep(&["troubleshoot", "kvstore", &config])
    };

    let reached = check(server.port());
    assert!(reached.status.success(), "{reached:?}");
    let text = stdout(&reached);
    assert!(
        text.starts_with(&format!(
            "📄 Configuration path: {}\n\n🔌 Endpoints:\n",
            path.display()
        )),
        "{text}"
    );
    assert!(
        text.contains("✅ Etcd connection successfully established\n"),
        "{text}"
    );

    let refused = check(1);
    assert!(!refused.status.success(), "{refused:?}");
    let text = stdout(&refused);
    assert!(
        text.contains("❌ Failed to establish TCP connection to 127.0.0.1:1: "),
        "{text}"
    );

    // An agent that is asked for its settings.
    let socket = folder.path().join("agent.sock");
    let listener = UnixListener::bind(&socket).expect("it listens");
    let address = format!("http://127.0.0.1:{}", server.port());
    let agent = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("it is asked");
        let mut request = Vec::new();
        let mut piece = [0; 1024];
        while !request.ends_with(b"\r\n\r\n") {
            let length = stream.read(&mut piece).expect("it is read");
            assert!(length > 0, "it is complete");
            request.extend_from_slice(&piece[..length]);
        }
        let store = serde_json::json!({"type": "etcd", "options": {"etcd.address": address}});
        let body = serde_json::json!({"status": {"kvstoreConfiguration": store}}).to_string();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .expect("it is answered");
    });
    let asked = skep(&["-H", &socket.display().to_string(), "troubleshoot", "kvstore"]);
    agent.join().expect("it was asked");
    assert!(asked.status.success(), "{asked:?}");
    let text = stdout(&asked);
    assert!(
        text.starts_with("🔌 Endpoints:\n   - http://127.0.0.1:"),
        "{text}"
    );

    let text = error(&["-H", "/no/such/socket", "troubleshoot", "kvstore"]);
    assert!(
        text.starts_with("Error: --etcd-config is not given, and the agent cannot be asked: ")
            && text.contains("/no/such/socket"),
        "{text}"
    );
}

#[test]
fn wrong_stores_are_named() {
    let text = error(&["kvstore", "--kvstore", "consul", "list"]);
    assert_eq!(
        text,
        "Error: key-value store `consul` is not supported; use `etcd`\n"
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
