// SPDX-License-Identifier: Apache-2.0

//! Metrics that are one number.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::family::{CounterVec, GaugeVec};
use super::{Kind, Labels, Metric, Opts, Value};

/// A number that many threads change.
#[derive(Debug, Default)]
pub(super) struct Number(AtomicU64);

impl Number {
    pub(super) fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn add(&self, value: f64) {
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // Never fails: the function always returns a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// A number that only grows.
///
/// ```
/// use skep_base_metrics::{Counter, Opts};
///
/// let drops = Counter::new(Opts::new("drops_total", "Packets dropped"));
/// drops.inc();
/// drops.add(2.0);
/// assert_eq!(drops.get(), 3.0);
/// ```
#[derive(Debug, Clone)]
pub struct Counter {
    pub(super) family: CounterVec,
    pub(super) value: Arc<Number>,
}

impl Counter {
    /// A counter without labels, at 0.
    pub fn new(opts: Opts) -> Self {
        CounterVec::new(opts, []).with([])
    }

    /// Adds 1.
    pub fn inc(&self) {
        self.value.add(1.0);
    }

    /// Adds `value`; what is less than 0 or no number is ignored.
    pub fn add(&self, value: f64) {
        if value > 0.0 {
            self.value.add(value);
        }
    }

    /// The number now.
    pub fn get(&self) -> f64 {
        self.value.get()
    }
}

/// A number that goes up and down.
///
/// ```
/// use skep_base_metrics::{Gauge, Opts};
///
/// let open = Gauge::new(Opts::new("connections", "Connections open now"));
/// open.set(5.0);
/// open.sub(1.0);
/// assert_eq!(open.get(), 4.0);
/// ```
#[derive(Debug, Clone)]
pub struct Gauge {
    pub(super) family: GaugeVec,
    pub(super) value: Arc<Number>,
}

impl Gauge {
    /// A gauge without labels, at 0.
    pub fn new(opts: Opts) -> Self {
        GaugeVec::new(opts, []).with([])
    }

    /// Replaces the number.
    pub fn set(&self, value: f64) {
        self.value.set(value);
    }

    /// Adds to the number.
    pub fn add(&self, value: f64) {
        self.value.add(value);
    }

    /// Takes from the number.
    pub fn sub(&self, value: f64) {
        self.value.add(-value);
    }

    /// The number now.
    pub fn get(&self) -> f64 {
        self.value.get()
    }
}

/// A counter or gauge whose value is computed when it is read.
///
/// ```
/// use skep_base_metrics::{Computed, Kind, Opts};
///
/// let uptime = std::time::Instant::now();
/// let opts = Opts::new("uptime_seconds", "Time since start");
/// let _metric = Computed::new(opts, Kind::Gauge, move || uptime.elapsed().as_secs_f64());
/// ```
#[derive(Clone)]
pub struct Computed {
    opts: Opts,
    kind: Kind,
    value: Arc<dyn Fn() -> f64 + Send + Sync>,
}

impl Computed {
    /// A metric whose value is what `value` returns. A histogram cannot be computed: that kind is shown as a gauge.
    pub fn new(opts: Opts, kind: Kind, value: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        let kind = if kind == Kind::Histogram {
            Kind::Gauge
        } else {
            kind
        };
        Self {
            opts,
            kind,
            value: Arc::new(value),
        }
    }
}

impl std::fmt::Debug for Computed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Computed")
            .field("opts", &self.opts)
            .finish_non_exhaustive()
    }
}

impl Metric for Computed {
    fn opts(&self) -> &Opts {
        &self.opts
    }
    fn kind(&self) -> Kind {
        self.kind
    }
    fn visit(&self, visit: &mut dyn FnMut(Labels, Value)) {
        visit(Labels::new(), Value::Number((self.value)()));
    }
}

macro_rules! delegate {
    ($($metric:ty),*) => {$(
        impl Metric for $metric {
            fn opts(&self) -> &Opts {
                self.family.opts()
            }
            fn kind(&self) -> Kind {
                self.family.kind()
            }
            fn visit(&self, visit: &mut dyn FnMut(Labels, Value)) {
                self.family.visit(visit);
            }
        }
    )*};
}

pub(super) use delegate;

delegate!(Counter, Gauge);
