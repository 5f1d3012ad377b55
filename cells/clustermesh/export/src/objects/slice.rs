// SPDX-License-Identifier: Apache-2.0

//! `discovery.k8s.io/v1/EndpointSlice`.

use serde::{Deserialize, Serialize};
use skep_k8s_types::slim::{EndpointConditions, Metadata, Str};

use skep_k8s_types::resource;

/// A slice of the endpoints of a service.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct EndpointSlice {
    pub(crate) metadata: Metadata,
    pub(crate) address_type: Str,
    pub(crate) endpoints: Option<Vec<EndpointWithHost>>,
    pub(crate) ports: Option<Vec<SlicePort>>,
}

/// An endpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct EndpointWithHost {
    pub(crate) addresses: Vec<Str>,
    pub(crate) conditions: Option<EndpointConditions>,
    pub(crate) hostname: Option<Str>,
    pub(crate) node_name: Option<Str>,
    pub(crate) zone: Option<Str>,
    pub(crate) hints: Option<Hints>,
}

impl EndpointWithHost {
    /// Whether it is used as a backend: also while it terminates, as long as it serves. What is unknown counts as yes.
    pub(crate) fn is_usable(&self) -> bool {
        let conditions = self.conditions.unwrap_or_default();
        let ready = conditions.ready.unwrap_or(true);
        ready || conditions.serving.unwrap_or(ready)
    }
}

/// Who should use an endpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Hints {
    pub(crate) for_zones: Option<Vec<Named>>,
    pub(crate) for_nodes: Option<Vec<Named>>,
}

/// A zone or a node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Named {
    pub(crate) name: Str,
}

/// A port of all endpoints.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SlicePort {
    pub(crate) name: Option<Str>,
    pub(crate) protocol: Option<Str>,
    pub(crate) port: Option<i32>,
    pub(crate) app_protocol: Option<Str>,
}

resource!(
    EndpointSlice,
    "discovery.k8s.io",
    "v1",
    "EndpointSlice",
    "endpointslices",
    true
);
