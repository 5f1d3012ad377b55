// SPDX-License-Identifier: Apache-2.0

//! Warnings and errors on standard error, for programs and tests without a subscriber of `tracing`.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Hands warnings and errors to `print`, a line each, unless the process has a subscriber.
pub(crate) fn install(print: fn(&str)) {
    if !tracing::dispatcher::has_been_set() {
        // Fails only if another thread was faster, whose handler then runs.
        let _ = tracing::subscriber::set_global_default(Fallback(print));
    }
}

struct Fallback<W>(W);

impl<W: Fn(&str) + Send + Sync + 'static> Subscriber for Fallback<W> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = if *event.metadata().level() == Level::ERROR {
            "error"
        } else {
            "warning"
        };
        (self.0)(&format!("{level}: {}{}", line.message, line.fields));
    }

    // Spans are not enabled; events name their module themselves.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An event as a line: its message, then its fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn warnings_and_errors_are_lines_and_the_rest_is_left_out() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();

        tracing::subscriber::with_default(
            Fallback(move |line: &str| crate::lock(&sink).push(line.to_owned())),
            || {
                let _span = tracing::warn_span!("job", module = "poller").entered();
                tracing::warn!(module = %"poller", job = "poll", attempt = 2, "Job failed");
                tracing::error!(error = "no route", "Start hook failed");
                tracing::info!("Started");
            },
        );

        assert_eq!(
            *crate::lock(&lines),
            [
                "warning: Job failed module=poller job=poll attempt=2",
                "error: Start hook failed error=no route",
            ]
        );
    }
}
