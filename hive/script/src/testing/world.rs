// SPDX-License-Identifier: Apache-2.0

//! What the scripts of a run have in common.

use std::sync::Arc;
use std::time::Duration;

use super::suite::Threads;
use super::{Assembling, Choices, Setup, Suite};
use crate::Retry;

/// How scripts are run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Values of the suite's choices.
    pub choices: Choices,
    /// Replace expected files that differ.
    pub update: bool,
    /// List the variables at the start of the log; the condition `verbose` holds.
    pub verbose: bool,
    /// Open the `break` prompt at the first failure; scripts run one after the other.
    pub break_on_error: bool,
    /// How many scripts run at a time.
    pub parallel: usize,
    /// Time for each script in place of the suite's.
    pub time: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        let parallel = std::thread::available_parallelism().map_or(2, usize::from) * 2;
        Self {
            choices: Choices::default(),
            update: false,
            verbose: false,
            break_on_error: false,
            parallel,
            time: None,
        }
    }
}

/// What the scripts of a suite, or of a test, have in common.
#[derive(Clone)]
pub(super) struct World {
    /// Time for a script.
    pub(super) time: Duration,
    /// How `*` repeats.
    pub(super) retry: Retry,
    /// Threads of each script; those of the runner if there is none.
    pub(super) threads: Option<Threads>,
    /// Makes the hive of a script.
    pub(super) assemble: Arc<dyn Fn(Setup) -> Assembling + Send + Sync>,
}

impl From<&'static Suite> for World {
    fn from(suite: &'static Suite) -> Self {
        Self {
            time: suite.time(),
            retry: suite.retry(),
            threads: suite.own_threads(),
            assemble: Arc::new(suite.assemble()),
        }
    }
}
