// SPDX-License-Identifier: Apache-2.0

//! Interfaces of a node in Azure.

use crate::object::object;

object! { "kebab-case",
    /// Which interface of a node has addresses for pods.
    #[derive(Eq)]
    pub struct AzureSpec {
        pub interface_name: Option<String>,
    }

    #[derive(Eq)]
    pub struct AzureStatus {
        /// The interfaces.
        pub interfaces: Option<Vec<AzureInterface>>,
    }

    /// An interface.
    #[derive(Eq)]
    pub struct AzureInterface {
        /// Addresses.
        pub addresses: Option<Vec<AzureAddress>>,
        /// Network of the subnet; use `subnet`.
        #[schemars(extend("format" = "cidr"))]
        pub cidr: Option<String>,
        /// Gateway of the subnet.
        pub gateway: Option<String>,
        /// Id.
        pub id: Option<String>,
        /// Primary address.
        pub ip: Option<String>,
        /// MAC address.
        pub mac: Option<String>,
        /// Name.
        pub name: Option<String>,
        /// Security group.
        pub security_group: Option<String>,
        /// State of provisioning.
        pub state: Option<String>,
        pub subnet: Option<AzureSubnet>,
    }

    #[derive(Eq)]
    pub struct AzureAddress {
        /// The address.
        pub ip: Option<String>,
        /// State of provisioning.
        pub state: Option<String>,
        /// Id of the subnet; use `subnet` of the interface.
        pub subnet: Option<String>,
    }

    /// A subnet.
    #[derive(Eq)]
    pub struct AzureSubnet {
        /// Its network.
        #[schemars(extend("format" = "cidr"))]
        pub cidr: Option<String>,
        /// Id.
        pub id: Option<String>,
    }
}
