// SPDX-License-Identifier: Apache-2.0

//! Settings of events and of the clock, which all programs of a node share.

use std::{fmt, str::FromStr, time::Duration};

/// How much is left out of what is reported: each level leaves out what those before it do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Aggregation {
    /// Every event.
    #[default]
    None = 0,
    /// No events of answers; one event an interval.
    Lowest = 1,
    /// As the lowest, for sockets.
    Low = 2,
    /// Of sockets only what happens at `connect(2)`.
    Medium = 3,
    /// As medium, for sockets.
    Maximum = 4,
}

impl Aggregation {
    const ALL: [(Self, &str); 5] = [
        (Self::None, "none"),
        (Self::Lowest, "lowest"),
        (Self::Low, "low"),
        (Self::Medium, "medium"),
        (Self::Maximum, "maximum"),
    ];

    /// The number that programs know it by.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Aggregation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[usize::from(self.number())].1)
    }
}

impl FromStr for Aggregation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let word = if lower == "max" { "maximum" } else { &lower };
        Self::ALL
            .into_iter()
            .find(|(level, name)| *name == word || level.number().to_string() == word)
            .map(|(level, _)| level)
            .ok_or_else(|| format!("`{text}` is not a level of aggregation"))
    }
}

hive::config_value!(Aggregation, "none, lowest, low, medium, maximum, or 0 to 4");

/// Settings of events and of the clock.
#[derive(Debug, Clone, hive::Config)]
pub struct MonitorConfig {
    /// Aggregation level of monitor events.
    #[config(
        default = "none",
        flag = "monitor-aggregation",
        deprecated_alias = "monitor-aggregation-level"
    )]
    pub aggregation: Aggregation,
    /// Minimum interval between events of a connection with aggregation.
    #[config(default = "5s", flag = "monitor-aggregation-interval")]
    pub interval: Duration,
    /// Use kernel ticks (jiffies) as the clock of maps: cheaper than the monotonic clock. Ignored while maps
    /// have timestamps of the other clock.
    #[config(default = false, flag = "enable-bpf-clock-probe")]
    pub clock_probe: bool,
    /// Debug message groups: `datapath` enables debug messages and captures of the programs at interfaces.
    /// Cilium's other groups (flow, kvstore, envoy, policy, tagged) have no effect.
    #[config(default = "", flag = "debug-verbose")]
    pub debug: DebugGroups,
}

/// Names of what is reported in detail, by commas or blanks: as in `datapath policy`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DebugGroups(Vec<&'static str>);

impl DebugGroups {
    const DATAPATH: &str = "datapath";
    const NAMES: [&str; 6] = ["flow", "kvstore", "envoy", Self::DATAPATH, "policy", "tagged"];

    /// Programs send debug messages.
    pub fn has_datapath(&self) -> bool {
        self.0.contains(&Self::DATAPATH)
    }
}

impl fmt::Display for DebugGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

impl FromStr for DebugGroups {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.split([',', ' ']).filter(|word| !word.is_empty());
        let known = |word: &str| {
            let found = Self::NAMES.into_iter().find(|name| *name == word);
            found.ok_or_else(|| format!("`{word}` is no group of debug messages"))
        };
        words.map(known).collect::<Result<_, _>>().map(Self)
    }
}

hive::config_value!(
    DebugGroups,
    "any of flow, kvstore, envoy, datapath, policy, tagged"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names_and_numbers() {
        for (level, name) in Aggregation::ALL {
            assert_eq!(name.parse(), Ok(level));
            assert_eq!(level.number().to_string().parse(), Ok(level));
            assert_eq!(level.to_string(), name);
        }
        assert_eq!("Medium".parse(), Ok(Aggregation::Medium));
        assert_eq!("max".parse(), Ok(Aggregation::Maximum));
        assert!("5".parse::<Aggregation>().unwrap_err().contains("`5`"));
    }

    #[test]
    fn debug_groups_have_names() {
        for text in ["datapath policy", "kvstore,datapath"] {
            assert!(text.parse::<DebugGroups>().unwrap().has_datapath(), "{text}");
        }
        for text in ["", "flow"] {
            assert!(!text.parse::<DebugGroups>().unwrap().has_datapath(), "{text}");
        }
        assert_eq!(
            "flow  tagged".parse::<DebugGroups>().unwrap().to_string(),
            "flow,tagged"
        );
        assert!("data".parse::<DebugGroups>().unwrap_err().contains("`data`"));
    }
}
