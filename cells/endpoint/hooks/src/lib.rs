// SPDX-License-Identifier: Apache-2.0

//! The traits by which the owner of endpoints has programs attached to their interfaces, and what programs remember of
//! endpoints that are gone removed.
//!
//! `skep-datapath-loader` implements [`EndpointHooks`] with the packet programs, `skep-conntrack` [`EndpointFlows`]. This is
//! a crate of its own, so that what calls them links neither the programs nor libbpf. With feature `testing` there are both
//! in memory.

mod hooks;
#[cfg(feature = "testing")]
pub mod testing;

pub use hooks::{EndpointFlows, EndpointHooks, ForgetError, HookError};
