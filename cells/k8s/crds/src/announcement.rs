// SPDX-License-Identifier: Apache-2.0

//! CiliumL2AnnouncementPolicy.

use crate::object::{kind, object};
use crate::shared::{ConditionsStatus, LabelSelector};

kind! {
    /// Announces addresses of Services to the local network (ARP, NDP).
    CiliumL2AnnouncementPolicy, "cilium.io", "v2alpha1", "ciliuml2announcementpolicies", false, {
        /// Which addresses, from which nodes.
        pub spec: Option<L2AnnouncementSpec>,
        /// What the agents say about the policy.
        pub status: Option<ConditionsStatus>,
    }
}

object! {
    /// Which addresses are announced, from which nodes.
    #[derive(Eq)]
    pub struct L2AnnouncementSpec {
        /// External addresses of Services are announced.
        #[serde(rename = "externalIPs")]
        pub external_ips: Option<bool>,
        /// Regular expressions for the interfaces; absent for all devices.
        pub interfaces: Option<Vec<String>>,
        /// Load-balancer addresses of Services are announced.
        #[serde(rename = "loadBalancerIPs")]
        pub load_balancer_ips: Option<bool>,
        /// Nodes that announce; absent for all.
        pub node_selector: Option<LabelSelector>,
        /// Services whose addresses are announced; absent for all.
        pub service_selector: Option<LabelSelector>,
    }
}
