// SPDX-License-Identifier: Apache-2.0

//! Desired devices.

mod manager;
mod reconciler;
mod row;

pub use manager::{DesiredDevices, DeviceError};
pub(crate) use reconciler::{PRUNE_INTERVAL, start};
pub(crate) use row::new_table;
pub use row::{DesiredDevice, Vlan};
