// SPDX-License-Identifier: Apache-2.0

//! The configuration that a cluster publishes: how its values are to be read.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use skep_identity::MaxConnectedClusters;

use crate::error::ValueError;
use crate::go_json;
use skep_base_settings::cluster::{ClusterInfo, ClusterName};

/// The configuration of a cluster, `cilium/cluster-config/<cluster>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CiliumClusterConfig {
    #[serde(skip_serializing_if = "is_zero")]
    pub id: u32,
    /// What the cluster publishes, and how.
    pub capabilities: Capabilities,
}

/// What a cluster publishes, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Capabilities {
    /// Whether a prefix is complete only when its canary exists.
    #[serde(skip_serializing_if = "is_false")]
    pub synced_canaries: bool,
    /// Whether this is the copy of a remote cluster's state, in the place for copies.
    #[serde(skip_serializing_if = "is_false")]
    pub cached: bool,
    /// How many clusters the mesh may have; 0 in configurations of old versions, which had 255.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_connected_clusters: u32,
    /// Whether service exports are published; absent if that version does not know them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_exports_enabled: Option<bool>,
    /// Which of services and endpoint slices are published.
    #[serde(skip_serializing_if = "EndpointSlicesExportMode::is_services_only")]
    pub endpoint_slices_export_mode: EndpointSlicesExportMode,
}

/// Which of services and endpoint slices a cluster publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EndpointSlicesExportMode {
    #[default]
    ServicesOnly,
    ServicesAndEndpointSlices,
    EndpointSlicesOnly,
    /// A mode of a later version, which cannot be read.
    Unknown(String),
}

impl EndpointSlicesExportMode {
    /// The mode as it is written: empty for services only.
    pub fn as_str(&self) -> &str {
        match self {
            Self::ServicesOnly => "",
            Self::ServicesAndEndpointSlices => "services-and-endpointslices",
            Self::EndpointSlicesOnly => "endpointslices-only",
            Self::Unknown(mode) => mode,
        }
    }

    pub fn has_services(&self) -> bool {
        matches!(self, Self::ServicesOnly | Self::ServicesAndEndpointSlices)
    }

    pub fn has_endpoint_slices(&self) -> bool {
        matches!(self, Self::EndpointSlicesOnly | Self::ServicesAndEndpointSlices)
    }

    fn is_services_only(&self) -> bool {
        *self == Self::ServicesOnly
    }
}

impl From<String> for EndpointSlicesExportMode {
    fn from(mode: String) -> Self {
        [
            Self::ServicesOnly,
            Self::ServicesAndEndpointSlices,
            Self::EndpointSlicesOnly,
        ]
        .into_iter()
        .find(|known| known.as_str() == mode)
        .unwrap_or(Self::Unknown(mode))
    }
}

impl Serialize for EndpointSlicesExportMode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for EndpointSlicesExportMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(String::deserialize(deserializer)?.into())
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Why a remote cluster cannot be read, by its configuration. Retried: the configuration may be fixed there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The id is missing, or does not fit the size of the mesh. Renumber the remote cluster.
    #[error("cluster `{cluster}`: invalid cluster id {id}: it must be from 1 to {max}")]
    Id { cluster: ClusterName, id: u32, max: u32 },
    /// The local cluster has that id. Renumber one of them.
    #[error("cluster `{cluster}`: cluster id {id} is assigned to the local cluster")]
    LocalId { cluster: ClusterName, id: u32 },
    /// Both clusters disagree about the size of the mesh. Set `max-connected-clusters` to one value everywhere.
    #[error("cluster `{cluster}`: max-connected-clusters is {found} there and {expected} here")]
    MaxConnectedClusters {
        cluster: ClusterName,
        /// There; 0 if not set.
        found: u32,
        expected: u32,
    },
    /// The mode is of a later version. Upgrade this cluster.
    #[error("cluster `{cluster}`: unsupported endpoint slices export mode `{mode}`")]
    ExportMode { cluster: ClusterName, mode: String },
}

impl CiliumClusterConfig {
    /// Reads the value of a configuration.
    ///
    /// # Errors
    ///
    /// [`ValueError::Json`].
    pub fn decode(value: &[u8]) -> Result<Self, ValueError> {
        go_json::from_slice(value).map_err(ValueError::Json)
    }

