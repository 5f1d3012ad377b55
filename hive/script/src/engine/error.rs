// SPDX-License-Identifier: Apache-2.0

//! Why a script failed, with the place in it.

use std::fmt;

use crate::line::{Line, quote_args};
use crate::{CommandError, Interruption};

/// Why a script failed. The text starts with `file:line: `.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// A line that cannot be run: wrong syntax, an unknown condition, no time left.
    #[error("{file}:{line}: {text}")]
    Line {
        /// The script.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        text: String,
    },
    /// A command did not do what its line expects.
    #[error(transparent)]
    Command(Failure),
    /// A section was repeated until the time was over.
    #[error("{file}:{line}: {reason}\nlast failure after {retries} retries: {last}")]
    Retry {
        /// The script.
        file: String,
        /// The line with `*`, from 1.
        line: usize,
        /// Why it was not repeated again.
        reason: String,
        /// How often it was repeated.
        retries: u32,
        /// What the last complete repetition failed with.
        last: Box<Failure>,
    },
}

impl ScriptError {
    pub(crate) fn line(file: &str, line: usize, text: impl fmt::Display) -> Self {
        Self::Line {
            file: file.to_owned(),
            line,
            text: text.to_string(),
        }
    }

    /// The command that failed; of a repeated section the last one.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Line { .. } => None,
            Self::Command(failure) => Some(failure),
            Self::Retry { last, .. } => Some(last),
        }
    }
}

/// A command that did not do what its line expects.
#[derive(Debug)]
pub struct Failure {
    file: String,
    line: usize,
    command: String,
    args: Vec<String>,
    error: CommandError,
    log: String,
}

impl Failure {
    pub(crate) fn new(file: &str, line: &Line, args: &[String], error: CommandError) -> Self {
        Self {
            file: file.to_owned(),
            line: line.number,
            command: line.name.clone(),
            args: args.to_vec(),
            error,
            log: String::new(),
        }
    }

    pub(crate) fn with_log(mut self, log: String) -> Self {
        self.log = log;
        self
    }

    /// The line in the script, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// What the command failed with.
    pub fn error(&self) -> &CommandError {
        &self.error
    }

    /// What the command logged in its failed run, such as a diff.
    pub fn log(&self) -> &str {
        &self.log
    }

    pub(crate) fn interruption(&self) -> Option<Interruption> {
        self.error.interruption()
    }

    /// Whether `*` tries again.
    pub(crate) fn can_retry(&self) -> bool {
        !matches!(
            self.error,
            CommandError::Flag(_) | CommandError::Unknown | CommandError::NoBackground
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.args.is_empty() { "" } else { " " };
        let args = quote_args(&self.args);
        write!(
            f,
            "{}:{}: {}{separator}{args}: {}",
            self.file, self.line, self.command, self.error
        )
    }
}

impl std::error::Error for Failure {}
