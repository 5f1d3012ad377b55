// SPDX-License-Identifier: Apache-2.0

//! The result of a scenario.

use std::fmt;

use crate::{bindings::Mismatch, differences};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// The differences that are not intended.
    Failed(Vec<String>),
    /// Intended differences: their names, and each of them in full.
    Different {
        names: Vec<&'static str>,
        lines: Vec<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub scenario: String,
    pub outcome: Outcome,
}

impl Report {
    pub(crate) fn new(scenario: impl Into<String>, found: Vec<Mismatch>) -> Self {
        let (mut names, mut lines, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        for mismatch in &found {
            match differences::name(mismatch) {
                Some(name) => {
                    names.push(name);
                    lines.push(format!("{name}: {mismatch}"));
                }
                None => failed.push(mismatch.to_string()),
            }
        }
        names.sort_unstable();
        names.dedup();
        let outcome = match (failed.is_empty(), names.is_empty()) {
            (false, _) => Outcome::Failed(failed),
            (true, true) => Outcome::Passed,
            (true, false) => Outcome::Different { names, lines },
        };
        Self {
            scenario: scenario.into(),
            outcome,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Passed => write!(out, "PASS {}", self.scenario),
            Outcome::Failed(lines) => {
                let text = lines
                    .first()
                    .map(String::as_str)
                    .unwrap_or_default()
                    .replace('\n', "\\n");
                let short: String = text.chars().take(1200).collect();
                write!(out, "FAIL {}: {short}", self.scenario)
            }
            Outcome::Different { names, .. } => {
                write!(out, "DIFF {}: {}", self.scenario, names.join(", "))
            }
        }
    }
}
