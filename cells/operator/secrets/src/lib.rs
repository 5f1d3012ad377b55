// SPDX-License-Identifier: Apache-2.0

//! Synchronization of Secrets: agents may read one namespace only, so that the Secrets which policies name are copied there.
//!
//! - [`cell()`]: keeps the copies;
//! - [`World`]: which policies name which Secrets, and what their copies are called; knows no Kubernetes client.
//!
//! The copy of `shop/ca` is `shop-ca`, with labels that name the original; that name may stand for two Secrets (`a-b/c` and
//! `a/b-c`): then the first one in their order has the copy, and health names the other.

mod cell;
mod controller;
mod copy;
mod world;
mod writer;

pub use cell::{Config, cell};
pub use copy::{OWNER_NAME, OWNER_NAMESPACE};
pub use world::{PolicyKind, World};

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
