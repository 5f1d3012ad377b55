// SPDX-License-Identifier: Apache-2.0

//! Local redirect policies.

mod command;
mod controller;
mod desired;
pub mod fake;
mod policy;
mod skipmap;
mod sync;
mod table;

#[cfg(test)]
mod tests;

pub use policy::{FrontendType, Policy, PolicyError, Port, Target};
pub use skipmap::{PinnedSkipMaps, SkipEntry, SkipMaps};
pub use table::{
    POLICY_BY_ADDRESS, POLICY_BY_ID, POLICY_BY_SERVICE, SKIP_BY_POD, SKIP_BY_POLICY, SkipRedirects,
};
