// SPDX-License-Identifier: Apache-2.0

//! Kubernetes objects with only the fields that Skep reads.
//!
//! All types decode leniently where Kubernetes does: a missing field and `null` are the zero value, an unknown
//! field is skipped (so `managedFields` never takes memory). A value of the wrong type is an error that names
//! the path. They encode as Kubernetes clients do: zero values are left out, except for the few fields
//! that the API always prints.
//!
//! Text is a [`Str`] (up to 24 bytes without an allocation), lists are boxed slices, maps are sorted slices.

pub(crate) mod codec;
mod labels;
mod metadata;
mod text;

mod ciliumendpoint;
mod ciliumidentity;
mod ciliumnode;
mod endpointslice;
mod namespace;
mod node;
mod normalize;
mod pod;
mod redirectpolicy;
mod service;

pub use ciliumendpoint::{
    CiliumEndpoint, CiliumEndpointSlice, CiliumEndpointSliceEntry, CiliumEndpointStatus, DescribedEndpoint,
    EndpointEncryption, EndpointIdentity, EndpointNamedPort, EndpointNetworking,
};
pub use ciliumidentity::CiliumIdentity;
pub use ciliumnode::{
    CiliumNode, CiliumNodeAddress, CiliumNodeSpec, CiliumNodeStatus, EncryptionSpec, FamilyAddresses,
    IpamPoolAllocation, IpamPoolRequest, IpamPoolSpec, IpamSpec, IpamStatus, OperatorStatus,
};
pub use endpointslice::{
    AddressType, Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForZone,
};
pub use labels::{LabelSelector, Labels, SelectorRequirement};
pub use metadata::{Condition, CreatedMetadata, Metadata, OwnerReference};
pub use namespace::Namespace;
pub use node::{Node, NodeAddress, NodeAddressType, NodeCondition, NodeSpec, NodeStatus, Taint};
pub use normalize::normalize;
pub use pod::{
    Container, ContainerPort, ContainerState, ContainerStateRunning, ContainerStatus, Pod, PodCondition,
    PodIp, PodPhase, PodSpec, PodStatus, VolumeMount,
};
pub use redirectpolicy::{
    AddressMatcher, CiliumLocalRedirectPolicy, PortInfo, RedirectBackend, RedirectFrontend,
    RedirectPolicySpec, ServiceMatcher,
};
pub use service::{
    ClientIpConfig, IngressIpMode, IngressPort, IntOrString, IpFamily, LoadBalancerIngress,
    LoadBalancerStatus, Service, ServicePort, ServiceSpec, ServiceStatus, ServiceType, SessionAffinity,
    SessionAffinityConfig, TrafficPolicy,
};
pub use text::{Protocol, Str};

#[cfg(test)]
mod tests;
