// SPDX-License-Identifier: Apache-2.0

//! Rows of the table.

use std::fmt;
use std::sync::Arc;

use hive::{HealthId, Level};
use jiff::Timestamp;
use jiff::tz::Offset;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use statedb::row::{self, BoxError};

/// The zero of times: `0001-01-01T00:00:00Z`.
pub fn never() -> Timestamp {
    jiff::civil::date(1, 1, 1)
        .at(0, 0, 0, 0)
        .to_zoned(jiff::tz::TimeZone::UTC)
        .map_or(Timestamp::MIN, |zoned| zoned.timestamp())
}

/// Name of a component: its module and its place in it. Parts are joined by dots in texts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all(serialize = "PascalCase"), default)]
pub struct StatusId {
    /// Ids of the modules from the outermost to the innermost.
    pub module: Arc<[Arc<str>]>,
    /// Names of components, from the outermost to the innermost.
    pub component: Arc<[Arc<str>]>,
}

impl StatusId {
    /// Whether this is `other` or a component inside of it, by whole parts.
    pub fn is_inside(&self, other: &Self) -> bool {
        let mut parts = self.module.iter().chain(self.component.iter());
        other
            .module
            .iter()
            .chain(other.component.iter())
            .all(|part| parts.next() == Some(part))
    }

    /// The module's parts joined by dots.
    pub fn module_text(&self) -> String {
        self.module.join(".")
    }

    /// The component's parts joined by dots.
    pub fn component_text(&self) -> String {
        self.component.join(".")
    }
}

impl From<&HealthId> for StatusId {
    fn from(id: &HealthId) -> Self {
        Self {
            module: id.module().segments().map(Arc::from).collect(),
            component: id.component().iter().cloned().collect(),
        }
    }
}

impl fmt::Display for StatusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.module.iter().chain(self.component.iter()).enumerate() {
            let dot = if at > 0 { "." } else { "" };
            write!(f, "{dot}{part}")?;
        }
        Ok(())
    }
}

/// A level by its name in texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum LevelName {
    #[default]
    #[serde(rename = "")]
    Unknown,
    Starting,
    #[serde(rename = "OK")]
    Ok,
    /// Works in part or not at all, and retries.
    Degraded,
    Stopped,
}

impl LevelName {
    /// All levels that can be reported.
    pub const ALL: [Self; 4] = [Self::Starting, Self::Ok, Self::Degraded, Self::Stopped];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::Starting => "Starting",
            Self::Ok => "OK",
            Self::Degraded => "Degraded",
            Self::Stopped => "Stopped",
        }
    }
}

impl From<Level> for LevelName {
    fn from(level: Level) -> Self {
        match level {
            Level::Starting => Self::Starting,
            Level::Ok => Self::Ok,
            Level::Degraded => Self::Degraded,
            Level::Stopped => Self::Stopped,
        }
    }
}

impl fmt::Display for LevelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The last reports of a component.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all(serialize = "PascalCase"), default)]
pub struct Status {
    #[serde(rename(serialize = "ID"))]
    pub id: StatusId,
    pub level: LevelName,
    /// Message of the last report. A component that stopped keeps it.
    pub message: String,
    /// The error with its causes, empty unless degraded.
    pub error: String,
    /// Time of the last OK, or [`never()`].
    #[serde(rename(serialize = "LastOK", deserialize = "lastok"))]
    pub last_ok: Timestamp,
    pub updated: Timestamp,
    /// Time of the stop, or [`never()`].
    pub stopped: Timestamp,
    #[serde(rename(serialize = "Final", deserialize = "final"))]
    pub final_message: String,
    /// Number of equal reports in a row.
    pub count: u64,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            id: StatusId::default(),
            level: LevelName::Unknown,
            message: String::new(),
            error: String::new(),
            last_ok: never(),
            updated: never(),
            stopped: never(),
            final_message: String::new(),
            count: 0,
        }
    }
}

/// A time in seconds, as columns show it.
fn seconds(time: Timestamp) -> String {
    Offset::UTC
        .to_datetime(time)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

impl statedb::Row for Status {
    fn header() -> &'static [&'static str] {
        &[
            "Module",
            "Component",
            "Level",
            "Message",
            "Error",
            "LastOK",
            "UpdatedAt",
            "Count",
        ]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.id.module_text(),
            self.id.component_text(),
            self.level.to_string(),
            self.message.clone(),
            self.error.clone(),
            seconds(self.last_ok),
            seconds(self.updated),
            self.count.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        row::to_json(self)
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        row::from_yaml(text)
    }

    fn type_name() -> String {
        "types.Status".to_owned()
    }
}
