// SPDX-License-Identifier: Apache-2.0

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use skep_base_api_types::{
    DaemonConfiguration, Endpoint, EndpointBatchDeleteRequest, EndpointChangeRequest, EndpointHealth,
    IpamResponse, StatusResponse,
};

use crate::{ClientError, http};

/// Socket of the agent unless configured otherwise.
pub const DEFAULT_SOCKET: &str = "/var/run/cilium/cilium.sock";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Longest answer that is kept: the tables of a large cluster fit several times.
const LONGEST: usize = 1 << 30;

/// The agent, reached over its unix socket.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    timeout: Duration,
}

impl Client {
    /// The agent that listens on `socket`; `unix://` in front of the path is accepted.
    pub fn new(socket: &str) -> Result<Self, ClientError> {
        let path = socket.strip_prefix("unix://").unwrap_or(socket);
        if path.contains("://") {
            return Err(ClientError::Address {
                address: socket.to_owned(),
            });
        }
        Ok(Self::at(Path::new(path)))
    }

    pub fn at(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
            timeout: TIMEOUT,
        }
    }

    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Reads the model at `/v1/<path>`, or at `/<path>` if that begins with `v1beta/`.
    pub fn get<T: DeserializeOwned>(&self, path: &str, headers: &[(&str, &str)]) -> Result<T, ClientError> {
        let call = Call {
            headers,
            ..Call::new("GET", path)
        };
        self.read(&call)
    }

    /// Reads the part of the model at `/v1/<path>` that a JSON document in the body selects.
    pub fn find<T: DeserializeOwned>(
        &self,
        path: &str,
        selection: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.read(&Call::new("GET", path).body(selection)?)
    }

    pub fn post<T: DeserializeOwned>(&self, path: &str, headers: &[(&str, &str)]) -> Result<T, ClientError> {
        let call = Call {
            headers,
            ..Call::new("POST", path)
        };
        self.read(&call)
    }

    pub fn put<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        self.read(&Call::new("PUT", path).body(body)?)
    }

    /// Changes what is at `/v1/<path>`.
    pub fn patch(&self, path: &str, body: &impl Serialize) -> Result<(), ClientError> {
        self.whole(&Call::new("PATCH", path).body(body)?).map(drop)
    }

    /// Deletes what is at `/v1/<path>`; returns the body of the answer.
    pub fn delete(&self, path: &str) -> Result<String, ClientError> {
        let body = self.whole(&Call::new("DELETE", path))?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Passes the body at `/v1/<path>` to `write` as it comes.
    pub fn copy(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), ClientError> {
        let call = Call {
            headers,
            ..Call::new("GET", path)
        };
        self.call(&call, Some(self.timeout), write)
    }

    /// As [`copy`](Self::copy), of what may pause for as long as it likes.
    pub fn follow(&self, path: &str, write: impl FnMut(&[u8]) -> io::Result<()>) -> Result<(), ClientError> {
        self.call(&Call::new("GET", path), None, write)
    }

    pub fn configuration(&self) -> Result<DaemonConfiguration, ClientError> {
        self.get("config", &[])
    }

    /// Status of the agent; `is_brief`: the overall state only.
    pub fn health(&self, is_brief: bool) -> Result<StatusResponse, ClientError> {
        let headers: &[_] = if is_brief { &[("brief", "true")] } else { &[] };
        self.get("healthz", headers)
    }

    /// Creates an endpoint; its id, if the request has none, is allocated by the agent.
    pub fn put_endpoint(&self, request: &EndpointChangeRequest) -> Result<Endpoint, ClientError> {
        self.put(&format!("endpoint/cilium-local:{}", request.id), request)
    }

    /// Health of an endpoint, by any identifier that the agent knows.
    pub fn endpoint_health(&self, id: &str) -> Result<EndpointHealth, ClientError> {
        self.get(&format!("endpoint/{id}/healthz"), &[])
    }

    /// Allocates an address of each family that the node has, until an endpoint names their UUIDs or they expire. The
    /// owner is `<namespace>/<pod>`.
    pub fn allocate(&self, owner: &str) -> Result<IpamResponse, ClientError> {
        let owner = owner.replace('/', "%2F");
        self.post(&format!("ipam?owner={owner}"), &[("expiration", "true")])
    }

    /// Releases an address that was allocated for no endpoint.
    pub fn release(&self, address: &str, pool: &str) -> Result<(), ClientError> {
        let query = if pool.is_empty() {
            String::new()
        } else {
            format!("?pool={pool}")
        };
        self.delete(&format!("ipam/{address}{query}")).map(drop)
    }

    /// Deletes the endpoints of a container. An agent without any answers 404.
    pub fn delete_container(&self, request: &EndpointBatchDeleteRequest) -> Result<(), ClientError> {
        let call = Call::new("DELETE", "endpoint").body(request)?;
        self.whole(&call).map(drop)
    }

    fn read<T: DeserializeOwned>(&self, call: &Call<'_>) -> Result<T, ClientError> {
        let body = self.whole(call)?;
        // Go writes a list without elements so.
        let body = match body.trim_ascii() {
            b"null" => b"[]",
            body => body,
        };
        serde_json::from_slice(body).map_err(|source| call.json(source))
    }

    fn whole(&self, call: &Call<'_>) -> Result<Vec<u8>, ClientError> {
        let mut body = Vec::new();
        self.call(call, Some(self.timeout), |piece| {
            if body.len() + piece.len() > LONGEST {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            body.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(body)
    }

    /// Sends a request and passes the body of the answer to `write`; `pause` between its parts.
    fn call(
        &self,
        call: &Call<'_>,
        pause: Option<Duration>,
        mut write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), ClientError> {
        let broken = |source: io::Error| ClientError::Broken {
            request: call.to_string(),
            source: match source.kind() {
                io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "no answer in time"),
                _ => source,
            },
        };
        let mut connection = http::Connection::open(&self.socket, self.timeout).map_err(|source| {
            ClientError::Unreachable {
                socket: self.socket.clone(),
                source,
            }
        })?;
        connection
            .send(call.method, &call.path, call.headers, &call.body)
            .map_err(broken)?;
        let mut answer = connection.answer().map_err(broken)?;
        answer.set_pause(pause).map_err(broken)?;
        let is_success = (200..300).contains(&answer.status);
        let mut text = Vec::new();
        while let Some(piece) = answer.next().map_err(broken)? {
            if is_success {
                write(&piece).map_err(ClientError::Write)?;
            } else if text.len() < LONGEST {
                text.extend_from_slice(&piece);
            }
        }
        if is_success {
            return Ok(());
        }
        Err(ClientError::Refused {
            request: call.to_string(),
            status: answer.status,
            text: refusal(&text),
        })
    }
}

/// Text of an error: a JSON string of a handler, or an object with `message`.
fn refusal(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Body {
        Text(String),
        Object { message: String },
    }
    match serde_json::from_slice(body) {
        Ok(Body::Text(text) | Body::Object { message: text }) => text,
        Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
    }
}

struct Call<'a> {
    method: &'static str,
    path: String,
    headers: &'a [(&'a str, &'a str)],
    body: Vec<u8>,
}

impl Call<'_> {
    fn new(method: &'static str, path: &str) -> Self {
        Self {
            method,
            path: match path.trim_start_matches('/') {
                beta if beta.starts_with("v1beta/") => format!("/{beta}"),
                path => format!("/v1/{path}"),
            },
            headers: &[],
            body: Vec::new(),
        }
    }

    fn body(mut self, body: &impl Serialize) -> Result<Self, ClientError> {
        self.body = serde_json::to_vec(body).map_err(|source| self.json(source))?;
        Ok(self)
    }

    fn json(&self, source: serde_json::Error) -> ClientError {
        ClientError::Json {
            request: self.to_string(),
            source,
        }
    }
}

impl std::fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

#[cfg(test)]
mod tests;
