// SPDX-License-Identifier: Apache-2.0

//! Logs of the agent: text or JSON, on the standard error.

use std::{fmt, io::IsTerminal, str::FromStr};

use hive::Plan;
use tracing_subscriber::EnvFilter;

/// Form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
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
pub struct LogConfig {
    /// Log debug messages too.
    #[config(default = "false")]
    pub debug: bool,
    /// Form of log lines: text or json.
    #[config(default = "text")]
    pub log_format: LogFormat,
    /// What is logged in detail, such as `info,skep_loadbalancer=debug`; empty follows `debug`.
    #[config(default = "")]
    pub log_filter: String,
}

/// Starts logging as configured.
pub fn start_logging(plan: &Plan) {
    let Some(config) = plan.config::<LogConfig>() else {
        return;
    };
    let level = if config.debug { "debug" } else { "info" };
    let filter = match config.log_filter.as_str() {
        "" => EnvFilter::new(level),
        text => EnvFilter::try_new(text).unwrap_or_else(|err| {
            eprintln!("log-filter `{text}`: {err}; logging at {level}");
            EnvFilter::new(level)
        }),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = match config.log_format {
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .try_init(),
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
    };
    if let Err(err) = started {
        eprintln!("logging was started before: {err}");
    }
}
