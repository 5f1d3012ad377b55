// SPDX-License-Identifier: Apache-2.0

//! Reads the per-CPU perf rings that the programs write to.
//!
//! [`Rings::open`] opens a ring for each online CPU in a pinned perf event array, and reads each ring in a task of its own.
//! When the [`Rings`] are closed or dropped, so is their descriptor of the map: the kernel then removes the rings from it,
//! and programs write nothing.

mod error;
mod rings;

pub use error::RingError;
pub use rings::{Event, Rings};
