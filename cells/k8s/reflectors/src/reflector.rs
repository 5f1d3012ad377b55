// SPDX-License-Identifier: Apache-2.0

mod config;
mod rows;

pub use config::{Reflector, TransformError};
pub use rows::ReflectError;

#[cfg(test)]
mod tests;
