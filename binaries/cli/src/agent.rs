// SPDX-License-Identifier: Apache-2.0

//! The agent's API for commands: JSON answers, and errors in the texts of Cilium's client.

use std::io;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use skep_base_api_client::{Client, ClientError, DEFAULT_SOCKET};

/// An operation of the API.
#[derive(Debug)]
pub(crate) struct Operation {
    method: &'static str,
    /// Path below `/v1`, with `{id}` or `{name}` for its parameter.
    path: &'static str,
    name: &'static str,
    /// Names of error answers, by status.
    failures: &'static [(u16, &'static str)],
}

macro_rules! operations {
    ($($id:ident = $method:literal $path:literal $name:literal { $($status:literal $failure:literal),* };)*) => {
        $(pub(crate) static $id: Operation = Operation {
            method: $method,
            path: $path,
            name: $name,
            failures: &[$(($status, $failure)),*],
        };)*
    };
}

operations! {
    LIST_ENDPOINTS = "GET" "/endpoint" "getEndpoint" { 404 "NotFound", 429 "TooManyRequests" };
    GET_ENDPOINT = "GET" "/endpoint/{id}" "getEndpointId" { 400 "Invalid", 404 "NotFound", 429 "TooManyRequests" };
    DELETE_ENDPOINT = "DELETE" "/endpoint/{id}" "deleteEndpointId" {
        206 "Errors", 400 "Invalid", 403 "Forbidden", 404 "NotFound", 429 "TooManyRequests", 503 "ServiceUnavailable" };
    GET_ENDPOINT_CONFIG = "GET" "/endpoint/{id}/config" "getEndpointIdConfig" {
        404 "NotFound", 429 "TooManyRequests" };
    PATCH_ENDPOINT_CONFIG = "PATCH" "/endpoint/{id}/config" "patchEndpointIdConfig" {
        400 "Invalid", 403 "Forbidden", 404 "NotFound", 429 "TooManyRequests", 500 "Failed", 503 "ServiceUnavailable" };
    GET_ENDPOINT_LABELS = "GET" "/endpoint/{id}/labels" "getEndpointIdLabels" {
        404 "NotFound", 429 "TooManyRequests" };
    PATCH_ENDPOINT_LABELS = "PATCH" "/endpoint/{id}/labels" "patchEndpointIdLabels" {
        403 "Forbidden", 404 "NotFound", 429 "TooManyRequests", 500 "UpdateFailed", 503 "ServiceUnavailable" };
    GET_ENDPOINT_LOG = "GET" "/endpoint/{id}/log" "getEndpointIdLog" {
        400 "Invalid", 404 "NotFound", 429 "TooManyRequests" };
    GET_ENDPOINT_HEALTH = "GET" "/endpoint/{id}/healthz" "getEndpointIdHealthz" {
        400 "Invalid", 404 "NotFound", 429 "TooManyRequests" };
    LIST_IDENTITIES = "GET" "/identity" "getIdentity" {
        404 "NotFound", 520 "Unreachable", 521 "InvalidStorageFormat" };
    GET_IDENTITY = "GET" "/identity/{id}" "getIdentityId" {
        400 "BadRequest", 404 "NotFound", 520 "Unreachable", 521 "InvalidStorageFormat" };
    LIST_IDENTITY_ENDPOINTS = "GET" "/identity/endpoints" "getIdentityEndpoints" { 404 "NotFound" };
    LIST_ADDRESSES = "GET" "/ip" "getIp" { 400 "BadRequest", 404 "NotFound" };
    LIST_NODES = "GET" "/cluster/nodes" "getClusterNodes" { };
    LIST_NODE_IDS = "GET" "/node/ids" "getNodeIds" { };
    GET_CONFIG = "GET" "/config" "getConfig" { };
    PATCH_CONFIG = "PATCH" "/config" "patchConfig" { 400 "BadRequest", 403 "Forbidden", 500 "Failure" };
    LIST_SERVICES = "GET" "/service" "getService" { };
    LIST_MAPS = "GET" "/map" "getMap" { };
    GET_MAP = "GET" "/map/{name}" "getMapName" { 404 "NotFound" };
    GET_CGROUPS = "GET" "/cgroup-dump-metadata" "getCgroupDumpMetadata" { 403 "Forbidden", 500 "Failed" };
    GET_DEBUG_INFO = "GET" "/debuginfo" "getDebuginfo" { 500 "Failure" };
    GET_HEALTH = "GET" "/healthz" "getHealthz" { };
    HEALTH_OF_NODE = "GET" "/v1beta/healthz" "getHealthz" { 500 "Failed" };
    HEALTH_OF_NODES = "GET" "/v1beta/status" "getStatus" { };
    PROBE_NODES = "PUT" "/v1beta/status/probe" "putStatusProbe" { 403 "Forbidden", 500 "Failed" };
    GET_PREFILTER = "GET" "/prefilter" "getPrefilter" { 500 "Failure" };
    PATCH_PREFILTER = "PATCH" "/prefilter" "patchPrefilter" { 403 "Forbidden", 461 "InvalidCIDR", 500 "Failure" };
    DELETE_PREFILTER = "DELETE" "/prefilter" "deletePrefilter" { 403 "Forbidden", 461 "InvalidCIDR", 500 "Failure" };
    GET_POLICY = "GET" "/policy" "getPolicy" { 404 "NotFound" };
    EXPLAIN_POLICY = "GET" "/policy/explain" "getPolicyExplain" { 400 "BadRequest", 404 "NotFound" };
    LIST_SELECTORS = "GET" "/policy/selectors" "getPolicySelectors" { };
    LIST_SUBJECT_SELECTORS = "GET" "/policy/subject-selectors" "getPolicySubjectSelectors" { };
    LIST_NAMES = "GET" "/fqdn/cache" "getFqdnCache" { 400 "BadRequest", 404 "NotFound" };
    LIST_ENDPOINT_NAMES = "GET" "/fqdn/cache/{id}" "getFqdnCacheId" { 400 "BadRequest", 404 "NotFound" };
    DELETE_NAMES = "DELETE" "/fqdn/cache" "deleteFqdnCache" { 400 "BadRequest", 403 "Forbidden" };
    GET_NAME_SELECTORS = "GET" "/fqdn/names" "getFqdnNames" { 400 "BadRequest" };
}

