// SPDX-License-Identifier: Apache-2.0

//! Client of the agent's API over its unix socket.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, StatusCode, body::Bytes};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::UnixStream, time::timeout};

/// Longest answer that is read: the tables of a large cluster fit several times.
const LONGEST_ANSWER: usize = 1 << 30;
/// Deadline for the head of an answer, and for each part of its body.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why the agent did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    /// No agent listens; is it running, and is the socket path right?
    #[error("cannot reach the agent at {} (is it running? see --host)", socket.display())]
    Unreachable {
        socket: PathBuf,
        /// The error of the system call.
        #[source]
        cause: io::Error,
    },
    /// The agent listens on a unix socket only.
    #[error(
        "`{host}` is no unix socket: the agent is reached at a path such as unix:///var/run/cilium/cilium.sock"
    )]
    Scheme { host: String },
    #[error("connection to the agent broke at {path}")]
    Http {
        path: String,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What the agent sent cannot be written; is the disk full?
    #[error("cannot write the output")]
    Write(#[source] io::Error),
    /// The agent answered with an error.
    #[error("the agent answered {status} to {path}: {text}")]
    Refused {
        status: StatusCode,
        path: String,
        text: String,
    },
}

/// The agent, reached over its unix socket.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    socket: PathBuf,
}

impl Agent {
    /// The agent listening on `socket`; `unix://` in front of the path is accepted.
    pub(crate) fn at(socket: &str) -> Result<Self, AgentError> {
        let path = socket.strip_prefix("unix://").unwrap_or(socket);
        if path.contains("://") {
            return Err(AgentError::Scheme {
                host: socket.to_owned(),
            });
        }
        Ok(Self {
            socket: Path::new(path).to_owned(),
        })
    }

    /// Reads the model at `/v1/<path>`.
    ///
    /// # Errors
    /// When the agent cannot be reached, or answers with an error or another document.
    pub(crate) fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<T, AgentError> {
        let call = Call {
            headers,
            ..Call::new(Method::GET, path)
        };
        decode(path, &self.body(call)?)
    }

    /// Reads the part of the model at `/v1/<path>` that a JSON document in the body selects.
    ///
    /// # Errors
    /// When the agent cannot be reached, or answers with an error or another document.
    pub(crate) fn find<T: DeserializeOwned>(
        &self,
        path: &str,
        selection: &impl Serialize,
    ) -> Result<T, AgentError> {
        let selection = serde_json::to_vec(selection).map_err(|err| undecoded(path, err))?;
        let call = Call {
            body: selection.into(),
            ..Call::new(Method::GET, path)
        };
        decode(path, &self.body(call)?)
    }

    /// Passes the body at `/v1/<path>` to `write` as it comes.
    ///
    /// # Errors
    /// When the agent cannot be reached, answers with an error or exceeds the deadline, and when `write` fails.
    pub(crate) fn copy(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), AgentError> {
        let call = Call {
            headers,
            ..Call::new(Method::GET, path)
        };
        self.read(call, PATIENCE, write)
    }

    /// As [`copy`](Self::copy), of what may pause for as long as it likes.
    ///
    /// # Errors
    /// When the agent cannot be reached or answers with an error, and when `write` fails.
    pub(crate) fn follow(
        &self,
        path: &str,
        write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), AgentError> {
        self.read(Call::new(Method::GET, path), Duration::MAX, write)
    }

