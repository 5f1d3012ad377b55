// SPDX-License-Identifier: Apache-2.0

//! Histograms, and the quantiles read from them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::family::HistogramVec;
use super::number::{Number, delegate};
use super::{Kind, Labels, Metric, Opts, Value};

/// Upper bounds of buckets for durations of requests, in seconds.
pub const DEFAULT_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Counts of observations, shared by the handles of a series.
#[derive(Debug)]
pub(super) struct Buckets {
    bounds: Arc<[f64]>,
    /// One per bound, and one for what is above all of them.
    counts: Box<[AtomicU64]>,
    sum: Number,
}

impl Buckets {
    pub(super) fn new(bounds: Arc<[f64]>) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self {
            bounds,
            counts,
            sum: Number::default(),
        }
    }

    fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.add(value);
    }

    pub(super) fn distribution(&self) -> Distribution {
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        Distribution {
            bounds: self.bounds.clone(),
            counts,
            sum: self.sum.get(),
        }
    }
}

/// Counts observations in buckets.
///
/// ```
/// use skep_base_metrics::{Histogram, Opts};
/// use std::time::Duration;
///
/// let latency = Histogram::new(Opts::new("request_duration_seconds", "Time of a request"));
/// latency.observe_duration(Duration::from_millis(30));
/// assert_eq!(latency.get().count(), 1);
/// ```
#[derive(Debug, Clone)]
pub struct Histogram {
    pub(super) family: HistogramVec,
    pub(super) value: Arc<Buckets>,
}

impl Histogram {
    /// A histogram without labels, with [`DEFAULT_BUCKETS`].
    pub fn new(opts: Opts) -> Self {
        Self::with_buckets(opts, DEFAULT_BUCKETS)
    }

    /// A histogram without labels and with upper bounds of buckets, which are sorted if they are not.
    pub fn with_buckets(opts: Opts, bounds: impl IntoIterator<Item = f64>) -> Self {
        HistogramVec::with_buckets(opts, [], bounds).with([])
    }

    /// Counts a value.
    pub fn observe(&self, value: f64) {
        self.value.observe(value);
    }

    /// Counts a duration, in seconds.
    pub fn observe_duration(&self, duration: Duration) {
        self.value.observe(duration.as_secs_f64());
    }

    /// The counts now.
    pub fn get(&self) -> Distribution {
        self.value.distribution()
    }
}

delegate!(Histogram);

/// The counts of a histogram at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    bounds: Arc<[f64]>,
    counts: Vec<u64>,
    sum: f64,
}

impl Distribution {
    /// Number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all observed values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Upper bounds of the buckets with the number of observations at or below each; without the last one, infinity.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        self.bounds
            .iter()
            .zip(&self.counts)
            .scan(0, |below, (bound, count)| {
                *below += count;
                Some((*bound, *below))
            })
    }

    /// What was observed since `earlier`, a state of the same series.
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self
            .counts
            .iter()
            .zip(earlier.counts.iter().chain(std::iter::repeat(&0)))
            .map(|(now, then)| now.saturating_sub(*then))
            .collect();
        Self {
            bounds: self.bounds.clone(),
            counts,
            sum: self.sum - earlier.sum,
        }
    }

    /// The value below which the part `quantile` of the observations lies, by linear interpolation between the bounds
    /// of its bucket; 0 without observations. Above the highest bound it is that bound.
    pub fn quantile(&self, quantile: f64) -> f64 {
        let total = self.count();
        if total == 0 {
            return 0.0;
        }
        let rank = quantile.clamp(0.0, 1.0) * total as f64;
        let (mut lower, mut below) = (0.0, 0);
        for (upper, up_to) in self.cumulative() {
            if up_to as f64 >= rank && up_to > below {
                let part = (rank - below as f64) / (up_to - below) as f64;
                return lower + (upper - lower) * part;
            }
            (lower, below) = (upper, up_to);
        }
        lower
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(values: &[f64]) -> Distribution {
        let histogram = Histogram::new(Opts::new("x", ""));
        values.iter().for_each(|value| histogram.observe(*value));
        histogram.get()
    }

    #[track_caller]
    fn assert_close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    }

    #[test]
    fn quantiles_are_interpolated_inside_the_bucket() {
        let distribution = observed(&[0.01, 0.01, 0.1, 1.0]);

        assert_close(distribution.quantile(0.5), 0.01);
        assert_close(distribution.quantile(0.9), 0.8);
        assert_close(distribution.quantile(0.99), 0.98);
    }

    #[test]
    fn quantiles_of_extremes_stay_in_the_bounds() {
        assert_close(observed(&[]).quantile(0.5), 0.0);
        assert_close(observed(&[100.0]).quantile(0.5), 10.0);
        assert_close(observed(&[0.0]).quantile(0.0), 0.0);
    }

    #[test]
    fn bounds_belong_to_their_bucket() {
        let counts: Vec<_> = observed(&[0.005, 0.006, 11.0])
            .cumulative()
            .map(|(_, count)| count)
            .collect();

        assert_eq!(counts[..2], [1, 2]);
        assert_eq!(counts[10], 2);
    }

    #[test]
    fn differences_count_what_is_new() {
        let histogram = Histogram::new(Opts::new("x", ""));
        histogram.observe(0.01);
        let before = histogram.get();
        histogram.observe(5.0);

        let new = histogram.get().since(&before);

        assert_eq!(new.count(), 1);
        assert_close(new.sum(), 5.0);
        assert_close(new.quantile(1.0), 5.0);
    }
}
