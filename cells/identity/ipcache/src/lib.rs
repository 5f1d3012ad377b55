// SPDX-License-Identifier: Apache-2.0

//! What addresses and networks are: identity, tunnel endpoint, encryption key.
//!
//! Sources (pods, nodes, other clusters, policies) [claim](Claim) prefixes through the one [`Writer`]. Table `ipcache` has a
//! row for each prefix with all claims on it; the claim of the strongest [`Source`] is what the prefix is
//! ([`IpcacheEntry::resolve`]), and returns when a stronger one goes. The reconciler writes that to map `cilium_ipcache_v2`.
//!
//! - An address ([`Prefix::address`]) and the network that has only this address ([`Prefix::cidr`]) are two prefixes. Both
//!   have one entry in the map, where the address wins.
//! - A restart deletes nothing from the map that a source may still claim: the map is pruned when every source that is
//!   registered ([`Writer::register_source`]) has delivered its first list, or has timed out ([`SourceSync`]).
//!
//! Feature `api`: `GET /v1/ip`.
//!
//! Read first: `claim.rs`, then `resolve.rs`.

#[cfg(feature = "api")]
pub mod api;
mod barrier;
mod cell;
mod claim;
mod config;
mod local;
mod map;
mod prefix;
mod publisher;
mod reconciler;
mod resolve;
mod source;
mod sync;
mod table;
#[cfg(test)]
mod tests;
mod writer;

pub use barrier::IdentityUser;
pub use cell::cell;
pub use claim::{Claim, ClaimedIdentity, Claims, EndpointFlags, Owner, PodMetadata, ResourceId};
pub use config::Config;
pub use map::IpcacheMap;
pub use prefix::{Prefix, PrefixKind};
pub use publisher::{Published, Publisher};
pub use resolve::Resolved;
pub use source::Source;
pub use sync::{LateSources, SourceGuard, SourceSync};
pub use table::{IpcacheEntry, lookup};
pub use writer::{Upserted, Writer};

hive::catalogue!(cell);
