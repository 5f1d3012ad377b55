// SPDX-License-Identifier: Apache-2.0

//! Status of remote clusters, in the APIs of the agent, the operator and kvstoremesh, and as text.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::is_default;

/// Status of a remote cluster. `Display` has the form of Cilium's, several lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct RemoteClusterStatus {
    /// Name of the cluster.
    pub name: String,
    /// Connected and synchronized.
    #[serde(skip_serializing_if = "is_default")]
    pub ready: bool,
    /// Connected.
    #[serde(skip_serializing_if = "is_default")]
    pub connected: bool,
    /// Status of the key-value store.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Number of nodes.
    #[serde(skip_serializing_if = "is_default")]
    pub num_nodes: u64,
    /// Number of endpoints.
    #[serde(skip_serializing_if = "is_default")]
    pub num_endpoints: u64,
    /// Number of identities.
    #[serde(skip_serializing_if = "is_default")]
    pub num_identities: u64,
    /// Number of services.
    #[serde(skip_serializing_if = "is_default")]
    pub num_shared_services: u64,
    /// Number of endpoint slices.
    #[serde(skip_serializing_if = "is_default")]
    pub num_endpoint_slices: u64,
    /// Number of service exports.
    #[serde(skip_serializing_if = "is_default")]
    pub num_service_exports: u64,
    /// Number of connection failures.
    #[serde(skip_serializing_if = "is_default")]
    pub num_failures: u64,
    /// Time of the last failure.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "crate::or_never")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub last_failure: Option<Timestamp>,
    /// Why, as long as it is not connected again. Not part of Cilium's model.
    #[serde(skip)]
    pub last_error: Option<String>,
    /// Configuration; absent before the first request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<RemoteClusterConfig>,
    /// Synchronization state.
    #[serde(deserialize_with = "crate::or_default")]
    pub synced: RemoteClusterSynced,
}

/// The configuration of a remote cluster in its status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct RemoteClusterConfig {
    /// Required: always.
    #[serde(skip_serializing_if = "is_default")]
    pub required: bool,
    /// Retrieved.
    #[serde(skip_serializing_if = "is_default")]
    pub retrieved: bool,
    /// Id of the cluster.
    #[serde(skip_serializing_if = "is_default")]
    pub cluster_id: u32,
    /// Read through kvstoremesh.
    #[serde(skip_serializing_if = "is_default")]
    pub kvstoremesh: bool,
    /// Sync canaries.
    #[serde(skip_serializing_if = "is_default")]
    pub sync_canaries: bool,
    /// Service exports enabled; absent if not supported by the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_exports_enabled: Option<bool>,
    /// Export mode of services and endpoint slices.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint_slices_export_mode: String,
}

/// Synchronization state of a remote cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct RemoteClusterSynced {
    /// Nodes.
    #[serde(skip_serializing_if = "is_default")]
    pub nodes: bool,
    /// Addresses.
    #[serde(skip_serializing_if = "is_default")]
    pub endpoints: bool,
    /// Identities.
    #[serde(skip_serializing_if = "is_default")]
    pub identities: bool,
    /// Services.
    #[serde(skip_serializing_if = "is_default")]
    pub services: bool,
    /// Endpoint slices; absent if not watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint_slices: Option<bool>,
    /// Service exports; absent if not watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_exports: Option<bool>,
}

impl fmt::Display for RemoteClusterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected={}, retrieved={}", self.required, self.retrieved)?;
        if !self.retrieved {
            return Ok(());
        }
        let exports = match self.service_exports_enabled {
            None => "unsupported",
            Some(true) => "enabled",
            Some(false) => "disabled",
        };
        let mode = match self.endpoint_slices_export_mode.as_str() {
            "" => "services-only",
            mode => mode,
        };
        write!(
            f,
            ", cluster-id={}, kvstoremesh={}, sync-canaries={}, service-exports={exports}, endpoint-slice-export-mode={mode}",
            self.cluster_id, self.kvstoremesh, self.sync_canaries
        )
    }
}

impl fmt::Display for RemoteClusterSynced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "nodes={}, endpoints={}, identities={}, services={}",
            self.nodes, self.endpoints, self.identities, self.services
        )?;
        if let Some(is_synced) = self.endpoint_slices {
            write!(f, ", endpoint-slices={is_synced}")?;
        }
        if let Some(is_synced) = self.service_exports {
            write!(f, ", service-exports={is_synced}")?;
        }
        Ok(())
    }
}