/// Why the API did not do what a command asked for.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct ApiError {
    text: String,
    status: Option<u16>,
}

impl ApiError {
    /// Status of the answer.
    pub(crate) fn status(&self) -> Option<u16> {
        self.status
    }
}

/// Reads what an operation returns.
pub(crate) fn get<T: DeserializeOwned>(
    agent: &Client,
    operation: &Operation,
    id: &str,
) -> Result<T, ApiError> {
    let path = operation.path(id);
    let found = agent.get(&path, &[]);
    found.map_err(|error| operation.failed(&path, error))
}

/// As [`get`], with headers.
pub(crate) fn get_with<T: DeserializeOwned>(
    agent: &Client,
    operation: &Operation,
    headers: &[(&str, &str)],
) -> Result<T, ApiError> {
    let path = operation.path("");
    let found = agent.get(&path, headers);
    found.map_err(|error| operation.failed(&path, error))
}

pub(crate) fn put<T: DeserializeOwned>(agent: &Client, operation: &Operation) -> Result<T, ApiError> {
    let path = operation.path("");
    let answer = agent.put(&path, &());
    answer.map_err(|error| operation.failed(&path, error))
}

/// As [`get`], with a query.
pub(crate) fn query<T: DeserializeOwned>(
    agent: &Client,
    operation: &Operation,
    id: &str,
    query: &[(&str, &str)],
) -> Result<T, ApiError> {
    let path = operation.path(id) + &with_query(query);
    let found = agent.get(&path, &[]);
    found.map_err(|error| operation.failed(&path, error))
}

/// As [`get`], of what a document in the body selects.
pub(crate) fn find<T: DeserializeOwned>(
    agent: &Client,
    operation: &Operation,
    selection: &impl Serialize,
) -> Result<T, ApiError> {
    let path = operation.path("");
    let found = agent.find(&path, selection);
    found.map_err(|error| operation.failed(&path, error))
}

pub(crate) fn patch(
    agent: &Client,
    operation: &Operation,
    id: &str,
    body: &impl Serialize,
) -> Result<(), ApiError> {
    let path = operation.path(id);
    let done = agent.patch(&path, body);
    done.map_err(|error| operation.failed(&path, error))
}

/// Deletes what an operation names. An answer that counts errors is one.
pub(crate) fn delete(
    agent: &Client,
    operation: &Operation,
    id: &str,
    query: &[(&str, &str)],
) -> Result<(), ApiError> {
    let path = operation.path(id) + &with_query(query);
    let left = agent
        .delete(&path)
        .map_err(|error| operation.failed(&path, error))?;
    match (left.trim(), operation.failures.first()) {
        ("" | "null", _) | (_, None) => Ok(()),
        (count, Some((206, _))) => Err(operation.answered(206, count)),
        _ => Ok(()),
    }
}

