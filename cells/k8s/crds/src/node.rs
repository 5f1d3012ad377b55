// SPDX-License-Identifier: Apache-2.0

//! CiliumNode and CiliumNodeConfig.

mod alibaba;
mod aws;
mod azure;
mod ipam;

use std::collections::BTreeMap;

use crate::object::{kind, object};
use crate::shared::{AddressPair, EncryptionSpec, LooseLabelSelector};

pub use alibaba::{AlibabaEni, AlibabaIpSet, AlibabaSpec, AlibabaStatus, AlibabaVpc, AlibabaVswitch};
pub use aws::{AwsEni, AwsSubnet, AwsVpc, EniSpec, EniStatus};
pub use azure::{AzureAddress, AzureInterface, AzureSpec, AzureStatus, AzureSubnet};
pub use ipam::{
    AllocatedPool, AllocationIp, IpamOperatorStatus, IpamPools, IpamSpec, IpamStatus, PodCidrState,
    PodCidrStatus, ReleaseState, RequestedAddresses, RequestedPool,
};

kind! {
    /// A node, as the agents describe it to each other and to the operator.
    CiliumNode, "cilium.io", "v2", "ciliumnodes", false, {
        /// What the agent says, and what the operator allocates.
        pub spec: CiliumNodeSpec,
        /// State of address management.
        pub status: Option<CiliumNodeStatus>,
    }
}

kind! {
    /// Settings of the agents on some nodes.
    CiliumNodeConfig, "cilium.io", "v2", "ciliumnodeconfigs", true, {
        /// The settings and the nodes.
        pub spec: CiliumNodeConfigSpec,
    }
}

object! {
    /// Settings of the agents on some nodes.
    #[derive(Eq)]
    pub struct CiliumNodeConfigSpec {
        /// Settings, with keys as in `cilium-config`.
        pub defaults: BTreeMap<String, String>,
        /// The nodes; an empty selector for all.
        pub node_selector: LooseLabelSelector,
    }
}

object! { "kebab-case",
    /// What the agent says about its node, and what the operator allocates to it.
    #[derive(Eq)]
    pub struct CiliumNodeSpec {
        pub addresses: Option<Vec<CiliumNodeAddress>>,
        /// Settings of interfaces in Alibaba Cloud.
        pub alibaba_cloud: Option<AlibabaSpec>,
        pub azure: Option<AzureSpec>,
        /// Id of the boot of the kernel; changes on reboot.
        pub bootid: Option<String>,
        pub encryption: Option<EncryptionSpec>,
        pub eni: Option<EniSpec>,
        pub health: Option<AddressPair>,
        pub ingress: Option<AddressPair>,
        /// Id of the instance, as the cloud provider names it.
        pub instance_id: Option<String>,
        pub ipam: Option<IpamSpec>,
    }

    #[derive(Eq)]
    pub struct CiliumNodeAddress {
        pub ip: Option<String>,
        /// `InternalIP`, `ExternalIP`, `CiliumInternalIP`, `Hostname`, `InternalDNS` or `ExternalDNS`.
        #[serde(rename = "type")]
        pub kind: Option<String>,
    }

    /// State of address management on a node.
    #[derive(Eq)]
    pub struct CiliumNodeStatus {
        pub alibaba_cloud: Option<AlibabaStatus>,
        pub azure: Option<AzureStatus>,
        pub eni: Option<EniStatus>,
        pub ipam: Option<IpamStatus>,
    }
}
