// SPDX-License-Identifier: Apache-2.0

//! Loads the packet programs and attaches them to interfaces.
//!
//! [`EndpointHooks`] is what the owner of endpoints calls for their interfaces.

mod hooks;
#[cfg(feature = "testing")]
pub mod testing;

pub use hooks::{EndpointHooks, HookError};
