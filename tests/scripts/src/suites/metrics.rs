// SPDX-License-Identifier: Apache-2.0

//! Metrics: a gauge, a counter that is disabled, and a histogram, with fixed values.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hive::{Cell, Members};
use hive_script::Retry;
use skep_metrics::{Counter, Gauge, HistogramVec, MetricHandle, Opts};

use crate::{Assembly, AssemblyError, Parts, Setup, Suite, base_cells};

pub(super) const SUITE: Suite = Suite {
    name: "metrics",
    summary: "Commands on metrics and their samples",
    retry: Retry {
        interval: Duration::from_millis(100),
        max_interval: Duration::from_millis(500),
        limit: None,
    },
    timeout: Duration::from_secs(60),
    assemble,
};

fn assemble(_: Setup) -> BoxFuture<'static, Result<Parts, AssemblyError>> {
    Assembly::new(|| {
        let mut cells = base_cells();
        cells.push(Cell::module("test-metrics", "Metrics with known values").provide(test_metrics));
        cells
    })
    .build()
}

fn test_metrics() -> Members<MetricHandle> {
    let gauge = Gauge::new(Opts::unprefixed("test_A", "A gauge"));
    gauge.set(1.0);
    let counter = Counter::new(Opts::unprefixed("test_B", "A counter").disabled());
    counter.add(2.0);
    let histogram = HistogramVec::new(Opts::unprefixed("test_C_seconds", "A histogram"), ["lbl"]);
    for value in [0.01, 0.01, 0.1, 1.0] {
        histogram.with(["a"]).observe(value);
    }
    Members(vec![Arc::new(gauge), Arc::new(counter), Arc::new(histogram)])
}
