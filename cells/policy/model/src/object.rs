// SPDX-License-Identifier: Apache-2.0

//! Objects, validated and turned into rules.

mod cilium;
mod cluster;
mod error;
mod icmp;
mod kubernetes;
mod layer4;
mod layer7;
mod peers;
mod rules;
mod validate;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde_json::Value;
use skep_identity::{Label, LabelSource};

pub use error::{Class, Fault, ObjectError};

use crate::{
    rule::{PolicyKind, ResourceId, RuleSet},
    selector::GROUP_NAME,
    settings::PolicySettings,
};

/// A Service, as `toServices` sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Empty for a Service whose backends are not pods of a selector.
    pub selector: BTreeMap<String, String>,
    /// Addresses of the preferred backends.
    pub backends: Vec<IpAddr>,
}

/// What the conversion of objects depends on.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub settings: &'a PolicySettings,
    pub services: &'a [Service],
}

/// A CiliumCIDRGroup: networks, and the labels that their identities have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CidrGroup {
    pub name: String,
    pub networks: Vec<IpNet>,
    pub labels: Vec<Label>,
    /// Texts that are no networks, and are left out.
    pub invalid: Vec<String>,
}

/// A validated object.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyObject {
    pub kind: PolicyKind,
    pub resource: ResourceId,
    pub namespace: String,
    pub name: String,
    pub generation: i64,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Rules(RuleSet),
    CidrGroup(CidrGroup),
}

impl PolicyObject {
    /// Validates an object and turns it into rules.
    ///
    /// # Errors
    ///
    /// [`ObjectError`] naming object and field.
    ///
    /// ```
    /// use serde_json::json;
    /// use skep_policy_model::{object::{Context, PolicyObject}, settings::PolicySettings};
    ///
    /// let object = json!({
    ///     "apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy",
    ///     "metadata": { "name": "p", "namespace": "shop" },
    ///     "spec": { "endpointSelector": {}, "ingress": [{ "fromCIDR": ["10.0.0.0/33"] }] },
    /// });
    /// let context = Context { settings: &PolicySettings::default(), services: &[] };
    /// let error = PolicyObject::parse(&object, &context).unwrap_err();
    /// assert_eq!(error.field, "spec.ingress[0].fromCIDR[0]");
    /// ```
    pub fn parse(object: &Value, context: &Context<'_>) -> Result<Self, ObjectError> {
        Self::parse_from(None, object, context)
    }

    /// [`parse`](Self::parse) for the object of a file, which names its rules.
    ///
    /// # Errors
    ///
    /// [`ObjectError`] naming object and field.
    pub fn parse_file(
        directory: &str,
        file: &str,
        object: &Value,
        context: &Context<'_>,
    ) -> Result<Self, ObjectError> {
        Self::parse_from(Some((directory, file)), object, context)
    }

    fn parse_from(
        file: Option<(&str, &str)>,
        object: &Value,
        context: &Context<'_>,
    ) -> Result<Self, ObjectError> {
        let Some((kind, namespace, name)) = identify(object) else {
            let kind = text(object, "/kind");
            let (namespace, name) = (
                text(object, "/metadata/namespace"),
                text(object, "/metadata/name"),
            );
            let fault = Fault::Kind(kind.to_owned());
            return Err(ObjectError::new(
                kind,
                namespace,
                name,
                "kind",
                Class::Decode,
                fault,
            ));
        };
        let source = Source {
            context: *context,
            kind,
            file,
            namespace,
            name,
        };
        let content = match kind {
            PolicyKind::NetworkPolicy => Content::Rules(kubernetes::convert(&source, object)?),
            PolicyKind::ClusterNetworkPolicy => Content::Rules(cluster::convert(&source, object)?),
            PolicyKind::CiliumCidrGroup => Content::CidrGroup(cidr_group(&source, object)?),
            _ => Content::Rules(rules::convert(&source, object)?),
        };
        Ok(Self {
            kind,
            resource: source.resource(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            generation: object
                .pointer("/metadata/generation")
                .and_then(Value::as_i64)
                .unwrap_or_default(),
            content,
        })
    }

    /// The resource of an object that need not be valid, to delete its rules.
    pub fn resource_of(object: &Value) -> Option<ResourceId> {
        identify(object).map(|(kind, namespace, name)| ResourceId::new(kind, namespace, name))
    }
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// Kind, namespace and name of an object that need not be valid.
fn identify(object: &Value) -> Option<(PolicyKind, &str, &str)> {
    let (namespace, name) = (
        text(object, "/metadata/namespace"),
        text(object, "/metadata/name"),
    );
    let (kind, namespace) = match text(object, "/kind") {
        "CiliumNetworkPolicy" if !namespace.is_empty() => (PolicyKind::CiliumNetworkPolicy, namespace),
        "CiliumNetworkPolicy" | "CiliumClusterwideNetworkPolicy" => {
            (PolicyKind::CiliumClusterwideNetworkPolicy, "")
        }
        "NetworkPolicy" if namespace.is_empty() => (PolicyKind::NetworkPolicy, "default"),
        "NetworkPolicy" => (PolicyKind::NetworkPolicy, namespace),
        "ClusterNetworkPolicy" => (PolicyKind::ClusterNetworkPolicy, ""),
        "CiliumCIDRGroup" => (PolicyKind::CiliumCidrGroup, ""),
        _ => return None,
    };
    Some((kind, namespace, name))
}

/// Validates the objects of a file, each by itself. No agent is needed: peers that only a cluster knows are not.
pub fn validate<'a>(
    objects: impl IntoIterator<Item = &'a Value>,
    settings: &PolicySettings,
) -> Vec<Result<PolicyObject, ObjectError>> {
    let context = Context {
        settings,
        services: &[],
    };
    objects
        .into_iter()
        .map(|object| PolicyObject::parse(object, &context))
        .collect()
}

/// The object that is converted, for errors and labels.
#[derive(Clone, Copy, Debug)]
struct Source<'a> {
    context: Context<'a>,
    kind: PolicyKind,
    /// Directory and name of the file that it is from.
    file: Option<(&'a str, &'a str)>,
    namespace: &'a str,
    name: &'a str,
}

