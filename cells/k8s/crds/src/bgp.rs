// SPDX-License-Identifier: Apache-2.0

//! The kinds of the BGP control plane.

mod advertisement;
mod cluster;
mod node;
mod peer;

pub use advertisement::{
    Advertisement, AdvertisementSpec, AdvertisementType, Attributes, CiliumBGPAdvertisement, Communities,
    InterfaceAdvertisement, ServiceAddress, ServiceAdvertisement, WellKnownCommunity,
};
pub use cluster::{
    AutoDiscovery, AutoDiscoveryMode, CiliumBGPClusterConfig, ClusterConfigSpec, ClusterInstance,
    ClusterPeer, DefaultGateway, GatewayFamily, PeerConfigReference,
};
pub use node::{
    CiliumBGPNodeConfig, CiliumBGPNodeConfigOverride, NodeConfigOverrideSpec, NodeConfigSpec,
    NodeConfigStatus, NodeInstance, NodeInstanceStatus, NodePeer, NodePeerStatus, OverrideInstance,
    OverridePeer, PeerTimersStatus, RouteCount,
};
pub use peer::{
    AddressFamily, CiliumBGPPeerConfig, FamilyAdvertisements, GracefulRestart, PeerConfigSpec,
    SubsequentFamily, Timers, Transport,
};
