// SPDX-License-Identifier: Apache-2.0

//! BPF programs, their map layouts, and how they are loaded.
//!
//! - [`lb`], [`node`], [`event`]: Rust twins of the keys and values, names and sizes of the maps.
//! - [`map`]: typed access to one map over `bpf(2)`, batched where the kernel can.
//! - [`store`]: the directory of pinned maps: create, open, replace.
//! - [`claim`]: one writer a node.
//! - [`link`]: attaching programs to a cgroup by pinned links.
//! - [`netns`]: network namespaces and their cookies.
//! - [`mount`]: finding and mounting the BPF and cgroup file systems.
//! - `load` (feature `load`): the compiled programs, loading and attaching them with libbpf.
//! - `testing` (feature `testing`): network namespace + cgroup + BPF file system for one test.
//!
//! Without features the crate needs neither clang nor libbpf: commands that only open pinned maps use it
//! like that and stay small.

pub mod capability;
pub mod claim;
pub mod event;
pub mod lb;
pub mod link;
#[cfg(feature = "load")]
pub mod load;
pub mod map;
pub mod mount;
pub mod netns;
pub mod node;
pub mod store;
pub mod sys;
#[cfg(feature = "testing")]
pub mod testing;

pub use claim::{Claim, ClaimError};
pub use map::{Map, MapError, MapFlags, MapKind, MapSpec, MapTypes, NestedMap, NestedSpec};
pub use store::{Hold, MapStore};
