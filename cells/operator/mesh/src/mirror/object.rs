// SPDX-License-Identifier: Apache-2.0

//! Mirrored EndpointSlices.

use serde::{Deserialize, Serialize};
use skep_k8s_types::slim::{EndpointConditions, EndpointSlice, Metadata, Str};
use skep_k8s_types::{Kind, Resource};

/// A mirrored EndpointSlice, with all that is written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct MirroredSlice {
    pub(crate) metadata: Metadata,
    pub(crate) address_type: Str,
    #[serde(deserialize_with = "or_empty")]
    pub(crate) endpoints: Vec<Endpoint>,
    #[serde(deserialize_with = "or_empty")]
    pub(crate) ports: Vec<Port>,
}

/// An endpoint of a remote cluster.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Endpoint {
    #[serde(deserialize_with = "or_empty")]
    pub(crate) addresses: Vec<Str>,
    pub(crate) conditions: EndpointConditions,
    pub(crate) hostname: Option<Str>,
    pub(crate) node_name: Option<Str>,
    pub(crate) zone: Option<Str>,
    pub(crate) target_ref: Option<TargetRef>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct TargetRef {
    pub(crate) api_version: Str,
    pub(crate) kind: Str,
    pub(crate) name: Str,
    pub(crate) namespace: Str,
}

/// A port of all endpoints of a slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Port {
    pub(crate) name: Str,
    pub(crate) protocol: Str,
    pub(crate) port: i32,
}

/// Lists may be `null`.
fn or_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}

impl Resource for MirroredSlice {
    fn kind() -> Kind {
        EndpointSlice::kind()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    // Owners are read.
    fn compact(&mut self) {}
}
