// SPDX-License-Identifier: Apache-2.0

//! Allocates security identities: [`Allocator::allocate`] returns the identity of some labels as [`Held`], which is released
//! when it is dropped.
//!
//! - Reserved, well-known and fixed identities need no store.
//! - Labels of the node's own scopes have identities of the node (`skep_identity_cache::LocalIdentities`).
//! - All others are allocated in an [`IdentityStore`]: CiliumIdentities, the key-value store, or both, as
//!   `identity-allocation-mode` says. The allocator asks it once for labels that are held several times.
//!
//! Feature `testing`: a store in memory.
//!
//! Read first: `allocator.rs`, then `objects.rs`.

mod allocator;
mod cell;
mod config;
mod error;
mod fixed;
mod kvstore;
mod objects;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use allocator::{Allocator, Held};
pub use cell::cell;
pub use config::Config;
pub use error::AllocateError;
pub use fixed::{FixedIdentities, FixedIdentityError};
pub use kvstore::KeyIdentities;
pub use objects::{IdentityObjects, ObjectOptions};
pub use store::{BothStores, IdentityStore};

hive::catalogue!(cell);
