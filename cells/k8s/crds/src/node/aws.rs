// SPDX-License-Identifier: Apache-2.0

//! Interfaces of a node in AWS.

use std::collections::BTreeMap;

use crate::object::object;
use crate::shared::Integer;

object! { "kebab-case",
    /// How interfaces are made for a node.
    #[derive(Eq)]
    pub struct EniSpec {
        /// Availability zone of the instance.
        pub availability_zone: Option<String>,
        /// Interfaces are deleted with the instance; absent for yes.
        pub delete_on_termination: Option<bool>,
        /// Addresses are allocated one by one even if prefixes are on.
        pub disable_prefix_delegation: Option<bool>,
        /// Tags of interfaces that are left alone.
        pub exclude_interface_tags: Option<BTreeMap<String, String>>,
        /// Index of the first interface for pods.
        #[schemars(extend("minimum" = 0))]
        pub first_interface_index: Option<Integer>,
        /// Type of the instance.
        pub instance_type: Option<String>,
        /// Subnet of the first interface.
        pub node_subnet_id: Option<String>,
        /// Tags of the security groups for interfaces.
        pub security_group_tags: Option<BTreeMap<String, String>>,
        /// Security groups for interfaces.
        pub security_groups: Option<Vec<String>>,
        /// Subnets for interfaces.
        pub subnet_ids: Option<Vec<String>>,
        /// Tags of the subnets for interfaces.
        pub subnet_tags: Option<BTreeMap<String, String>>,
        /// Pods can have the primary address of an interface.
        pub use_primary_address: Option<bool>,
        pub vpc_id: Option<String>,
    }

    #[derive(Eq)]
    pub struct EniStatus {
        pub enis: Option<BTreeMap<String, AwsEni>>,
    }

    #[derive(Eq)]
    pub struct AwsEni {
        /// Addresses beside the primary one.
        pub addresses: Option<Vec<String>>,
        /// Availability zone.
        pub availability_zone: Option<String>,
        /// Description.
        pub description: Option<String>,
        /// Id.
        pub id: Option<String>,
        /// Primary address.
        pub ip: Option<String>,
        /// IPv6 prefixes (/80) that are delegated to it.
        #[schemars(extend("x-items" = { "format": "cidr" }))]
        pub ipv6_prefixes: Option<Vec<String>>,
        /// MAC address.
        pub mac: Option<String>,
        /// Index of the interface.
        pub number: Option<Integer>,
        /// IPv4 prefixes (/28) that are delegated to it.
        #[schemars(extend("x-items" = { "format": "cidr" }))]
        pub prefixes: Option<Vec<String>>,
        /// Public address.
        pub public_ip: Option<String>,
        /// Ids of security groups.
        pub security_groups: Option<Vec<String>>,
        /// Subnet.
        pub subnet: Option<AwsSubnet>,
        /// Tags.
        pub tags: Option<BTreeMap<String, String>>,
        /// VPC.
        pub vpc: Option<AwsVpc>,
    }

    /// A subnet.
    #[derive(Eq)]
    pub struct AwsSubnet {
        /// Its network.
        #[schemars(extend("format" = "cidr"))]
        pub cidr: Option<String>,
        /// Id.
        pub id: Option<String>,
    }

    /// A VPC.
    #[derive(Eq)]
    pub struct AwsVpc {
        /// Its networks beside the primary one.
        #[schemars(extend("x-items" = { "format": "cidr" }))]
        pub cidrs: Option<Vec<String>>,
        /// Id.
        pub id: Option<String>,
        /// Its primary network.
        #[schemars(extend("format" = "cidr"))]
        pub primary_cidr: Option<String>,
    }
}
