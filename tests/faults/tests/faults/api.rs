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
/// Statuses of the agent's own that are no fault of the server: not implemented, starting, identities not listed.
const ALLOWED: [u16; 3] = [501, 503, 520];

/// Status and body of the answer.
fn ask(socket: &Path, method: &str, path: &str, body: &[u8]) -> Outcome<(u16, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
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
        Just(vec![b'['; 100_000]),
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
            for method in operations.as_object().ok_or("no operations")?.keys() {
                let method = method.to_uppercase();
                for _ in 0..CASES {
                    let body = body().new_tree(&mut runner)?.current();
                    let mut path = path.clone();
                    while let Some(at) = path.find('{') {
                        let end = path[at..].find('}').ok_or("no end")? + at;
                        path.replace_range(at..=end, &name().new_tree(&mut runner)?.current());
                    }
                    let (status, answer) = ask(&socket, &method, &path, &body)?;
                    assert!(
                        status < 500 || ALLOWED.contains(&status),
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
fn a_thousand_requests_at_once_are_answered() {
    on_node("api-many", async |world: World| {
        let api = Api::start().await?;
        let _agent = Agent::well(&world, &api, &[]).await?;
        let socket = world.socket();

        let answers = join_all((0..1000).map(|number| {
            let socket = socket.clone();
            let path = ["healthz", "endpoint", "identity", "ip", "service"][number % 5];
            async move {
                let mut stream = tokio::net::UnixStream::connect(&socket).await?;
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
        assert!(text.contains("request would have to wait"), "{text}");
        Ok(())
    });
}
