// SPDX-License-Identifier: Apache-2.0

//! Devices, routes and neighbours that the agent desires, in the kernel.
//!
//! | table | writer | reconciled into |
//! |---|---|---|
//! | `desired-devices` | [`DesiredDevices`], one [`Owner`] a row | interfaces |
//! | `desired-routes` | [`DesiredRoutes`], one [`Owner`] a row; of several rows for one route the smallest admin distance wins | routes |
//! | `forwardable-ip` | [`ForwardableIps`] | – |
//! | `desired-neighbors` | computed from `forwardable-ip`, the selected devices and routes | neighbours |
//!
//! A log of devices and routes that this node has made (`wal.rs`) tells them from those of others after a restart: what is
//! in the log and not desired is deleted when all sources have delivered.

mod causes;
mod cell;
mod devices;
mod neighbors;
mod owner;
mod routes;
#[cfg(feature = "testing")]
mod testing;
mod wal;

pub use cell::{cell, cells};
pub use devices::{DesiredDevice, DesiredDevices, DeviceError, Vlan};
pub use neighbors::{
    CalculatorInterval, DesiredNeighbor, ForwardableIp, ForwardableIpOwner, ForwardableIps, NeighborConfig,
    OwnerKind,
};
pub use owner::{Owner, OwnerError};
pub use routes::{DesiredRoute, DesiredRoutes, DeviceRef, NextHop, RouteError};

hive::catalogue!(cell);