impl Source<'_> {
    fn settings(&self) -> &PolicySettings {
        self.context.settings
    }

    fn resource(&self) -> ResourceId {
        match self.file {
            Some((directory, file)) => ResourceId::new(PolicyKind::File, directory, file),
            None => ResourceId::new(self.kind, self.namespace, self.name),
        }
    }

    fn error(&self, field: &str, class: Class, fault: Fault) -> ObjectError {
        ObjectError::new(self.kind.name(), self.namespace, self.name, field, class, fault)
    }

    fn invalid(&self, (field, fault): (String, Fault)) -> ObjectError {
        self.error(&field, Class::Invalid, fault)
    }

    fn decode<T: DeserializeOwned>(&self, object: &Value) -> Result<T, ObjectError> {
        let parts = ["spec", "specs"].map(|name| object.get(name).map(|part| (name, part)));
        for (name, part) in parts.into_iter().flatten() {
            let is_list = name == "spec" && part.is_array();
            let field = match is_list {
                true => Some(name.to_owned()),
                false => validate::list_for_object(name, part),
            };
            if let Some(field) = field {
                let fault = Fault::Decode("a list where an object is expected".to_owned());
                return Err(self.error(&field, Class::Decode, fault));
            }
        }
        serde_path_to_error::deserialize(object).map_err(|error| {
            let fault = Fault::Decode(error.inner().to_string());
            self.error(&error.path().to_string(), Class::Decode, fault)
        })
    }

    /// Labels of its rules.
    fn labels(
        &self,
        name: &str,
        uid: &str,
        more: impl IntoIterator<Item = String>,
    ) -> std::sync::Arc<[Box<str>]> {
        let mut labels = match self.file {
            Some((_, file)) => self.labels_of_file(file),
            None => self.labels_of_object(name, uid),
        };
        labels.extend(more);
        labels.sort_unstable();
        labels.into_iter().map(String::into_boxed_str).collect()
    }

    fn labels_of_object(&self, name: &str, uid: &str) -> Vec<String> {
        const KEY: &str = "k8s:io.cilium.k8s.policy";
        let mut labels = vec![
            format!("{KEY}.derived-from={}", self.kind.name()),
            format!("{KEY}.name={name}"),
            with_value(&format!("{KEY}.uid"), uid),
        ];
        if !self.namespace.is_empty() {
            labels.push(format!("{KEY}.namespace={}", self.namespace));
        }
        labels
    }

    fn labels_of_file(&self, file: &str) -> Vec<String> {
        vec![
            format!("directory:filename={file}"),
            with_value("directory:io.cilium.k8s.policy.namespace", self.namespace),
            format!("directory:policy-derived-from={}", self.kind.name()),
        ]
    }
}

/// The text of a label, which has no `=` without a value.
fn with_value(name: &str, value: &str) -> String {
    match value.is_empty() {
        true => name.to_owned(),
        false => format!("{name}={value}"),
    }
}

fn cidr_group(source: &Source<'_>, object: &Value) -> Result<CidrGroup, ObjectError> {
    #[derive(serde::Deserialize)]
    struct Group {
        metadata: cilium::Metadata,
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Spec {
        #[serde(rename = "externalCIDRs")]
        networks: Vec<String>,
    }
    let group: Group = source.decode(object)?;
    let mut made = CidrGroup {
        name: source.name.to_owned(),
        ..CidrGroup::default()
    };
    for text in group.spec.networks {
        match text.parse::<IpNet>() {
            Ok(net) => made.networks.push(net.trunc()),
            Err(_) => made.invalid.push(text),
        }
    }
    let mut label =
        |key: &str, value: &str| made.labels.extend(Label::new(LabelSource::CidrGroup, key, value));
    label(&format!("{GROUP_NAME}/{}", source.name), "");
    for (key, value) in group.metadata.labels.iter().flatten() {
        if key.starts_with("io.cilium") {
            continue;
        }
        label(&format!("{key}+{value}"), "");
        label(key, value);
    }
    Ok(made)
}
