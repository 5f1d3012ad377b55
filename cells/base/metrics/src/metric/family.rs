// SPDX-License-Identifier: Apache-2.0

//! Families: metrics with labels.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;

use super::histogram::{Buckets, DEFAULT_BUCKETS};
use super::number::Number;
use super::{Counter, Gauge, Histogram, Kind, Labels, Metric, Opts, Value};

/// Series by the values of their labels.
struct Family<V> {
    opts: Opts,
    labels: Box<[String]>,
    series: RwLock<BTreeMap<Box<[String]>, Arc<V>>>,
    make: Box<dyn Fn() -> V + Send + Sync>,
}

impl<V> fmt::Debug for Family<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Family")
            .field("name", &self.opts.name())
            .field("labels", &self.labels)
            .finish_non_exhaustive()
    }
}

impl<V> Family<V> {
    fn new<const N: usize>(
        opts: Opts,
        labels: [&str; N],
        make: impl Fn() -> V + Send + Sync + 'static,
    ) -> Arc<Self> {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        Arc::new(Self {
            opts,
            labels,
            series: RwLock::default(),
            make: Box::new(make),
        })
    }

    /// As many values as there are labels: missing ones are empty, surplus ones dropped.
    fn key<'a>(&self, values: impl IntoIterator<Item = &'a str>) -> Box<[String]> {
        let values = values
            .into_iter()
            .map(str::to_owned)
            .chain(std::iter::repeat(String::new()));
        values.take(self.labels.len()).collect()
    }

    fn series(&self, key: Box<[String]>) -> Arc<V> {
        if let Some(value) = self.series.read().get(&key) {
            return value.clone();
        }
        self.series
            .write()
            .entry(key)
            .or_insert_with(|| Arc::new((self.make)()))
            .clone()
    }

    fn visit(&self, visit: &mut dyn FnMut(Labels, Value), read: impl Fn(&V) -> Value) {
        let series: Vec<_> = self
            .series
            .read()
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        for (key, value) in series {
            visit(self.labels.iter().cloned().zip(key).collect(), read(&value));
        }
    }
}

macro_rules! family {
    ($(#[$doc:meta])* $family:ident, $metric:ident, $value:ty, $kind:ident, $read:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $family(Arc<Family<$value>>);

        impl $family {
            /// The series with these values of the labels, in the order of the labels' names.
            pub fn with<'a>(&self, values: impl IntoIterator<Item = &'a str>) -> $metric {
                let value = self.0.series(self.0.key(values));
                $metric { family: self.clone(), value }
            }

            /// Removes a series; whether it existed.
            pub fn remove<'a>(&self, values: impl IntoIterator<Item = &'a str>) -> bool {
                self.0.series.write().remove(&self.0.key(values)).is_some()
            }

            /// Removes all series.
            pub fn clear(&self) {
                self.0.series.write().clear();
            }
        }

        impl Metric for $family {
            fn opts(&self) -> &Opts {
                &self.0.opts
            }
            fn kind(&self) -> Kind {
                Kind::$kind
            }
            fn label_names(&self) -> &[String] {
                &self.0.labels
            }
            fn visit(&self, visit: &mut dyn FnMut(Labels, Value)) {
                self.0.visit(visit, $read);
            }
        }
    };
}

family!(
    /// Counters with labels.
    ///
    /// ```
    /// use skep_base_metrics::{CounterVec, Opts};
    ///
    /// let drops = CounterVec::new(Opts::new("drops_total", "Packets dropped"), ["reason", "direction"]);
    /// drops.with(["policy", "ingress"]).inc();
    /// assert_eq!(drops.with(["policy", "ingress"]).get(), 1.0);
    /// ```
    CounterVec, Counter, Number, Counter, |value| Value::Number(value.get())
);

family!(
    /// Gauges with labels.
    ///
    /// ```
    /// use skep_base_metrics::{GaugeVec, Opts};
    ///
    /// let pressure = GaugeVec::new(Opts::new("bpf_map_pressure", "Fill level"), ["map_name"]);
    /// pressure.with(["lb4_services_v2"]).set(0.2);
    /// pressure.remove(["lb4_services_v2"]);
    /// ```
    GaugeVec, Gauge, Number, Gauge, |value| Value::Number(value.get())
);

family!(
    /// Histograms with labels.
    ///
    /// ```
    /// use skep_base_metrics::{HistogramVec, Opts};
    ///
    /// let latency = HistogramVec::new(Opts::new("api_duration_seconds", "Time of a request"), ["method"]);
    /// latency.with(["GET"]).observe(0.2);
    /// ```
    HistogramVec, Histogram, Buckets, Histogram, |value| Value::Distribution(value.distribution())
);

impl CounterVec {
    /// No series yet; `labels` are the names.
    pub fn new<const N: usize>(opts: Opts, labels: [&str; N]) -> Self {
        Self(Family::new(opts, labels, Number::default))
    }
}

impl GaugeVec {
    /// No series yet; `labels` are the names.
    pub fn new<const N: usize>(opts: Opts, labels: [&str; N]) -> Self {
        Self(Family::new(opts, labels, Number::default))
    }
}

impl HistogramVec {
    /// No series yet, with [`DEFAULT_BUCKETS`]; `labels` are the names.
    pub fn new<const N: usize>(opts: Opts, labels: [&str; N]) -> Self {
        Self::with_buckets(opts, labels, DEFAULT_BUCKETS)
    }

    /// No series yet, with upper bounds of buckets, which are sorted if they are not.
    pub fn with_buckets<const N: usize>(
        opts: Opts,
        labels: [&str; N],
        bounds: impl IntoIterator<Item = f64>,
    ) -> Self {
        let mut bounds: Vec<f64> = bounds.into_iter().filter(|bound| bound.is_finite()).collect();
        bounds.sort_by(f64::total_cmp);
        bounds.dedup();
        let bounds: Arc<[f64]> = bounds.into();
        Self(Family::new(opts, labels, move || Buckets::new(bounds.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_shared_and_sorted() {
        let family = CounterVec::new(Opts::new("x_total", ""), ["b", "a"]);
        family.with(["2", "x"]).inc();
        family.with(["1"]).add(2.0);
        family.with(["2", "x", "surplus"]).inc();

        let mut seen = Vec::new();
        family.visit(&mut |labels, value| seen.push((labels, value)));

        let labels = |a: &str, b: &str| Labels::from([("a".into(), a.into()), ("b".into(), b.into())]);
        assert_eq!(
            seen,
            [
                (labels("", "1"), Value::Number(2.0)),
                (labels("x", "2"), Value::Number(2.0))
            ]
        );
    }

    #[test]
    fn removed_series_are_not_shown() {
        let family = GaugeVec::new(Opts::new("x", ""), ["a"]);
        family.with(["1"]).set(1.0);

        assert!(family.remove(["1"]));
        assert!(!family.remove(["1"]));
        family.visit(&mut |_, _| panic!("nothing is left"));
    }
}
