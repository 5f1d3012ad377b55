// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/lrp`.

use serde::{Deserialize, Serialize};

use crate::{BackendAddress, FrontendAddress};

/// A local redirect policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct LrpSpec {
    /// Uid of the Kubernetes object.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// `addr`, `svc` or `none`.
    pub lrp_type: String,
    /// Type of the redirected frontends, such as `clusterIP + all svc ports`.
    pub frontend_type: String,
    /// `namespace/name` of the redirected service; empty: an address.
    pub service_id: String,
    /// Redirected frontends with their backends.
    #[serde(deserialize_with = "crate::or_default")]
    pub frontend_mappings: Vec<FrontendMapping>,
}

/// A redirected frontend.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct FrontendMapping {
    /// Its address.
    #[serde(deserialize_with = "crate::or_default")]
    pub frontend_address: FrontendAddress,
    /// Backend pods.
    #[serde(deserialize_with = "crate::or_default")]
    pub backends: Vec<LrpBackend>,
}

/// A backend of redirected traffic.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", default)]
pub struct LrpBackend {
    /// `namespace/name` of the pod; empty if unknown.
    pub pod_id: String,
    /// Its address.
    #[serde(deserialize_with = "crate::or_default")]
    pub backend_address: BackendAddress,
}
