// SPDX-License-Identifier: Apache-2.0

//! Events → batches → transactions.

mod batch;
mod config;
mod job;

pub use config::{Reflector, TransformError};
pub use job::ReflectError;

#[cfg(test)]
mod tests;
