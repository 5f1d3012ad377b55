// SPDX-License-Identifier: Apache-2.0

//! ServiceExport and ServiceImport of the Multi-Cluster Services API.

use std::collections::BTreeMap;

use crate::object::{kind, object, words};
use crate::shared::{Condition, ConditionsStatus};

kind! {
    /// Exports the Service of the same name to the other clusters.
    ServiceExport, "multicluster.x-k8s.io", "v1beta1", "serviceexports", true, {
        /// What is exported with it.
        pub spec: Option<ServiceExportSpec>,
        /// What the operator says about the export.
        pub status: Option<ConditionsStatus>,
    }
}

kind! {
    /// A Service of several clusters.
    ServiceImport, "multicluster.x-k8s.io", "v1beta1", "serviceimports", true, {
        /// The Service.
        pub spec: Option<ServiceImportSpec>,
        /// What the operator says about the import.
        pub status: Option<ServiceImportStatus>,
    }
}

object! {
    /// What is exported with a Service.
    #[derive(Eq)]
    pub struct ServiceExportSpec {
        /// Annotations of the derived Services.
        pub exported_annotations: Option<BTreeMap<String, String>>,
        /// Labels of the derived Services.
        pub exported_labels: Option<BTreeMap<String, String>>,
    }

    /// A Service of several clusters.
    #[derive(Eq)]
    pub struct ServiceImportSpec {
        /// Where traffic inside of the cluster may go.
        pub internal_traffic_policy: Option<String>,
        /// IP versions.
        #[schemars(extend("maxItems" = 2))]
        pub ip_families: Option<Vec<String>>,
        /// Addresses.
        #[schemars(extend("maxItems" = 2))]
        pub ips: Option<Vec<String>>,
        /// Ports.
        #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
        pub ports: Vec<ServiceImportPort>,
        /// `ClientIP` or `None`.
        pub session_affinity: Option<String>,
        /// Settings of the affinity.
        pub session_affinity_config: Option<SessionAffinityConfig>,
        /// Which endpoints are preferred.
        pub traffic_distribution: Option<String>,
        /// Whether it has an address.
        #[serde(rename = "type")]
        pub kind: ServiceImportType,
    }

    /// A port.
    #[derive(Eq)]
    pub struct ServiceImportPort {
        /// Protocol of the application.
        pub app_protocol: Option<String>,
        /// Name.
        pub name: Option<String>,
        /// Number.
        pub port: i32,
        /// `TCP`, `UDP` or `SCTP`; absent for TCP.
        pub protocol: Option<String>,
    }

    /// Settings of session affinity.
    #[derive(Eq)]
    pub struct SessionAffinityConfig {
        /// Affinity by the address of the client.
        #[serde(rename = "clientIP")]
        pub client_ip: Option<ClientIpConfig>,
    }

    /// Affinity by the address of the client.
    #[derive(Eq)]
    pub struct ClientIpConfig {
        /// How long it lasts, in seconds.
        pub timeout_seconds: Option<i32>,
    }

    /// What the operator says about an import.
    #[derive(Eq)]
    pub struct ServiceImportStatus {
        /// Clusters that export the Service.
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["cluster"]))]
        pub clusters: Option<Vec<ExportingCluster>>,
        /// Conditions of the import.
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
        pub conditions: Option<Vec<Condition>>,
        /// Whether there are EndpointSlices for it.
        pub endpoint_slice_objects: Option<EndpointSliceObjects>,
    }

    /// A cluster that exports a Service.
    #[derive(Eq)]
    pub struct ExportingCluster {
        /// Name of the cluster.
        pub cluster: String,
    }
}

words! {
    /// Whether an import has an address.
    pub enum ServiceImportType {
        /// It has.
        ClusterSetIp = "ClusterSetIP",
        /// It has none.
        Headless = "Headless",
    }

    /// Whether there are EndpointSlices for an import.
    pub enum EndpointSliceObjects {
        /// There are.
        Present = "Present",
        /// There are none.
        Absent = "Absent",
    }
}
