// SPDX-License-Identifier: Apache-2.0

//! What came out of scripts.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How a script ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// All lines did what they should.
    Passed,
    /// The script says that it is not applicable.
    Skipped(String),
    /// Why it failed, with the last output of the command that did.
    Failed(String),
}

/// What came out of a script.
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
    /// Whether update mode has changed the file.
    pub updated: bool,
}

impl FileReport {
    /// Whether it did not fail.
    pub fn is_ok(&self) -> bool {
        !matches!(self.verdict, Verdict::Failed(_))
    }
}

impl fmt::Display for FileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.verdict {
            Verdict::Passed if self.updated => writeln!(f, "PASS {path} (updated)"),
            Verdict::Passed => writeln!(f, "PASS {path}"),
            Verdict::Skipped(message) => writeln!(f, "PASS {path} (skipped: {message})"),
            Verdict::Failed(reason) => {
                writeln!(f, "FAIL {path}")?;
                reason.lines().try_for_each(|line| writeln!(f, "    {line}"))
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
