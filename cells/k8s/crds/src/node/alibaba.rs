// SPDX-License-Identifier: Apache-2.0

//! Interfaces of a node in Alibaba Cloud.

use std::collections::BTreeMap;

use crate::object::object;

object! { "kebab-case",
    /// How interfaces are made for a node.
    #[derive(Eq)]
    pub struct AlibabaSpec {
        /// Availability zone of the instance.
        pub availability_zone: Option<String>,
        /// Network of the VPC.
        #[schemars(extend("format" = "cidr"))]
        pub cidr_block: Option<String>,
        /// Type of the instance.
        pub instance_type: Option<String>,
        /// Tags of the security groups for interfaces.
        pub security_group_tags: Option<BTreeMap<String, String>>,
        /// Security groups for interfaces.
        pub security_groups: Option<Vec<String>>,
        /// Id of the VPC.
        pub vpc_id: Option<String>,
        /// Tags of the switches for interfaces.
        pub vswitch_tags: Option<BTreeMap<String, String>>,
        /// Switches for interfaces.
        pub vswitches: Option<Vec<String>>,
    }

    #[derive(Eq)]
    pub struct AlibabaStatus {
        pub enis: Option<BTreeMap<String, AlibabaEni>>,
    }

    #[derive(Eq)]
    pub struct AlibabaEni {
        /// Instance that it is attached to.
        pub instance_id: Option<String>,
        pub mac_address: Option<String>,
        pub network_interface_id: Option<String>,
        pub primary_ip_address: Option<String>,
        pub private_ipsets: Option<Vec<AlibabaIpSet>>,
        pub security_groupids: Option<Vec<String>>,
        pub tags: Option<BTreeMap<String, String>>,
        /// `Primary` or `Secondary`.
        #[serde(rename = "type")]
        pub kind: Option<String>,
        pub vpc: Option<AlibabaVpc>,
        pub vswitch: Option<AlibabaVswitch>,
        pub zone_id: Option<String>,
    }

    #[derive(Eq)]
    pub struct AlibabaIpSet {
        /// It is the primary one.
        pub primary: Option<bool>,
        /// The address.
        pub private_ip_address: Option<String>,
    }

    /// A VPC.
    #[derive(Eq)]
    pub struct AlibabaVpc {
        /// Its network.
        #[schemars(extend("format" = "cidr"))]
        pub cidr: Option<String>,
        /// Its IPv6 network.
        #[schemars(extend("format" = "cidr"))]
        pub ipv6_cidr: Option<String>,
        /// More networks of it.
        #[schemars(extend("x-items" = { "format": "cidr" }))]
        pub secondary_cidrs: Option<Vec<String>>,
        /// Id.
        pub vpc_id: Option<String>,
    }

    /// A switch.
    #[derive(Eq)]
    pub struct AlibabaVswitch {
        /// Its network.
        #[schemars(extend("format" = "cidr"))]
        pub cidr: Option<String>,
        /// Its IPv6 network.
        #[schemars(extend("format" = "cidr"))]
        pub ipv6_cidr: Option<String>,
        /// Id.
        pub vswitch_id: Option<String>,
    }
}
