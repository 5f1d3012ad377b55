// SPDX-License-Identifier: Apache-2.0

//! Cells: desired devices, routes and neighbours.
//! Requires: devices, routes and neighbours of the kernel, `StateConfig`. Provides: [`DesiredDevices`](crate::DesiredDevices),
//! [`DesiredRoutes`](crate::DesiredRoutes), [`ForwardableIps`](crate::ForwardableIps), read-only tables.

use hive::Cell;

/// All of it.
pub fn cell() -> Cell {
    Cell::group([cells::devices(), cells::routes(), cells::neighbors()])
}

/// The parts.
pub mod cells {
    use std::time::Duration;

    use hive::Cell;

    use crate::{
        devices::{self, DesiredDevice, DesiredDevices},
        neighbors::{
            self, CalculatorInterval, DesiredNeighbor, ForwardableIp, ForwardableIps, NeighborConfig,
            NeighborMetrics,
        },
        routes::{self, DesiredRoute, DesiredRoutes},
    };

    /// Table `desired-devices` into interfaces.
    pub fn devices() -> Cell {
        Cell::module("device-reconciler", "Desired network devices")
            .provide_private(devices::new_table)
            .provide(statedb::read_only::<DesiredDevice>)
            .provide(DesiredDevices::new)
            .run(devices::start)
            .library() // others desire devices
    }

    /// Table `desired-routes` into routes.
    pub fn routes() -> Cell {
        Cell::module("route-reconciler", "Desired routes")
            .provide_private(routes::new_table)
            .provide(statedb::read_only::<DesiredRoute>)
            .provide(DesiredRoutes::new)
            .run(routes::start)
            .library() // others desire routes
    }

    /// Tables `forwardable-ip` and `desired-neighbors` into neighbours.
    pub fn neighbors() -> Cell {
        Cell::module("neighbor", "Neighbours of next hops")
            .config::<NeighborConfig>()
            .provide(skep_base_metrics::provided::<NeighborMetrics>)
            .provide_private(neighbors::new_forwardable)
            .provide_private(neighbors::new_desired)
            .provide(statedb::read_only::<ForwardableIp>)
            .provide(statedb::read_only::<DesiredNeighbor>)
            .provide(ForwardableIps::new)
            .provide(interval)
            .run(neighbors::start)
            .library() // others forward to addresses
    }

    fn interval() -> CalculatorInterval {
        CalculatorInterval(Duration::from_secs(15))
    }
}
