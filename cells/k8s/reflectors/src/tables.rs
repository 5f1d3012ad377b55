// SPDX-License-Identifier: Apache-2.0

//! Tables `k8s-namespaces` and `k8s-pods`.
//!
//! `k8s-pods` holds only the pods of this node. Only the reflectors of [`cell`] write to them.

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
