// SPDX-License-Identifier: Apache-2.0

//! Pod networks of nodes, allocated by the operator.
//!
//! - [`PrefixAllocator`]: cuts networks into prefixes, with an owner each; knows no Kubernetes.

mod allocator;

pub use allocator::{Family, NetworkError, OccupyError, PrefixAllocator};
