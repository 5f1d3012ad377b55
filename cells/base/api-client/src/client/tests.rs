// SPDX-License-Identifier: Apache-2.0

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixListener,
    thread::JoinHandle,
};

use tempfile::TempDir;

use super::*;

/// An agent that answers one request in these pieces, and returns the request.
fn answering(pieces: &'static [&'static str]) -> (Client, JoinHandle<String>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let agent = move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).unwrap();
        for piece in pieces {
            stream.write_all(piece.as_bytes()).unwrap();
            std::thread::yield_now();
        }
        String::from_utf8_lossy(&request[..length]).into_owned()
    };
    let thread = std::thread::Builder::new().spawn(agent).unwrap();
    let client = Client::new(&format!("unix://{}", path.display())).unwrap();
    (client, thread, folder)
}

#[test]
fn reads_json_below_v1_and_sends_headers() {
    let (client, thread, _folder) = answering(&["HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\"", ":1}"]);

    let value: serde_json::Value = client.get("healthz", &[("brief", "true")]).unwrap();

    let request = thread.join().unwrap();
    assert_eq!(value["a"], 1);
    assert!(request.starts_with("GET /v1/healthz HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("\r\nbrief: true\r\n"), "{request}");
}

#[test]
fn a_selection_is_the_body_of_the_request() {
    let (client, thread, _folder) = answering(&["HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nnull\n"]);

    let found: Vec<u32> = client.find("identity", &["k8s:app=cart"]).unwrap();

    let request = thread.join().unwrap();
    assert_eq!(found, [0; 0], "null is a list without elements");
    assert!(request.contains("content-length: 16\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\n[\"k8s:app=cart\"]"), "{request}");
}

#[test]
fn bodies_end_by_chunks_by_length_or_with_the_connection() {
    let answers: [&'static [&'static str]; 3] = [
        &[
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nab",
            "c\r\n0a\r\n0123456789\r",
            "\n0\r\n\r\n",
        ],
        &["HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\nabc0123456789"],
        &["HTTP/1.0 200 OK\r\n\r\nabc01", "23456789"],
    ];
    for pieces in answers {
        let (client, thread, _folder) = answering(pieces);
        let mut body = Vec::new();
        let copied = client.copy("statedb/dump", &[], |piece| {
            body.extend_from_slice(piece);
            Ok(())
        });
        thread.join().unwrap();
        copied.unwrap();
        assert_eq!(body, b"abc0123456789", "{pieces:?}");
    }
}

#[test]
fn truncated_answers_are_errors() {
    for pieces in [
        &["HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n[1]"] as &'static [&'static str],
        &["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n[1]\r\n"],
        &["HTTP/1.1 200"],
        &["garbage\r\n\r\n"],
        &["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n"],
    ] {
        let (client, thread, _folder) = answering(pieces);
        let error = client.get::<Vec<u32>>("x", &[]).unwrap_err();
        thread.join().unwrap();
        assert!(matches!(error, ClientError::Broken { .. }), "{pieces:?}: {error}");
    }
}

#[test]
fn a_refusal_carries_status_and_text() {
    for (pieces, text) in [
        (
            &["HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\n\"no map\"\n"] as &'static [&'static str],
            "the agent answered 404 to GET /v1/map/x: no map",
        ),
        (
            &["HTTP/1.1 503 Service Unavailable\r\n\r\n{\"code\":503,\"message\":\"starting\"}"],
            "the agent answered 503 to GET /v1/map/x: starting",
        ),
    ] {
        let (client, thread, _folder) = answering(pieces);
        let error = client.get::<()>("map/x", &[]).unwrap_err();
        thread.join().unwrap();
        assert_eq!(error.to_string(), text);
        assert_eq!(error.is_busy(), error.status() == Some(503));
    }
}

#[test]
fn an_agent_that_does_not_answer_is_not_waited_for_forever() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let client = Client::at(&path).with_timeout(Duration::from_millis(20));

    let error = client.health(true).unwrap_err();

    let ClientError::Broken { source, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(source.kind(), io::ErrorKind::TimedOut);
}

#[test]
fn addresses_that_are_no_sockets_and_missing_sockets_are_named() {
    let error = Client::new("tcp://10.0.0.1:9090").unwrap_err().to_string();
    assert!(
        error.starts_with("`tcp://10.0.0.1:9090` is no unix socket"),
        "{error}"
    );

    let client = Client::new("/nowhere/agent.sock").unwrap();
    let error = client.configuration().unwrap_err().to_string();
    assert!(error.contains("/nowhere/agent.sock"), "{error}");
}
