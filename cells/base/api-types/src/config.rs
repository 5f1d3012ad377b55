// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/config`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Configuration of the agent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct DaemonConfiguration {
    /// What can be changed while the agent runs.
    pub spec: DaemonConfigurationSpec,
    /// The realized state.
    pub status: DaemonConfigurationStatus,
}

/// Settings that can be changed while the agent runs. There are none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DaemonConfigurationSpec {}

/// The realized configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonConfigurationStatus {
    /// Every setting by the name of its flag, secrets masked.
    pub daemon_configuration_map: BTreeMap<String, String>,
}
