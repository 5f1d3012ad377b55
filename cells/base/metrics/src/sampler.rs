// SPDX-License-Identifier: Apache-2.0

//! Two hours of every metric (with the default interval), for the shell.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metric::{Distribution, Value};
use crate::registry::Registry;
use crate::render::with_prefix;
use crate::series::{Series, label_text};

/// Samples kept of a series.
pub const SAMPLES: usize = 24;

/// Values at the sampling times, newest first; 0 where there is no sample.
type Ring = [f32; SAMPLES];

/// Keeps samples of all metrics of a registry, enabled or not.
pub struct Sampler {
    registry: Arc<Registry>,
    interval: Duration,
    state: Mutex<BTreeMap<(String, String), Kept>>,
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler")
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

struct Kept {
    values: SampledValues,
    exists: Existing,
    /// Of a histogram: the counts at the last sample.
    last: Option<Distribution>,
    sampled: Instant,
}

/// Which of the samples exist: bit 0 is the newest one. A histogram has none where nothing was observed since the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Existing(pub(crate) u32);

impl Existing {
    fn push(&mut self, exists: bool) {
        self.0 = (self.0 << 1 | u32::from(exists)) & ((1 << SAMPLES) - 1);
    }

    pub(crate) fn has(self, at: usize) -> bool {
        self.0 >> at & 1 == 1
    }
}

/// The samples of a series.
#[derive(Debug, Clone, PartialEq)]
pub enum SampledValues {
    /// Of a counter or gauge.
    Number(Ring),
    /// Quantiles of what a histogram observed between two samples.
    Quantiles {
        /// Half of the observations are below.
        p50: Ring,
        /// Nine in ten are below.
        p90: Ring,
        /// 99 in 100 are below.
        p99: Ring,
    },
}

/// A series with its samples.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledSeries {
    /// Name of the metric.
    pub name: String,
    /// Labels as `k=v k2=v2`.
    pub labels: String,
    /// The samples.
    pub values: SampledValues,
    pub(crate) exists: Existing,
}

impl SampledSeries {
    /// The sample number `at`, 0 being the newest, as text for people.
    pub fn text(&self, at: usize) -> String {
        let text =
            |ring: &Ring| with_prefix(&self.name, f64::from(ring.get(at).copied().unwrap_or_default()));
        match &self.values {
            SampledValues::Number(ring) => text(ring),
            SampledValues::Quantiles { p50, p90, p99 } => {
                format!("{} / {} / {}", text(p50), text(p90), text(p99))
            }
        }
    }
}

impl Sampler {
    /// Samples `registry` every `interval`, if [`Sampler::sample`] is called that often.
    pub fn new(registry: Arc<Registry>, interval: Duration) -> Self {
        Self {
            registry,
            interval,
            state: Mutex::default(),
        }
    }

    /// Time between two samples.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Takes a sample of every series; returns the number of series.
    pub fn sample(&self) -> usize {
        let series = Series::of(self.registry.all());
        let now = Instant::now();
        let mut state = self.state.lock();
        for Series {
            name, labels, value, ..
        } in &series
        {
            let key = (name.clone(), label_text(labels));
            let kept = state.entry(key).or_insert_with(|| Kept::new(value, now));
            kept.push(value, now);
        }
        for kept in state.values_mut().filter(|kept| kept.sampled != now) {
            kept.push_none();
        }
        series.len()
    }

    /// Deletes series without a value in any sample; returns how many.
    pub fn forget_gone(&self) -> usize {
        let window = self.interval.saturating_mul(SAMPLES as u32);
        let mut state = self.state.lock();
        let before = state.len();
        state.retain(|_, kept| kept.sampled.elapsed() <= window);
        before - state.len()
    }

    /// All series, sorted by name and labels.
    pub fn series(&self) -> Vec<SampledSeries> {
        let state = self.state.lock();
        let series = state.iter().map(|((name, labels), kept)| SampledSeries {
            name: name.clone(),
            labels: labels.clone(),
            values: kept.values.clone(),
            exists: kept.exists,
        });
        series.collect()
    }
}

impl Kept {
    fn new(value: &Value, now: Instant) -> Self {
        let empty = [0.0; SAMPLES];
        let values = match value {
            Value::Number(_) => SampledValues::Number(empty),
            Value::Distribution(_) => SampledValues::Quantiles {
                p50: empty,
                p90: empty,
                p99: empty,
            },
        };
        Self {
            values,
            exists: Existing::default(),
            last: None,
            sampled: now,
        }
    }

