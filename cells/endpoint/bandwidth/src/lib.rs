// SPDX-License-Identifier: Apache-2.0

//! The bandwidth manager: pods send and receive no faster than their annotations allow.
//!
//! Table `bandwidth-edts` has the rates of endpoints, from annotations of pods, and is reconciled into the map
//! `cilium_throttle`. The programs give packets of pods departure times by it, which the queueing disciplines of the devices
//! (fq, table `bandwidth-qdiscs`) keep, and drop what exceeds the rate of a receiver. On a kernel without fq, and in a network
//! namespace that does not show the default queueing discipline, it is off, and says so in its health.

mod annotations;
mod cell;
mod kernel;
mod manager;
mod qdiscs;
mod rates;

pub use cell::cell;
pub use kernel::{ConfigError, Unsupported};
pub use qdiscs::DesiredQdisc;
pub use rates::{Direction, Rate};

hive::catalogue!(cell);
