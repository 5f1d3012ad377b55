// SPDX-License-Identifier: Apache-2.0

//! Programs in pods, over a WebSocket of the API server, as `kubectl exec` starts them.

use std::time::Duration;

use futures::StreamExt as _;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde_json::Value;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::client::generate_key, protocol::Role},
};

use crate::access::{Access, AccessError, Pod, escaped, text};

const PROTOCOLS: &str = "v5.channel.k8s.io, v4.channel.k8s.io";
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// Exit code of what `timeout` ends, and of what does not answer in time.
const TIMED_OUT: i32 = 124;

/// What a program wrote, and how it ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Output {
    /// Standard output.
    pub(crate) stdout: Vec<u8>,
    /// Standard error.
    pub(crate) stderr: Vec<u8>,
    /// Exit code.
    pub(crate) code: i32,
}

impl Output {
    /// Standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The last line of the standard error, else of the standard output.
    pub(crate) fn reason(&self) -> String {
        let of = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.lines()
                .rev()
                .map(str::trim)
                .find(|line| !line.is_empty())
                .map(str::to_owned)
        };
        of(&self.stderr).or_else(|| of(&self.stdout)).unwrap_or_default()
    }
}

impl Access {
    /// Runs a program in a container, for at most `limit`.
    ///
    /// # Errors
    ///
    /// [`AccessError`] if it cannot be started. How the program ends is in the [`Output`].
    pub(crate) async fn exec(
        &self,
        pod: &Pod,
        container: &str,
        command: &[&str],
        limit: Duration,
    ) -> Result<Output, AccessError> {
        match tokio::time::timeout(limit, self.exec_unlimited(pod, container, command)).await {
            Ok(done) => done,
            Err(_) => Ok(Output {
                stderr: format!("no end within {}s", limit.as_secs()).into_bytes(),
                code: TIMED_OUT,
                ..Output::default()
            }),
        }
    }

    async fn exec_unlimited(
        &self,
        pod: &Pod,
        container: &str,
        command: &[&str],
    ) -> Result<Output, AccessError> {
        let command: String = command
            .iter()
            .map(|word| format!("&command={}", escaped(word)))
            .collect();
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/exec?container={}&stdout=true&stderr=true{command}",
            pod.namespace,
            pod.name,
            escaped(container)
        );
        let failed = |cause: Box<dyn std::error::Error + Send + Sync>| AccessError::Unreachable {
            method: Method::GET,
            path: path.clone(),
            cause,
        };
        let request = Request::builder()
            .uri(&path)
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", generate_key())
            .header("Sec-WebSocket-Protocol", PROTOCOLS)
            .body(Body::empty())
            .map_err(|error| failed(error.into()))?;
        let answer = self.client.send(request).await;
        let answer = answer.map_err(|error| failed(error.into()))?;
        let status = answer.status();
        if status != http::StatusCode::SWITCHING_PROTOCOLS {
            let body = answer.into_body().collect().await;
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            return Err(AccessError::Refused {
                method: Method::GET,
                path: format!("/api/v1/namespaces/{}/pods/{}/exec", pod.namespace, pod.name),
                status: status.as_u16(),
                message: text(&body, "/message").to_owned(),
            });
        }
        let upgraded = hyper::upgrade::on(answer).await;
        let upgraded = TokioIo::new(upgraded.map_err(|error| failed(error.into()))?);
        let mut socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await;
        let mut output = Output::default();
        while let Some(message) = socket.next().await {
            let bytes = match message.map_err(|error| failed(error.into()))? {
                Message::Binary(bytes) => bytes,
                Message::Close(_) => break,
                _ => continue,
            };
            match bytes.split_first() {
                Some((&STDOUT, bytes)) => output.stdout.extend_from_slice(bytes),
                Some((&STDERR, bytes)) => output.stderr.extend_from_slice(bytes),
                Some((&STATUS, bytes)) => {
                    let status: Value = serde_json::from_slice(bytes).unwrap_or_default();
                    output.code = code(&status);
                    if output.code != 0 && output.stderr.is_empty() {
                        output.stderr = text(&status, "/message").as_bytes().to_vec();
                    }
                }
                _ => {}
            }
        }
        Ok(output)
    }

    /// Runs `skep` in an agent, `cilium` in one of Cilium; the output if it succeeds.
    pub(crate) async fn agent(&self, agent: &Pod, arguments: &[&str]) -> Result<String, String> {
        let command: Vec<&str> = [&[agent.command()][..], arguments].concat();
        let output = self
            .exec(agent, "cilium-agent", &command, Duration::from_secs(60))
            .await
            .map_err(|error| crate::chain(&error))?;
        match output.code {
            0 => Ok(output.text()),
            code => Err(format!("exit code {code}: {}", output.reason())),
        }
    }

    /// As [`agent`](Self::agent), the output as JSON.
    pub(crate) async fn agent_json(&self, agent: &Pod, arguments: &[&str]) -> Result<Value, String> {
        let text = self.agent(agent, &[arguments, &["-o", "json"]].concat()).await?;
        serde_json::from_str(&text).map_err(|error| format!("unexpected answer: {error}"))
    }
}

/// The exit code in the status of a program.
fn code(status: &Value) -> i32 {
    if text(status, "/status") == "Success" {
        return 0;
    }
    let causes = status["details"]["causes"].as_array();
    let code = causes.into_iter().flatten().find_map(|cause| {
        let is_code = text(cause, "/reason") == "ExitCode";
        is_code.then(|| text(cause, "/message").parse().ok()).flatten()
    });
    code.unwrap_or(1)
}