    /// The series was not there when samples were taken.
    fn push_none(&mut self) {
        self.exists.push(false);
        match &mut self.values {
            SampledValues::Number(ring) => push(ring, 0.0),
            SampledValues::Quantiles { p50, p90, p99 } => {
                [p50, p90, p99].into_iter().for_each(|ring| push(ring, 0.0));
            }
        }
    }

    fn push(&mut self, value: &Value, now: Instant) {
        self.sampled = now;
        match (&mut self.values, value) {
            (SampledValues::Number(ring), Value::Number(number)) => {
                push(ring, *number);
                self.exists.push(true);
            }
            (SampledValues::Quantiles { p50, p90, p99 }, Value::Distribution(distribution)) => {
                let new = match &self.last {
                    Some(last) => distribution.since(last),
                    None => distribution.clone(),
                };
                push(p50, new.quantile(0.5));
                push(p90, new.quantile(0.9));
                push(p99, new.quantile(0.99));
                self.exists.push(new.count() > 0);
                self.last = Some(distribution.clone());
            }
            // A metric does not change its kind; if one did, its new values start afresh.
            _ => *self = Self::new(value, now),
        }
    }
}

fn push(ring: &mut Ring, value: f64) {
    ring.rotate_right(1);
    ring[0] = value as f32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, GaugeVec, Histogram, Opts};

    fn sampler(metrics: Vec<crate::MetricHandle>) -> Sampler {
        Sampler::new(
            Arc::new(Registry::new(metrics, &[]).unwrap()),
            Duration::from_secs(300),
        )
    }

    #[tokio::test]
    async fn newest_sample_is_first() {
        let counter = Counter::new(Opts::new("x_total", "").disabled());
        let sampler = sampler(vec![Arc::new(counter.clone())]);

        for _ in 0..3 {
            counter.inc();
            assert_eq!(sampler.sample(), 1);
        }

        let series = &sampler.series()[0];
        let SampledValues::Number(ring) = &series.values else {
            panic!("a counter is a number")
        };
        assert_eq!(ring[..4], [3.0, 2.0, 1.0, 0.0]);
        assert_eq!((series.text(0).as_str(), series.text(5).as_str()), ("3", "0"));
        assert_eq!(series.exists, Existing(0b111));
    }

    #[tokio::test(start_paused = true)]
    async fn samples_exist_where_a_series_was_there_or_a_histogram_observed() {
        let gauge = GaugeVec::new(Opts::new("a", ""), ["l"]);
        let histogram = Histogram::new(Opts::new("b", ""));
        let sampler = sampler(vec![Arc::new(gauge.clone()), Arc::new(histogram.clone())]);
        let sample = async || {
            tokio::time::advance(Duration::from_secs(300)).await;
            sampler.sample();
        };

        sample().await;
        gauge.with(["1"]).set(1.0);
        histogram.observe(1.0);
        sample().await;
        gauge.clear();
        sample().await;
        gauge.with(["1"]).set(2.0);
        histogram.observe(1.0);
        sample().await;

        let exists: Vec<u32> = sampler.series().iter().map(|series| series.exists.0).collect();
        assert_eq!(exists, [0b101, 0b0101]);
        assert_eq!(
            (sampler.series()[0].text(1), sampler.series()[0].text(2)),
            ("0".into(), "1".into())
        );
        for _ in 0..SAMPLES {
            sample().await;
        }
        assert_eq!(sampler.series()[0].exists.0.count_ones() as usize, SAMPLES);
    }

    #[tokio::test]
    async fn quantiles_are_those_of_the_interval() {
        let histogram = Histogram::new(Opts::new("x_seconds", ""));
        let sampler = sampler(vec![Arc::new(histogram.clone())]);
        [0.01, 0.01, 0.1, 1.0]
            .iter()
            .for_each(|value| histogram.observe(*value));

        sampler.sample();
        assert_eq!(sampler.series()[0].text(0), "10ms / 800ms / 980ms");

        histogram.observe(5.0);
        sampler.sample();
        assert_eq!(sampler.series()[0].text(1), "10ms / 800ms / 980ms");
        assert_eq!(sampler.series()[0].text(0), "3.75s / 4.75s / 4.975s");
        assert_eq!(sampler.series()[0].text(2), "0s / 0s / 0s");
    }

    #[tokio::test(start_paused = true)]
    async fn series_that_are_gone_are_forgotten_in_time() {
        let gauge = GaugeVec::new(Opts::new("x", ""), ["a"]);
        gauge.with(["1"]).set(1.0);
        let sampler = sampler(vec![Arc::new(gauge.clone())]);
        sampler.sample();
        gauge.clear();

        tokio::time::advance(Duration::from_secs(300 * 24)).await;
        assert_eq!(sampler.forget_gone(), 0);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(sampler.forget_gone(), 1);
        assert!(sampler.series().is_empty());
    }
}
