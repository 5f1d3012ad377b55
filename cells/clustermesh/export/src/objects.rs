// SPDX-License-Identifier: Apache-2.0

//! Objects as they are published: with the fields that other clusters read, and no others.
//!
//! They are types of their own, so that the compact types of the agents do not grow.

mod endpoint;
mod mcs;
mod service;
mod slice;

pub(crate) use endpoint::{
    CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, EndpointWire, NamedPortWire, SliceEntry,
};
pub(crate) use mcs::ServiceExport;
pub(crate) use service::{Service, ServicePort};
pub(crate) use slice::{EndpointSlice, EndpointWithHost, Named};

macro_rules! resource {
    ($type:ty, $group:literal, $version:literal, $kind:literal, $plural:literal, $namespaced:literal) => {
        impl skep_k8s_types::Resource for $type {
            fn kind() -> skep_k8s_types::Kind {
                const { skep_k8s_types::Kind::new($group, $version, $kind, $plural, $namespaced) }
            }

            fn metadata(&self) -> &skep_k8s_types::slim::Metadata {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut skep_k8s_types::slim::Metadata {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use resource;
