// SPDX-License-Identifier: Apache-2.0

//! `multicluster.x-k8s.io/v1beta1/ServiceExport`.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use skep_k8s_crds::mcs::ServiceExportSpec;
use skep_k8s_types::slim::{CreatedMetadata, Metadata};

use skep_k8s_types::resource;

/// An export, with the time of its creation: the oldest wins conflicts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Wire")]
pub(crate) struct ServiceExport {
    pub(crate) metadata: Metadata,
    #[serde(skip)]
    pub(crate) created: Option<Timestamp>,
    pub(crate) spec: Option<ServiceExportSpec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire {
    metadata: CreatedMetadata,
    spec: Option<ServiceExportSpec>,
}

impl From<Wire> for ServiceExport {
    fn from(wire: Wire) -> Self {
        Self {
            metadata: wire.metadata.common,
            created: wire.metadata.creation_timestamp,
            spec: wire.spec,
        }
    }
}

resource!(
    ServiceExport,
    "multicluster.x-k8s.io",
    "v1beta1",
    "ServiceExport",
    "serviceexports",
    true
);
