// SPDX-License-Identifier: Apache-2.0

//! The ServiceImport and the derived Service of merged exports.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};
use skep_clustermesh_types::{ExportPort, ServiceExport};
use skep_k8s_crds::mcs::{ServiceImportPort, ServiceImportSpec, ServiceImportType, SessionAffinityConfig};
use skep_k8s_types::slim::{Labels, Metadata};
use skep_k8s_types::{ObjectKey, Resource};

use super::names;
use crate::diff::merge_patch;
use crate::object::{ImportObject, ServiceObject, ServicePort};

/// The prefix of annotations of kubectl, which belong to its users.
const KUBECTL: &str = "kubectl.kubernetes.io/";

/// What the objects have to say.
#[derive(Debug)]
pub(crate) struct Desired<'a> {
    pub(crate) key: &'a ObjectKey,
    pub(crate) export: &'a ServiceExport,
}

pub(crate) fn is_headless(export: &ServiceExport) -> bool {
    export.kind == "Headless"
}

/// A value as JSON; types of this crate always are.
fn to_value(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

impl Desired<'_> {
    fn annotations(&self) -> BTreeMap<String, String> {
        let mut annotations = self.export.annotations.clone();
        annotations.insert(
            names::DERIVED_SERVICE.to_owned(),
            names::derived(self.key).to_string(),
        );
        if self.export.ip_families.is_empty() {
            annotations.remove(names::SUPPORTED_IP_FAMILIES);
        } else {
            let families = self.export.ip_families.join(",");
            annotations.insert(names::SUPPORTED_IP_FAMILIES.to_owned(), families);
        }
        annotations
    }

    pub(crate) fn service_annotations(&self) -> BTreeMap<String, String> {
        let mut annotations = self.annotations();
        annotations.insert(names::GLOBAL_SERVICE.to_owned(), "true".to_owned());
        annotations
    }

    /// Labels of the derived Service, and of its slices.
    pub(crate) fn service_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.export.labels.clone();
        labels.insert(names::SERVICE_NAME.to_owned(), self.key.name.to_string());
        labels
    }

    fn affinity_config(&self) -> Option<Value> {
        let has_affinity = self.export.session_affinity == "ClientIP";
        let config = self.export.session_affinity_config.as_ref();
        config.filter(|_| has_affinity).map(to_value)
    }

    /// The spec of the import, with the addresses of the derived Service.
    pub(crate) fn import_spec(&self, ips: Vec<String>) -> ServiceImportSpec {
        let export = self.export;
        let config = self.affinity_config();
        ServiceImportSpec {
            internal_traffic_policy: export.internal_traffic_policy.clone(),
            ip_families: (!export.ip_families.is_empty()).then(|| export.ip_families.clone()),
            ips: (!ips.is_empty()).then_some(ips),
            ports: export.ports.iter().flatten().map(import_port).collect(),
            session_affinity: Some(export.session_affinity.clone()),
            session_affinity_config: config
                .and_then(|config| serde_json::from_value::<SessionAffinityConfig>(config).ok()),
            traffic_distribution: export.traffic_distribution.clone(),
            kind: if is_headless(export) {
                ServiceImportType::Headless
            } else {
                ServiceImportType::ClusterSetIp
            },
        }
    }

    pub(crate) fn import(&self, ips: Vec<String>) -> Value {
        let kind = ImportObject::kind();
        json!({
            "apiVersion": kind.api_version(),
            "kind": kind.kind,
            "metadata": {
                "namespace": self.key.namespace,
                "name": self.key.name,
                "labels": self.export.labels,
                "annotations": self.annotations(),
            },
            "spec": self.import_spec(ips),
        })
    }

    /// What has to change in an import.
    pub(crate) fn import_patch(&self, import: &ImportObject, ips: Vec<String>) -> Option<Value> {
        let mut patch = Map::new();
        let metadata = &import.metadata.common;
        let metadata_patch = metadata_patch(metadata, &self.export.labels, &self.annotations(), None);
        let current = import.spec.as_ref().map_or_else(|| json!({}), to_value);
        if let Some(spec) = merge_patch(&current, &to_value(self.import_spec(ips))) {
            patch.insert("spec".to_owned(), spec);
        }
        finish(patch, metadata_patch, metadata)
    }

    fn owner(&self, import: &ImportObject) -> Value {
        let kind = ImportObject::kind();
        json!([{
            "apiVersion": kind.api_version(),
            "kind": kind.kind,
            "name": self.key.name,
            "uid": import.metadata.common.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }])
    }

    fn service_ports(&self) -> Vec<ServicePort> {
        let port = |port: &ExportPort| ServicePort {
            name: (!port.name.is_empty()).then(|| port.name.as_str().into()),
            protocol: Some(port.protocol.as_str().into()),
            app_protocol: port.app_protocol.as_deref().map(Into::into),
            port: port.port,
            target_port: Some(port.port.into()),
        };
        self.export.ports.iter().flatten().map(port).collect()
    }

    pub(crate) fn service(&self, import: &ImportObject) -> Value {
        let mut spec = json!({
            "type": "ClusterIP",
            "ports": self.service_ports().iter().map(service_port).collect::<Vec<_>>(),
            "ipFamilyPolicy": "PreferDualStack",
            "sessionAffinity": self.export.session_affinity,
        });
        if is_headless(self.export) {
            spec["clusterIP"] = "None".into();
        }
        if let Some(config) = self.affinity_config() {
            spec["sessionAffinityConfig"] = config;
        }
        if let Some(policy) = &self.export.internal_traffic_policy {
            spec["internalTrafficPolicy"] = policy.as_str().into();
        }
        if let Some(distribution) = &self.export.traffic_distribution {
            spec["trafficDistribution"] = distribution.as_str().into();
        }
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "namespace": self.key.namespace,
                "name": names::derived(self.key),
                "labels": self.service_labels(),
                "annotations": self.service_annotations(),
                "ownerReferences": self.owner(import),
            },
            "spec": spec,
        })
    }

    /// What has to change in a derived Service. What API servers fill in counts as what was left out.
    pub(crate) fn service_patch(&self, service: &ServiceObject, import: &ImportObject) -> Option<Value> {
        let (spec, export) = (&service.spec, self.export);
        let metadata = &service.metadata;
        let is_owned = metadata
            .owner_references
            .iter()
            .any(|owner| owner.uid == import.metadata.common.uid && owner.kind == "ServiceImport");
        let owner = (!is_owned).then(|| self.owner(import));
        let (labels, annotations) = (self.service_labels(), self.service_annotations());
        let metadata_patch = metadata_patch(metadata, &labels, &annotations, owner);
        let mut changes = Map::new();
        let ports = self.service_ports();
        let current: Vec<ServicePort> = spec.ports.iter().map(normal).collect();
        if current != ports {
            let ports: Vec<Value> = ports.iter().map(service_port).collect();
            changes.insert("ports".to_owned(), ports.into());
        }
        let mut set = |field: &str, current: Option<&str>, default: Option<&str>, desired: Option<&str>| {
            if current.or(default) != desired.or(default) {
                changes.insert(field.to_owned(), desired.or(default).into());
            }
        };
        let none = Some("None");
        let affinity = Some(export.session_affinity.as_str());
        set(
            "sessionAffinity",
            spec.session_affinity.as_deref(),
            none,
            affinity,
        );
        set(
            "ipFamilyPolicy",
            spec.ip_family_policy.as_deref(),
            None,
            Some("PreferDualStack"),
        );
        set(
            "internalTrafficPolicy",
            spec.internal_traffic_policy.as_deref(),
            Some("Cluster"),
            export.internal_traffic_policy.as_deref(),
        );
        set(
            "trafficDistribution",
            spec.traffic_distribution.as_deref(),
            None,
            export.traffic_distribution.as_deref(),
        );
        let config = self.affinity_config();
        let is_default = config.is_none() && export.session_affinity == "ClientIP";
        if !is_default && spec.session_affinity_config != config {
            changes.insert("sessionAffinityConfig".to_owned(), config.into());
        }
        let mut patch = Map::new();
        if !changes.is_empty() {
            patch.insert("spec".to_owned(), Value::Object(changes));
        }
        finish(patch, metadata_patch, metadata)
    }
}

