// SPDX-License-Identifier: Apache-2.0

//! Addresses of the pods of a node.

use std::collections::BTreeMap;

use crate::object::{object, words};
use crate::shared::Integer;

object! { "kebab-case",
    /// Which addresses the pods of a node may have, and how many the node wants.
    #[derive(Eq)]
    pub struct IpamSpec {
        /// IPv6 addresses for pods. No longer written.
        pub ipv6_pool: Option<BTreeMap<String, AllocationIp>>,
        /// Addresses to allocate at once beyond `pre-allocate`.
        #[schemars(extend("minimum" = 0))]
        pub max_above_watermark: Option<Integer>,
        /// Most addresses of the node.
        #[schemars(extend("minimum" = 0))]
        pub max_allocate: Option<Integer>,
        /// Fewest addresses of the node.
        #[schemars(extend("minimum" = 0))]
        pub min_allocate: Option<Integer>,
        /// Networks for pods.
        #[serde(rename = "podCIDRs")]
        #[schemars(extend("x-items" = { "format": "cidr" }))]
        pub pod_cidrs: Option<Vec<String>>,
        /// Addresses for pods.
        pub pool: Option<BTreeMap<String, AllocationIp>>,
        /// Pools that the node has networks of.
        pub pools: Option<IpamPools>,
        /// Free addresses to keep.
        #[schemars(extend("minimum" = 0))]
        pub pre_allocate: Option<Integer>,
        /// Tags of the static address to assign.
        pub static_ip_tags: Option<BTreeMap<String, String>>,
    }

    /// An address that can be used or is in use.
    #[derive(Eq)]
    pub struct AllocationIp {
        /// Who uses it, such as `namespace/pod`.
        pub owner: Option<String>,
        /// What it belongs to, such as the id of an interface.
        pub resource: Option<String>,
    }

    #[derive(Eq)]
    pub struct IpamPools {
        /// Networks of pools: the operator adds them, the agent removes them. Sorted by pool.
        pub allocated: Option<Vec<AllocatedPool>>,
        /// What the agent asks for. Sorted by pool.
        pub requested: Option<Vec<RequestedPool>>,
    }

    /// Networks of a pool that belong to a node.
    #[derive(Eq)]
    pub struct AllocatedPool {
        /// The first address of each network can be used.
        #[serde(rename = "allowFirstIP")]
        pub allow_first_ip: Option<bool>,
        /// The last address of each network can be used.
        #[serde(rename = "allowLastIP")]
        pub allow_last_ip: Option<bool>,
        /// The networks.
        #[schemars(extend("x-items" = { "format": "cidr" }))]
        pub cidrs: Option<Vec<String>>,
        /// Name of the pool.
        #[schemars(extend("minLength" = 1))]
        pub pool: String,
    }

    /// Addresses that a node asks a pool for.
    #[derive(Eq)]
    pub struct RequestedPool {
        /// How many addresses.
        pub needed: Option<RequestedAddresses>,
        /// Name of the pool.
        #[schemars(extend("minLength" = 1))]
        pub pool: String,
    }

    /// How many addresses a node asks for.
    #[derive(Eq)]
    pub struct RequestedAddresses {
        /// IPv4 addresses.
        pub ipv4_addrs: Option<Integer>,
        /// IPv6 addresses.
        pub ipv6_addrs: Option<Integer>,
    }

    /// Addresses of the pods of a node: what is in use, what went wrong.
    #[derive(Eq)]
    pub struct IpamStatus {
        /// Static address that the node has.
        pub assigned_static_ip: Option<String>,
        /// IPv6 addresses in use. No longer written.
        pub ipv6_used: Option<BTreeMap<String, AllocationIp>>,
        pub operator_status: Option<IpamOperatorStatus>,
        /// State of networks. No longer written.
        pub pod_cidrs: Option<BTreeMap<String, PodCidrState>>,
        /// Addresses that the operator wants back.
        pub release_ips: Option<BTreeMap<String, ReleaseState>>,
        /// IPv6 addresses that the operator wants back. No longer written.
        pub release_ipv6s: Option<BTreeMap<String, ReleaseState>>,
        pub used: Option<BTreeMap<String, AllocationIp>>,
    }

    /// What the operator says about the addresses of a node.
    #[derive(Eq)]
    pub struct IpamOperatorStatus {
        /// Why the last allocation failed; empty if it did not.
        pub error: Option<String>,
    }

    /// State of a network of a node.
    #[derive(Eq)]
    pub struct PodCidrState {
        pub status: Option<PodCidrStatus>,
    }
}

words! {
    /// State of a network of a node.
    pub enum PodCidrStatus {
        /// The node gave it back.
        Released = "released",
        /// It has no free address.
        Depleted = "depleted",
        /// It is in use.
        InUse = "in-use",
    }

    /// How far the release of an address is.
    pub enum ReleaseState {
        /// The operator wants it back.
        MarkedForRelease = "marked-for-release",
        /// The agent agrees.
        ReadyForRelease = "ready-for-release",
        /// The agent uses it.
        DoNotRelease = "do-not-release",
        /// The operator has taken it back.
        Released = "released",
    }
}
