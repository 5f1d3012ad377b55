// SPDX-License-Identifier: Apache-2.0

//! Desired routes.

mod manager;
mod reconciler;
mod refresher;
mod row;

pub use manager::{DesiredRoutes, RouteError};
pub(crate) use reconciler::start;
pub(crate) use row::new_table;
pub use row::{DesiredRoute, DeviceRef, NextHop};
