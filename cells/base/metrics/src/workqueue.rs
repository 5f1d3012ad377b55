// SPDX-License-Identifier: Apache-2.0

//! Queues of keys that are reconciled and retried: `workqueue_*`, one series each by `queue_name`.
//!
//! A queue asks [`WorkqueueMetrics::queue`] for a [`WorkqueueRecorder`] and reports to it when keys are added, taken and retried.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hive::Cell;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Metrics;
use crate::metric::{
    Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramVec, Kind, Labels, Metric, MetricHandle,
    MetricSet, Opts, Value, provided,
};

hive::catalogue!(cell);

const QUEUE_NAME: &str = "queue_name";

/// Upper bounds of buckets for queues, which wait and work from microseconds to minutes, in seconds.
const BUCKETS: [f64; 9] = [1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0];

/// The metrics of queues. Provides: [`WorkqueueMetrics`].
pub fn cell() -> Cell {
    Cell::module("workqueue-metrics", "Metrics of queues of keys").provide(provided::<WorkqueueMetrics>)
}

#[derive(Debug, Metrics)]
#[metrics(prefix = "workqueue", labels = ["queue_name"])]
struct Families {
    /// Keys in a queue, including retries.
    depth: GaugeVec,
    /// Keys added to a queue.
    adds_total: CounterVec,
    /// Queueing time of keys.
    #[metric(buckets = BUCKETS)]
    queue_duration_seconds: HistogramVec,
    /// Processing time of keys.
    #[metric(buckets = BUCKETS)]
    work_duration_seconds: HistogramVec,
    /// Keys requeued after a failure.
    retries_total: CounterVec,
}

/// Since when the keys of a queue are processed that are not done.
type Unfinished = Mutex<BTreeMap<u64, Instant>>;

/// The metrics of all queues of a hive.
#[derive(Default)]
pub struct WorkqueueMetrics {
    families: Families,
    unfinished: Arc<Mutex<BTreeMap<String, Arc<Unfinished>>>>,
}

impl WorkqueueMetrics {
    /// The recorder of a queue. Queues of one name are counted together.
    ///
    /// ```
    /// use std::time::Duration;
    /// use skep_base_metrics::workqueue::WorkqueueMetrics;
    ///
    /// let recorder = WorkqueueMetrics::default().queue("secret-sync");
    /// recorder.added();
    /// recorder.set_depth(1);
    /// let work = recorder.taken(Duration::from_millis(2));
    /// recorder.set_depth(0);
    /// drop(work);
    /// ```
    pub fn queue(&self, name: &str) -> WorkqueueRecorder {
        let families = &self.families;
        WorkqueueRecorder {
            depth: families.depth.with([name]),
            adds: families.adds_total.with([name]),
            waited: families.queue_duration_seconds.with([name]),
            worked: families.work_duration_seconds.with([name]),
            retries: families.retries_total.with([name]),
            unfinished: self.unfinished.lock().entry(name.to_owned()).or_default().clone(),
        }
    }
}

crate::declare!(WorkqueueMetrics);

impl MetricSet for WorkqueueMetrics {
    fn metrics(&self) -> Vec<MetricHandle> {
        let computed = |name: &str, help: &str, of_ages: fn(f64, f64) -> f64| -> MetricHandle {
            Arc::new(ComputedOfAges {
                opts: Opts::new(format!("workqueue_{name}"), help),
                labels: [QUEUE_NAME.to_owned()],
                unfinished: self.unfinished.clone(),
                of_ages,
            })
        };
        let mut handles = self.families.metrics();
        handles.push(computed(
            "unfinished_work_seconds",
            "Total running time of all current workers",
            |sum, age| sum + age,
        ));
        handles.push(computed(
            "longest_running_processor_seconds",
            "Running time of the longest running worker",
            f64::max,
        ));
        handles
    }
}

/// Records what happens to the keys of a queue.
#[derive(Clone)]
pub struct WorkqueueRecorder {
    depth: Gauge,
    adds: Counter,
    waited: Histogram,
    worked: Histogram,
    retries: Counter,
    unfinished: Arc<Unfinished>,
}

impl Default for WorkqueueRecorder {
    /// A recorder whose metrics are in no registry.
    fn default() -> Self {
        WorkqueueMetrics::default().queue("")
    }
}

impl std::fmt::Debug for WorkqueueRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkqueueRecorder").finish_non_exhaustive()
    }
}

