// SPDX-License-Identifier: Apache-2.0

//! The trait by which the owner of endpoints has programs attached to their interfaces.
//!
//! `skep-datapath-loader` implements it with the packet programs. It is a crate of its own, so that what calls it links
//! neither the programs nor libbpf. With feature `testing` there are hooks in memory.

mod hooks;
#[cfg(feature = "testing")]
pub mod testing;

pub use hooks::{EndpointHooks, HookError};
