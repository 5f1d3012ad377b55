// SPDX-License-Identifier: Apache-2.0

//! CiliumBGPPeerConfig.

use crate::object::{kind, object, words};
use crate::shared::{ConditionsStatus, LabelSelector};

kind! {
    /// Settings of BGP peers.
    CiliumBGPPeerConfig, "cilium.io", "v2", "ciliumbgppeerconfigs", false, {
        /// The settings.
        pub spec: PeerConfigSpec,
        /// What the operator says about them.
        pub status: Option<ConditionsStatus>,
    }
}

object! {
    /// Settings of BGP peers.
    #[derive(Eq)]
    pub struct PeerConfigSpec {
        /// Secret in `bgp-secrets-namespace` whose item `password` authenticates the session.
        pub auth_secret_ref: Option<String>,
        /// Hops to a peer of another autonomous system. Default: 1.
        #[schemars(extend("minimum" = 1, "maximum" = 255, "x-default" = 1))]
        pub ebgp_multihop: Option<i32>,
        /// Routes that are exchanged; absent for unicast of both IP versions.
        pub families: Option<Vec<FamilyAdvertisements>>,
        /// Keeps routes while a side restarts.
        pub graceful_restart: Option<GracefulRestart>,
        /// Timers.
        #[schemars(extend("x-kubernetes-validations" = [{
            "rule": "self.keepAliveTimeSeconds <= self.holdTimeSeconds",
            "message": "keepAliveTimeSeconds can not be larger than holdTimeSeconds",
        }]))]
        pub timers: Option<Timers>,
        /// Connection.
        pub transport: Option<Transport>,
    }

    /// Routes of one family.
    #[derive(Eq)]
    pub struct FamilyAdvertisements {
        /// CiliumBGPAdvertisements by their labels; absent for none.
        pub advertisements: Option<LabelSelector>,
        /// Address family.
        pub afi: AddressFamily,
        /// Subsequent address family.
        pub safi: SubsequentFamily,
    }

    /// Keeps routes while a side restarts.
    #[derive(Eq)]
    pub struct GracefulRestart {
        /// It is on.
        pub enabled: bool,
        /// How long the restart may take, in seconds. Default: 120.
        #[schemars(extend("minimum" = 1, "maximum" = 4095, "x-default" = 120))]
        pub restart_time_seconds: Option<i32>,
    }

    /// Timers, in seconds.
    #[derive(Eq)]
    pub struct Timers {
        /// Time between attempts to connect. Default: 120.
        #[schemars(extend("minimum" = 1, "maximum" = 2147483647, "x-default" = 120))]
        pub connect_retry_time_seconds: Option<i32>,
        /// After what silence the session ends. Default: 90.
        #[schemars(extend("minimum" = 3, "maximum" = 65535, "x-default" = 90))]
        pub hold_time_seconds: Option<i32>,
        /// Time between keep-alive messages. Default: 30.
        #[schemars(extend("minimum" = 1, "maximum" = 65535, "x-default" = 30))]
        pub keep_alive_time_seconds: Option<i32>,
    }

    /// Connection to a peer.
    #[derive(Eq)]
    pub struct Transport {
        /// Port of the peer. Default: 179.
        #[schemars(extend("minimum" = 1, "maximum" = 65535, "x-default" = 179))]
        pub peer_port: Option<i32>,
        /// Interface whose address is the local one.
        pub source_interface: Option<String>,
    }
}

words! {
    /// Address families.
    pub enum AddressFamily {
        /// IPv4.
        Ipv4 = "ipv4",
        /// IPv6.
        Ipv6 = "ipv6",
        /// Layer 2 VPN.
        L2vpn = "l2vpn",
        /// Link state.
        Ls = "ls",
        /// Opaque.
        Opaque = "opaque",
    }

    /// Subsequent address families.
    pub enum SubsequentFamily {
        /// Unicast.
        Unicast = "unicast",
        /// Multicast.
        Multicast = "multicast",
        /// MPLS labels.
        MplsLabel = "mpls_label",
        /// Encapsulation.
        Encapsulation = "encapsulation",
        /// VPLS.
        Vpls = "vpls",
        /// Ethernet VPN.
        Evpn = "evpn",
        /// Link state.
        Ls = "ls",
        /// Segment routing policy.
        SrPolicy = "sr_policy",
        /// Mobile user plane.
        Mup = "mup",
        /// VPN over MPLS.
        MplsVpn = "mpls_vpn",
        /// Multicast VPN over MPLS.
        MplsVpnMulticast = "mpls_vpn_multicast",
        /// Constraints of route targets.
        RouteTargetConstraints = "route_target_constraints",
        /// Flow specification, unicast.
        FlowspecUnicast = "flowspec_unicast",
        /// Flow specification, VPN.
        FlowspecVpn = "flowspec_vpn",
        /// Keys and values.
        KeyValue = "key_value",
    }
}
