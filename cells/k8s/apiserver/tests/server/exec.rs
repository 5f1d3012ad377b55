// SPDX-License-Identifier: Apache-2.0

//! Logs and programs of pods, as clients ask for them: over HTTP and WebSockets.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(
    clippy::disallowed_methods,
    reason = "what runs beside the test is no job of a hive"
)]

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use skep_k8s_apiserver::{
    ExecOptions, Execution, HttpOptions, HttpServer, LogOptions, PodRuntime, PodRuntimeError, TerminalSize,
};
use skep_k8s_memory::testing::api_server;
use skep_k8s_memory::{Gvr, WriteOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Runs programs on this machine, and keeps what it was asked for.
#[derive(Debug, Default)]
struct ThisMachine {
    logs: Mutex<Vec<LogOptions>>,
    sizes: Arc<Mutex<Vec<TerminalSize>>>,
}

#[async_trait]
impl PodRuntime for ThisMachine {
    async fn log(
        &self,
        pod: &Value,
        options: &LogOptions,
    ) -> Result<BoxStream<'static, Bytes>, PodRuntimeError> {
        self.logs.lock().unwrap().push(options.clone());
        if options.previous {
            let name = pod["metadata"]["name"].as_str().unwrap();
            return Err(PodRuntimeError::NotRunning(format!("{name} did not run before")));
        }
        let lines = ["one\n", "two\n"].map(Bytes::from);
        Ok(stream::iter(lines).boxed())
    }

    async fn exec(&self, _: &Value, options: &ExecOptions) -> Result<Execution, PodRuntimeError> {
        let mut child = tokio::process::Command::new(&options.command[0])
            .args(&options.command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Ok(Execution {
            stdin: options.stdin.then(|| Box::pin(child.stdin.take().unwrap()) as _),
            stdout: Some(Box::pin(child.stdout.take().unwrap())),
            stderr: Some(Box::pin(child.stderr.take().unwrap())),
            resize: options.tty.then(|| {
                let sizes = self.sizes.clone();
                Box::new(move |size| sizes.lock().unwrap().push(size)) as _
            }),
            ended: Box::pin(async move { Ok(child.wait().await?.code().unwrap()) }),
        })
    }
}

/// A server with a pod of two containers; it stops with the guard.
async fn serve(token: &str) -> (SocketAddr, Arc<ThisMachine>, DropGuard) {
    let api = api_server();
    let containers = json!([{ "name": "web", "image": "i" }, { "name": "side", "image": "i" }]);
    let pod = json!({ "metadata": { "name": "p" }, "spec": { "containers": containers } });
    let options = WriteOptions::default();
    api.create(&Gvr::new("", "v1", "pods"), "default", pod, &options)
        .unwrap();
    let runtime = Arc::new(ThisMachine::default());
    let options = HttpOptions {
        token: token.to_owned(),
        pods: Some(runtime.clone()),
        ..HttpOptions::default()
    };
    let server = HttpServer::bind("127.0.0.1:0".parse().unwrap(), api, options).unwrap();
    let (address, stop) = (server.address(), CancellationToken::new());
    tokio::spawn(server.serve(stop.clone()));
    (address, runtime, stop.drop_guard())
}

/// Code and body of the answer to a GET.
async fn get(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nhost: x\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

const POD: &str = "/api/v1/namespaces/default/pods/p";

/// What a program wrote to each channel, after `input` was sent, and its status.
async fn exec(address: SocketAddr, protocol: &str, query: &str, input: &[&[u8]]) -> (String, String, Value) {
    let has_stderr = !query.contains("tty=true");
    let mut request =
        format!("ws://{address}{POD}/exec?container=web&stdout=true&stderr={has_stderr}&{query}")
            .into_client_request()
            .unwrap();
    let headers = request.headers_mut();
    headers.insert("sec-websocket-protocol", protocol.parse().unwrap());
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut socket, response) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    assert_eq!(
        response.headers()["sec-websocket-protocol"],
        protocol.split(", ").last().unwrap()
    );
    for message in input {
        socket
            .send(Message::Binary(message.to_vec().into()))
            .await
            .unwrap();
    }
    let mut channels = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let mut end = None;
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Binary(bytes) => channels[usize::from(bytes[0])].extend_from_slice(&bytes[1..]),
            Message::Close(frame) => end = frame,
            _ => {}
        }
    }
    // kubectl takes an end without a code for a failure.
    assert_eq!(end.unwrap().code, CloseCode::Normal);
    let text = |channel: usize| String::from_utf8(channels[channel].clone()).unwrap();
    (text(1), text(2), serde_json::from_str(&text(3)).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_have_input_output_and_an_exit_code() {
    let (address, _, _stop) = serve("").await;

    let program = "command=sh&command=-c&command=cat;+echo+bad+%3E%262;+exit+7&stdin=true";
    let (out, err, status) = exec(
        address,
        "v5.channel.k8s.io",
        program,
        &[b"\0hello ", b"\0there\n", &[255, 0]],
    )
    .await;

    assert_eq!((out.as_str(), err.as_str()), ("hello there\n", "bad\n"));
    assert_eq!(status["reason"], "NonZeroExitCode");
    assert_eq!(
        status["details"]["causes"],
        json!([{ "reason": "ExitCode", "message": "7" }])
    );
    let (out, _, status) = exec(
        address,
        "v9.channel.k8s.io, v4.channel.k8s.io",
        "command=echo&command=a+b",
        &[],
    )
    .await;
    assert_eq!(out, "a b\n");
    assert_eq!(status["status"], "Success");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminals_take_the_size_of_the_client() {
    let (address, runtime, _stop) = serve("").await;

    let input: [&[u8]; 5] = [
        b"\x04{\"Width\":80,\"Height\":24}",
        b"\x04{\"Width\":132,\"Height\":43}",
        b"\x04{\"Width\":-1,\"Height\":43}",
        b"\x04no size",
        &[255, 0],
    ];
    let (out, _, status) = exec(
        address,
        "v5.channel.k8s.io",
        "command=sh&command=-c&command=cat;+echo+done&stdin=true&tty=true",
        &input,
    )
    .await;

    assert_eq!((out.as_str(), &status["status"]), ("done\n", &json!("Success")));
    let size = |width, height| TerminalSize { width, height };
    assert_eq!(*runtime.sizes.lock().unwrap(), [size(80, 24), size(132, 43)]);
}

/// More than what fits into pipes, in both directions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_may_write_before_it_has_read() {
    let (address, _, _stop) = serve("").await;
    let mut chunk = vec![b'x'; 10_001];
    chunk[0] = 0;
    let mut input = vec![chunk.as_slice(); 100];
    input.push(&[255, 0]);

    let (out, _, _) = exec(address, "v5.channel.k8s.io", "command=cat&stdin=true", &input).await;

    assert_eq!(out.len(), 1_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_done_is_refused_with_the_reason() {
    let (address, _, _stop) = serve("").await;
    let upgrade = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: x\r\n";
    let v5 = &format!("{upgrade}sec-websocket-protocol: v5.channel.k8s.io\r\n");
    let old = &format!("{upgrade}sec-websocket-protocol: channel.k8s.io\r\n");
    for (path, headers, code, reason) in [
        (
            "exec?command=ls",
            v5.as_str(),
            400,
            "a container name must be specified for pod p, choose one of: [web side]",
        ),
        (
            "exec?command=ls&container=db",
            v5,
            400,
            "container db is not valid for pod p",
        ),
        ("exec?container=web", v5, 400, "at least 1 command"),
        (
            "exec?container=web&command=sh&tty=true&stderr=true",
            v5,
            400,
            "tty and stderr cannot both be true",
        ),
        ("exec?container=web&command=sh", old, 400, "by WebSocket only"),
        ("exec?container=web&command=sh", "", 400, "by WebSocket only"),
        (
            "log?container=web&sinceSeconds=5",
            "",
            400,
            "sinceSeconds is unsupported",
        ),
        ("log?container=web&previous=true", "", 400, "p did not run before"),
        ("attach?container=web", "", 501, "pods/attach is not served"),
    ] {
        let (got, body) = get(address, &format!("{POD}/{path}"), headers).await;
        assert_eq!(got, code, "{path}: {body}");
        assert!(body.contains(reason), "{path}: {body}");
    }
    assert_eq!(
        get(address, "/api/v1/namespaces/default/pods/none/log", "")
            .await
            .0,
        404
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_read_as_they_are_asked_for() {
    let (address, runtime, _stop) = serve("").await;

    let path = format!("{POD}/log?container=side&follow=true&tailLines=5&limitBytes=100");
    assert_eq!(get(address, &path, "").await, (200, "one\ntwo\n".to_owned()));

    let asked = LogOptions {
        container: "side".to_owned(),
        follow: true,
        previous: false,
        tail: Some(5),
        limit: Some(100),
    };
    assert_eq!(*runtime.logs.lock().unwrap(), [asked]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_reached_with_the_token_only() {
    let (address, _, _stop) = serve("secret").await;
    let path = format!("{POD}/log?container=web");

    assert_eq!(get(address, &path, "").await.0, 401);
    assert_eq!(
        get(address, &format!("{POD}/exec?container=web&command=ls"), "")
            .await
            .0,
        401
    );
    assert_eq!(
        get(address, &path, "authorization: Bearer secret\r\n").await.0,
        200
    );
}
