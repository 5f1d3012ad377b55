// SPDX-License-Identifier: Apache-2.0

//! Services that clusters share.

mod ports;

use std::collections::BTreeMap;
use std::net::IpAddr;

use compact_str::CompactString;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::ValueError;
use crate::go_json;
use crate::remote::{RemoteInfo, check_object};

pub use ports::Ports;

/// A service of a cluster with its backends, `cilium/state/services/v1/<cluster>/<namespace>/<name>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterService {
    pub cluster: String,
    pub namespace: String,
    pub name: String,
    /// Cluster IPs with the ports of the service; empty for a headless one.
    #[serde(deserialize_with = "addresses", serialize_with = "addresses_by_text")]
    pub frontends: Addresses,
    /// Addresses of backends with their ports.
    #[serde(deserialize_with = "addresses", serialize_with = "addresses_by_text")]
    pub backends: Addresses,
    /// Host names of backends, by address.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub hostnames: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub zones: BTreeMap<String, BackendZone>,
    pub labels: BTreeMap<String, String>,
    pub selector: BTreeMap<String, String>,
    /// Whether the service uses backends of other clusters.
    pub include_external: bool,
    /// Whether other clusters may use the backends. If not, the service counts as absent.
    pub shared: bool,
    #[serde(rename = "clusterID")]
    pub cluster_id: u32,
}

pub type Addresses = BTreeMap<IpAddr, Ports>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ServicePort {
    /// Protocol as it is written, such as `TCP`. Others than those that Kubernetes has are not rejected.
    pub protocol: CompactString,
    pub port: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendZone {
    pub zone: CompactString,
    /// The zones that should use the backend. Absent is like empty, but written as `null`.
    pub for_zones: Option<Vec<ForZone>>,
}

/// A zone that should use a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ForZone {
    pub name: CompactString,
}

/// Reads addresses. A port that is `null`, which some writers cannot handle, is skipped.
fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Addresses, D::Error> {
    let raw = BTreeMap::<String, Ports>::deserialize(deserializer)?;
    let mut last = Ports::default();
    raw.into_iter()
        .map(|(address, ports)| {
            let ip: IpAddr = address
                .parse()
                .map_err(|_| serde::de::Error::custom(format_args!("`{address}` is not an IP address")))?;
            if last != ports {
                last = ports;
            }
            Ok((ip.to_canonical(), last.clone()))
        })
        .collect()
}

/// Writes addresses sorted by their texts, as Go does.
fn addresses_by_text<S: Serializer>(addresses: &Addresses, serializer: S) -> Result<S::Ok, S::Error> {
    let by_text: BTreeMap<String, &Ports> = addresses
        .iter()
        .map(|(ip, ports)| (ip.to_string(), ports))
        .collect();
    by_text.serialize(serializer)
}

impl ClusterService {
    /// Reads the value of a remote cluster. `name` is the key below the cluster's prefix: `<namespace>/<name>`.
    ///
    /// # Errors
    ///
    /// [`ValueError`], if the value is invalid or not the cluster's.
    pub fn decode(remote: &RemoteInfo, name: &str, value: &[u8]) -> Result<Self, ValueError> {
        let service: Self = go_json::from_slice(value).map_err(ValueError::Json)?;
        remote.check_cluster(&service.cluster)?;
        check_object(&service.namespace, &service.name, name)?;
        remote.check_id(service.cluster_id)?;
        Ok(service)
    }

    pub fn encode(&self) -> Result<Vec<u8>, ValueError> {
        go_json::to_vec(self).map_err(ValueError::Encode)
    }

    /// The key below the cluster's prefix.
    pub fn key_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
