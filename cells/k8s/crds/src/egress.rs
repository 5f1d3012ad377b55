// SPDX-License-Identifier: Apache-2.0

//! CiliumEgressGatewayPolicy.

use crate::object::{kind, object};
use crate::patterns;
use crate::shared::LabelSelector;

kind! {
    /// Sends traffic of pods through a gateway node, with an address of it as source.
    CiliumEgressGatewayPolicy, "cilium.io", "v2", "ciliumegressgatewaypolicies", false, {
        /// Which traffic, and through which gateways.
        pub spec: Option<EgressGatewaySpec>,
    }
}

object! {
    /// Which traffic goes through which gateways.
    #[derive(Eq)]
    pub struct EgressGatewaySpec {
        /// Destinations.
        #[serde(rename = "destinationCIDRs")]
        #[schemars(extend("x-items" = { "pattern": patterns::CIDR }))]
        pub destination_cidrs: Vec<String>,
        /// The gateway; not used if `egressGateways` has entries.
        pub egress_gateway: EgressGateway,
        /// Gateways, of which one is picked for each source. Default: none.
        #[schemars(extend("maxItems" = 64, "x-default" = []))]
        pub egress_gateways: Option<Vec<EgressGateway>>,
        /// Destinations that are left out.
        #[serde(rename = "excludedCIDRs")]
        #[schemars(extend("x-items" = { "pattern": patterns::CIDR }))]
        pub excluded_cidrs: Option<Vec<String>>,
        /// Sources.
        pub selectors: Vec<EgressSelector>,
    }

    /// A gateway. Its source address is set by one field at most.
    #[derive(Eq)]
    pub struct EgressGateway {
        /// Source address.
        #[serde(rename = "egressIP")]
        #[schemars(extend("maxLength" = 39, "x-kubernetes-validations" = [
            { "rule": "self == '' || isIP(self)", "message": "egressIP must be a valid IP address" },
        ]))]
        pub egress_ip: Option<String>,
        /// Interface whose first IPv4 address is the source address.
        pub interface: Option<String>,
        /// Nodes of which the first by name is the gateway.
        pub node_selector: LabelSelector,
    }

    /// Pods whose traffic goes through a gateway. One of the first two selectors is needed.
    #[derive(Eq)]
    pub struct EgressSelector {
        /// Namespaces of the pods; an empty selector for all.
        pub namespace_selector: Option<LabelSelector>,
        /// Nodes that the pods run on.
        pub node_selector: Option<LabelSelector>,
        /// Labels of the pods.
        pub pod_selector: Option<LabelSelector>,
    }
}
