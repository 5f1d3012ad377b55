// SPDX-License-Identifier: Apache-2.0

//! Metric `errors_warnings_total`: messages of level warning and error in the log.
//!
//! What the log filter drops is not counted. The label `subsystem` is the module of the hive whose constructor, hook or job
//! logs; outside of those it is the crate, such as `k8s-client`.

use std::sync::LazyLock;

use hive::Members;
use skep_base_metrics::{CounterVec, MetricHandle, MetricSet, Metrics};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// The field of spans that names a module of the hive.
const MODULE: &str = "module";

#[derive(Debug, Metrics)]
struct LogMetrics {
    /// Log messages of level warning and error.
    #[metric(name = "errors_warnings_total", labels = ["level", "subsystem"])]
    messages: CounterVec,
}

/// Of the process, as the log is: it begins before there is a hive.
static METRICS: LazyLock<LogMetrics> = LazyLock::new(LogMetrics::default);

pub(crate) fn metrics() -> Members<MetricHandle> {
    Members(METRICS.metrics())
}

/// Counts messages. Below a warning it costs one comparison for a message that is logged, nothing for others.
pub(crate) struct CountLayer;

/// The module that a span names.
struct Module(String);

#[derive(Default)]
struct ModuleVisitor(Option<String>);

impl Visit for ModuleVisitor {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == MODULE {
            self.0 = Some(format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == MODULE {
            self.0 = Some(value.to_owned());
        }
    }
}

impl<S> Layer<S> for CountLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if attributes.metadata().fields().field(MODULE).is_none() {
            return;
        }
        let mut visitor = ModuleVisitor::default();
        attributes.record(&mut visitor);
        if let (Some(module), Some(span)) = (visitor.0, context.span(id)) {
            span.extensions_mut().insert(Module(module));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => return,
        };
        let module = context.event_scope(event).and_then(|mut scope| {
            scope.find_map(|span| {
                let extensions = span.extensions();
                extensions.get::<Module>().map(|module| module.0.clone())
            })
        });
        let subsystem = module.unwrap_or_else(|| crate_name(event.metadata().target()));
        METRICS.messages.with([level, &*subsystem]).inc();
    }
}

/// `k8s-client` of target `skep_k8s_client::watcher`.
fn crate_name(target: &str) -> String {
    let name = target.split("::").next().unwrap_or_default();
    name.strip_prefix("skep_").unwrap_or(name).replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsystems_outside_of_modules_are_crates() {
        let targets = ["skep_k8s_client::watcher", "skep_agent", "hive::engine", ""];

        assert_eq!(targets.map(crate_name), ["k8s-client", "agent", "hive", ""]);
    }
}
