// SPDX-License-Identifier: Apache-2.0

//! Local redirect policies.

mod policy;

#[cfg(test)]
mod tests;

pub use policy::{FrontendType, Policy, PolicyError, Port, Target};
