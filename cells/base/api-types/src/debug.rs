// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/debuginfo`, `GET /v1/cgroup-dump-metadata`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Endpoint, Service, StatusResponse, null_if_empty};

/// What helps to find a fault.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct DebugInfo {
    /// Mapped memory of the agent.
    pub cilium_memory_map: String,
    /// Status of the agent.
    pub cilium_status: StatusResponse,
    /// Version of the agent.
    pub cilium_version: String,
    /// All endpoints.
    #[serde(deserialize_with = "crate::or_default")]
    pub endpoint_list: Vec<Endpoint>,
    /// Settings, `name:value` each, secrets masked.
    #[serde(deserialize_with = "crate::or_default")]
    pub environment_variables: Vec<String>,
    /// Version of the kernel.
    pub kernel_version: String,
    /// All services.
    #[serde(deserialize_with = "crate::or_default")]
    pub service_list: Vec<Service>,
    /// Texts of subsystems, by name.
    #[serde(deserialize_with = "crate::or_default")]
    pub subsystem: BTreeMap<String, String>,
}

/// Control groups of the node's pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct CgroupDumpMetadata {
    /// The pods.
    #[serde(deserialize_with = "crate::or_default", serialize_with = "null_if_empty")]
    pub pod_metadatas: Vec<CgroupPodMetadata>,
}

/// Control groups of a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct CgroupPodMetadata {
    /// Its containers.
    #[serde(deserialize_with = "crate::or_default")]
    pub containers: Vec<CgroupContainerMetadata>,
    /// Its addresses.
    #[serde(deserialize_with = "crate::or_default")]
    pub ips: Vec<String>,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
}

/// Control group of a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct CgroupContainerMetadata {
    /// Its id.
    pub cgroup_id: u64,
    /// Its directory.
    pub cgroup_path: String,
}