    /// Deletes what is at `/v1/<path>`; returns the body of the answer.
    ///
    /// # Errors
    /// When the agent cannot be reached or answers with an error.
    pub(crate) fn delete(&self, path: &str) -> Result<String, AgentError> {
        let body = self.body(Call::new(Method::DELETE, path))?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Returns the whole body of the answer.
    fn body(&self, call: Call<'_>) -> Result<Vec<u8>, AgentError> {
        let mut body = Vec::new();
        self.read(call, PATIENCE, |piece| {
            body.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(body)
    }

    fn read(
        &self,
        call: Call<'_>,
        pause: Duration,
        write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), AgentError> {
        let failed = |cause: Box<dyn std::error::Error + Send + Sync>| AgentError::Http {
            path: call.path.clone(),
            cause,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|err| failed(err.into()))?;
        runtime.block_on(self.request(&call, pause, write))
    }

    async fn request(
        &self,
        call: &Call<'_>,
        pause: Duration,
        mut write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), AgentError> {
        let path = call.path.as_str();
        let failed = |cause: Box<dyn std::error::Error + Send + Sync>| AgentError::Http {
            path: path.to_owned(),
            cause,
        };
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|cause| AgentError::Unreachable {
                socket: self.socket.clone(),
                cause,
            })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|err| failed(err.into()))?;
        let driver = tokio::spawn(connection);
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(path)
            .header("host", "localhost")
            .header("accept", "application/json");
        for (name, value) in call.headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(Full::new(call.body.clone()))
            .map_err(|err| failed(err.into()))?;
        let silent = |_| failed("no answer in time".into());
        let response = timeout(PATIENCE, sender.send_request(request))
            .await
            .map_err(silent)?
            .map_err(|err| failed(err.into()))?;
        let status = response.status();
        let mut refusal = Vec::new();
        let mut body = Limited::new(response.into_body(), LONGEST_ANSWER);
        while let Some(frame) = timeout(pause, body.frame()).await.map_err(silent)? {
            let Ok(piece) = frame.map_err(failed)?.into_data() else {
                continue;
            };
            if status.is_success() {
                write(&piece).map_err(AgentError::Write)?;
            } else {
                refusal.extend_from_slice(&piece);
            }
        }
        driver.abort();
        if status.is_success() {
            return Ok(());
        }
        Err(AgentError::Refused {
            status,
            path: path.to_owned(),
            text: String::from_utf8_lossy(&refusal)
                .trim()
                .trim_matches('"')
                .to_owned(),
        })
    }
}

struct Call<'a> {
    method: Method,
    path: String,
    headers: &'a [(&'a str, &'a str)],
    body: Bytes,
}

impl Call<'_> {
    /// A request for what is at `/v1/<path>`.
    fn new(method: Method, path: &str) -> Self {
        Self {
            method,
            path: below_v1(path),
            headers: &[],
            body: Bytes::new(),
        }
    }
}

fn decode<T: DeserializeOwned>(path: &str, body: &[u8]) -> Result<T, AgentError> {
    // Go writes a list without elements so.
    let body = match body.trim_ascii() {
        b"null" => b"[]",
        body => body,
    };
    serde_json::from_slice(body).map_err(|err| undecoded(path, err))
}

fn undecoded(path: &str, err: serde_json::Error) -> AgentError {
    AgentError::Http {
        path: below_v1(path),
        cause: err.into(),
    }
}

fn below_v1(path: &str) -> String {
    format!("/v1/{}", path.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixListener,
    };

    use super::*;

    fn agent_answering(answer: &'static str) -> (Agent, std::thread::JoinHandle<String>, PathBuf) {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("skep-cli-{}-{count}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        (
            Agent::at(&format!("unix://{}", path.display())).unwrap(),
            thread,
            path,
        )
    }

    #[test]
    fn reads_json_below_v1_and_sends_headers() {
        let (agent, thread, path) = agent_answering("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{\"a\":1}");

        let value: serde_json::Value = agent.get("healthz", &[("brief", "true")]).unwrap();

        let request = thread.join().unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(value["a"], 1);
        assert!(request.starts_with("GET /v1/healthz HTTP/1.1"), "{request}");
        assert!(request.contains("brief: true"), "{request}");
    }

    #[test]
    fn a_selection_is_the_body_of_the_request() {
        let (agent, thread, path) = agent_answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]");

        let found: Vec<u32> = agent.find("identity", &["k8s:app=cart"]).unwrap();

        let request = thread.join().unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(found, [0; 0]);
        assert!(request.starts_with("GET /v1/identity HTTP/1.1"), "{request}");
        // The body may come after what was read.
        assert!(request.contains("content-length: 16\r\n"), "{request}");
    }

    #[test]
    fn null_is_a_list_without_elements() {
        let (agent, thread, path) = agent_answering("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nnull\n");

        let found: Vec<u32> = agent.get("service", &[]).unwrap();

        thread.join().unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(found, [0; 0]);
    }

    #[test]
    fn a_refusal_carries_status_and_text() {
        let (agent, thread, path) =
            agent_answering("HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\n\"no map\"\n");

        let err = agent.get::<()>("map/x", &[]).unwrap_err();

        thread.join().unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(
            err.to_string(),
            "the agent answered 404 Not Found to /v1/map/x: no map"
        );
    }

    #[test]
    fn other_addresses_are_refused_by_name() {
        let error = Agent::at("tcp://10.0.0.1:9090").unwrap_err();

        assert!(
            error
                .to_string()
                .starts_with("`tcp://10.0.0.1:9090` is no unix socket"),
            "{error}"
        );
    }

    #[test]
    fn a_missing_socket_names_its_path() {
        let err = Agent::at("/nowhere/agent.sock")
            .unwrap()
            .get::<()>("healthz", &[])
            .unwrap_err();
        assert!(err.to_string().contains("/nowhere/agent.sock"), "{err}");
    }
}
