// SPDX-License-Identifier: Apache-2.0

//! Metrics: what cells count and measure, for Prometheus and for the shell.
//!
//! A cell keeps [`Counter`]s, [`Gauge`]s and [`Histogram`]s in a struct that derives [`Metrics`](derive@Metrics) and
//! provides it with [`provided`]. The [`Registry`] of the [`cell()`] collects all of them, under names that start with the
//! [`Namespace`] of the program:
//!
//! * feature `endpoint`: `--prometheus-serve-addr` serves those that are enabled;
//! * `--metrics=+name,-name` changes which are;
//! * a sampler keeps two hours of every metric, enabled or not, for `metrics -s`, `metrics/plot` and `metrics/html`.
//!
//! [`workqueue`] has the metrics of queues of keys. The hive, its jobs, tables and reconcilers are measured by [`HiveMetricSet`], [`JobMetricSet`], [`TableMetricSet`] and
//! [`ReconcilerMetricSet`].

#![warn(missing_docs)]

extern crate self as skep_base_metrics;

mod cell;
mod command;
mod config;
mod declared;
mod dump;
#[cfg(feature = "endpoint")]
pub mod endpoint;
mod exposition;
mod hooks;
mod metric;
mod namespace;
pub mod process;
mod registry;
mod render;
mod sampler;
mod series;
#[cfg(feature = "testing")]
mod testing;
pub mod workqueue;

pub use cell::{cell, cell_in, operator_cell};
pub use config::{Config, SamplerConfig};
pub use dump::MetricValue;
pub use exposition::exposition;
pub use hooks::{HiveMetricSet, JobMetricSet, ReconcilerMetricSet, TableMetricSet};
pub use metric::{
    Computed, Counter, CounterVec, DEFAULT_BUCKETS, Distribution, Gauge, GaugeVec, Histogram, HistogramVec,
    Kind, Labels, Metric, MetricHandle, MetricSet, Opts, Value, provided, supply,
};
pub use namespace::Namespace;
/// Makes a struct a [`MetricSet`](trait@MetricSet); see there.
pub use skep_base_metrics_macros::Metrics;

pub use registry::{Registry, RegistryError, UnknownMetric};
pub use sampler::{SAMPLES, SampledSeries, SampledValues, Sampler};

hive::catalogue!(cell);

#[doc(hidden)]
pub mod __private {
    pub use hive::__private::inventory;

    pub use crate::declared::Declared;
}

#[cfg(test)]
mod tests;