impl WorkqueueRecorder {
    /// The recorder of a queue, of `metrics` if the hive has them.
    pub fn new(metrics: Option<&Arc<WorkqueueMetrics>>, name: &str) -> Self {
        metrics.map_or_else(Self::default, |metrics| metrics.queue(name))
    }

    /// A key was put into the queue.
    pub fn added(&self) {
        self.adds.inc();
    }

    /// A key has failed and was put into the queue again.
    pub fn retried(&self) {
        self.adds.inc();
        self.retries.inc();
    }

    /// How many keys are in the queue.
    pub fn set_depth(&self, keys: usize) {
        self.depth.set(keys as f64);
    }

    /// A key was taken `waited` after it was due. It is done when the value is dropped.
    pub fn taken(&self, waited: Duration) -> Work {
        self.waited.observe_duration(waited);
        let since = Instant::now();
        let mut unfinished = self.unfinished.lock();
        let id = unfinished.last_key_value().map_or(0, |(last, _)| last + 1);
        unfinished.insert(id, since);
        Work {
            id,
            since,
            worked: self.worked.clone(),
            unfinished: self.unfinished.clone(),
        }
    }
}

/// A key that is processed.
#[derive(Debug)]
pub struct Work {
    id: u64,
    since: Instant,
    worked: Histogram,
    unfinished: Arc<Unfinished>,
}

impl Drop for Work {
    fn drop(&mut self) {
        self.unfinished.lock().remove(&self.id);
        self.worked.observe_duration(self.since.elapsed());
    }
}

/// A gauge of the ages of what is unfinished, by queue.
struct ComputedOfAges {
    opts: Opts,
    labels: [String; 1],
    unfinished: Arc<Mutex<BTreeMap<String, Arc<Unfinished>>>>,
    /// Joins an age, in seconds, to those before it.
    of_ages: fn(f64, f64) -> f64,
}

impl Metric for ComputedOfAges {
    fn opts(&self) -> &Opts {
        &self.opts
    }

    fn kind(&self) -> Kind {
        Kind::Gauge
    }

    fn label_names(&self) -> &[String] {
        &self.labels
    }

    fn visit(&self, visit: &mut dyn FnMut(Labels, Value)) {
        for (name, unfinished) in &*self.unfinished.lock() {
            let ages: Vec<f64> = unfinished
                .lock()
                .values()
                .map(|since| since.elapsed().as_secs_f64())
                .collect();
            let value = ages.into_iter().fold(0.0, self.of_ages);
            visit(
                Labels::from([(QUEUE_NAME.to_owned(), name.clone())]),
                Value::Number(value),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings};
    use tokio::time::advance;

    use super::*;
    use crate::{Namespace, Registry, cell_in, exposition};

    #[tokio::test(start_paused = true)]
    async fn a_queue_is_shown_with_what_is_unfinished() {
        let hive = Hive::new([cell(), cell_in(Namespace::OPERATOR)])
            .root::<Arc<WorkqueueMetrics>>()
            .root::<Arc<Registry>>();
        let built = hive.plan(Settings::new()).unwrap().build().unwrap();
        let queue = built.get::<Arc<WorkqueueMetrics>>().unwrap().queue("secrets");
        let registry = built.get::<Arc<Registry>>().unwrap();
        let shows = |lines: &[&str]| {
            let text = exposition(&registry);
            for line in lines {
                let line = line.replace('@', "{queue_name=\"secrets\"}");
                assert!(
                    text.contains(&format!("\ncilium_operator_workqueue_{line}\n")),
                    "{line}\n{text}"
                );
            }
        };

        for _ in 0..3 {
            queue.added();
        }
        queue.set_depth(3);
        let first = queue.taken(Duration::from_secs(5));
        advance(Duration::from_secs(2)).await;
        let second = queue.taken(Duration::from_secs(7));
        queue.set_depth(1);
        advance(Duration::from_secs(1)).await;

        shows(&[
            "depth@ 1",
            "adds_total@ 3",
            "retries_total@ 0",
            "queue_duration_seconds_sum@ 12",
            "unfinished_work_seconds@ 4",
            "longest_running_processor_seconds@ 3",
            "work_duration_seconds_count@ 0",
        ]);

        drop(first);
        queue.retried();
        shows(&[
            "adds_total@ 4",
            "retries_total@ 1",
            "work_duration_seconds_sum@ 3",
            "unfinished_work_seconds@ 1",
            "longest_running_processor_seconds@ 1",
        ]);
        drop(second);
        shows(&["work_duration_seconds_count@ 2", "unfinished_work_seconds@ 0"]);
    }
}
