// SPDX-License-Identifier: Apache-2.0

//! Removes what agents leave behind.
//!
//! Cells for the leader of an operator, each on its own:
//!
//! - [`endpoints`]: CiliumEndpoints without a pod;
//! - [`nodes`]: CiliumNodes without a node;
//! - [`identities`]: CiliumIdentities that nothing uses;
//! - [`slices`]: CiliumEndpointSlices where they are off;
//! - [`pods`]: restarts pods that run without an endpoint;
//! - [`taints`]: taints and the condition of nodes, by the agent that runs there.
//!
//! [`tables::cell`] and [`agents::cell`] provide the objects that they judge by, as tables with only the fields they read.

pub mod agents;
pub mod endpoints;
mod failure;
pub mod identities;
pub mod nodes;
mod objects;
pub mod pods;
pub mod slices;
pub mod tables;
pub mod taints;

pub use failure::GcError;
pub use objects::HEARTBEAT;

#[cfg(test)]
mod tests;
