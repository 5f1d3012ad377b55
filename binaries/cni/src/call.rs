// SPDX-License-Identifier: Apache-2.0

//! What a runtime asks for: environment, configuration on the standard input, arguments.

use std::{os::unix::fs::MetadataExt as _, path::PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    VERSIONS,
    error::{CniError, code},
    output::CniResult,
};

/// Types by which an entry of a configuration list is the plugin's own.
const TYPES: [&str; 2] = ["cilium-cni", "skep-cni"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
    Check,
    Gc,
    Status,
}

/// An invocation of the plugin.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) verb: Verb,
    pub(crate) container: String,
    pub(crate) netns: String,
    pub(crate) interface: String,
    pub(crate) path: String,
    pub(crate) arguments: String,
    pub(crate) pod: PodArguments,
    pub(crate) version: String,
    pub(crate) config: NetConf,
    pub(crate) previous: Option<CniResult>,
    /// The standard input, for other plugins.
    pub(crate) input: Vec<u8>,
}

/// The configuration of the plugin, one entry of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct NetConf {
    #[serde(rename = "type")]
    kind: String,
    pub(crate) name: String,
    #[serde(rename = "cniVersion")]
    version: String,
    pub(crate) enable_debug: bool,
    pub(crate) log_format: String,
    pub(crate) log_file: String,
    pub(crate) chaining_mode: String,
    pub(crate) enable_route_mtu: bool,
    pub(crate) ipam: Ipam,
    /// Read by the agent; here it is only validated.
    #[serde(rename = "mtu")]
    _mtu: i64,
    #[serde(rename = "prevResult")]
    previous: Option<Map<String, Value>>,
    plugins: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ipam {
    #[serde(rename = "type")]
    pub(crate) kind: String,
}

