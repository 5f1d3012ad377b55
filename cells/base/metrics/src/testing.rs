// SPDX-License-Identifier: Apache-2.0

//! Suite `metrics`: a gauge, a counter that is disabled, and a histogram, with fixed values.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Members};
use hive_script::testing::{Assembling, Assembly, Setup, Suite};

use crate::{Counter, Gauge, HistogramVec, MetricHandle, Opts};

hive_script::suite!(
    Suite::new(
        "metrics",
        "Commands on metrics and their samples",
        "testdata",
        assemble
    )
    .timeout(Duration::from_secs(60))
);

fn assemble(_: Setup) -> Assembling {
    Assembly::new(hive).build()
}

fn hive() -> Hive {
    let metrics = Cell::module("test-metrics", "Metrics with known values").provide(test_metrics);
    Hive::new([statedb::cell(), crate::cell(), metrics])
}

crate::declare!(fn test_metrics);

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
