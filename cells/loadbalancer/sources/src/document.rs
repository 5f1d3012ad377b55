// SPDX-License-Identifier: Apache-2.0

//! The state file: services and endpoint slices in YAML or JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use skep_k8s_types::slim::{EndpointSlice, Service};
use skep_k8s_types::{DecodeError, RawObject};
use skep_loadbalancer_model::types::{BackendParams, ServiceName};

use crate::convert::{self, ConvertError, Interner, Rules, ServiceFrontends};

/// How a state file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON.
    Json,
    /// YAML, of which JSON is a part.
    Yaml,
}

/// A state file whose name doesn't tell how it is written. Rename it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("could not deduce file format from {0:?}, expected .json or .yaml suffix")]
pub struct UnknownFormat(pub String);

impl Format {
    /// The format that the suffix of a file name stands for.
    pub fn of(path: &Path) -> Result<Self, UnknownFormat> {
        match path.extension().and_then(|suffix| suffix.to_str()) {
            Some("json") => Ok(Self::Json),
            Some("yaml" | "yml") => Ok(Self::Yaml),
            _ => Err(UnknownFormat(path.display().to_string())),
        }
    }
}

/// Why a state file can't be used. What was read before stays.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// No JSON.
    #[error("not a JSON document")]
    Json(#[from] serde_json::Error),
    /// No YAML.
    #[error("not a YAML document")]
    Yaml(#[from] serde_norway::Error),
    /// No object at all. Write lists `services` and `endpoints`.
    #[error("a state file is an object with lists `services` and `endpoints`, not {0}")]
    NotObject(&'static str),
    /// None of the keys that a state file may have: it is something else, or they are misspelt.
    #[error("neither `services` nor `endpoints` among the keys: {0}")]
    NoKnownKey(String),
    /// A key with something else than a list.
    #[error("`{key}` is {found}, expected a list")]
    NotList {
        /// The key.
        key: &'static str,
        /// What it has.
        found: &'static str,
    },
    /// An object that is not what the list holds.
    #[error(transparent)]
    Decode(Box<DecodeError>),
}

/// Why an object of a state file is left out. The others are in force.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Skipped {
    /// A service that can't be served.
    #[error(transparent)]
    Service(ConvertError),
    /// An endpoint slice without namespace or without the label that names its service.
    #[error("endpoint slice `{0}` belongs to no service")]
    Orphan(String),
}

#[derive(Default)]
struct Lists {
    services: Vec<Value>,
    endpoints: Vec<Value>,
    unknown: BTreeSet<String>,
}

impl Lists {
    /// The lists of a document; what has no value is as good as absent. Other versions may know more keys, and keys match
    /// in upper and lower case, as in Cilium.
    fn of(document: Value) -> Result<Self, DocumentError> {
        let mut lists = Self::default();
        let keys = match document {
            Value::Null => return Ok(lists),
            Value::Object(keys) => keys,
            other => return Err(DocumentError::NotObject(kind(&other))),
        };
        let mut is_known = keys.is_empty();
        for (name, value) in keys {
            let (key, list) = match name.to_ascii_lowercase().as_str() {
                "services" => ("services", &mut lists.services),
                "endpoints" => ("endpoints", &mut lists.endpoints),
                _ => {
                    lists.unknown.insert(name);
                    continue;
                }
            };
            is_known = true;
            match value {
                Value::Null => {}
                Value::Array(values) => *list = values,
                other => {
                    return Err(DocumentError::NotList {
                        key,
                        found: kind(&other),
                    });
                }
            }
        }
        match is_known {
            true => Ok(lists),
            false => Err(DocumentError::NoKnownKey(names(&lists.unknown))),
        }
    }
}

/// Keys, for people.
pub(crate) fn names(keys: &BTreeSet<String>) -> String {
    let quoted: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
    quoted.join(", ")
}

/// What a value is, for people.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl From<DecodeError> for DocumentError {
    fn from(error: DecodeError) -> Self {
        Self::Decode(Box::new(error))
    }
}

/// What a state file asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Services, in the order of the file.
    pub services: Vec<ServiceFrontends>,
    /// Backends by service, sorted by address; of several with one address the best state counts.
    pub backends: BTreeMap<ServiceName, Vec<BackendParams>>,
    /// Keys that mean nothing in a state file.
    pub unknown_keys: BTreeSet<String>,
    /// What is left out.
    pub skipped: Vec<Skipped>,
}

