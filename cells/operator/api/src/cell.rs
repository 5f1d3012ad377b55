// SPDX-License-Identifier: Apache-2.0

//! Cell: the API of the operator. Requires: [`HealthProbe`](crate::HealthProbe)s, a Kubernetes client, optionally metrics.
//! Provides: `/healthz`, `/v1/cluster` and `/v1/metrics/` on a TCP port, [`Listening`](crate::Listening), [`RemoteClusters`].

use hive::Cell;

use crate::{RemoteClusters, config::Config, health, server};

#[must_use]
pub fn cell() -> Cell {
    Cell::module("operator-api", "API of the operator")
        .config::<Config>()
        .provide(health::kubernetes)
        .provide(std::sync::Arc::<RemoteClusters>::default)
        .provide(server::Listening::new)
        .run(keep)
}

/// Serves even if no cell requires it.
fn keep(_: std::sync::Arc<server::Listening>) {}
