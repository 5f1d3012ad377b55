// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/service`.

use serde::{Deserialize, Serialize};

use crate::is_default;

/// A frontend with its backends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Service {
    /// The desired state.
    #[serde(deserialize_with = "crate::or_default")]
    pub spec: ServiceSpec,
    /// The realized state.
    #[serde(deserialize_with = "crate::or_default")]
    pub status: ServiceStatus,
}

/// The realized state of a frontend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ServiceStatus {
    /// Repeats the specification.
    #[serde(deserialize_with = "crate::or_default")]
    pub realized: ServiceSpec,
}

/// The desired state of a frontend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct ServiceSpec {
    /// Id of the frontend in the maps; 0: not allocated yet.
    pub id: u64,
    /// Address that clients connect to.
    #[serde(deserialize_with = "crate::or_default")]
    pub frontend_address: FrontendAddress,
    /// The backends.
    #[serde(
        deserialize_with = "crate::or_default",
        serialize_with = "crate::null_if_empty"
    )]
    pub backend_addresses: Vec<BackendAddress>,
    /// Properties of the service.
    #[serde(deserialize_with = "crate::or_default")]
    pub flags: ServiceSpecFlags,
}

/// Address of a frontend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct FrontendAddress {
    /// IPv4 or IPv6 address.
    pub ip: String,
    /// Port; 0 for all.
    pub port: u16,
    /// `TCP`, `UDP`, `SCTP` or `ANY`.
    pub protocol: String,
    /// `external` or `internal`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scope: String,
}

/// Address of a backend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BackendAddress {
    /// IPv4 or IPv6 address.
    pub ip: String,
    /// Port.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `active`, `terminating`, `quarantined` or `maintenance`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub state: String,
    /// Preferred by the service.
    #[serde(skip_serializing_if = "is_default")]
    pub preferred: bool,
    /// Weight for Maglev.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Node of the backend.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Topology zone.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub zone: String,
}

/// Properties of a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpecFlags {
    /// `ClusterIP`, `NodePort`, `ExternalIPs`, `LoadBalancer`, `HostPort`, `LocalRedirect`.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// `Cluster` or `Local`: the policy that applies to this frontend.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub traffic_policy: String,
    /// `Cluster` or `Local`, for traffic from outside.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ext_traffic_policy: String,
    /// `Cluster` or `Local`, for traffic from inside.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub int_traffic_policy: String,
    /// Name of the Kubernetes Service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Port for health checks of load balancers; 0 for none.
    #[serde(skip_serializing_if = "is_default")]
    pub health_check_node_port: u16,
    /// Cluster of the service; empty: the local one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster: String,
}
