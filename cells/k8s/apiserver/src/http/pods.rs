// SPDX-License-Identifier: Apache-2.0

//! `pods/log` and `pods/exec`: passed on to whoever runs the pods.
//!
//! A program's input and output go over a WebSocket, in the protocol `v5.channel.k8s.io`, or `v4.channel.k8s.io`, which
//! cannot tell the end of the input. The first byte of a message is its channel.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use http::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{Method, Request, Response, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use skep_k8s_memory::{ApiError, object};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_tungstenite::tungstenite::{Error as WebSocketError, Message, Utf8Bytes};
use tokio_util::sync::CancellationToken;

use super::request::Query;
use super::respond::{self, Body};
use crate::pods::{ExecOptions, Execution, LogOptions, PodRuntime, PodRuntimeError, TerminalSize};

/// Protocols that are spoken, the best first.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
/// Channels of a program.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// Sizes of the client's terminal.
const RESIZE: u8 = 4;
/// Closes another channel (v5).
const CLOSE: u8 = 255;
/// How long a client may take to confirm the end.
const CLOSING: Duration = Duration::from_secs(2);
/// Messages of input that wait for a program which does not read.
const INPUT: usize = 16;

/// A call that goes to whoever runs the pod.
pub(super) enum PodCall {
    Log(Arc<dyn PodRuntime>, Arc<Value>, LogOptions),
    Exec(Arc<dyn PodRuntime>, Arc<Value>, ExecOptions, Upgrade),
}

/// What the client says about the connection that it wants to have.
pub(super) struct Upgrade {
    key: String,
    protocol: &'static str,
}

/// What goes on over a connection after the answer.
pub(super) type Session = Pin<Box<dyn Future<Output = ()> + Send>>;

impl From<PodRuntimeError> for ApiError {
    fn from(error: PodRuntimeError) -> Self {
        match error {
            PodRuntimeError::NotRunning(_) | PodRuntimeError::Unsupported(_) => {
                ApiError::bad_request(error.to_string())
            }
            PodRuntimeError::Io { .. } => ApiError::internal(&error.to_string()),
        }
    }
}

/// The container that is meant: the only one need not be named.
fn container(pod: &Value, named: &str) -> Result<String, ApiError> {
    let names_of = |field: &str| -> Vec<&str> {
        let containers = object::items(pod, &["spec", field]).iter();
        containers.map(|found| object::text(found, &["name"])).collect()
    };
    let names = names_of("containers");
    let name = object::name(pod);
    match names[..] {
        [only] if named.is_empty() => Ok(only.to_owned()),
        _ if named.is_empty() => Err(ApiError::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            names.join(" ")
        ))),
        _ if names.contains(&named) || names_of("initContainers").contains(&named) => Ok(named.to_owned()),
        _ => Err(ApiError::bad_request(format!(
            "container {named} is not valid for pod {name}"
        ))),
    }
}

/// Reads the call of a log.
pub(super) fn log_call<B>(
    runtime: Arc<dyn PodRuntime>,
    pod: Arc<Value>,
    request: &Request<B>,
) -> Result<PodCall, ApiError> {
    if request.method() != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    let query = Query::parse(request.uri().query().unwrap_or_default());
    for key in ["sinceSeconds", "sinceTime", "timestamps"] {
        if query.has(key) && query.flag(key) {
            return Err(ApiError::bad_request(format!(
                "{key} is unsupported: this server does not know when lines were written"
            )));
        }
    }
    let options = LogOptions {
        container: container(&pod, query.text("container"))?,
        follow: query.flag("follow"),
        previous: query.flag("previous"),
        tail: query.number("tailLines")?,
        limit: query.number("limitBytes")?,
    };
    Ok(PodCall::Log(runtime, pod, options))
}

/// Reads the call of a program.
pub(super) fn exec_call<B>(
    runtime: Arc<dyn PodRuntime>,
    pod: Arc<Value>,
    request: &Request<B>,
) -> Result<PodCall, ApiError> {
    let text = request.uri().query().unwrap_or_default();
    let query = Query::parse(text);
    let options = ExecOptions {
        container: container(&pod, query.text("container"))?,
        command: Query::all(text, "command"),
        stdin: query.flag("stdin"),
        stdout: query.flag("stdout"),
        stderr: query.flag("stderr"),
        tty: query.flag("tty"),
    };
    if options.command.is_empty() {
        return Err(ApiError::bad_request("you must specify at least 1 command"));
    }
    if options.tty && options.stderr {
        return Err(ApiError::bad_request("tty and stderr cannot both be true"));
    }
    let header = |name: &http::HeaderName| {
        let value = request.headers().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    };
    let offered: Vec<&str> = header(&SEC_WEBSOCKET_PROTOCOL)
        .split(',')
        .map(str::trim)
        .collect();
    let protocol = PROTOCOLS.into_iter().find(|protocol| offered.contains(protocol));
    let is_upgrade = header(&UPGRADE).eq_ignore_ascii_case("websocket");
    let (Some(protocol), true, key) = (protocol, is_upgrade, header(&SEC_WEBSOCKET_KEY)) else {
        return Err(ApiError::bad_request(format!(
            "unable to upgrade: programs are reached by WebSocket only, with protocol {} (kubectl 1.31 or later)",
            PROTOCOLS.join(" or ")
        )));
    };
    let upgrade = Upgrade {
        key: key.to_owned(),
        protocol,
    };
    Ok(PodCall::Exec(runtime, pod, options, upgrade))
}

