// SPDX-License-Identifier: Apache-2.0

//! `/v1/identity`.

use serde::{Deserialize, Serialize};

/// A security identity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Identity {
    /// Its number.
    pub id: u32,
    /// Labels, `source:key=value` each.
    #[serde(deserialize_with = "crate::or_default")]
    pub labels: Vec<String>,
}

/// A security identity of local endpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct IdentityEndpoints {
    /// The identity.
    #[serde(deserialize_with = "crate::or_default")]
    pub identity: Identity,
    /// Number of endpoints.
    pub ref_count: usize,
}
