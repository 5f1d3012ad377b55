// SPDX-License-Identifier: Apache-2.0

//! Cell: the agent's API. Needs: what cells give as [`Routes`] and [`StatusProbe`]s, tables `frontends`,
//! `localredirectpolicies` and `k8s-pods`. Gives:
//! `/v1` on a unix socket and `/healthz` on a loopback port.

use hive::Cell;

use crate::{config::Config, debug, kubernetes, lrp, server, service, status};

/// The agent's API.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("agent-api", "API and status of the agent")
        .config::<Config>()
        .provide_private(status::Status::new)
        .provide(status::routes)
        .provide(service::routes)
        .provide(lrp::routes)
        .provide(debug::routes)
        .provide(debug::tables)
        .provide(kubernetes::probe)
        .run(server::serve)
}
