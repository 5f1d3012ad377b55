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
    /// How much is left out of the monitor's events.
    #[config(
        default = "none",
        flag = "monitor-aggregation",
        deprecated_alias = "monitor-aggregation-level"
    )]
    pub aggregation: Aggregation,
    /// Least time between two events of sockets, when events are left out.
    #[config(default = "5s", flag = "monitor-aggregation-interval")]
    pub interval: Duration,
    /// Use the kernel's tick as the clock of maps: it is cheaper than the monotonic clock. Ignored while maps hold times on the other
    /// clock.
    #[config(default = false, flag = "enable-bpf-clock-probe")]
    pub clock_probe: bool,
}

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
}
