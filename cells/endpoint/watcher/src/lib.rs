// SPDX-License-Identifier: Apache-2.0

//! Endpoints of all nodes in the ipcache: address → identity, node, encryption key, pod.
//!
//! Input: CiliumEndpoints, or CiliumEndpointSlices with `--enable-cilium-endpoint-slice`. Output: claims of source
//! `custom-resource`, one owner for each endpoint. An endpoint deletes only its own claims: a late deletion never removes the
//! claim of another endpoint that has the address by now. An endpoint in two slices is what the slice that changed last says;
//! when that slice drops it, the other one counts again.
//!
//! Read first: `endpoints.rs`.

mod cell;
mod config;
mod convert;
mod endpoints;
mod objects;
#[cfg(test)]
mod tests;
mod watch;

pub use cell::cell;
pub use config::Config;
pub use convert::EndpointError;
pub use endpoints::{key_of_owner, owner};

hive::catalogue!(cell);
