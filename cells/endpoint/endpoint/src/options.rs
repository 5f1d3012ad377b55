// SPDX-License-Identifier: Apache-2.0

//! Options of an endpoint.

use std::collections::BTreeMap;

use skep_base_settings::{MonitorConfig, PacketConfig};
use skep_bpf_maps::endpoint::events::Events;
use skep_datapath_hooks::EventOptions;

use crate::Config;

const AUDIT: &str = "PolicyAuditMode";
const DEBUG: &str = "Debug";
const DROPS: &str = "DropNotification";
const TRACES: &str = "TraceNotification";
const SOURCE: &str = "SourceIPVerification";
const VERDICTS: &str = "PolicyVerdictNotification";
const AGGREGATION: &str = "MonitorAggregationLevel";
const LEVELS: [&str; 5] = ["None", "Lowest", "Low", "Medium", "Maximum"];

/// Names of options and their values in a new endpoint.
const DEFAULT: [(&str, u8); 9] = [
    (DEBUG, 0),
    ("DebugLB", 0),
    ("DebugPolicy", 0),
    (DROPS, 1),
    (AGGREGATION, 0),
    (AUDIT, 0),
    (VERDICTS, 1),
    (SOURCE, 1),
    (TRACES, 1),
];

/// Options by name. Names are compared without case; those of requests are kept as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointOptions(BTreeMap<String, u8>);

/// Why an option is not changed. Texts are Cilium's: clients show them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    #[error("unknown option {0:?}")]
    Unknown(String),
    #[error("invalid option value {0}")]
    Value(String),
    #[error("monitor aggregation level must be between 0 and 4")]
    Level,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self(DEFAULT.map(|(name, value)| (name.to_owned(), value)).into())
    }
}

impl EndpointOptions {
    /// The options of new endpoints, by the settings of the agent.
    pub(crate) fn of_node(
        config: &Config,
        packets: Option<&PacketConfig>,
        monitor: Option<&MonitorConfig>,
    ) -> Self {
        let mut options = Self::default();
        let mut set = |name: &str, value: u8| options.0.insert(name.to_owned(), value);
        set(SOURCE, config.enable_source_ip_verification.into());
        set(AUDIT, config.policy_audit_mode.into());
        if let Some(packets) = packets {
            set(DROPS, packets.drop_events.into());
            set(TRACES, packets.trace_events.into());
            set(VERDICTS, packets.verdict_events.into());
        }
        if let Some(monitor) = monitor {
            set(DEBUG, monitor.debug.has_datapath().into());
            set(AGGREGATION, monitor.aggregation.number());
        }
        options
    }

    /// The options with those of the agent that endpoints have as well; others are left out.
    pub(crate) fn overridden(&self, changes: &BTreeMap<String, String>) -> Self {
        let mut options = self.clone();
        for (name, text) in changes {
            let Some((known, _)) = known(name) else { continue };
            let value = if known == AGGREGATION {
                level(text)
            } else {
                switch(text)
            };
            if let Ok(value) = value {
                options.0.insert(known.to_owned(), value);
            }
        }
        options
    }

    /// Events of the programs on packets of the endpoint.
    pub(crate) fn events(&self) -> EventOptions {
        let is_on = |name| self.0.get(name).is_some_and(|value| *value != 0);
        EventOptions {
            drops: is_on(DROPS),
            traces: is_on(TRACES),
            verdicts: is_on(VERDICTS),
            debug: is_on(DEBUG),
            aggregation: self.0.get(AGGREGATION).copied().unwrap_or_default(),
        }
    }

    /// As [`events`](Self::events), in maps.
    pub(crate) fn event_bits(&self) -> u8 {
        let EventOptions {
            drops,
            traces,
            verdicts,
            debug,
            aggregation: level,
        } = self.events();
        let events = Events {
            drops,
            traces,
            verdicts,
            debug,
            level,
        };
        events.bits()
    }

    /// What is denied passes, with an event.
    pub(crate) fn is_audited(&self) -> bool {
        self.0.get(AUDIT) == Some(&1)
    }

    /// These options with the node's audit mode: a start with another `policy-audit-mode` applies to all endpoints.
    pub(crate) fn audited_as(mut self, node: &Self) -> Self {
        self.0.insert(AUDIT.to_owned(), node.is_audited().into());
        self
    }

    /// Verdicts of policies are events.
    pub(crate) fn reports_verdicts(&self) -> bool {
        self.0.get(VERDICTS) != Some(&0)
    }

    /// Packets that it sends from other addresses are dropped.
    pub(crate) fn verifies_source(&self) -> bool {
        self.0.get(SOURCE) != Some(&0)
    }

    /// The numbers of options by name, for its file.
    pub(crate) fn numbers(&self) -> &BTreeMap<String, u8> {
        &self.0
    }

    /// Options of a file; unknown names are left out.
    pub(crate) fn of_numbers(numbers: BTreeMap<String, i64>) -> Self {
        let mut options = Self::default();
        for (name, number) in numbers {
            if let (Some((known, _)), Ok(number)) = (known(&name), u8::try_from(number))
                && known == name
            {
                options.0.insert(name, number);
            }
        }
        options
    }

    /// Texts of options by name.
    pub fn texts(&self) -> BTreeMap<String, String> {
        let text = |(name, value): (&String, &u8)| {
            let text = match name.eq_ignore_ascii_case(AGGREGATION) {
                true => LEVELS.get(usize::from(*value)).copied().unwrap_or(LEVELS[0]),
                false if *value == 0 => "Disabled",
                false => "Enabled",
            };
            (name.clone(), text.to_owned())
        };
        self.0.iter().map(text).collect()
    }

    /// The options with these changes.
    ///
    /// # Errors
    ///
    /// [`OptionError`] for the first change that is invalid.
    pub fn with<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, OptionError> {
        let mut options = self.clone();
        for (name, text) in changes {
            let (known, _) = known(name).ok_or_else(|| OptionError::Unknown(name.clone()))?;
            let value = match known == AGGREGATION {
                true => level(text)?,
                false => switch(text)?,
            };
            options.0.insert(name.clone(), value);
        }
        Ok(options)
    }
}

fn known(name: &str) -> Option<(&'static str, u8)> {
    DEFAULT
        .into_iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
}

fn switch(text: &str) -> Result<u8, OptionError> {
    match text.to_lowercase().as_str() {
        "true" | "on" | "enable" | "enabled" | "1" => Ok(1),
        "false" | "off" | "disable" | "disabled" | "0" => Ok(0),
        _ => Err(OptionError::Value(text.to_owned())),
    }
}

fn level(text: &str) -> Result<u8, OptionError> {
    let named = LEVELS.iter().position(|level| level.eq_ignore_ascii_case(text));
    let number = named.or_else(|| text.parse().ok().filter(|level| *level < LEVELS.len()));
    let number = match text.to_lowercase().as_str() {
        "" | "disabled" => Some(0),
        "max" => Some(LEVELS.len() - 1),
        _ => number,
    };
    number
        .and_then(|level| u8::try_from(level).ok())
        .ok_or(OptionError::Level)
}
