// SPDX-License-Identifier: Apache-2.0

//! Row of `k8s-pods`.

mod yaml;

use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use skep_k8s_types::RawObject;
use skep_k8s_types::slim::{Container, Pod};
use statedb::clock::{Clock, SystemClock};
use statedb::row::{self, BoxError};
use statedb::{Index, Row};

use super::stamp::Stamp;

/// A pod of this node. Dereferences to the pod.
#[derive(Debug, Clone)]
pub struct LocalPod {
    /// The pod.
    pub pod: Arc<Pod>,
    /// When this row was last written.
    pub updated_at: Stamp,
}

impl LocalPod {
    /// Primary index: by `namespace/name`. A prefix `namespace/` finds the pods of a namespace.
    pub const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.full_name()));

    pub(super) fn new(pod: &Arc<Pod>, clock: &Arc<dyn Clock>) -> Self {
        Self {
            pod: pod.clone(),
            updated_at: Stamp::now(clock),
        }
    }

    pub(super) fn same(&self, other: &Self) -> bool {
        *self.pod == *other.pod
    }

    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.pod.metadata.namespace, self.pod.metadata.name)
    }
}

impl Deref for LocalPod {
    type Target = Pod;

    fn deref(&self) -> &Pod {
        &self.pod
    }
}

/// `web (80/TCP (http),53/UDP)`.
fn container_text(container: &Container) -> String {
    let ports: Vec<String> = container
        .ports
        .iter()
        .map(|port| {
            let number = format!("{}/{}", port.container_port, port.protocol);
            if port.name.is_empty() {
                number
            } else {
                format!("{number} ({})", port.name)
            }
        })
        .collect();
    if ports.is_empty() {
        container.name.to_string()
    } else {
        format!("{} ({})", container.name, ports.join(","))
    }
}

/// Names of fields in the API, which YAML has in lower case.
const FIELDS: &[&str] = &[
    "apiVersion",
    "containerID",
    "containerPort",
    "containerStatuses",
    "deletionTimestamp",
    "generateName",
    "hostIP",
    "hostNetwork",
    "hostPort",
    "initContainers",
    "lastProbeTime",
    "lastTransitionTime",
    "mountPath",
    "nodeName",
    "ownerReferences",
    "podIP",
    "podIPs",
    "qosClass",
    "resourceVersion",
    "serviceAccountName",
    "startTime",
    "startedAt",
    "volumeMounts",
];

/// Fields whose keys are data.
const DATA: &[&str] = &["labels", "annotations"];

/// Renames the keys of all structures as in the API.
fn with_api_names(value: Value) -> Value {
    match value {
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| {
                let value = if DATA.contains(&key.as_str()) {
                    value
                } else {
                    with_api_names(value)
                };
                (api_name(&key), value)
            })
            .collect(),
        Value::Array(list) => list.into_iter().map(with_api_names).collect(),
        scalar => scalar,
    }
}

fn api_name(key: &str) -> String {
    FIELDS
        .iter()
        .find(|field| field.eq_ignore_ascii_case(key))
        .map_or(key, |field| field)
        .to_owned()
}

impl Row for LocalPod {
    fn header() -> &'static [&'static str] {
        &[
            "Name",
            "UID",
            "HostNetwork",
            "PodIPs",
            "Containers",
            "Phase",
            "Age",
        ]
    }

    fn cells(&self) -> Vec<String> {
        let pod = &*self.pod;
        let ips: Vec<&str> = pod.status.pod_ips.iter().map(|ip| ip.ip.as_str()).collect();
        let containers: Vec<String> = pod.spec.containers.iter().map(container_text).collect();
        vec![
            self.full_name(),
            pod.metadata.uid.to_string(),
            pod.spec.host_network.to_string(),
            ips.join(", "),
            containers.join(", "),
            pod.status.phase.to_string(),
            self.updated_at.age_text(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        let mut value = json!({"kind": "Pod", "apiVersion": "v1"});
        if let (Value::Object(value), Value::Object(fields)) = (&mut value, serde_json::to_value(&*self.pod)?)
        {
            value.extend(fields);
        }
        value["updatedAt"] = self.updated_at.at().to_string().into();
        Ok(value)
    }

    fn to_yaml(&self) -> Result<Value, BoxError> {
        Ok(json!({"pod": yaml::pod(&self.pod), "updatedAt": self.updated_at.at().to_string()}))
    }

    fn is_yaml_time(field: &str) -> bool {
        // Times of the API are texts.
        field == "updatedAt"
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Text {
            pod: Map<String, Value>,
            #[serde(rename = "updatedAt")]
            updated_at: Timestamp,
        }
        let mut text: Text = row::from_yaml(text)?;
        if let Some(metadata) = text.pod.shift_remove("objectmeta") {
            text.pod.insert("metadata".to_owned(), metadata);
        }
        let pod = RawObject::from_value(Arc::new(with_api_names(Value::Object(text.pod)))).decode()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Ok(Self {
            pod,
            updated_at: Stamp::of(&clock, text.updated_at),
        })
    }

    fn type_name() -> String {
        "k8s.LocalPod".to_owned()
    }
}
