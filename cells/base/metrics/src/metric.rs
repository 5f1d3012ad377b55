// SPDX-License-Identifier: Apache-2.0

//! Counters, gauges and histograms, alone or as families with labels.
//!
//! Handles are cheap to clone and share their value. A family creates a series at its first use; keep the handle of a
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

/// Labels of a series, sorted by name.
pub type Labels = BTreeMap<String, String>;

/// A shared metric, as cells provide it.
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

    /// Names of the labels that tell its series apart, in their order.
    fn label_names(&self) -> &[String] {
        &[]
    }

    /// Passes every series to `visit`.
    fn visit(&self, visit: &mut dyn FnMut(Labels, Value));
}

/// Name, help and more about a metric.
///
/// ```
/// use skep_base_metrics::Opts;
///
/// let opts = Opts::new("bpf_map_pressure", "Fill percentage of a map").disabled();
/// assert_eq!(opts.name(), "bpf_map_pressure");
/// ```
#[derive(Debug, Clone)]
pub struct Opts {
    name: String,
    is_prefixed: bool,
    help: String,
    enabled: bool,
}

impl Opts {
    /// A metric that is exported as `<namespace>_<name>`, enabled. The name is lower case with underscores and ends in its
    /// unit; `help` is one sentence.
    pub fn new(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            is_prefixed: true,
            ..Self::unprefixed(name, help)
        }
    }

    /// A metric whose name has no prefix in any program.
    pub fn unprefixed(name: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            is_prefixed: false,
            help: help.into(),
            enabled: true,
        }
    }

    /// Disabled unless `--metrics=+name` enables it.
    pub fn disabled(mut self) -> Self {
        self.enabled = false;
        self
    }

    /// The name, without the namespace of the program.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the metric is exported with the namespace of the program.
    pub fn is_prefixed(&self) -> bool {
        self.is_prefixed
    }

    /// The help text.
    pub fn help(&self) -> &str {
        &self.help
    }

    /// Whether it is enabled by default.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }
}

/// A struct of metrics, one in each field. Derived, with the struct at zero as its default:
///
/// - `#[metrics(prefix = "cache", labels = ["kind"], disabled, unprefixed)]` on the struct holds for all fields;
/// - `#[metric(name = "hits_total", labels = ["kind"], buckets = [1.0, 2.0], disabled)]` on a field, whose name is
///   otherwise that of the metric;
/// - the doc comment of a field is its help text.
///
/// ```
/// use skep_base_metrics::{Counter, GaugeVec, MetricSet, Metrics};
///
/// #[derive(Metrics)]
/// #[metrics(prefix = "cache")]
/// struct CacheMetrics {
///     /// Lookups that found an entry.
///     #[metric(name = "hits_total")]
///     hits: Counter,
///     /// Entries now.
///     #[metric(labels = ["kind"], disabled)]
///     entries: GaugeVec,
/// }
///
/// let metrics = CacheMetrics::default();
/// metrics.hits.inc();
/// metrics.entries.with(["positive"]).set(2.0);
/// let all = metrics.metrics();
/// assert_eq!(all[0].opts().name(), "cache_hits_total");
/// assert_eq!(all[0].opts().help(), "Lookups that found an entry");
/// assert_eq!(all[1].opts().name(), "cache_entries");
/// assert!(!all[1].opts().is_enabled());
/// ```
pub trait MetricSet: Send + Sync + 'static {
    /// All metrics of the struct.
    fn metrics(&self) -> Vec<MetricHandle>;
}

/// Provides a struct of metrics: the struct for the cell that counts, its metrics for the registry.
///
/// ```
/// use hive::Cell;
/// use skep_base_metrics::{Counter, Metrics};
///
/// #[derive(Metrics)]
/// struct CacheMetrics {
///     /// Lookups that found an entry.
///     cache_hits_total: Counter,
/// }
///
/// # let _ =
/// Cell::module("cache", "Keeps things").provide(skep_base_metrics::provided::<CacheMetrics>);
/// ```
pub fn provided<S: MetricSet + Default>() -> (Arc<S>, Members<MetricHandle>) {
    supply(S::default())
}

/// Provides a struct of metrics that is not at its default; see [`provided`].
///
/// ```
/// # use std::sync::Arc;
/// use hive::Members;
/// use skep_base_metrics::{Gauge, MetricHandle, Metrics};
///
/// #[derive(Metrics)]
/// struct Limits {
///     /// The most entries.
///     cache_limit: Gauge,
/// }
///
/// fn limits() -> (Arc<Limits>, Members<MetricHandle>) {
///     let limits = Limits::default();
///     limits.cache_limit.set(100.0);
///     skep_base_metrics::supply(limits)
/// }
/// # let _ = hive::Cell::module("cache", "Keeps things").provide(limits);
/// ```
pub fn supply<S: MetricSet>(set: S) -> (Arc<S>, Members<MetricHandle>) {
    let members = Members(set.metrics());
    (Arc::new(set), members)
}
