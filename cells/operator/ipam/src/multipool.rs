// SPDX-License-Identifier: Apache-2.0

//! Mode `multi-pool`: nodes get networks of the pools that they ask for.
//!
//! - [`pool`]: a CiliumPodIPPool as it is used here;
//! - [`pools`]: which networks each node has of which pool; knows no Kubernetes;
//! - [`nodes`]: reads and writes the specs of CiliumNodes, watches the pools;
//! - [`auto_create`]: creates pools at the start.

mod auto_create;
#[cfg(feature = "testing")]
pub(crate) mod command;
mod nodes;
mod pool;
mod pools;

pub(crate) use auto_create::create_pools;
pub use auto_create::{AutoPoolError, AutoPools};
pub(crate) use nodes::{Migration, MultiPoolNodes};
pub use pool::{PoolSpec, PoolSpecError};
pub use pools::{Allocation, MultiPool, MultiPoolAssignment, Request, RequestError};
