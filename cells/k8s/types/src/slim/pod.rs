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
    /// Metadata of the object.
    #[serde(deserialize_with = "codec::object")]
    pub metadata: Metadata,
    /// Desired state.
    #[serde(deserialize_with = "codec::object")]
    pub spec: PodSpec,
    /// Observed state.
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
    /// Containers.
    #[serde(deserialize_with = "codec::objects", serialize_with = "codec::list_or_null")]
    pub containers: Box<[Container]>,
    /// Service account.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub service_account_name: Str,
    /// Node; empty until scheduled.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub node_name: Str,
    /// Uses the node's network namespace.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub host_network: bool,
}

/// A container of a [`Pod`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name, unique in the pod.
    #[serde(deserialize_with = "codec::or_zero")]
    pub name: Str,
    /// Image.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub image: Str,
    /// Ports.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub ports: Box<[ContainerPort]>,
    /// Volumes.
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
    /// Port in the pod.
    #[serde(deserialize_with = "codec::or_zero")]
    pub container_port: i32,
    /// Protocol; unset means TCP.
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
    /// Path.
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
    /// Phase.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub phase: PodPhase,
    /// Conditions.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub conditions: Box<[PodCondition]>,
    /// Address of the node.
    #[serde(
        rename = "hostIP",
        skip_serializing_if = "codec::is_zero",
        deserialize_with = "codec::or_zero"
    )]
    pub host_ip: Str,
    /// First address.
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
    /// State of the containers.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::objects")]
    pub container_statuses: Box<[ContainerStatus]>,
    /// Quality-of-service class.
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

/// A condition of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    /// Type, such as `Ready`.
    #[serde(rename = "type", deserialize_with = "codec::or_zero")]
    pub kind: Str,
    /// `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "codec::or_zero")]
    pub status: Str,
    /// When last probed.
    pub last_probe_time: Option<Timestamp>,
    /// When the status last changed.
    pub last_transition_time: Option<Timestamp>,
    /// Reason, as one word.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub reason: Str,
    /// Message for people.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub message: Str,
}

/// An address of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// Address.
    #[serde(skip_serializing_if = "codec::is_zero", deserialize_with = "codec::or_zero")]
    pub ip: Str,
}

/// State of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerStatus {
    /// Current state.
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

/// Current state of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Set if it runs.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "codec::maybe_object"
    )]
    pub running: Option<ContainerStateRunning>,
}

/// A container that runs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStateRunning {
    /// When it started.
    pub started_at: Option<Timestamp>,
}
