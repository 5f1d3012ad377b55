// SPDX-License-Identifier: Apache-2.0

//! CiliumBGPClusterConfig.

use crate::object::{kind, object, words};
use crate::patterns;
use crate::shared::{ConditionsStatus, LabelSelector};

kind! {
    /// BGP instances of nodes.
    CiliumBGPClusterConfig, "cilium.io", "v2", "ciliumbgpclusterconfigs", false, {
        /// The instances and the nodes.
        pub spec: ClusterConfigSpec,
        /// What the operator says about them.
        pub status: Option<ConditionsStatus>,
    }
}

object! {
    /// BGP instances and the nodes that run them.
    #[derive(Eq)]
    pub struct ClusterConfigSpec {
        /// The instances.
        #[schemars(extend(
            "minItems" = 1,
            "maxItems" = 16,
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"],
        ))]
        pub bgp_instances: Vec<ClusterInstance>,
        /// The nodes; absent or empty for all.
        pub node_selector: Option<LabelSelector>,
    }

    /// A BGP instance.
    #[derive(Eq)]
    pub struct ClusterInstance {
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
        pub peers: Option<Vec<ClusterPeer>>,
    }

    /// A peer.
    #[derive(Eq)]
    pub struct ClusterPeer {
        /// How its address is found.
        pub auto_discovery: Option<AutoDiscovery>,
        /// Name.
        #[schemars(extend("minLength" = 1, "maxLength" = 255))]
        pub name: String,
        /// Its autonomous system; 0 for the one that it says it has. Default: 0.
        #[serde(rename = "peerASN")]
        #[schemars(extend("minimum" = 0, "maximum" = 4294967295_i64, "x-default" = 0))]
        pub peer_asn: Option<i64>,
        /// Its address.
        #[schemars(extend("pattern" = patterns::IP))]
        pub peer_address: Option<String>,
        /// Its settings; absent for the defaults.
        pub peer_config_ref: Option<PeerConfigReference>,
    }

    /// How the address of a peer is found.
    #[derive(Eq)]
    pub struct AutoDiscovery {
        /// Settings of mode `DefaultGateway`.
        pub default_gateway: Option<DefaultGateway>,
        /// The mode.
        pub mode: AutoDiscoveryMode,
    }

    /// The peer is the default gateway.
    #[derive(Eq)]
    pub struct DefaultGateway {
        /// Its IP version.
        pub address_family: GatewayFamily,
    }

    /// Names a CiliumBGPPeerConfig.
    #[derive(Eq)]
    pub struct PeerConfigReference {
        /// Its name.
        pub name: String,
    }
}

words! {
    /// How addresses of peers are found.
    pub enum AutoDiscoveryMode {
        /// The peer is the default gateway.
        DefaultGateway = "DefaultGateway",
    }

    /// IP versions.
    pub enum GatewayFamily {
        /// IPv4.
        Ipv4 = "ipv4",
        /// IPv6.
        Ipv6 = "ipv6",
    }
}
