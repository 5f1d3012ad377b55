// SPDX-License-Identifier: Apache-2.0

//! CiliumBGPNodeConfig, which the operator makes, and CiliumBGPNodeConfigOverride.

use super::cluster::{AutoDiscovery, PeerConfigReference};
use super::peer::{AddressFamily, SubsequentFamily};
use crate::object::{kind, object};
use crate::patterns;
use crate::shared::Condition;

kind! {
    /// BGP instances of one node; it has the name of the node.
    CiliumBGPNodeConfig, "cilium.io", "v2", "ciliumbgpnodeconfigs", false, {
        /// The instances.
        pub spec: NodeConfigSpec,
        /// What the agent says about them.
        pub status: Option<NodeConfigStatus>,
    }
}

kind! {
    /// Settings of one node that differ from the cluster's; it has the name of the node.
    CiliumBGPNodeConfigOverride, "cilium.io", "v2", "ciliumbgpnodeconfigoverrides", false, {
        /// The settings.
        pub spec: NodeConfigOverrideSpec,
    }
}

object! {
    /// BGP instances of a node.
    #[derive(Eq)]
    pub struct NodeConfigSpec {
        /// The instances.
        #[schemars(extend(
            "minItems" = 1,
            "maxItems" = 16,
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"],
        ))]
        pub bgp_instances: Vec<NodeInstance>,
    }

    /// A BGP instance of a node.
    #[derive(Eq)]
    pub struct NodeInstance {
        /// Its autonomous system.
        #[serde(rename = "localASN")]
        #[schemars(extend("minimum" = 1, "maximum" = 4294967295_i64))]
        pub local_asn: Option<i64>,
        /// Port that it listens on; absent: it does not listen.
        #[schemars(extend("minimum" = 1, "maximum" = 65535))]
        pub local_port: Option<i32>,
        /// Name.
        #[schemars(extend("minLength" = 1, "maxLength" = 255))]
        pub name: String,
        /// Peers.
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
        pub peers: Option<Vec<NodePeer>>,
        /// Router id; absent for the IPv4 address of the node.
        #[serde(rename = "routerID")]
        #[schemars(extend("format" = "ipv4"))]
        pub router_id: Option<String>,
    }

    /// A peer of a node.
    #[derive(Eq)]
    pub struct NodePeer {
        /// How its address is found.
        pub auto_discovery: Option<AutoDiscovery>,
        /// Local address.
        #[schemars(extend("pattern" = patterns::IP))]
        pub local_address: Option<String>,
        /// Name.
        pub name: String,
        /// Its autonomous system; 0 for the one that it says it has.
        #[serde(rename = "peerASN")]
        #[schemars(extend("minimum" = 0, "maximum" = 4294967295_i64))]
        pub peer_asn: Option<i64>,
        /// Its address.
        #[schemars(extend("pattern" = patterns::IP))]
        pub peer_address: Option<String>,
        /// Its settings; absent for the defaults.
        pub peer_config_ref: Option<PeerConfigReference>,
    }

    /// What the agent says about the instances of its node.
    #[derive(Eq)]
    pub struct NodeConfigStatus {
        /// The instances.
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
        pub bgp_instances: Option<Vec<NodeInstanceStatus>>,
        /// Conditions.
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
        pub conditions: Option<Vec<Condition>>,
    }

    /// State of a BGP instance.
    #[derive(Eq)]
    pub struct NodeInstanceStatus {
        /// Its autonomous system.
        #[serde(rename = "localASN")]
        pub local_asn: Option<i64>,
        /// Name.
        pub name: String,
        /// Peers.
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
        pub peers: Option<Vec<NodePeerStatus>>,
    }

    /// State of a peer.
    #[derive(Eq)]
    pub struct NodePeerStatus {
        /// When the session was established (RFC 3339).
        pub established_time: Option<String>,
        /// Name.
        pub name: String,
        /// Its autonomous system.
        #[serde(rename = "peerASN")]
        pub peer_asn: Option<i64>,
        /// Its address.
        pub peer_address: String,
        /// `idle`, `connect`, `active`, `open_sent`, `open_confirm`, `established` or `unknown`.
        pub peering_state: Option<String>,
        /// Routes by family.
        pub route_count: Option<Vec<RouteCount>>,
        /// Timers in force.
        pub timers: Option<PeerTimersStatus>,
    }

    /// Routes of one family.
    #[derive(Eq)]
    pub struct RouteCount {
        /// Routes that are advertised.
        pub advertised: Option<i32>,
        /// Address family.
        pub afi: AddressFamily,
        /// Routes that were received.
        pub received: Option<i32>,
        /// Subsequent address family.
        pub safi: SubsequentFamily,
    }

    /// Timers of a session, in seconds.
    #[derive(Eq)]
    pub struct PeerTimersStatus {
        /// After what silence the session ends.
        pub applied_hold_time_seconds: Option<i32>,
        /// Time between keep-alive messages.
        pub applied_keepalive_seconds: Option<i32>,
    }

    /// Settings of one node that differ from the cluster's.
    #[derive(Eq)]
    pub struct NodeConfigOverrideSpec {
        /// Instances.
        #[schemars(extend(
            "minItems" = 1,
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"],
        ))]
        pub bgp_instances: Vec<OverrideInstance>,
    }

    /// Settings of an instance.
    #[derive(Eq)]
    pub struct OverrideInstance {
        /// Its autonomous system.
        #[serde(rename = "localASN")]
        #[schemars(extend("minimum" = 1, "maximum" = 4294967295_i64))]
        pub local_asn: Option<i64>,
        /// Port that it listens on.
        pub local_port: Option<i32>,
        /// Name of an instance of the CiliumBGPClusterConfig.
        #[schemars(extend("minLength" = 1, "maxLength" = 255))]
        pub name: String,
        /// Settings of peers.
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
        pub peers: Option<Vec<OverridePeer>>,
        /// Router id.
        #[serde(rename = "routerID")]
        #[schemars(extend("format" = "ipv4"))]
        pub router_id: Option<String>,
    }

    /// Settings of a peer.
    #[derive(Eq)]
    pub struct OverridePeer {
        /// Local address.
        #[schemars(extend("pattern" = patterns::IP))]
        pub local_address: Option<String>,
        /// Local port. Without effect.
        pub local_port: Option<i32>,
        /// Name of a peer of the instance.
        #[schemars(extend("minLength" = 1, "maxLength" = 255))]
        pub name: String,
    }
}
