// SPDX-License-Identifier: Apache-2.0

//! The security identities that the agent knows, as table `identities`: number, labels, where it is from.
//!
//! Input: reserved identities; those of the own cluster, from CiliumIdentities or the key-value store, as
//! `identity-allocation-mode` says (feature `sources`); those of remote clusters, which the cluster mesh writes; those of this
//! node ([`LocalIdentities`]). Only [`Writer`] writes. Feature `api` adds `GET /v1/identity`.
//!
//! Read first: `table.rs`, then `own.rs`.

#[cfg(feature = "api")]
pub mod api;
mod cell;
mod local;
#[cfg(feature = "sources")]
pub mod own;
mod table;
#[cfg(test)]
mod tests;
mod writer;

pub use cell::cell;
pub use local::{LocalError, LocalIdentities, LocalIdentity};
pub use table::{IdentitySource, ObjectFacts, SecurityIdentity};
pub use writer::Writer;

hive::catalogue!(cell);
