// SPDX-License-Identifier: Apache-2.0

//! Projected volumes as the specification of a pod has them.

use std::collections::BTreeMap;

use serde_json::Value;

/// Lifetime of a token if the volume does not say.
const LIFETIME: u64 = 3600;
/// A volume that is mounted into a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    pub(super) name: String,
    pub(super) targets: Vec<String>,
    pub(super) mode: u32,
    pub(super) sources: Vec<Source>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Source {
    Token(Token),
    ConfigMap {
        name: String,
        is_optional: bool,
        /// Keys and their files; all of them if there are none.
        items: Vec<(String, String)>,
    },
    /// A file and what is in it.
    Text(String, String),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) path: String,
    pub(super) audience: Option<String>,
    pub(super) lifetime: u64,
}

/// Reads the projected volumes that containers of a pod mount.
pub(crate) fn read(pod: &Value) -> Vec<Volume> {
    let list = |value: &Value, pointer: &str| -> Vec<Value> {
        let found = value.pointer(pointer).and_then(Value::as_array);
        found.cloned().unwrap_or_default()
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mounts: Vec<(String, String)> = list(pod, "/spec/containers")
        .iter()
        .flat_map(|container| list(container, "/volumeMounts"))
        .map(|mount| (text(&mount["name"]), text(&mount["mountPath"])))
        .collect();
    let mut volumes = Vec::new();
    for volume in list(pod, "/spec/volumes") {
        let (name, projected) = (text(&volume["name"]), &volume["projected"]);
        let mut targets: Vec<String> = mounts
            .iter()
            .filter(|(mounted, path)| *mounted == name && path.starts_with('/'))
            .map(|(_, path)| path.clone())
            .collect();
        targets.sort();
        targets.dedup();
        if !projected.is_object() || targets.is_empty() {
            continue;
        }
        let mode = projected["defaultMode"]
            .as_u64()
            .and_then(|mode| mode.try_into().ok());
        let mut sources = Vec::new();
        for source in list(projected, "/sources") {
            let token = &source["serviceAccountToken"];
            if token.is_object() {
                sources.push(Source::Token(Token {
                    path: text(&token["path"]),
                    audience: token["audience"].as_str().map(str::to_owned),
                    lifetime: token["expirationSeconds"].as_u64().unwrap_or(LIFETIME),
                }));
            }
            let config = &source["configMap"];
            if config.is_object() {
                let items = list(config, "/items");
                sources.push(Source::ConfigMap {
                    name: text(&config["name"]),
                    is_optional: config["optional"] == true,
                    items: items
                        .iter()
                        .map(|item| (text(&item["key"]), text(&item["path"])))
                        .collect(),
                });
            }
            for item in list(&source, "/downwardAPI/items") {
                let field = text(&item["fieldRef"]["fieldPath"]);
                sources.push(Source::Text(text(&item["path"]), own_field(pod, &field)));
            }
        }
        volumes.push(Volume {
            name,
            targets,
            mode: mode.unwrap_or(0o644),
            sources,
        });
    }
    volumes
}

/// A field of a pod's metadata as its files show it.
fn own_field(pod: &Value, path: &str) -> String {
    match path {
        "metadata.labels" | "metadata.annotations" => {
            let all = pod.pointer(&format!("/{}", path.replace('.', "/")));
            let all: BTreeMap<&str, &str> = all
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
                .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
                .collect();
            all.iter()
                .map(|(key, value)| format!("{key}={value:?}\n"))
                .collect()
        }
        _ => {
            let value = pod.pointer(&format!("/{}", path.replace('.', "/")));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        }
    }
}
