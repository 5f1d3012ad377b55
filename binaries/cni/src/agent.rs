// SPDX-License-Identifier: Apache-2.0

//! The agent, waited for; errors in the words of Cilium's API client.

use std::{
    error::Error as _,
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::Value;
use skep_base_api_client::{Client, ClientError, DEFAULT_SOCKET};
use skep_base_api_types::DaemonConfigurationStatus;

use crate::error::{CniError, plain};

/// How long the verbs but DEL wait for the agent.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(500);
/// How long an answer may take: an endpoint is answered for when it is ready.
const ANSWER: Duration = Duration::from_secs(120);

/// Path of the agent's socket.
pub(crate) fn socket() -> PathBuf {
    let named = std::env::var("CILIUM_SOCK").ok().filter(|path| !path.is_empty());
    named.map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from)
}

/// Waits until the agent answers.
pub(crate) fn connect(patience: Duration) -> Result<Client, CniError> {
    let socket = socket();
    let client = Client::at(&socket).with_timeout(ANSWER);
    let deadline = Instant::now() + patience;
    loop {
        let Err(error) = client.get::<Value>("config", &[]) else {
            return Ok(client);
        };
        if Instant::now() + RETRY > deadline {
            let hint = match &error {
                ClientError::Unreachable { .. } if socket == Path::new(DEFAULT_SOCKET) => {
                    "\nIs the agent running?"
                }
                _ => "",
            };
            return Err(CniError::internal(format!(
                "unable to connect to Cilium agent: failed to create cilium agent client after {:.6} seconds \
                 timeout: {}{hint}",
                patience.as_secs_f64(),
                explain(&error, "config")
            )));
        }
        std::thread::sleep(RETRY);
    }
}

/// The settings of the node.
pub(crate) fn configuration(client: &Client) -> Result<DaemonConfigurationStatus, CniError> {
    let failed =
        |cause: String| CniError::internal(format!("unable to get configuration from Cilium agent: {cause}"));
    let mut document: Value = client
        .get("config", &[])
        .map_err(|error| failed(explain(&error, "config")))?;
    match document["status"].take() {
        Value::Null => Err(CniError::internal(
            "received empty configuration object from Cilium agent",
        )),
        mut status => {
            // All settings; those of Cilium's agent are of other types.
            if let Some(status) = status.as_object_mut() {
                status.remove("daemonConfigurationMap");
            }
            serde_json::from_value(status).map_err(|error| failed(error.to_string()))
        }
    }
}

/// Statuses and their names.
type Names = &'static [(u16, &'static str)];

/// Requests by their names in Cilium's API, with the statuses that have a name; those of the second list show the answer.
const REQUESTS: [(&str, &str, &str, Names, Names); 6] = [
    ("config", "GET /config", "GetConfig", &[], &[]),
    ("healthz", "GET /healthz", "GetHealthz", &[], &[]),
    (
        "allocate",
        "POST /ipam",
        "PostIpam",
        &[(403, "Forbidden")],
        &[(502, "Failure")],
    ),
    (
        "release",
        "DELETE /ipam/{ip}",
        "DeleteIpamIP",
        &[
            (400, "Invalid"),
            (403, "Forbidden"),
            (404, "NotFound"),
            (501, "Disabled"),
        ],
        &[(500, "Failure")],
    ),
    (
        "endpoint",
        "PUT /endpoint/{id}",
        "PutEndpointID",
        &[
            (403, "Forbidden"),
            (409, "Exists"),
            (429, "TooManyRequests"),
            (503, "ServiceUnavailable"),
        ],
        &[(400, "Invalid"), (500, "Failed")],
    ),
    (
        "delete",
        "DELETE /endpoint",
        "DeleteEndpoint",
        &[
            (400, "Invalid"),
            (404, "NotFound"),
            (429, "TooManyRequests"),
            (503, "ServiceUnavailable"),
        ],
        &[],
    ),
];

/// Text of an error at a request, one of the names above or `health` of an endpoint.
pub(crate) fn explain(error: &ClientError, request: &str) -> String {
    match error {
        ClientError::Refused { status, text, .. } => match (request, status) {
            ("health", 400 | 404 | 429) => {
                let name = match status {
                    400 => "Invalid",
                    404 => "NotFound",
                    _ => "TooManyRequests",
                };
                format!("[GET /endpoint/{{id}}/healthz][{status}] getEndpointIdHealthz{name}")
            }
            ("health", _) => {
                format!("[GET /endpoint/{{id}}/healthz] GetEndpointIDHealthz (status {status}): {{}}")
            }
            _ => refused(request, *status, text),
        },
        ClientError::Unreachable { socket, source } => format!(
            "Get \"http://localhost/v1/config\": dial unix {}: connect: {}",
            socket.display(),
            plain(source)
        ),
        error => {
            let cause = error
                .source()
                .map(|cause| match cause.downcast_ref::<io::Error>() {
                    Some(cause) => plain(cause),
                    None => cause.to_string(),
                });
            format!("{error}: {}", cause.unwrap_or_default())
        }
    }
}

fn refused(request: &str, status: u16, text: &str) -> String {
    let Some((_, path, name, named, with_text)) = REQUESTS.iter().find(|known| known.0 == request) else {
        return format!("status {status}: {text}");
    };
    // `PutEndpointID` in texts with a name of the status is `putEndpointId`.
    let lower = name.replacen(&name[..1], &name[..1].to_lowercase(), 1);
    let lower = lower.replace("ID", "Id").replace("IP", "Ip");
    let find = |list: Names| {
        list.iter()
            .find(|(known, _)| *known == status)
            .map(|(_, name)| *name)
    };
    if let Some(result) = find(named) {
        format!("[{path}][{status}] {lower}{result}")
    } else if let Some(result) = find(with_text) {
        format!("[{path}][{status}] {lower}{result} {}", Value::from(text))
    } else {
        format!("[{path}] {name} (status {status}): {{}}")
    }
}
