// SPDX-License-Identifier: Apache-2.0

//! Tables `k8s-namespaces` and `k8s-pods`.
//!
//! `k8s-pods` holds only the pods of this node. Written only by the reflectors that [`cell`] adds, read by everybody.

mod cell;
mod namespace;
mod pod;
mod stamp;

pub use cell::cell;
pub use namespace::NamespaceRow;
pub use pod::LocalPod;
pub use stamp::Stamp;

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
