// SPDX-License-Identifier: Apache-2.0

//! Runs the scenarios of a file.

use std::{fmt, path::Path};

use serde::Deserialize;
use serde_json::Value;

use crate::{
    Error,
    compare::Comparison,
    format::{Group, Scenario},
    world::World,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Every step did what was recorded.
    Passed,
    /// A step did something else: which, and the first difference.
    Failed(String),
    /// A step did something else, as it is meant to: what was recorded is a fault.
    Different {
        /// Step, from 0.
        step: usize,
        /// The fault of the recorded program.
        fault: String,
        lines: String,
    },
}

/// A scenario and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub group: String,
    pub scenario: String,
    pub outcome: Outcome,
    /// Maps that do the same to every packet with other rows.
    pub notes: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, scenario, .. } = self;
        match &self.outcome {
            Outcome::Passed => write!(f, "PASS {group}/{scenario}"),
            Outcome::Failed(why) => write!(f, "FAIL {group}/{scenario}: {why}"),
            Outcome::Different { step, fault, .. } => {
                write!(f, "DIFF {group}/{scenario}: step {step}: {fault}")
            }
        }
    }
}

/// Runs the scenarios of a file whose names contain `only`.
///
/// # Errors
///
/// [`Error`] if the file cannot be read.
pub fn run_file(path: &Path, only: &str) -> Result<Vec<Report>, Error> {
    let group = Group::read(path)?;
    let mut reports = Vec::new();
    for value in &group.scenarios {
        let name = value.get("name").and_then(Value::as_str).unwrap_or_default();
        if !name.contains(only) {
            continue;
        }
        reports.push(match Scenario::deserialize(value) {
            Ok(scenario) => run(&group.group, &scenario),
            Err(error) => Report {
                group: group.group.clone(),
                scenario: name.to_owned(),
                outcome: Outcome::Failed(format!("not of this format: {error}")),
                notes: Vec::new(),
            },
        });
    }
    Ok(reports)
}

fn run(group: &str, scenario: &Scenario) -> Report {
    let mut world = World::new(scenario);
    let mut comparison = Comparison::new(scenario);
    let mut outcome = Outcome::Passed;
    for (index, step) in scenario.steps.iter().enumerate() {
        let results = step
            .operations
            .iter()
            .map(|operation| world.run(operation))
            .collect::<Vec<_>>();
        let Err(difference) = comparison.step(&world, step, &results) else {
            continue;
        };
        outcome = match &scenario.peer_fault {
            Some(fault) => Outcome::Different {
                step: index,
                fault: fault.clone(),
                lines: difference,
            },
            None => Outcome::Failed(format!("step {index}: {difference}")),
        };
        break;
    }
    Report {
        group: group.to_owned(),
        scenario: scenario.name.clone(),
        outcome,
        notes: comparison.notes,
    }
}
