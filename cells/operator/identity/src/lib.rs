// SPDX-License-Identifier: Apache-2.0

//! Identities of pods, created by the operator (`identity-management-mode`).
//!
//! - [`cell()`]: creates a CiliumIdentity for each set of labels that pods have;
//! - [`World`]: pods, namespaces and identities, and which identities are missing; knows no Kubernetes client.
//!
//! Nothing is deleted here: what no endpoint uses is left to the collection of identities (`skep-operator-gc`), which works
//! alike whoever creates them: from identities that pods want, the mark that it writes first is removed, as agents do.

mod cell;
mod controller;
mod metrics;
mod objects;
mod world;

pub use cell::cell;
pub use world::World;

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
