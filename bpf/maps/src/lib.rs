// SPDX-License-Identifier: Apache-2.0

//! The families of BPF maps: Rust twins of keys and values, names, types and sizes.
//!
//! - [`lb`]: load balancing.
//! - [`node`]: which addresses are nodes.
//! - [`event`]: what programs report.
//! - `testing` (feature `testing`): services written straight into the maps.
//!
//! Access to maps is in `skep-bpf-sys`, the programs that use them in `skep-bpf-programs`.

pub mod event;
pub mod lb;
pub mod node;
#[cfg(feature = "testing")]
pub mod testing;