fn import_port(port: &ExportPort) -> ServiceImportPort {
    ServiceImportPort {
        app_protocol: port.app_protocol.clone(),
        name: (!port.name.is_empty()).then(|| port.name.clone()),
        port: port.port,
        protocol: Some(port.protocol.clone()),
    }
}

fn service_port(port: &ServicePort) -> Value {
    let mut value = to_value(port);
    if let Value::Object(fields) = &mut value {
        fields.retain(|_, value| !value.is_null());
    }
    value
}

/// A port as it would be written here.
fn normal(port: &ServicePort) -> ServicePort {
    ServicePort {
        name: port.name.clone().filter(|name| !name.is_empty()),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
        target_port: Some(port.target_port.clone().unwrap_or_else(|| port.port.into())),
        ..port.clone()
    }
}

fn labels(labels: &Labels) -> Value {
    let pairs = labels.iter().filter(|(key, _)| !key.starts_with(KUBECTL));
    Value::Object(pairs.map(|(key, value)| (key.to_owned(), value.into())).collect())
}

/// What has to change in the metadata of an object.
pub(crate) fn metadata_patch(
    metadata: &Metadata,
    desired_labels: &BTreeMap<String, String>,
    desired_annotations: &BTreeMap<String, String>,
    owner: Option<Value>,
) -> Map<String, Value> {
    let mut patch = Map::new();
    if let Some(change) = merge_patch(&labels(&metadata.labels), &to_value(desired_labels)) {
        patch.insert("labels".to_owned(), change);
    }
    if let Some(change) = merge_patch(&labels(&metadata.annotations), &to_value(desired_annotations)) {
        patch.insert("annotations".to_owned(), change);
    }
    if let Some(owner) = owner {
        patch.insert("ownerReferences".to_owned(), owner);
    }
    patch
}

/// A patch of an object in the version that was compared; `None` if nothing has to change.
fn finish(
    mut patch: Map<String, Value>,
    mut metadata_patch: Map<String, Value>,
    metadata: &Metadata,
) -> Option<Value> {
    if patch.is_empty() && metadata_patch.is_empty() {
        return None;
    }
    metadata_patch.insert(
        "resourceVersion".to_owned(),
        metadata.resource_version.as_str().into(),
    );
    patch.insert("metadata".to_owned(), Value::Object(metadata_patch));
    Some(Value::Object(patch))
}
