// SPDX-License-Identifier: Apache-2.0

//! The watched objects, with the fields that are read here.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skep_k8s_crds::mcs::{
    ServiceExport, ServiceExportSpec, ServiceImport, ServiceImportSpec, ServiceImportStatus,
};
use skep_k8s_crds::shared::ConditionsStatus;
use skep_k8s_types::slim::{CreatedMetadata, EndpointSlice, Metadata, Service, Str};
use skep_k8s_types::{Kind, Resource};

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ExportObject {
    pub(crate) metadata: CreatedMetadata,
    pub(crate) spec: Option<ServiceExportSpec>,
    pub(crate) status: Option<ConditionsStatus>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ImportObject {
    pub(crate) metadata: CreatedMetadata,
    pub(crate) spec: Option<ServiceImportSpec>,
    pub(crate) status: Option<ServiceImportStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ServiceObject {
    pub(crate) metadata: Metadata,
    pub(crate) spec: ServiceSpec,
}

/// What is read of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceSpec {
    pub(crate) ports: Box<[ServicePort]>,
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: Option<Str>,
    #[serde(rename = "clusterIPs")]
    pub(crate) cluster_ips: Option<Box<[Str]>>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<Str>,
    pub(crate) session_affinity: Option<Str>,
    pub(crate) session_affinity_config: Option<Value>,
    pub(crate) ip_families: Option<Box<[Str]>>,
    pub(crate) ip_family_policy: Option<Str>,
    pub(crate) internal_traffic_policy: Option<Str>,
    pub(crate) traffic_distribution: Option<Str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServicePort {
    pub(crate) name: Option<Str>,
    pub(crate) protocol: Option<Str>,
    pub(crate) app_protocol: Option<Str>,
    pub(crate) port: i32,
    pub(crate) target_port: Option<Value>,
}

impl ServiceSpec {
    pub(crate) fn is_headless(&self) -> bool {
        self.cluster_ip.as_deref() == Some("None")
    }

    /// Cluster IPs; none if it is headless.
    pub(crate) fn addresses(&self) -> Vec<&str> {
        let first = self.cluster_ip.iter();
        let all = self.cluster_ips.iter().flatten();
        let mut addresses: Vec<&str> = Vec::new();
        for address in first.chain(all).map(Str::as_str) {
            if !matches!(address, "" | "None") && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SliceObject {
    pub(crate) metadata: Metadata,
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

macro_rules! resource {
    ($type:ty, $kind:ty, $($metadata:ident).+) => {
        impl Resource for $type {
            fn kind() -> Kind {
                <$kind>::kind()
            }

            fn metadata(&self) -> &Metadata {
                &self.$($metadata).+
            }

            fn metadata_mut(&mut self) -> &mut Metadata {
                &mut self.$($metadata).+
            }

            // Owners are read.
            fn compact(&mut self) {
                self.$($metadata).+.annotations.remove(LAST_APPLIED);
            }
        }
    };
}

resource!(ExportObject, ServiceExport, metadata.common);
resource!(ImportObject, ServiceImport, metadata.common);
resource!(ServiceObject, Service, metadata);
resource!(SliceObject, EndpointSlice, metadata);
