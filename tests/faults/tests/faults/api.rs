// SPDX-License-Identifier: Apache-2.0

//! The agent's API with bodies, names and numbers of requests that no client sends.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use futures::future::join_all;
use proptest::{
    arbitrary::any,
    prelude::{Just, Strategy, prop},
    prop_oneof,
    strategy::ValueTree as _,
    test_runner::TestRunner,
};
use serde_json::{Value, json};
use skep_faults::{Agent, Api, Outcome, World, on_node};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Requests to each operation.
const CASES: usize = 40;
/// Statuses that are no fault of the server: an unsupported operation (501), no address left, starting, identities not listed. Cilium's
/// API has 500 for some invalid names, too; of a handler, it is a text. No body is an error of the server.
const ALLOWED: [u16; 4] = [501, 502, 503, 520];
/// A feature that this agent does not have.
const DISABLED: &str = "/v1/prefilter";

/// Status and body of the answer.
fn ask(socket: &Path, method: &str, path: &str, body: &[u8]) -> Outcome<(u16, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let head = format!(
        "{method} {path} HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    // In one piece: a server that does not read the body closes the connection before it comes.
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or("no status")?, body.to_owned()))
}

/// JSON with names that the models have, among others.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f32>().prop_map(|number| json!(number)),
        "\\PC{0,20}".prop_map(Value::from),
        Just(json!("10.0.0.1")),
        Just(json!("ready")),
    ];
    let name = prop_oneof![
        "(addressing|container-id|ipv4|ipv6|id|labels|state|options|user|policy-enforcement|mac|netns-cookie)",
        "[a-z-]{0,8}",
    ];
    leaf.prop_recursive(3, 24, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(name.clone(), inner, 0..6)
                .prop_map(|members| members.into_iter().collect::<Value>()),
        ]
    })
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        json_value().prop_map(|value| value.to_string().into_bytes()),
        (json_value(), any::<prop::sample::Index>()).prop_map(|(value, end)| {
            let mut text = value.to_string().into_bytes();
            text.truncate(end.index(text.len().max(1)));
            text
        }),
        proptest::collection::vec(any::<u8>(), 0..200),
        Just(vec![b'['; 4_000]),
    ]
}

/// A part of a path, escaped.
fn name() -> impl Strategy<Value = String> {
    let text = prop_oneof![
        "[0-9]{1,25}",
        "-[0-9]{1,3}",
        "(cilium-local|container-id|pod-name|ipv4|ipv6|cni-attachment-id|foo):[a-z0-9./:]{0,20}",
        "\\PC{1,20}",
    ];
    text.prop_map(|text| {
        let escaped = text.bytes().map(|byte| match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b':' | b'-' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        });
        escaped.collect()
    })
}

fn sample<S: Strategy>(strategy: S, runner: &mut TestRunner) -> Outcome<S::Value> {
    let tree = strategy.new_tree(runner).map_err(|reason| reason.to_string())?;
    Ok(tree.current())
}

#[test]
fn no_request_is_an_error_of_the_server() {
    on_node("api-fuzz", async |world: World| {
        let api = Api::start().await?;
        let mut agent = Agent::well(&world, &api, &[]).await?;
        let socket = world.socket();
        let (_, document) = ask(&socket, "GET", "/v1/openapi.json", b"")?;
        let document: Value = serde_json::from_str(&document)?;
        let mut runner = TestRunner::deterministic();
        let mut count = 0;

        for (path, operations) in document["paths"].as_object().ok_or("no paths")? {
            if path == DISABLED {
                continue;
            }
            for (method, operation) in operations.as_object().ok_or("no operations")? {
                let (method, has_body) = (method.to_uppercase(), operation.get("requestBody").is_some());
                for _ in 0..CASES {
                    let body = sample(body(), &mut runner)?;
                    let mut path = path.clone();
                    while let Some(at) = path.find('{') {
                        let end = path[at..].find('}').ok_or("no end")? + at;
                        path.replace_range(at..=end, &sample(name(), &mut runner)?);
                    }
                    let answer = ask(&socket, &method, &path, &body);
                    let (status, answer) = answer.map_err(|error| {
                        let body = String::from_utf8_lossy(&body).into_owned();
                        format!("{method} {path} {body:?}: {error}\n{}", agent.log())
                    })?;
                    assert!(
                        status < 500
                            || ALLOWED.contains(&status)
                            || !has_body && serde_json::from_str::<String>(&answer).is_ok(),
                        "{method} {path} {:?}: {status} {answer}",
                        String::from_utf8_lossy(&body)
                    );
                    count += 1;
                }
            }
        }

        assert!(count > 20 * CASES, "{count} requests");
        assert!(!agent.log().contains("panicked"), "{}", agent.log());
        agent.wait_well(&world).await
    });
}