impl PodCall {
    /// Answers, and says what goes on over the connection.
    pub(super) async fn answer(
        self,
        upgraded: OnUpgrade,
        stop: CancellationToken,
    ) -> Result<(Response<Body>, Option<Session>), ApiError> {
        match self {
            PodCall::Log(runtime, pod, options) => {
                let lines = runtime.log(&pod, &options).await?;
                Ok((respond::stream(lines.take_until(stop.cancelled_owned())), None))
            }
            PodCall::Exec(runtime, pod, options, upgrade) => {
                let execution = runtime.exec(&pod, &options).await?;
                let mut response = respond::text(101, "");
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                let headers = response.headers_mut();
                headers.clear();
                headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
                headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
                headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(upgrade.protocol));
                let accept = derive_accept_key(upgrade.key.as_bytes());
                let accept = HeaderValue::from_str(&accept).expect("base64 is a value of a header");
                headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
                Ok((response, Some(Box::pin(converse(upgraded, execution)))))
            }
        }
    }
}

/// Passes input and output on until the program has ended or the client is gone.
async fn converse(upgraded: OnUpgrade, execution: Execution) {
    let connection = match upgraded.await {
        Ok(connection) => TokioIo::new(connection),
        Err(error) => {
            tracing::debug!(error = %error, "Cannot upgrade connection");
            return;
        }
    };
    let socket = WebSocketStream::from_raw_socket(connection, Role::Server, None).await;
    if let Err(error) = pass_on(socket, execution).await {
        tracing::debug!(error = %error, "Client disconnected");
    }
}

async fn pass_on<S>(socket: WebSocketStream<S>, execution: Execution) -> Result<(), WebSocketError>
where
    S: AsyncRead + tokio::io::AsyncWrite + Unpin + Send,
{
    let (mut sink, mut messages) = socket.split();
    let Execution {
        stdin,
        mut stdout,
        mut stderr,
        mut resize,
        mut ended,
    } = execution;
    // Written beside the rest: a program that does not read its input still writes.
    let (input, mut waiting) = mpsc::channel::<Bytes>(INPUT);
    let mut input = stdin.is_some().then_some(input);
    let mut writing = Box::pin(async move {
        let Some(mut stdin) = stdin else { return };
        while let Some(bytes) = waiting.recv().await {
            if stdin.write_all(&bytes).await.is_err() || stdin.flush().await.is_err() {
                return;
            }
        }
    });
    let mut is_writing = true;
    let mut code = None;
    let (mut out, mut err) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    while code.is_none() || stdout.is_some() || stderr.is_some() {
        tokio::select! {
            read = read_some(&mut stdout, &mut out), if stdout.is_some() => {
                send(&mut sink, STDOUT, &out[..read]).await?;
            }
            read = read_some(&mut stderr, &mut err), if stderr.is_some() => {
                send(&mut sink, STDERR, &err[..read]).await?;
            }
            result = &mut ended, if code.is_none() => code = Some(result),
            () = &mut writing, if is_writing => {
                is_writing = false;
                input = None;
            }
            message = messages.next(), if input.as_ref().is_none_or(|input| input.capacity() > 0) => match message {
                Some(Ok(Message::Binary(bytes))) => match bytes.first() {
                    Some(&STDIN) => {
                        if let Some(input) = &input {
                            // There is room: it was asked for above.
                            let _ = input.try_send(bytes.slice(1..));
                        }
                    }
                    Some(&RESIZE) => {
                        if let (Some(resize), Some(size)) = (&mut resize, terminal_size(&bytes[1..])) {
                            resize(size);
                        }
                    }
                    Some(&CLOSE) if bytes.get(1) == Some(&STDIN) => input = None,
                    _ => {}
                },
                Some(Ok(Message::Close(_))) | None => return Ok(()),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
            },
        }
    }
    let status = status(code.unwrap_or(Ok(0)));
    send(&mut sink, STATUS, status.to_string().as_bytes()).await?;
    let end = CloseFrame {
        code: CloseCode::Normal,
        reason: Utf8Bytes::default(),
    };
    sink.send(Message::Close(Some(end))).await?;
    // The client answers; closed before, the connection would take what it has not read yet with it.
    let answered = async { while messages.next().await.is_some_and(|message| message.is_ok()) {} };
    let _ = tokio::time::timeout(CLOSING, answered).await;
    Ok(())
}

/// The size in a message of the client; nothing if it has none, which is no reason to end.
fn terminal_size(text: &[u8]) -> Option<TerminalSize> {
    let size: Value = serde_json::from_slice(text).ok()?;
    let number = |key: &str| u16::try_from(size.get(key)?.as_u64()?).ok();
    Some(TerminalSize {
        width: number("Width")?,
        height: number("Height")?,
    })
}

/// Reads what is there; nothing at the end, which closes the channel.
async fn read_some(from: &mut Option<Pin<Box<dyn AsyncRead + Send>>>, buffer: &mut [u8]) -> usize {
    let Some(reader) = from else {
        return std::future::pending().await;
    };
    let read = reader.read(buffer).await.unwrap_or(0);
    if read == 0 {
        *from = None;
    }
    read
}

async fn send<S>(sink: &mut S, channel: u8, bytes: &[u8]) -> Result<(), WebSocketError>
where
    S: futures::Sink<Message, Error = WebSocketError> + Unpin,
{
    if bytes.is_empty() {
        return Ok(());
    }
    let mut message = Vec::with_capacity(bytes.len() + 1);
    message.push(channel);
    message.extend_from_slice(bytes);
    sink.send(Message::Binary(message.into())).await
}

/// How a program ended, as clients read it.
fn status(ended: std::io::Result<i32>) -> Value {
    match ended {
        Ok(0) => json!({ "metadata": {}, "status": "Success" }),
        Ok(code) => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
        }),
        Err(error) => json!({
            "metadata": {}, "status": "Failure", "reason": "InternalError", "message": error.to_string(),
        }),
    }
}