impl Document {
    /// Reads a file's text. An empty one asks for nothing.
    pub fn parse(text: &str, format: Format, rules: &Rules) -> Result<Self, DocumentError> {
        let lists = Lists::of(match format {
            _ if text.trim().is_empty() => Value::Null,
            Format::Json => serde_json::from_str(text)?,
            Format::Yaml => serde_norway::from_str(text)?,
        })?;
        let mut document = Self {
            unknown_keys: lists.unknown,
            ..Self::default()
        };
        for value in lists.services {
            let service = RawObject::from_value(Arc::new(value)).decode::<Service>()?;
            match convert::service(&service, rules) {
                Ok(service) => document.services.push(service),
                Err(error) => document.skipped.push(Skipped::Service(error)),
            }
        }
        let mut interner = Interner::default();
        for value in lists.endpoints {
            let slice = RawObject::from_value(Arc::new(value)).decode::<EndpointSlice>()?;
            let Some(converted) = convert::endpoint_slice(&slice, rules, &mut interner) else {
                let orphan = Skipped::Orphan(slice.metadata.name.to_string());
                document.skipped.push(orphan);
                continue;
            };
            document
                .backends
                .entry(converted.service)
                .or_default()
                .extend(converted.backends);
        }
        for backends in document.backends.values_mut() {
            *backends = convert::distinct(std::mem::take(backends));
        }
        Ok(document)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = r#"
services:
  - metadata: {namespace: shop, name: web}
    spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80, protocol: TCP}]}
endpoints:
  - metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
    addressType: IPv4
    endpoints: [{addresses: [10.1.0.2]}, {addresses: [10.1.0.1]}]
    ports: [{name: http, port: 8080, protocol: TCP}]
"#;

    fn parse(text: &str, format: Format) -> Result<Document, DocumentError> {
        Document::parse(text, format, &Rules::default())
    }

    #[test]
    fn suffix_tells_the_format() {
        assert_eq!(Format::of(Path::new("/a/state.yaml")), Ok(Format::Yaml));
        assert_eq!(Format::of(Path::new("state.yml")), Ok(Format::Yaml));
        assert_eq!(Format::of(Path::new("state.json")), Ok(Format::Json));
        assert_eq!(
            Format::of(Path::new("state.txt")).unwrap_err().to_string(),
            r#"could not deduce file format from "state.txt", expected .json or .yaml suffix"#
        );
    }

    #[test]
    fn both_formats_say_the_same() {
        let yaml = parse(YAML, Format::Yaml).unwrap();
        let value: Value = serde_norway::from_str(YAML).unwrap();
        let json = parse(&value.to_string(), Format::Json).unwrap();

        assert_eq!(yaml, json);
        assert_eq!(yaml.services[0].frontends.len(), 1);
        let backends = &yaml.backends[&ServiceName::new("shop", "web")];
        let addresses: Vec<String> = backends
            .iter()
            .map(|backend| backend.address.to_string())
            .collect();
        assert_eq!(addresses, ["10.1.0.1:8080/TCP", "10.1.0.2:8080/TCP"]);
    }

    #[test]
    fn empty_documents_ask_for_nothing() {
        for text in [
            "",
            " \n",
            "# only a comment\n",
            "{}",
            "services: []\nendpoints:\n",
        ] {
            assert_eq!(
                parse(text, Format::Yaml).unwrap(),
                Document::default(),
                "{text:?}"
            );
        }
        assert_eq!(parse("", Format::Json).unwrap(), Document::default());
    }

    #[test]
    fn faults_name_what_is_wrong() {
        let fault = |text| parse(text, Format::Yaml).unwrap_err().to_string();
        assert_eq!(fault("services: [unclosed"), "not a YAML document");
        assert_eq!(fault("services: 5"), "`services` is a number, expected a list");
        assert_eq!(
            fault("endpoints: {a: b}"),
            "`endpoints` is an object, expected a list"
        );
        assert_eq!(
            fault("service: []\nnote: x"),
            "neither `services` nor `endpoints` among the keys: `note`, `service`"
        );
        assert_eq!(
            fault("[]"),
            "a state file is an object with lists `services` and `endpoints`, not a list"
        );
        assert_eq!(
            fault("services: [{metadata: {namespace: a, name: b}, spec: {ports: [{port: x}]}}]"),
            r#"Service a/b: spec.ports[0].port: invalid type: string "x", expected i32"#
        );
    }

    #[test]
    fn keys_of_other_versions_are_ignored_and_match_in_any_case() {
        let strange = YAML.replace("services:", "Services:");
        let document = parse(&format!("note: x\n{strange}"), Format::Yaml).unwrap();
        assert_eq!(names(&document.unknown_keys), "`note`");
        let expected = parse(YAML, Format::Yaml).unwrap();
        assert_eq!(
            (document.services, document.backends),
            (expected.services, expected.backends)
        );

        let endpoints = YAML.replace("endpoints:\n  - meta", "endpoint:\n  - meta");
        let document = parse(&endpoints, Format::Yaml).unwrap();
        assert_eq!((document.services.len(), document.backends.len()), (1, 0));
    }

    #[test]
    fn an_object_of_no_use_leaves_the_others_in_force() {
        let text = YAML
            .replace(
                "services:",
                "services:\n  - {metadata: {namespace: a, name: b}, spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}}",
            )
            .replace("endpoints:\n", "endpoints:\n  - {metadata: {namespace: a, name: b}}\n");
        let document = parse(&text, Format::Yaml).unwrap();

        assert_eq!((document.services.len(), document.backends.len()), (1, 1));
        let skipped: Vec<String> = document.skipped.iter().map(ToString::to_string).collect();
        assert_eq!(
            skipped,
            [
                "service a/b: invalid L4 protocol \"\": unknown protocol ''",
                "endpoint slice `b` belongs to no service"
            ]
        );
    }
}
