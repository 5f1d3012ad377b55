// SPDX-License-Identifier: Apache-2.0

//! Cell: the agent's API. Requires: [`Routes`](crate::Routes) and
//! [`StatusProbe`](crate::StatusProbe)s. Provides: `/v1` on a unix socket, its [`Document`](crate::Document),
//! [`StatusCollector`](crate::StatusCollector), and `/healthz` on a loopback port.

use hive::Cell;

use crate::{config::Config, debug, routes, server, status};

#[must_use]
pub fn cell() -> Cell {
    Cell::module("agent-api", "API and status of the agent")
        .config::<Config>()
        .provide(status::StatusCollector::new)
        .provide(routes::join)
        .provide(status::api)
        .provide(debug::routes)
        .provide(debug::tables)
        .run(server::serve)
        .run(status::report_readiness)
}