#[test]
fn answers_without_data_are_those_of_cilium() {
    on_node("api-empty", async |world: World| {
        let api = Api::start().await?;
        let _agent = Agent::well(&world, &api, &[]).await?;
        let socket = world.socket();
        let missing = |path: &str| json!({"code": 404, "message": format!("path {path} was not found")});

        for (method, path, expected) in [
            (
                "GET",
                "/v1/cgroup-dump-metadata",
                (200, json!({"pod-metadatas": null})),
            ),
            (
                "GET",
                "/v1/prefilter",
                (500, json!("prefilter is not enabled in daemon")),
            ),
            (
                "DELETE",
                "/v1/prefilter",
                (500, json!("prefilter is not enabled in daemon")),
            ),
            ("GET", "/v1/metrics/", (404, missing("/v1/metrics/"))),
            ("GET", "/v1/recorder", (404, missing("/v1/recorder"))),
            ("GET", "/v1/statedb/dump", (404, missing("/v1/statedb/dump"))),
            ("GET", "/v1/service/1", (404, missing("/v1/service/1"))),
            ("GET", "/v1/lrp", (200, json!([]))),
            (
                "GET",
                "/v1/identity/0",
                (200, json!({"id": 0, "labels": ["reserved:unknown"]})),
            ),
            ("GET", "/v1/identity/abc", (400, Value::Null)),
            ("GET", "/v1/identity/16777217", (404, Value::Null)),
            ("GET", "/v1/ip?cidr=203.0.113.0%2F24", (404, Value::Null)),
        ] {
            let (status, text) = ask(&socket, method, path, b"")?;
            let body: Value = serde_json::from_str(&text).unwrap_or_default();
            assert_eq!((status, body), expected, "{method} {path}: {text}");
        }
        let (status, tables) = ask(&socket, "GET", "/statedb/dump", b"")?;
        assert!(status == 200 && tables.contains("\"health\""), "{tables}");
        let (_, info) = ask(&socket, "GET", "/v1/debuginfo", b"")?;
        let info: Value = serde_json::from_str(&info)?;
        let parts: Vec<&String> = info.as_object().ok_or("no object")?.keys().collect();
        for part in [
            "cilium-memory-map",
            "cilium-status",
            "cilium-version",
            "endpoint-list",
            "environment-variables",
            "kernel-version",
            "service-list",
            "subsystem",
        ] {
            assert!(parts.iter().any(|known| *known == part), "{part}: {parts:?}");
        }
        Ok(())
    });
}

#[test]
fn a_thousand_requests_at_once_are_answered() {
    on_node("api-many", async |world: World| {
        let api = Api::start().await?;
        let _agent = Agent::well(&world, &api, &[]).await?;
        let socket = world.socket();

        let answers = join_all((0..1000).map(|number| {
            let socket = socket.clone();
            let path = ["healthz", "node/ids", "identity", "ip", "service"][number % 5];
            async move {
                let mut stream = loop {
                    match tokio::net::UnixStream::connect(&socket).await {
                        // The queue of the socket is full: others wait for a place in it.
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        stream => break stream?,
                    }
                };
                let request =
                    format!("GET /v1/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).await?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await?;
                Ok::<_, std::io::Error>(answer.lines().next().unwrap_or_default().to_owned())
            }
        }));
        let answers = tokio::time::timeout(Duration::from_secs(60), answers).await?;

        for answer in answers {
            assert_eq!(answer?, "HTTP/1.1 200 OK");
        }
        Ok(())
    });
}

#[test]
fn requests_beyond_the_limit_are_refused() {
    on_node("api-limit", async |world: World| {
        let api = Api::start().await?;
        let limit =
            "--api-rate-limit=endpoint-get=rate-limit:1/m,rate-burst:1,skip-initial:0,max-wait-duration:10ms";
        let _agent = Agent::well(&world, &api, &[limit]).await?;
        let socket = world.socket();

        let get = || ask(&socket, "GET", "/v1/endpoint/4095", b"");
        assert_eq!(get()?.0, 404);
        let (status, text) = get()?;
        assert_eq!(status, 429, "{text}");
        assert!(text.contains("max-wait-duration"), "{text}");
        Ok(())
    });
}
