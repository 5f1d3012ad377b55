// SPDX-License-Identifier: Apache-2.0

//! Health kept in memory, for tests and small programs.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::{HealthId, HealthReport, HealthSink, Level};

/// The newest report of a component, and how often it was repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthEntry {
    /// Whose health.
    pub id: HealthId,
    /// How it is.
    pub level: Level,
    /// What it said.
    pub message: String,
    /// The error, if degraded.
    pub error: Option<String>,
    /// How many times in a row it said so.
    pub count: u64,
}

/// Keeps the newest report of every component.
#[derive(Debug, Default)]
pub struct MemoryHealth {
    entries: Mutex<BTreeMap<HealthId, HealthEntry>>,
}

impl MemoryHealth {
    /// Nothing reported yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The report of a component by its dotted name.
    ///
    /// ```
    /// let (health, reports) = hive::testing::health("cache");
    /// health.ok("Filled");
    /// assert_eq!(reports.get("cache").unwrap().message, "Filled");
    /// ```
    #[must_use]
    pub fn get(&self, id: &str) -> Option<HealthEntry> {
        crate::lock(&self.entries)
            .values()
            .find(|entry| entry.id.to_string() == id)
            .cloned()
    }

    /// All reports, sorted.
    #[must_use]
    pub fn entries(&self) -> Vec<HealthEntry> {
        crate::lock(&self.entries).values().cloned().collect()
    }
}

impl HealthSink for MemoryHealth {
    fn report(&self, id: &HealthId, report: HealthReport) {
        let mut entries = crate::lock(&self.entries);
        let HealthReport {
            level,
            message,
            error,
        } = report;
        match entries.get_mut(id) {
            Some(entry) if entry.level == level && entry.message == message && entry.error == error => {
                entry.count += 1;
            }
            _ => {
                entries.insert(
                    id.clone(),
                    HealthEntry {
                        id: id.clone(),
                        level,
                        message,
                        error,
                        count: 1,
                    },
                );
            }
        }
    }

    fn close(&self, id: &HealthId) {
        crate::lock(&self.entries).retain(|other, _| !other.is_inside(id));
    }
}
