// SPDX-License-Identifier: Apache-2.0

//! The Secrets with the configurations of remote clusters, as Cilium's chart names them.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};

use super::remote_config::RemoteConfig;

const OF_AGENTS: &str = "cilium-clustermesh";
const OF_KVSTOREMESH: &str = "cilium-kvstoremesh";
const MOUNT: &str = "/var/lib/cilium/clustermesh";

#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    /// The file of `--secret` cannot be read.
    #[error("--secret: cannot read `{}`", path.display())]
    Read {
        path: PathBuf,
        /// The error of the system call.
        #[source]
        cause: std::io::Error,
    },
    /// Print the Secret with `kubectl get secret NAME -o json`.
    #[error("--secret: `{}` is no JSON", path.display())]
    Json {
        path: PathBuf,
        #[source]
        cause: serde_json::Error,
    },
    #[error("--secret: `{}` has {found}; expected the Secret {expected}", path.display())]
    Other {
        path: PathBuf,
        found: String,
        expected: String,
    },
    /// The Secret has a configuration of that name, which `--replace` overwrites.
    #[error("Secret `{secret}` has another `{key}` already; --replace overwrites it")]
    Configured { secret: &'static str, key: String },
}

/// Which Secrets are to be made.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) namespace: &'a str,
    /// Whether agents read the copies of kvstoremesh.
    pub(crate) is_cached: bool,
    /// Files with the Secrets as they are.
    pub(crate) present: &'a [PathBuf],
    /// Whether a configuration of the cluster is overwritten.
    pub(crate) replaces: bool,
}

/// Makes the Secrets that configure a remote cluster, or adds it to those that are there.
pub(crate) fn secrets(config: &RemoteConfig, wanted: &Wanted<'_>) -> Result<Vec<Value>, SecretError> {
    let mount = Path::new(MOUNT);
    let name = config.name.to_string();
    let mut of_remote = vec![(name.clone(), config.file().text(mount))];
    let certificates = config.certificates();
    of_remote.extend(
        certificates
            .into_iter()
            .map(|(name, text)| (name, text.to_owned())),
    );
    let data = if wanted.is_cached {
        let cached = config.cached(wanted.namespace).text(mount);
        vec![(OF_AGENTS, vec![(name, cached)]), (OF_KVSTOREMESH, of_remote)]
    } else {
        vec![(OF_AGENTS, of_remote)]
    };

    let names: Vec<&str> = data.iter().map(|(secret, _)| *secret).collect();
    let mut present = present(wanted, &names)?;
    data.into_iter()
        .map(|(secret, files)| {
            let found = present
                .iter()
                .position(|object| object["metadata"]["name"] == secret);
            let object = match found {
                Some(index) => present.swap_remove(index),
                None => json!({
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": { "name": secret, "namespace": wanted.namespace },
                    "type": "Opaque",
                    "data": {},
                }),
            };
            add(object, secret, files, wanted.replaces)
        })
        .collect()
}

fn add(
    mut object: Value,
    secret: &'static str,
    files: Vec<(String, String)>,
    replaces: bool,
) -> Result<Value, SecretError> {
    if !object["data"].is_object() {
        object["data"] = Value::Object(Map::new());
    }
    for (key, text) in files {
        let value = Value::from(BASE64_STANDARD.encode(text));
        let is_other = object["data"].get(&key).is_some_and(|found| *found != value);
        if is_other && !replaces {
            return Err(SecretError::Configured { secret, key });
        }
        object["data"][key] = value;
    }
    Ok(object)
}

fn present(wanted: &Wanted<'_>, names: &[&str]) -> Result<Vec<Value>, SecretError> {
    let mut found: Vec<Value> = Vec::new();
    for path in wanted.present {
        let text = read(path).map_err(|cause| SecretError::Read {
            path: path.clone(),
            cause,
        })?;
        let mut object: Value = serde_json::from_str(&text).map_err(|cause| SecretError::Json {
            path: path.clone(),
            cause,
        })?;
        let text_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (kind, metadata) = (text_of(&object["kind"]), &object["metadata"]);
        let (name, namespace) = (text_of(&metadata["name"]), text_of(&metadata["namespace"]));
        let is_wanted = kind == "Secret" && names.contains(&name.as_str()) && namespace == wanted.namespace;
        let is_new = found.iter().all(|object| object["metadata"]["name"] != name);
        if !is_wanted || !is_new {
            let names: Vec<String> = names
                .iter()
                .map(|name| format!("`{}/{name}`", wanted.namespace))
                .collect();
            return Err(SecretError::Other {
                path: path.clone(),
                found: match is_new {
                    true => format!("{kind} `{namespace}/{name}`"),
                    false => format!("{kind} `{namespace}/{name}`, as a file before has"),
                },
                expected: names.join(" or "),
            });
        }
        if let Some(metadata) = object["metadata"].as_object_mut() {
            // Field ownership is managed by the server; `kubectl apply` rejects it.
            metadata.shift_remove("managedFields");
        }
        found.push(object);
    }
    Ok(found)
}

fn read(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    fs::read_to_string(path)
}
