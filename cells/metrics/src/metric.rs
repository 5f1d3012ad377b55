// SPDX-License-Identifier: Apache-2.0

//! Counters, gauges and histograms, alone or as families told apart by labels.
//!
//! Handles are cheap to clone and share their value. A family makes a series at its first use; keep the handle of a
//! series that is counted often instead of looking it up each time.

mod family;
mod histogram;
mod number;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use hive::Members;

pub use family::{CounterVec, GaugeVec, HistogramVec};
pub use histogram::{DEFAULT_BUCKETS, Distribution, Histogram};
pub use number::{Computed, Counter, Gauge};

/// In front of the names of all metrics but those made by [`Opts::unprefixed`].
const NAMESPACE: &str = "cilium_";

/// Labels of a series, sorted by name.
pub type Labels = BTreeMap<String, String>;

/// A shared metric, the form in which cells hand them out.
pub type MetricHandle = Arc<dyn Metric>;

/// What kind of metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations in buckets.
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// The value of a series.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Of a counter or a gauge.
    Number(f64),
    /// Of a histogram.
    Distribution(Distribution),
}

/// A metric as the registry sees it: any number of series.
pub trait Metric: Send + Sync {
    /// Name, help and more.
    fn opts(&self) -> &Opts;

    /// What kind it is.
    fn kind(&self) -> Kind;

    /// Passes every series to `visit`.
    fn visit(&self, visit: &mut dyn FnMut(Labels, Value));
}

/// Name, help and more about a metric.
///
/// ```
/// use skep_metrics::Opts;
///
/// let opts = Opts::new("bpf_map_pressure", "Fill percentage of a map").disabled();
/// assert_eq!(opts.name(), "cilium_bpf_map_pressure");
/// ```
#[derive(Debug, Clone)]
pub struct Opts {
    name: String,
    help: String,
    enabled: bool,
}

impl Opts {
    /// A metric `cilium_<name>`, enabled. The name is lower case with underscores and ends in its unit; `help` is one
    /// sentence.
    pub fn new(name: &str, help: impl Into<String>) -> Self {
        Self::unprefixed(format!("{NAMESPACE}{name}"), help)
    }

    /// A metric whose name has no prefix.
    pub fn unprefixed(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            help: help.into(),
            enabled: true,
        }
    }

    /// Shown only if `--metrics=+name` asks for it.
    pub fn disabled(mut self) -> Self {
        self.enabled = false;
        self
    }

    /// The full name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it tells.
    pub fn help(&self) -> &str {
        &self.help
    }

    /// Whether it is shown unless somebody says otherwise.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }
}

/// A struct of metrics. Implemented by [`metric_set!`](crate::metric_set).
pub trait MetricSet: Send + Sync + 'static {
    /// All metrics of the struct.
    fn metrics(&self) -> Vec<MetricHandle>;
}

/// Implements [`MetricSet`] for a struct: lists its fields.
///
/// ```
/// use skep_metrics::{Counter, GaugeVec, MetricSet, Opts};
///
/// struct CacheMetrics { hits: Counter, entries: GaugeVec }
/// skep_metrics::metric_set!(CacheMetrics { hits, entries });
///
/// let metrics = CacheMetrics {
///     hits: Counter::new(Opts::new("cache_hits_total", "Lookups that found an entry")),
///     entries: GaugeVec::new(Opts::new("cache_entries", "Entries now"), ["kind"]),
/// };
/// metrics.hits.inc();
/// metrics.entries.with(["positive"]).set(2.0);
/// assert_eq!(metrics.metrics().len(), 2);
/// ```
#[macro_export]
macro_rules! metric_set {
    ($set:ty { $($field:ident),+ $(,)? }) => {
        impl $crate::MetricSet for $set {
            fn metrics(&self) -> Vec<$crate::MetricHandle> {
                vec![$(::std::sync::Arc::new(self.$field.clone())),+]
            }
        }
    };
}

/// Gives a struct of metrics to the hive: the struct for the cell that counts, its metrics for the registry.
///
/// ```
/// # use skep_metrics::{Counter, Opts};
/// # struct CacheMetrics { hits: Counter }
/// # skep_metrics::metric_set!(CacheMetrics { hits });
/// # impl CacheMetrics { fn new() -> Self { Self { hits: Counter::new(Opts::new("cache_hits_total", "Lookups")) } } }
/// use std::sync::Arc;
/// use hive::{Cell, Members};
/// use skep_metrics::MetricHandle;
///
/// fn new_metrics() -> (Arc<CacheMetrics>, Members<MetricHandle>) {
///     skep_metrics::supply(CacheMetrics::new())
/// }
/// # let _ =
/// Cell::module("cache", "Keeps things").provide(new_metrics);
/// ```
pub fn supply<S: MetricSet>(set: S) -> (Arc<S>, Members<MetricHandle>) {
    let members = Members(set.metrics());
    (Arc::new(set), members)
}