impl RemoteClusterStatus {
    /// The status as Cilium prints it, at a time.
    pub fn text(&self, now: Timestamp) -> String {
        let ready = if self.ready { "ready" } else { "not-ready" };
        let last = match self.last_failure {
            None => "never".to_owned(),
            Some(at) => {
                let age = std::time::Duration::try_from(now.duration_since(at)).unwrap_or_default();
                let whole = std::time::Duration::from_secs(age.as_secs());
                format!("{} ago", skep_duration::format_duration(whole))
            }
        };
        let mut text = format!(
            "{}: {ready}, {} nodes, {} endpoints, {} identities, {} services",
            self.name, self.num_nodes, self.num_endpoints, self.num_identities, self.num_shared_services
        );
        let optional = [
            (
                self.synced.endpoint_slices,
                self.num_endpoint_slices,
                "endpoint slices",
            ),
            (
                self.synced.service_exports,
                self.num_service_exports,
                "MCS-API service exports",
            ),
        ];
        for (is_read, count, what) in optional {
            if is_read.is_some() {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        let config = match &self.config {
            Some(config) => config.to_string(),
            None => "expected=unknown, retrieved=unknown".to_owned(),
        };
        text.push_str(&format!(
            ", {} reconnections (last: {last})\n└  {}\n└  remote configuration: {config}\n└  synchronization status: {}",
            self.num_failures, self.status, self.synced
        ));
        text
    }
}

/// The cluster mesh in `GET /v1/healthz`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, rename_all = "kebab-case")]
pub struct ClusterMeshStatus {
    /// Remote clusters, sorted by name.
    #[serde(skip_serializing_if = "is_default")]
    #[serde(deserialize_with = "crate::or_default")]
    pub clusters: Vec<RemoteClusterStatus>,
}

/// The line about all clusters: `1/2 remote clusters ready`.
pub fn summary(clusters: &[RemoteClusterStatus]) -> String {
    let ready = clusters.iter().filter(|cluster| cluster.ready).count();
    format!("{ready}/{} remote clusters ready", clusters.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> RemoteClusterStatus {
        let model = r#"{"name":"alder","ready":true,"connected":true,"status":"etcd: 1/1 connected, leases=0, lock leases=0, has-quorum=true: endpoint status checks are disabled, ID: 1f8a152a8361f15e","num-nodes":2,"num-endpoints":3,"num-identities":1,"num-shared-services":2,"num-endpoint-slices":2,"num-service-exports":1,"num-failures":3,"last-failure":"2026-06-01T10:49:04.412Z","config":{"required":true,"retrieved":true,"cluster-id":7,"sync-canaries":true,"service-exports-enabled":true,"endpoint-slices-export-mode":"services-and-endpointslices"},"synced":{"nodes":true,"endpoints":true,"identities":true,"services":true,"endpoint-slices":true,"service-exports":true}}"#;
        let status: RemoteClusterStatus = serde_json::from_str(model).expect("it is the model");
        assert_eq!(serde_json::to_string(&status).expect("it is JSON"), model);
        status
    }

    #[test]
    fn connected_clusters_read_like_ciliums() {
        let now = "2026-06-01T10:52:22.9Z".parse().expect("it is a time");

        assert_eq!(
            connected().text(now),
            "alder: ready, 2 nodes, 3 endpoints, 1 identities, 2 services, 2 endpoint slices, 1 MCS-API service exports, 3 reconnections (last: 3m18s ago)\n\
             └  etcd: 1/1 connected, leases=0, lock leases=0, has-quorum=true: endpoint status checks are disabled, ID: 1f8a152a8361f15e\n\
             └  remote configuration: expected=true, retrieved=true, cluster-id=7, kvstoremesh=false, sync-canaries=true, service-exports=enabled, endpoint-slice-export-mode=services-and-endpointslices\n\
             └  synchronization status: nodes=true, endpoints=true, identities=true, services=true, endpoint-slices=true, service-exports=true"
        );
    }

    #[test]
    fn disconnected_clusters_read_like_ciliums() {
        let status = RemoteClusterStatus {
            name: "alder".to_owned(),
            status: "Waiting for initial connection to be established".to_owned(),
            ..RemoteClusterStatus::default()
        };

        assert_eq!(
            status.text(Timestamp::UNIX_EPOCH),
            "alder: not-ready, 0 nodes, 0 endpoints, 0 identities, 0 services, 0 reconnections (last: never)\n\
             └  Waiting for initial connection to be established\n\
             └  remote configuration: expected=unknown, retrieved=unknown\n\
             └  synchronization status: nodes=false, endpoints=false, identities=false, services=false"
        );
        assert_eq!(summary(&[status, connected()]), "1/2 remote clusters ready");
    }

    #[test]
    fn gos_zero_time_is_never() {
        let model = r#"{"name":"alder","last-failure":"0001-01-01T00:00:00.000Z","synced":null}"#;
        let status: RemoteClusterStatus = serde_json::from_str(model).expect("it is the model");

        let text = status.text(Timestamp::UNIX_EPOCH);

        assert!(text.contains("0 reconnections (last: never)"), "{text}");
    }

    #[test]
    fn configurations_of_old_clusters_say_what_is_not_supported() {
        let config = RemoteClusterConfig {
            required: true,
            retrieved: true,
            cluster_id: 7,
            ..RemoteClusterConfig::default()
        };
        assert_eq!(
            config.to_string(),
            "expected=true, retrieved=true, cluster-id=7, kvstoremesh=false, sync-canaries=false, service-exports=unsupported, endpoint-slice-export-mode=services-only"
        );
    }
}
