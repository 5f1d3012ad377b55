// SPDX-License-Identifier: Apache-2.0

//! Runs scripts, several at a time, each against a hive of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;

use super::run::run_script;
use super::{Assembling, Choices, FileReport, Setup, Suite, Summary, Verdict};
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
    /// Makes the hive of a script.
    pub(super) assemble: Arc<dyn Fn(Setup) -> Assembling + Send + Sync>,
}

impl From<&'static Suite> for World {
    fn from(suite: &'static Suite) -> Self {
        Self {
            time: suite.time(),
            retry: suite.retry(),
            assemble: Arc::new(suite.assemble()),
        }
    }
}

/// Runs `files` as scripts of `suite` and passes the reports to `show`, in the order of the files. A panic fails the
/// script that caused it.
pub async fn run(
    suite: &'static Suite,
    files: &[PathBuf],
    options: &Options,
    show: impl FnMut(&FileReport),
) -> Summary {
    run_in(&World::from(suite), files, options, show).await
}

pub(super) async fn run_in(
    world: &World,
    files: &[PathBuf],
    options: &Options,
    mut show: impl FnMut(&FileReport),
) -> Summary {
    let parallel = if options.break_on_error {
        1
    } else {
        options.parallel.max(1)
    };
    let mut reports = futures::stream::iter(files.to_vec())
        .map(|path| run_alone(world.clone(), path, options.clone()))
        .buffered(parallel);
    let mut summary = Summary::default();
    while let Some(report) = reports.next().await {
        summary.add(&report);
        show(&report);
    }
    summary
}

/// Runs a script in a task of its own.
async fn run_alone(world: World, path: PathBuf, options: Options) -> FileReport {
    let started = Instant::now();
    let script = path.clone();
    let task = tokio::spawn(async move { run_script(&script, &world, &options).await });
    task.await.unwrap_or_else(|error| FileReport {
        path,
        verdict: Verdict::Failed(format!("PANIC: {error}").into()),
        log: String::new(),
        took: started.elapsed(),
        updated: false,
    })
}