    pub fn encode(&self) -> Result<Vec<u8>, ValueError> {
        go_json::to_vec(self).map_err(ValueError::Encode)
    }

    /// Checks that the local cluster can be in a mesh with this one.
    ///
    /// # Errors
    ///
    /// [`ConfigError`].
    pub fn check(&self, cluster: &ClusterName, local: &ClusterInfo) -> Result<(), ConfigError> {
        let cluster = || cluster.clone();
        let (id, max) = (self.id, local.max_connected_clusters.get());
        if !(1..=max).contains(&id) {
            return Err(ConfigError::Id {
                cluster: cluster(),
                id,
                max,
            });
        }
        // A cluster of 255 takes any: it may be older than the field. Identities that do not fit are rejected.
        let found = self.capabilities.max_connected_clusters;
        if local.max_connected_clusters != MaxConnectedClusters::Max255 && found != max {
            return Err(ConfigError::MaxConnectedClusters {
                cluster: cluster(),
                found,
                expected: max,
            });
        }
        if let EndpointSlicesExportMode::Unknown(mode) = &self.capabilities.endpoint_slices_export_mode {
            return Err(ConfigError::ExportMode {
                cluster: cluster(),
                mode: mode.clone(),
            });
        }
        if id == local.id {
            return Err(ConfigError::LocalId {
                cluster: cluster(),
                id,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(max_connected_clusters: MaxConnectedClusters) -> ClusterInfo {
        ClusterInfo {
            name: "birch".parse().expect("it is valid"),
            id: 9,
            max_connected_clusters,
        }
    }

    fn check(text: &str, max: MaxConnectedClusters) -> Result<(), String> {
        CiliumClusterConfig::decode(text.as_bytes())
            .expect("it is JSON")
            .check(&"alder".parse().expect("it is valid"), &local(max))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn ids_must_be_in_range_and_not_the_own_one() {
        let max = MaxConnectedClusters::Max255;

        assert_eq!(check(r#"{"id":255,"capabilities":{}}"#, max), Ok(()));
        for (text, expected) in [
            (
                r#"{"capabilities":{}}"#,
                "cluster `alder`: invalid cluster id 0: it must be from 1 to 255",
            ),
            (
                r#"{"id":256}"#,
                "cluster `alder`: invalid cluster id 256: it must be from 1 to 255",
            ),
            (
                r#"{"id":9}"#,
                "cluster `alder`: cluster id 9 is assigned to the local cluster",
            ),
        ] {
            assert_eq!(check(text, max), Err(expected.to_owned()));
        }
    }

    #[test]
    fn a_mesh_of_511_takes_only_clusters_that_say_so() {
        let of = |max| format!(r#"{{"id":7,"capabilities":{{"maxConnectedClusters":{max}}}}}"#);

        for (remote, here, is_accepted) in [
            (255, MaxConnectedClusters::Max255, true),
            (511, MaxConnectedClusters::Max255, true),
            (511, MaxConnectedClusters::Max511, true),
            (255, MaxConnectedClusters::Max511, false),
            (0, MaxConnectedClusters::Max511, false),
        ] {
            assert_eq!(check(&of(remote), here).is_ok(), is_accepted, "{remote} {here:?}");
        }
        assert_eq!(
            check(r#"{"id":511}"#, MaxConnectedClusters::Max511),
            Err("cluster `alder`: max-connected-clusters is 0 there and 511 here".to_owned())
        );
    }

    #[test]
    fn modes_of_later_versions_are_kept_but_not_accepted() {
        let text = r#"{"id":7,"capabilities":{"endpointSlicesExportMode":"everything"}}"#;

        let config = CiliumClusterConfig::decode(text.as_bytes()).expect("it is JSON");

        let mode = &config.capabilities.endpoint_slices_export_mode;
        assert!(!mode.has_services() && !mode.has_endpoint_slices());
        assert_eq!(config.encode().expect("it is JSON"), text.as_bytes());
        assert_eq!(
            check(text, MaxConnectedClusters::Max255),
            Err("cluster `alder`: unsupported endpoint slices export mode `everything`".to_owned())
        );
    }
}
