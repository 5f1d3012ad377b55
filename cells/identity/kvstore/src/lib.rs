// SPDX-License-Identifier: Apache-2.0

//! Identities in a key-value store: labels and their ids.
//!
//! Below `cilium/state/identities/v1`, for labels `k8s:app=cart;`, id 458752 and node 192.168.50.21:
//!
//! - master key `id/458752` = `k8s:app=cart;`: without a lease, deleted by the [`IdentityGc`];
//! - slave key `value/k8s:app=cart;/192.168.50.21` = `458752`: leased, as long as that node uses the identity;
//! - lock `locks/k8s:app=cart;/<lease>` of who allocates, `locks/id/458752/<lease>` of who deletes.

mod allocator;
mod cache;
mod claim;
mod decoder;
mod gc;
mod layout;
mod local;
mod sweep;
#[cfg(test)]
mod tests;

pub use allocator::{AllocateError, Allocation, AllocatorOptions, IdentityAllocator, NotInUse};
pub use cache::{Identities, IdentityObserver};
pub use decoder::{IdentityDecoder, IdentityError};
pub use gc::{GcRound, IdentityGc, IdentityGcOptions};
pub use layout::{IdentityKeys, IdentityLabels};
pub use sweep::{LockSweep, SWEEP_INTERVAL};
