// SPDX-License-Identifier: Apache-2.0

//! `v1/Service`.

use serde::{Deserialize, Serialize};
use skep_k8s_types::slim::{Labels, Metadata, SessionAffinityConfig, Str};

use skep_k8s_types::resource;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Service {
    pub(crate) metadata: Metadata,
    pub(crate) spec: ServiceSpec,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServiceSpec {
    pub(crate) ports: Option<Vec<ServicePort>>,
    pub(crate) selector: Option<Labels>,
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: Option<Str>,
    #[serde(rename = "clusterIPs")]
    pub(crate) cluster_ips: Option<Vec<Str>>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<Str>,
    pub(crate) session_affinity: Option<Str>,
    pub(crate) session_affinity_config: Option<SessionAffinityConfig>,
    pub(crate) ip_families: Option<Vec<Str>>,
    pub(crate) internal_traffic_policy: Option<Str>,
    pub(crate) traffic_distribution: Option<Str>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServicePort {
    pub(crate) name: Option<Str>,
    pub(crate) protocol: Option<Str>,
    pub(crate) port: i32,
    pub(crate) app_protocol: Option<Str>,
}

resource!(Service, "", "v1", "Service", "services", true);