fn with_query(query: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = query
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("{name}={}", escaped(value)))
        .collect();
    if pairs.is_empty() {
        return String::new();
    }
    format!("?{}", pairs.join("&"))
}

/// A text as a part of a path or of a query (RFC 3986).
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:@$,".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

impl Operation {
    fn path(&self, id: &str) -> String {
        let path = self.path.trim_start_matches('/');
        match path.find('{') {
            Some(at) => {
                let rest = path.find('}').map_or("", |end| &path[end + 1..]);
                format!("{}{}{rest}", &path[..at], escaped(id))
            }
            None => path.to_owned(),
        }
    }

    pub(crate) fn failed(&self, path: &str, error: ClientError) -> ApiError {
        let request = || {
            let method = self.method;
            let word = format!("{}{}", &method[..1], method[1..].to_lowercase());
            let base = if path.starts_with("v1beta/") { "" } else { "v1/" };
            format!("{word} \"http://localhost/{base}{path}\"")
        };
        let text = match error {
            ClientError::Refused { status, text, .. } => return self.answered(status, &quoted(&text)),
            ClientError::Broken { source, .. } if source.kind() == io::ErrorKind::TimedOut => {
                "Cilium API client timeout exceeded".to_owned()
            }
            ClientError::Unreachable { socket, source } => {
                let socket = socket.display().to_string();
                let hint = if socket.contains(DEFAULT_SOCKET) {
                    "\nIs the agent running?"
                } else {
                    ""
                };
                format!(
                    "{}: dial unix {socket}: connect: {}{hint}",
                    request(),
                    cause(&source)
                )
            }
            ClientError::Broken { source, .. } => format!("{}: {}", request(), cause(&source)),
            error => hive_error_chain(&error),
        };
        ApiError { text, status: None }
    }

    /// An answer with an error; `payload`: its JSON.
    fn answered(&self, status: u16, payload: &str) -> ApiError {
        let Self { method, path, .. } = self;
        let failure = self.failures.iter().find(|(known, _)| *known == status);
        let text = match failure {
            Some((_, failure)) => {
                let payload = match status {
                    403 | 404 | 429 | 503 => "",
                    _ => payload,
                };
                let name = self.name;
                format!("[{method} {path}][{status}] {name}{failure} {payload}")
            }
            None => {
                let payload = if payload.is_empty() { "{}" } else { payload };
                let name = operation_id(self.name);
                format!("[{method} {path}] {name} (status {status}): {payload}")
            }
        };
        ApiError {
            text: text.trim_end().to_owned(),
            status: Some(status),
        }
    }
}

/// `getEndpointId` as `GetEndpointID`.
fn operation_id(name: &str) -> String {
    let (first, rest) = name.split_at(1);
    let rest = rest
        .replace("Id", "ID")
        .replace("IDentity", "Identity")
        .replace("IDs", "Ids");
    first.to_uppercase() + &rest
}

fn quoted(text: &str) -> String {
    match text {
        "" => String::new(),
        text => hive_script::text::json::compact(text).unwrap_or_else(|_| text.to_owned()),
    }
}

/// The text of an error of the operating system, as Go prints it.
fn cause(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "EOF".to_owned();
    }
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}

fn hive_error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    text
}

/// The texts of a JSON list.
pub(crate) fn texts(list: &Value) -> Vec<String> {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parts_of_paths() {
        assert_eq!(GET_ENDPOINT_LOG.path("7"), "endpoint/7/log");
        assert_eq!(
            GET_ENDPOINT.path("pod-name:shop/cart-0"),
            "endpoint/pod-name:shop%2Fcart-0"
        );
        assert_eq!(LIST_NODES.path(""), "cluster/nodes");
        assert_eq!(
            with_query(&[("cidr", "10.0.0.0/8"), ("x", "")]),
            "?cidr=10.0.0.0%2F8"
        );
    }

    #[test]
    fn answers_without_a_name_show_their_status() {
        assert_eq!(
            GET_ENDPOINT_CONFIG.answered(400, "").to_string(),
            "[GET /endpoint/{id}/config] GetEndpointIDConfig (status 400): {}"
        );
        assert_eq!(
            DELETE_ENDPOINT.answered(206, "1").to_string(),
            "[DELETE /endpoint/{id}][206] deleteEndpointIdErrors 1"
        );
        assert_eq!(operation_id("getIdentityId"), "GetIdentityID");
    }
}
