// SPDX-License-Identifier: Apache-2.0

//! `v1/Pod`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::codec;
use super::text::words;
use super::{Metadata, Protocol, Str};

/// A group of containers with one network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    #[serde(deserialize_with = "codec::object")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "codec::object")]
    pub spec: PodSpec,
    #[serde(deserialize_with = "codec::object")]
    pub status: PodStatus,
}

/// Desired state of a [`Pod`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Containers that run before the others, sidecars included.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub init_containers: Box<[Container]>,
    #[serde(deserialize_with = "codec::objects", serialize_with = "codec::list_or_null")]
    pub containers: Box<[Container]>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub service_account_name: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub node_name: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub host_network: bool,
}

/// A container of a [`Pod`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    #[serde(deserialize_with = "codec::or_zero")]
    pub name: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub image: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub ports: Box<[ContainerPort]>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub volume_mounts: Box<[VolumeMount]>,
}

/// A port of a [`Container`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Name, unique in the pod; may be empty.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub name: Str,
    /// Host port; 0 for none.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub host_port: i32,
    #[serde(deserialize_with = "codec::or_zero")]
    pub container_port: i32,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub protocol: Protocol,
    /// Address of the node that `host_port` is on; empty for all.
    #[serde(
        rename = "hostIP",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub host_ip: Str,
}

/// A mounted volume of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeMount {
    #[serde(deserialize_with = "codec::or_zero")]
    pub mount_path: Str,
}

words! {
    /// Phase of a pod.
    PodPhase {
        /// Accepted, not running yet.
        Pending = "Pending",
        /// At least one container runs.
        Running = "Running",
        /// All containers have exited with success.
        Succeeded = "Succeeded",
        /// All containers have exited, at least one with a failure.
        Failed = "Failed",
        /// The node does not answer.
        Unknown = "Unknown",
    }
}

/// Observed state of a [`Pod`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub phase: PodPhase,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub conditions: Box<[PodCondition]>,
    #[serde(
        rename = "hostIP",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub host_ip: Str,
    #[serde(
        rename = "podIP",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub pod_ip: Str,
    /// Addresses, at most one per family.
    #[serde(
        rename = "podIPs",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::objects"
    )]
    pub pod_ips: Box<[PodIp]>,
    /// When the node accepted the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub container_statuses: Box<[ContainerStatus]>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub qos_class: Str,
}

impl Pod {
    /// Addresses: `podIPs`, else `podIP`; without empty ones.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        let single = self
            .status
            .pod_ips
            .is_empty()
            .then_some(self.status.pod_ip.as_str());
        self.status
            .pod_ips
            .iter()
            .map(|ip| ip.ip.as_str())
            .chain(single)
            .filter(|ip| !ip.is_empty())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// Type, such as `Ready`.
    #[serde(rename = "type", deserialize_with = "codec::or_zero")]
    pub kind: Str,
    /// `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "codec::or_zero")]
    pub status: Str,
    pub last_probe_time: Option<Timestamp>,
    pub last_transition_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub reason: Str,
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub message: Str,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodIp {
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub ip: Str,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerStatus {
    #[serde(deserialize_with = "codec::object")]
    pub state: ContainerState,
    /// `<runtime>://<id>`.
    #[serde(
        rename = "containerID",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub container_id: Str,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "codec::maybe_object"
    )]
    pub running: Option<ContainerStateRunning>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStateRunning {
    pub started_at: Option<Timestamp>,
}
