// SPDX-License-Identifier: Apache-2.0

//! Results of scripts.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::RunFailure;

/// How a script ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Every line met its expectation.
    Passed,
    /// The script called `skip`, with this message.
    Skipped(String),
    /// A line did not, or the hive failed to build or to stop.
    Failed(RunFailure),
}

/// The result of a script. Displays as `PASS` or `FAIL` with the file, and why it failed.
#[derive(Debug, Clone)]
pub struct FileReport {
    /// The script.
    pub path: PathBuf,
    /// How it ended.
    pub verdict: Verdict,
    /// Everything it logged.
    pub log: String,
    /// How long it took.
    pub took: Duration,
    /// Whether update mode changed the file.
    pub updated: bool,
}

impl FileReport {
    /// Whether it passed or was skipped.
    pub fn is_ok(&self) -> bool {
        self.failure().is_none()
    }

    /// Why it failed.
    pub fn failure(&self) -> Option<&RunFailure> {
        match &self.verdict {
            Verdict::Failed(failure) => Some(failure),
            Verdict::Passed | Verdict::Skipped(_) => None,
        }
    }
}

impl fmt::Display for FileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.verdict {
            Verdict::Passed if self.updated => writeln!(f, "PASS {path} (updated)"),
            Verdict::Passed => writeln!(f, "PASS {path}"),
            Verdict::Skipped(message) => writeln!(f, "PASS {path} (skipped: {message})"),
            Verdict::Failed(RunFailure { reason, output }) => {
                writeln!(f, "FAIL {path}")?;
                let mut lines = reason.lines().chain(output.trim_end().lines());
                lines.try_for_each(|line| writeln!(f, "    {line}"))
            }
        }
    }
}

/// How many scripts passed and failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Passed or skipped.
    pub passed: usize,
    /// Failed.
    pub failed: usize,
}

impl Summary {
    /// Counts a script.
    pub fn add(&mut self, report: &FileReport) {
        if report.is_ok() {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}
