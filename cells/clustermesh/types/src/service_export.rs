// SPDX-License-Identifier: Apache-2.0

//! Service exports of the multi-cluster services API.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::ValueError;
use crate::go_json;
use crate::remote::{RemoteInfo, check_object};

/// An exported service, `cilium/state/serviceexports/v1/<cluster>/<namespace>/<name>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceExport {
    pub cluster: String,
    pub name: String,
    pub namespace: String,
    /// Annotations that are exported with it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels that are exported with it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The labels once more, for readers up to version 1.19. Written by [`encode`](Self::encode), merged by
    /// [`decode`](Self::decode).
    #[serde(rename = "Labels", skip_serializing_if = "BTreeMap::is_empty")]
    legacy_labels: BTreeMap<String, String>,
    #[serde(rename = "Annotations", skip_serializing_if = "BTreeMap::is_empty")]
    legacy_annotations: BTreeMap<String, String>,
    /// When the export was created: the oldest wins conflicts. Always there in values that were read.
    #[serde(with = "time")]
    pub export_creation_timestamp: Option<Timestamp>,
    /// Ports. Absent is like empty, but written as `null`.
    pub ports: Option<Vec<ExportPort>>,
    /// `ClusterSetIP` or `Headless`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `None` or `ClientIP`.
    pub session_affinity: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// `IPv4`, `IPv6`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_families: Vec<String>,
    /// `Cluster` or `Local`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_traffic_policy: Option<String>,
    /// `PreferClose`, `PreferSameZone` or `PreferSameNode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<String>,
}

/// A port of an exported service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExportPort {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
    pub port: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    /// By the address of the client.
    #[serde(rename = "clientIP", skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<ClientIpConfig>,
}

/// Details of affinity by the address of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
}

/// Times as Kubernetes writes them: RFC 3339, UTC, whole seconds; `null` for none.
mod time {
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(super) fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.collect_str(&time.strftime("%Y-%m-%dT%H:%M:%SZ")),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        Option::<Timestamp>::deserialize(deserializer)
    }
}

fn check(field: &'static str, value: &str, supported: &[&str]) -> Result<(), ValueError> {
    if supported.contains(&value) {
        return Ok(());
    }
    Err(ValueError::Unsupported {
        field,
        value: value.to_owned(),
    })
}

impl ServiceExport {
    /// Reads the value of a remote cluster. `name` is the key below the cluster's prefix: `<namespace>/<name>`.
    ///
    /// # Errors
    ///
    /// [`ValueError`], if the value is invalid or not the cluster's.
    pub fn decode(remote: &RemoteInfo, name: &str, value: &[u8]) -> Result<Self, ValueError> {
        let mut export: Self = go_json::from_slice(value).map_err(ValueError::Json)?;
        remote.check_cluster(&export.cluster)?;
        check_object(&export.namespace, &export.name, name)?;
        if export.export_creation_timestamp.is_none() {
            return Err(ValueError::Empty {
                field: "exportCreationTimestamp",
            });
        }
        export.check_texts()?;
        // Old writers know the other spelling alone.
        let (labels, annotations) = (
            std::mem::take(&mut export.legacy_labels),
            std::mem::take(&mut export.legacy_annotations),
        );
        if export.labels.is_empty() {
            export.labels = labels;
        }
        if export.annotations.is_empty() {
            export.annotations = annotations;
        }
        Ok(export)
    }

    fn check_texts(&self) -> Result<(), ValueError> {
        check("type", &self.kind, &["ClusterSetIP", "Headless"])?;
        check("sessionAffinity", &self.session_affinity, &["None", "ClientIP"])?;
        for family in &self.ip_families {
            check("ipFamilies", family, &["IPv4", "IPv6"])?;
        }
        for port in self.ports.iter().flatten() {
            check("protocol", &port.protocol, &["TCP", "UDP", "SCTP"])?;
        }
        if let Some(policy) = &self.internal_traffic_policy {
            check("internalTrafficPolicy", policy, &["Cluster", "Local"])?;
        }
        if let Some(distribution) = &self.traffic_distribution {
            let supported = ["PreferClose", "PreferSameZone", "PreferSameNode"];
            check("trafficDistribution", distribution, &supported)?;
        }
        Ok(())
    }

    /// The value, with labels and annotations in both spellings.
    pub fn encode(&self) -> Result<Vec<u8>, ValueError> {
        let export = Self {
            legacy_labels: self.labels.clone(),
            legacy_annotations: self.annotations.clone(),
            ..self.clone()
        };
        go_json::to_vec(&export).map_err(ValueError::Encode)
    }

    /// The key below the cluster's prefix.
    pub fn key_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
