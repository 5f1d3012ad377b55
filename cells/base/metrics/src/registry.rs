// SPDX-License-Identifier: Apache-2.0

//! All metrics of a hive.

use std::cmp::Reverse;
use std::fmt;

use tracing::warn;

use crate::dump::MetricValue;
use crate::metric::MetricHandle;
use crate::namespace::Namespace;
use crate::series::Series;

/// Why the metrics of a hive cannot be collected.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// Two metrics have one name; rename one.
    #[error("metric `{0}` exists twice")]
    Duplicate(String),
    /// A change that starts neither with `+` nor with `-`.
    #[error("`{0}` must start with + or -")]
    Change(String),
    /// No cell has these metrics; the reference of metrics lists all.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Unknown(Vec<UnknownMetric>),
}

/// A metric that is to be enabled, and that no cell has.
#[derive(Debug, thiserror::Error)]
#[error("`+{name}`: there is no such metric{}", .near.as_ref().map_or_else(String::new, |near| format!("; did you mean `+{near}`?")))]
pub struct UnknownMetric {
    /// The name.
    pub name: String,
    /// The name of a metric that was probably meant.
    pub near: Option<String>,
}

struct Entry {
    /// The full name.
    name: String,
    metric: MetricHandle,
    enabled: bool,
}

impl Entry {
    fn named(&self) -> (&str, &MetricHandle) {
        (&self.name, &self.metric)
    }
}

/// All metrics of a hive, sorted by name.
///
/// ```
/// use std::sync::Arc;
/// use skep_base_metrics::{Counter, Opts, Registry};
///
/// let hits = Counter::new(Opts::new("hits_total", "Lookups").disabled());
/// let registry = Registry::new([Arc::new(hits) as _], &["+cilium_hits_total".into()]).unwrap();
/// assert_eq!(registry.metrics().count(), 1);
/// ```
pub struct Registry {
    entries: Vec<Entry>,
}

/// The known name that shares most words with `name`; of several the one whose length is closest.
pub(crate) fn nearest(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let words: Vec<&str> = name.split('_').collect();
    let common = |known: &String| known.split('_').filter(|word| words.contains(word)).count();
    let differs = |known: &String| known.len().abs_diff(name.len());
    let best = known.max_by_key(|known| (common(known), Reverse(differs(known))))?;
    (common(&best) * 2 > words.len()).then_some(best)
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.entries.iter().map(|entry| &entry.name))
            .finish()
    }
}

impl Registry {
    /// Collects metrics of the agent; see [`Registry::in_namespace`].
    ///
    /// # Errors
    /// Those of [`Registry::in_namespace`].
    pub fn new(
        metrics: impl IntoIterator<Item = MetricHandle>,
        changes: &[String],
    ) -> Result<Self, RegistryError> {
        Self::in_namespace(Namespace::AGENT, metrics, changes)
    }

    /// Collects metrics of a program; `changes` are `+name` or `-name`, with or without the namespace. A metric that is to
    /// be hidden and does not exist is logged.
    ///
    /// # Errors
    /// Two metrics of one name, a change without a sign, `+name` of a metric that does not exist.
    pub fn in_namespace(
        namespace: Namespace,
        metrics: impl IntoIterator<Item = MetricHandle>,
        changes: &[String],
    ) -> Result<Self, RegistryError> {
        let mut entries: Vec<Entry> = metrics
            .into_iter()
            .map(|metric| Entry {
                name: namespace.full_name(metric.opts()),
                enabled: metric.opts().is_enabled(),
                metric,
            })
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(RegistryError::Duplicate(pair[0].name.clone()));
        }
        let mut unknown = Vec::new();
        for change in changes.iter().filter(|change| !change.is_empty()) {
            let (name, enabled) = match (change.strip_prefix('+'), change.strip_prefix('-')) {
                (Some(name), _) => (name, true),
                (None, Some(name)) => (name, false),
                (None, None) => return Err(RegistryError::Change(change.clone())),
            };
            let matches = |entry: &&mut Entry| entry.name == name || entry.metric.opts().name() == name;
            match entries.iter_mut().find(matches) {
                Some(entry) => entry.enabled = enabled,
                None if enabled => unknown.push(UnknownMetric {
                    name: name.to_owned(),
                    near: nearest(name, entries.iter().map(|entry| entry.name.clone())),
                }),
                None => warn!(metric = name, "Unknown metric in setting `metrics`"),
            }
        }
        if unknown.is_empty() {
            Ok(Self { entries })
        } else {
            Err(RegistryError::Unknown(unknown))
        }
    }

    /// All series of the metrics which are enabled, sorted by the name of the metric.
    pub fn values(&self) -> Vec<MetricValue> {
        let series = Series::of(self.metrics()).into_iter();
        series.map(MetricValue::from).collect()
    }

    /// The metrics which are enabled, with their full names.
    pub fn metrics(&self) -> impl Iterator<Item = (&str, &MetricHandle)> {
        let enabled = self.entries.iter().filter(|entry| entry.enabled);
        enabled.map(Entry::named)
    }

    /// Reference of all metrics in Markdown: name, kind, labels, whether it is on by default, help.
    ///
    /// ```
    /// use skep_base_metrics::{CounterVec, Opts, Registry};
    ///
    /// let drops = CounterVec::new(Opts::new("drops_total", "Packets dropped"), ["reason"]);
    /// let registry = Registry::new([std::sync::Arc::new(drops) as _], &[]).unwrap();
    /// assert!(registry.reference().ends_with("| `cilium_drops_total` | counter | `reason` | yes | Packets dropped |\n"));
    /// ```
    pub fn reference(&self) -> String {
        let mut out =
            String::from("| Metric | Kind | Labels | By default | Meaning |\n|---|---|---|---|---|\n");
        for (name, metric) in self.all() {
            let opts = metric.opts();
            let labels: Vec<String> = metric
                .label_names()
                .iter()
                .map(|label| format!("`{label}`"))
                .collect();
            let default = if opts.is_enabled() { "yes" } else { "no" };
            let help = opts.help().replace('|', "\\|");
            out.push_str(&format!(
                "| `{name}` | {} | {} | {default} | {help} |\n",
                metric.kind(),
                labels.join(", ")
            ));
        }
        out
    }

    /// All metrics, with their full names.
    pub fn all(&self) -> impl Iterator<Item = (&str, &MetricHandle)> {
        self.entries.iter().map(Entry::named)
    }
}