/// What `CNI_ARGS` says of the pod.
#[derive(Debug, Default, Clone)]
pub(crate) struct PodArguments {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

impl Call {
    /// Reads and validates an invocation, in the order of the reference library: its errors come first.
    pub(crate) fn read(command: &str, input: &[u8]) -> Result<Self, CniError> {
        let (verb, required): (_, &[&str]) = match command {
            "ADD" => (
                Verb::Add,
                &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
            ),
            "CHECK" => (
                Verb::Check,
                &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
            ),
            "DEL" => (Verb::Del, &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"]),
            "GC" => (Verb::Gc, &["CNI_PATH"]),
            "STATUS" => (Verb::Status, &["CNI_PATH"]),
            other => {
                let message = format!("unknown CNI_COMMAND: {other}");
                return Err(CniError::new(code::ENVIRONMENT, message));
            }
        };
        let missing: Vec<&str> = required
            .iter()
            .copied()
            .filter(|name| variable(name).is_empty())
            .collect();
        if !missing.is_empty() {
            let message = format!("required env variables [{}] missing", missing.join(","));
            return Err(CniError::new(code::ENVIRONMENT, message));
        }
        let version = network(input)?;
        let (container, interface) = (variable("CNI_CONTAINERID"), variable("CNI_IFNAME"));
        if matches!(verb, Verb::Add | Verb::Del | Verb::Check) {
            valid_container(&container)?;
            valid_interface(&interface)?;
        }
        if !VERSIONS.contains(&version.as_str()) {
            let supported: Vec<String> = VERSIONS.iter().map(|version| format!("{version:?}")).collect();
            let details = format!("config is {version:?}, plugin supports [{}]", supported.join(" "));
            return Err(CniError::detailed(
                code::VERSION,
                "incompatible CNI versions",
                details,
            ));
        }
        let since = match verb {
            Verb::Check => "0.4.0",
            Verb::Gc | Verb::Status => "1.1.0",
            Verb::Add | Verb::Del => "0.1.0",
        };
        if position(&version) < position(since) {
            let message = format!("config version does not allow {command}");
            return Err(CniError::new(code::VERSION, message));
        }
        let netns = variable("CNI_NETNS");
        if matches!(verb, Verb::Add | Verb::Del) && is_own_netns(&netns) {
            let message = "plugin's netns and netns from CNI_NETNS should not be the same";
            return Err(CniError::new(code::NETNS, message));
        }
        // What follows is the plugin's: CHECK and STATUS have codes for it.
        let has_codes = matches!(verb, Verb::Check | Verb::Status);
        let failed = |short: &str, text: String| match has_codes {
            true => CniError::detailed(code::CONFIG, short, text),
            false => CniError::internal(text),
        };
        let text = String::from_utf8_lossy(input);
        let unparsed = |cause: String| {
            let quoted = Value::from(&*text);
            failed(
                "InvalidNetworkConfig",
                format!("unable to parse CNI configuration {quoted}: {cause}"),
            )
        };
        let config = NetConf::read(input)
            .map_err(|error| unparsed(format!("failed to load netconf: json: {error}")))?;
        let previous = match &config.previous {
            None => None,
            Some(previous) => {
                let read = CniResult::read(&Value::Object(previous.clone()));
                Some(read.map_err(|error| unparsed(format!("could not parse prevResult: {error}")))?)
            }
        };
        let arguments = variable("CNI_ARGS");
        let pod = PodArguments::read(&arguments)
            .map_err(|cause| failed("InvalidArgs", format!("unable to extract CNI arguments: {cause}")))?;
        Ok(Self {
            verb,
            container,
            netns,
            interface,
            path: variable("CNI_PATH"),
            arguments,
            pod,
            version,
            config,
            previous,
            input: input.to_owned(),
        })
    }

    /// `<container>:<interface>`, the id of the attachment.
    pub(crate) fn attachment(&self) -> String {
        format!("{}:{}", self.container, self.interface)
    }

    pub(crate) fn netns_path(&self) -> PathBuf {
        PathBuf::from(&self.netns)
    }
}

/// Validates name and JSON of a configuration; returns its version.
fn network(input: &[u8]) -> Result<String, CniError> {
    let network: Map<String, Value> = serde_json::from_slice(input).map_err(|error| {
        let cause = match error.is_eof() {
            true => "unexpected end of JSON input".to_owned(),
            false => error.to_string(),
        };
        CniError::new(code::DECODE, format!("error unmarshall network config: {cause}"))
    })?;
    let text = |key: &str| {
        network
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (name, version) = (text("name"), text("cniVersion"));
    if name.is_empty() {
        return Err(CniError::new(code::CONFIG, "missing network name"));
    }
    if !is_name(&name) {
        let message = "invalid characters found in network name";
        return Err(CniError::detailed(code::CONFIG, message, name));
    }
    Ok(match version.is_empty() {
        true => VERSIONS[0].to_owned(),
        false => version,
    })
}

/// Letters and digits, behind the first one also `_`, `.` and `-`.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn valid_container(container: &str) -> Result<(), CniError> {
    if is_name(container) {
        return Ok(());
    }
    let message = "invalid characters in containerID";
    Err(CniError::detailed(code::ENVIRONMENT, message, container))
}

fn valid_interface(name: &str) -> Result<(), CniError> {
    if name.len() > 15 {
        let details = "interface name should be less than 16 characters";
        return Err(CniError::detailed(
            code::ENVIRONMENT,
            "interface name is too long",
            details,
        ));
    }
    let message = if matches!(name, "." | "..") {
        "interface name is . or .."
    } else if name.contains(|letter: char| letter == '/' || letter == ':' || letter.is_whitespace()) {
        "interface name contains / or : or whitespace characters"
    } else {
        return Ok(());
    };
    Err(CniError::new(code::ENVIRONMENT, message))
}

/// Position of a version that is served.
fn position(version: &str) -> Option<usize> {
    VERSIONS.iter().position(|served| *served == version)
}

fn is_own_netns(netns: &str) -> bool {
    let id = |path: &str| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    id(netns).is_some_and(|there| Some(there) == id("/proc/self/ns/net"))
}

impl NetConf {
    fn read(input: &[u8]) -> Result<Self, serde_json::Error> {
        let whole: Self = serde_json::from_slice(input)?;
        for entry in &whole.plugins {
            let entry = Self::deserialize(entry)?;
            if TYPES.contains(&entry.kind.as_str()) {
                return Ok(Self {
                    name: whole.name,
                    version: whole.version,
                    ..entry
                });
            }
        }
        Ok(whole)
    }
}

impl PodArguments {
    fn read(text: &str) -> Result<Self, String> {
        let mut pod = Self::default();
        let (mut unknown, mut ignores_unknown) = (Vec::new(), false);
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=').filter(|(_, value)| !value.contains('=')) else {
                return Err(format!("ARGS: invalid pair {pair:?}"));
            };
            match key {
                "K8S_POD_NAMESPACE" => value.clone_into(&mut pod.namespace),
                "K8S_POD_NAME" => value.clone_into(&mut pod.name),
                "K8S_POD_UID" => value.clone_into(&mut pod.uid),
                "K8S_POD_INFRA_CONTAINER_ID" => {}
                "IgnoreUnknown" => ignores_unknown = matches!(value.to_lowercase().as_str(), "1" | "true"),
                _ => unknown.push(format!("{pair:?}")),
            }
        }
        match unknown.is_empty() || ignores_unknown {
            true => Ok(pod),
            false => Err(format!("ARGS: unknown args [{}]", unknown.join(" "))),
        }
    }
}
