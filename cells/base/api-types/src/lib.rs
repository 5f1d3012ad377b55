// SPDX-License-Identifier: Apache-2.0

//! Models of the agent's API: what its handlers return and its clients read.
//!
//! Names, fields and omissions are those of Cilium's REST models, so that the clients of either agent read the other.
//! Fields that a model lacks are ignored when it is read, those that an agent left out are empty, and so are those that are
//! `null`: Go writes lists, maps and structs without a value in this way, and the year 1 for a time that never was.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

mod address;
mod clustermesh;
mod config;
mod debug;
mod endpoint;
mod health;
mod identity;
mod ipam;
mod map;
mod node;
mod policy;
mod service;
mod status;

pub use address::{IpListEntry, IpListEntryMetadata, NodeId};
pub use clustermesh::{
    ClusterMeshStatus, RemoteClusterConfig, RemoteClusterStatus, RemoteClusterSynced,
    summary as clusters_summary,
};
pub use config::{
    DaemonConfiguration, DaemonConfigurationSpec, DaemonConfigurationStatus, KvstoreConfiguration,
    MasqueradeProtocols,
};
pub use debug::{CgroupContainerMetadata, CgroupDumpMetadata, CgroupPodMetadata, DebugInfo};
pub use endpoint::{
    Endpoint, EndpointAddressing, EndpointBatchDeleteRequest, EndpointChangeRequest,
    EndpointConfigurationSpec, EndpointConfigurationStatus, EndpointHealth, EndpointIdentifiers,
    EndpointNetworking, EndpointPolicy, EndpointPolicyStatus, EndpointStatus, EndpointStatusChange, L4Policy,
    LabelConfiguration, LabelConfigurationSpec, LabelConfigurationStatus, NamedPort, PolicyRule,
    ProxyStatistics,
};
pub use health::{
    ConnectivityStatus, HealthResponse, HealthStatusResponse, HostStatus, LoadResponse, NodeHealthStatus,
    PathStatus, SelfStatus,
};
pub use identity::{Identity, IdentityEndpoints};
pub use ipam::{IpamAddressResponse, IpamResponse, IpamStatus};
pub use map::{BpfMap, BpfMapEntry, BpfMapEvent, BpfMapList};
pub use node::{ClusterNode, ClusterNodeStatus, NodeAddressing, NodeAddressingAddress, NodeAddressingFamily};
pub use policy::{FrontendMapping, LrpBackend, LrpSpec};
pub use service::{BackendAddress, FrontendAddress, Service, ServiceSpec, ServiceSpecFlags, ServiceStatus};
pub use status::{
    BandwidthManager, BigTcp, BpfMapProperties, BpfMapStatus, ClockSource, ClusterStatus, CniChaining,
    ControllerConfiguration, ControllerRuns, ControllerStatus, DeviceAddresses, EncryptionStatus,
    GatewayFeature, HostFirewall, HubbleObserver, HubbleStatus, IdentityRange, K8sStatus,
    KubeProxyReplacement, KubeProxyReplacementFeatures, Masquerading, MasqueradingProtocols, ModuleStatus,
    MonitorStatus, Nat46X64Feature, NodePortFeature, ProxyRedirect, ProxyStatus, Routing, Srv6, State,
    Status, StatusResponse, Switch, WireguardInterface, WireguardStatus,
};

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Writes an empty list as Go does.
fn null_if_empty<T: Serialize, S: Serializer>(list: &[T], to: S) -> Result<S::Ok, S::Error> {
    match list {
        [] => to.serialize_none(),
        list => list.serialize(to),
    }
}

/// Reads `null` as the default.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// Reads a time, and Go's zero time as none.
fn or_never<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    let time: Option<Timestamp> = Option::deserialize(from)?;
    Ok(time.filter(|time| time.as_second() != GO_ZERO))
}

/// The first moment of the year 1, in seconds.
const GO_ZERO: i64 = -62_135_596_800;

#[cfg(test)]
mod tests;
