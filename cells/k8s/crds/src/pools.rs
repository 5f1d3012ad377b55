// SPDX-License-Identifier: Apache-2.0

//! Pools of addresses: CiliumLoadBalancerIPPool for Services, CiliumPodIPPool for pods.

use crate::object::{kind, object, words};
use crate::shared::{ConditionsStatus, Integer, LabelSelector};

kind! {
    /// Addresses for Services of type LoadBalancer.
    CiliumLoadBalancerIPPool, "cilium.io", "v2", "ciliumloadbalancerippools", false, {
        /// The addresses and who may have them.
        pub spec: LoadBalancerPoolSpec,
        /// What the operator says about the pool.
        pub status: Option<ConditionsStatus>,
    }
}

kind! {
    /// Addresses for pods.
    CiliumPodIPPool, "cilium.io", "v2alpha1", "ciliumpodippools", false, {
        /// The addresses and who may have them.
        pub spec: PodPoolSpec,
    }
}

object! {
    /// Addresses for Services and who may have them.
    #[derive(Eq)]
    pub struct LoadBalancerPoolSpec {
        /// The ends of networks can be used; absent for yes. Not about ranges, nor networks of one or two addresses.
        #[serde(rename = "allowFirstLastIPs")]
        pub allow_first_last_ips: Option<AllowFirstLastIps>,
        /// The addresses.
        pub blocks: Option<Vec<PoolBlock>>,
        /// No address is allocated any more; those in use stay. Default: false.
        #[schemars(extend("x-default" = false))]
        pub disabled: Option<bool>,
        /// Services that may have the addresses; absent for all. Namespace and name of a Service are the labels
        /// `io.kubernetes.service.namespace` and `io.kubernetes.service.name`.
        pub service_selector: Option<LabelSelector>,
    }

    /// A network, or a range of addresses.
    #[derive(Eq)]
    pub struct PoolBlock {
        /// A network; has precedence over the range.
        #[schemars(extend("format" = "cidr"))]
        pub cidr: Option<String>,
        /// First address of the range.
        pub start: Option<String>,
        /// Last address of the range; absent for a single address.
        pub stop: Option<String>,
    }

    /// Addresses for pods and who may have them.
    #[derive(Eq)]
    pub struct PodPoolSpec {
        /// The first address of each network of a node can be used. Default: false.
        #[serde(rename = "allowFirstIP")]
        #[schemars(extend("x-default" = false, "x-kubernetes-validations" = [
            { "rule": "self == oldSelf", "message": "allowFirstIP is immutable" },
        ]))]
        pub allow_first_ip: Option<bool>,
        /// The last address of each network of a node can be used. Default: false.
        #[serde(rename = "allowLastIP")]
        #[schemars(extend("x-default" = false, "x-kubernetes-validations" = [
            { "rule": "self == oldSelf", "message": "allowLastIP is immutable" },
        ]))]
        pub allow_last_ip: Option<bool>,
        /// IPv4 addresses.
        pub ipv4: Option<Ipv4Pool>,
        /// IPv6 addresses.
        pub ipv6: Option<Ipv6Pool>,
        /// Namespaces whose pods may have the addresses.
        pub namespace_selector: Option<LabelSelector>,
        /// Pods that may have the addresses; they must match both selectors.
        pub pod_selector: Option<LabelSelector>,
    }

    /// IPv4 addresses for pods.
    #[derive(Eq)]
    pub struct Ipv4Pool {
        /// The networks.
        #[schemars(extend("minItems" = 1, "x-items" = { "format": "cidr" }))]
        pub cidrs: Vec<String>,
        /// Length of the prefixes that nodes get.
        #[schemars(extend("minimum" = 1, "maximum" = 32, "x-kubernetes-validations" = [
            { "rule": "self == oldSelf", "message": "maskSize is immutable" },
        ]))]
        pub mask_size: Integer,
    }

    /// IPv6 addresses for pods.
    #[derive(Eq)]
    pub struct Ipv6Pool {
        /// The networks.
        #[schemars(extend("minItems" = 1, "x-items" = { "format": "cidr" }))]
        pub cidrs: Vec<String>,
        /// Length of the prefixes that nodes get.
        #[schemars(extend("minimum" = 1, "maximum" = 128, "x-kubernetes-validations" = [
            { "rule": "self == oldSelf", "message": "maskSize is immutable" },
        ]))]
        pub mask_size: Integer,
    }
}

words! {
    /// Whether the ends of networks can be used.
    pub enum AllowFirstLastIps {
        /// They can.
        Yes = "Yes",
        /// They cannot.
        No = "No",
    }
}
