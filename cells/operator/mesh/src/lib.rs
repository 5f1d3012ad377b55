// SPDX-License-Identifier: Apache-2.0

//! Cluster mesh in the operator.
//!
//! - [`mcsapi`]: the multi-cluster services API: ServiceExports of all clusters become ServiceImports;
//! - [`mirror`]: backends of remote clusters become EndpointSlices;
//! - `skep-clustermesh-mesh` connects to the remote clusters; nothing is connected if none of the cells here is enabled.

mod diff;
pub mod mcsapi;
pub mod mirror;
mod namespace;
mod object;
mod queue;
mod store;
mod write;

#[cfg(test)]
mod tests;
