// SPDX-License-Identifier: Apache-2.0

//! Maglev consistent-hashing lookup tables.
//!
//! A lookup table maps `hash(packet) mod M` to a backend id. Every node builds the table of a service on its own,
//! and a packet must find the same backend whichever node it enters, so tables are **bit-identical** to those of
//! Cilium with the same seed: same hash text of a backend, same hash, same order, same fill.
//!
//! - [`Maglev`] is the handle other cells inject; [`Maglev::lookup_table`] builds one table.
//! - [`TableSize`] and [`HashSeed`] are the two settings; [`HashSeed::jhash`] are what the BPF programs hash
//!   packets with.
//!
//! ```
//! use skep_loadbalancer_maglev::{Backend, HashSeed, Maglev, TableSize};
//!
//! let maglev = Maglev::new(TableSize::try_from(251)?, HashSeed::default());
//! let table = maglev.lookup_table([
//!     Backend { id: 1, weight: 100, address: "10.0.0.1:80/TCP" },
//!     Backend { id: 2, weight: 100, address: "10.0.0.2:80/TCP" },
//! ]);
//! assert_eq!(table.len(), 251);
//! # Ok::<(), skep_loadbalancer_maglev::MaglevError>(())
//! ```

#![warn(missing_docs)]

#[cfg(any(test, feature = "testing"))]
pub mod bench;
mod cell;
mod murmur;
mod table;

#[cfg(test)]
mod tests;

pub use cell::cell;
pub use murmur::murmur3_x64_128;
pub use skep_base_settings::{HashSeed, MaglevError, TableSize};
pub use table::{Backend, Maglev};

hive::catalogue!(cell);
