// SPDX-License-Identifier: Apache-2.0

//! `discovery.k8s.io/v1/EndpointSlice`.

use serde::{Deserialize, Serialize};
use skep_clustermesh_types::{
    self as wire, ClusterEndpointSlice, Conditions, Endpoint, EndpointPort, NamedHint, TextEntry,
};
use skep_k8s_types::resource;
use skep_k8s_types::slim::{EndpointConditions, Labels, Metadata, Str};

/// A slice of the endpoints of a service.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct EndpointSlice {
    pub(crate) metadata: Metadata,
    pub(crate) address_type: Str,
    pub(crate) endpoints: Option<Vec<EndpointWithHost>>,
    pub(crate) ports: Option<Vec<SlicePort>>,
}

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

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Hints {
    pub(crate) for_zones: Option<Vec<Named>>,
    pub(crate) for_nodes: Option<Vec<Named>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Named {
    pub(crate) name: Str,
}

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

impl EndpointSlice {
    /// The slice as other clusters read it, but for the cluster that it is of.
    pub(crate) fn message(&self) -> ClusterEndpointSlice {
        let metadata = &self.metadata;
        let ports = self.ports.iter().flatten().map(|port| EndpointPort {
            name: Some(port.name.clone().unwrap_or_default().into()),
            protocol: port.protocol.clone().map(Into::into),
            port: port.port,
            app_protocol: port.app_protocol.clone().map(Into::into),
        });
        ClusterEndpointSlice {
            cluster: None,
            cluster_id: None,
            namespace: Some(metadata.namespace.to_string()),
            name: Some(metadata.name.to_string()),
            labels: entries(&metadata.labels),
            annotations: entries(&metadata.annotations),
            address_type: Some(self.address_type.to_string()),
            endpoints: self.endpoints.iter().flatten().map(endpoint).collect(),
            ports: ports.collect(),
        }
    }
}

fn entries(labels: &Labels) -> Vec<TextEntry> {
    let mut entries: Vec<TextEntry> = labels
        .iter()
        .map(|(key, value)| TextEntry {
            key: Some(key.to_owned()),
            value: Some(value.to_owned()),
        })
        .collect();
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    entries
}

fn endpoint(endpoint: &EndpointWithHost) -> Endpoint {
    let names = |named: &Option<Vec<Named>>| {
        let named = named.iter().flatten();
        named
            .map(|named| NamedHint {
                name: Some(named.name.to_string()),
            })
            .collect()
    };
    Endpoint {
        addresses: endpoint.addresses.iter().map(Str::to_string).collect(),
        conditions: endpoint.conditions.map(|conditions| Conditions {
            ready: conditions.ready,
            serving: conditions.serving,
            terminating: conditions.terminating,
        }),
        hostname: endpoint.hostname.as_ref().map(Str::to_string),
        node_name: endpoint.node_name.as_ref().map(Str::to_string),
        zone: endpoint.zone.as_ref().map(Str::to_string),
        hints: endpoint.hints.as_ref().map(|hints| wire::Hints {
            for_zones: names(&hints.for_zones),
            for_nodes: names(&hints.for_nodes),
        }),
    }
}
