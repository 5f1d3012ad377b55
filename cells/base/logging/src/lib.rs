// SPDX-License-Identifier: Apache-2.0

//! Logs of a program: text or JSON, on the standard error.
//!
//! - [`cell`]: the settings, and the metric `errors_warnings_total`;
//! - [`start_logging`]: starts logging as a plan says, in `Program::setup`.

mod count;

use std::{fmt, io::IsTerminal, str::FromStr};

use hive::{Cell, Plan, config::Faults};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, filter::ParseError};

use count::CountLayer;

hive::catalogue!(cell);

/// Settings of logs, and how many warnings and errors there are in them.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("logging", "Settings of logs")
        .config::<LogConfig>()
        .provide(count::metrics)
        // Not every program with a log has metrics.
        .library()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            // Names that Cilium has for variants of the two.
            "text" | "text-ts" => Ok(Self::Text),
            "json" | "json-ts" => Ok(Self::Json),
            _ => Err(format!("`{text}` is neither text nor json")),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

hive::config_value!(LogFormat, "text|json");

/// What is logged, and how.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = LogConfig::check)]
pub struct LogConfig {
    /// Enable debug logging.
    #[config(default = "false")]
    pub debug: bool,
    /// Log format: text or json.
    #[config(default = "text")]
    pub log_format: LogFormat,
    /// Log filter, such as `info,skep_loadbalancer=debug`. Default: by `debug`.
    #[config(default = "")]
    pub log_filter: String,
}

impl LogConfig {
    fn check(&self, faults: &mut Faults) {
        if let Err(error) = self.filter() {
            faults.add("log-filter", format!("`{}`: {error}", self.log_filter));
        }
    }

    fn filter(&self) -> Result<EnvFilter, ParseError> {
        EnvFilter::try_new(match self.log_filter.as_str() {
            "" if self.debug => "debug",
            "" => "info",
            text => text,
        })
    }
}

pub fn start_logging(plan: &Plan) {
    let Some(config) = plan.config::<LogConfig>() else {
        return;
    };
    // A plan has no settings that their check refused.
    let filter = config.filter().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // They would go to standard error as well, by a macro that panics if its reader is gone.
        .log_internal_errors(false);
    let started: Result<(), TryInitError> = match config.log_format {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .finish()
            .with(CountLayer)
            .try_init(),
        LogFormat::Text => builder
            .with_ansi(std::io::stderr().is_terminal())
            .finish()
            .with(CountLayer)
            .try_init(),
    };
    if let Err(err) = started {
        hive::console::error_line(format_args!("logging was started before: {err}"));
    }
}

#[cfg(test)]
mod tests {
    use hive::{Config, Hive, Settings};
    use rustix::{pipe, stdio};

    use super::*;

    #[test]
    fn a_log_that_nobody_reads_is_no_reason_to_panic() {
        start_logging(
            &Hive::new([cell()])
                .plan(Settings::new())
                .expect("it has only logs"),
        );
        let own = stdio::stderr().try_clone_to_owned().unwrap();
        let (reader, writer) = pipe::pipe().unwrap();
        drop(reader);
        stdio::dup2_stderr(writer).unwrap();

        let logged = std::panic::catch_unwind(|| tracing::warn!("is anybody there"));

        stdio::dup2_stderr(own).unwrap();
        assert!(logged.is_ok());
    }

    #[test]
    fn filters_that_cannot_be_read_are_faults() {
        let mut config = LogConfig::defaults().unwrap();
        let said = |config: &LogConfig| {
            let mut faults = Faults::default();
            config.check(&mut faults);
            format!("{faults:?}")
        };

        assert!(!said(&config).contains("log-filter"), "{}", said(&config));
        for good in ["warn", "info,skep_loadbalancer=debug"] {
            config.log_filter = good.into();
            assert!(!said(&config).contains("log-filter"), "{}", said(&config));
        }
        for bad in ["a=b=c", "info,skep=loud"] {
            config.log_filter = bad.into();
            assert!(said(&config).contains(bad), "{}", said(&config));
        }
    }
}
