// SPDX-License-Identifier: Apache-2.0

//! Objects as they are published: with the fields that other clusters read, and no others.
//!
//! They are types of their own, so that the compact types of the agents do not grow.

mod mcs;
mod service;
mod slice;

pub(crate) use mcs::ServiceExport;
pub(crate) use service::{Service, ServicePort};
pub(crate) use slice::EndpointSlice;
