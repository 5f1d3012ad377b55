// SPDX-License-Identifier: Apache-2.0

//! `bpf(2)`, and what of the system a datapath in the kernel needs around it.
//!
//! - [`map`]: typed access to one map, in the kernel (batched where it can) or in memory.
//! - [`store`]: the directory of pinned maps: create, open, replace.
//! - [`claim`]: one writer a node.
//! - [`link`]: attaching programs to cgroups and interfaces by pinned links.
//! - [`filter`]: attaching programs to interfaces where the kernel has no links for them.
//! - [`capability`]: whether this process may do all that.
//! - [`clock`]: the clock of programs, and of times in maps.
//! - [`mount`]: finding and mounting the BPF and cgroup file systems.
//! - `testing` (feature `testing`): network namespace + cgroup + BPF file system for one test.
//!
//! Needs neither clang nor libbpf. The families of maps are in `skep-bpf-maps`, the programs in `skep-bpf-programs`.

pub mod capability;
pub mod claim;
pub mod clock;
pub mod filter;
pub mod link;
pub mod map;
pub mod mount;
pub mod store;
mod syscall;
#[cfg(feature = "testing")]
pub mod testing;

pub use claim::{Claim, ClaimError};
pub use map::{
    KernelMap, Map, MapError, MapFlags, MapKind, MapSpec, MapTypes, MemoryMap, NestedMap, NestedSpec, RawMap,
    RawSpec,
};
pub use store::{Hold, MapStore};
pub use syscall::{MapInfo, calls};
