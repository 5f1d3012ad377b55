// SPDX-License-Identifier: Apache-2.0

//! Options that can be changed while the agent runs: names, values, texts.

use std::collections::BTreeMap;

use serde_json::Value;

/// An option of the agent or of endpoints.
struct Known {
    name: &'static str,
    description: &'static str,
}

const fn known(name: &'static str, description: &'static str) -> Known {
    Known { name, description }
}

const SOURCE_IP: Known = known(
    "SourceIPVerification",
    "Enable the check of the source IP on pod egress",
);
const DEBUG: Known = known("Debug", "Enable debugging trace statements");
const DEBUG_LB: Known = known("DebugLB", "Enable debugging trace statements for load balancer");
const DEBUG_POLICY: Known = known(
    "DebugPolicy",
    "Enable debugging trace statements for policy enforcement",
);
const DEBUG_TAGGED: Known = known(
    "DebugTagged",
    "Enable debugging trace statements of tagged packets",
);
const DROP: Known = known("DropNotification", "Enable drop notifications");
const TRACE: Known = known("TraceNotification", "Enable trace notifications");
const AUDIT: Known = known("PolicyAuditMode", "Enable audit mode for policies");
const VERDICT: Known = known("PolicyVerdictNotification", "Enable policy verdict notifications");
const TRACING: Known = known("PolicyTracing", "Enable tracing when resolving policy");
const AGGREGATION: Known = known(
    "MonitorAggregationLevel",
    "Set the level of aggregation for monitor events in the datapath",
);

/// Options of endpoints, or of the agent.
pub(crate) struct Options(&'static [Known]);

pub(crate) static ENDPOINT: Options = Options(&[
    SOURCE_IP,
    DEBUG,
    DEBUG_LB,
    DROP,
    TRACE,
    AUDIT,
    DEBUG_POLICY,
    VERDICT,
    AGGREGATION,
]);

pub(crate) static DAEMON: Options = Options(&[
    SOURCE_IP,
    DEBUG,
    DEBUG_LB,
    DEBUG_TAGGED,
    DROP,
    TRACE,
    AUDIT,
    VERDICT,
    TRACING,
    AGGREGATION,
]);

/// Levels of the monitor's aggregation, by number.
const LEVELS: [&str; 5] = ["none", "lowest", "low", "medium", "maximum"];

/// Why a text is no change of an option.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum OptionError {
    #[error("invalid option format")]
    Format,
    #[error("unknown option {0:?}")]
    Unknown(String),
    #[error("invalid option value {0}")]
    Value(String),
    #[error("invalid monitor aggregation level {0:?}")]
    Level(String),
}

/// A boolean value in any of its spellings.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text.to_lowercase().as_str() {
        "true" | "on" | "enable" | "enabled" | "1" => Some(true),
        "false" | "off" | "disable" | "disabled" | "0" => Some(false),
        _ => None,
    }
}

impl Options {
    /// Names and descriptions.
    pub(crate) fn list(&self) -> String {
        let lines = self
            .0
            .iter()
            .map(|Known { name, description }| format!("{name:<24} {description}\n"));
        lines.collect()
    }

    /// Reads `name=value`; returns the option's name and the value as it is sent.
    pub(crate) fn parse(&self, text: &str) -> Result<(&'static str, String), OptionError> {
        let (name, value) = text.split_once('=').ok_or(OptionError::Format)?;
        let option = self
            .0
            .iter()
            .find(|option| option.name.eq_ignore_ascii_case(name));
        let option = option.ok_or_else(|| OptionError::Unknown(name.to_owned()))?;
        if option.name == AGGREGATION.name {
            let lower = value.to_lowercase();
            let is_level = LEVELS.contains(&lower.as_str()) || lower == "max" || lower == "disabled";
            return match is_level
                || value
                    .parse::<u8>()
                    .is_ok_and(|level| usize::from(level) < LEVELS.len())
            {
                true => Ok((option.name, value.to_owned())),
                false => Err(OptionError::Level(value.to_owned())),
            };
        }
        match boolean(value) {
            Some(true) => Ok((option.name, "Enabled".to_owned())),
            Some(false) => Ok((option.name, "Disabled".to_owned())),
            None => Err(OptionError::Value(value.to_owned())),
        }
    }
}

/// Options with their values, a line each.
pub(crate) fn values(options: &Value) -> String {
    let sorted: BTreeMap<&String, &Value> = options.as_object().into_iter().flatten().collect();
    let line = |(name, value): (&String, &Value)| {
        let value = match value {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let value = match boolean(&value) {
            Some(true) => "Enabled",
            Some(false) => "Disabled",
            None => &value,
        };
        format!("{name:<34}: {value}\n")
    };
    sorted.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_checked() {
        let enabled = Ok(("Debug", "Enabled".to_owned()));
        assert_eq!(ENDPOINT.parse("debug=1"), enabled);
        assert_eq!(ENDPOINT.parse("Debug"), Err(OptionError::Format));
        assert_eq!(
            ENDPOINT.parse("PolicyTracing=on"),
            Err(OptionError::Unknown("PolicyTracing".into()))
        );
        assert_eq!(
            DAEMON.parse("Debug=maybe"),
            Err(OptionError::Value("maybe".into()))
        );
        assert_eq!(
            DAEMON.parse("MonitorAggregationLevel=Medium"),
            Ok(("MonitorAggregationLevel", "Medium".to_owned()))
        );
        assert_eq!(
            DAEMON.parse("MonitorAggregationLevel=9"),
            Err(OptionError::Level("9".into()))
        );
    }
}
