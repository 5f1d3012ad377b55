// SPDX-License-Identifier: Apache-2.0

//! One script, from its file to the stopped hive.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hive::error_chain;
use tokio::time::Instant;

use crate::hive_command::ScriptHive;
use crate::{CommandSet, Conditions, Ending, Environment, Failure, Lifetime, Retry, ScriptFile, State};

/// What is known of a script before its hive is made.
#[derive(Debug, Clone)]
pub struct Place {
    /// The arguments behind `#!`, with `$WORK` replaced.
    pub args: Vec<String>,
    /// The script's text, without the files.
    pub script: String,
    /// The script's work directory.
    pub work_dir: PathBuf,
    /// A directory for what the cells keep on disk.
    pub state_dir: PathBuf,
}

/// What a script runs against.
#[derive(Default)]
pub struct Parts {
    /// The hive, which is stopped after the script.
    pub hive: Option<ScriptHive>,
    /// All commands.
    pub commands: CommandSet,
    /// Conditions in brackets.
    pub conditions: Conditions,
    /// Variables before those that every script has.
    pub environment: Environment,
    /// Dropped when the hive has stopped, before the directories are removed.
    pub keep: Option<Box<dyn Any + Send>>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// How a script is run.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions {
    /// Time for the script.
    pub time: Duration,
    /// Time for the hive to stop afterwards.
    pub stop_time: Duration,
    /// How `*` repeats.
    pub retry: Retry,
    /// Replace expected files that differ.
    pub update: bool,
    /// List the variables at the start of the log.
    pub verbose: bool,
    /// Open the `break` prompt at the first failure, and print the log while it grows.
    pub break_on_error: bool,
}

/// What came out of a script.
#[derive(Debug)]
pub struct Ran {
    /// How it ended, or why it failed.
    pub result: Result<Ending, RunFailure>,
    /// Everything it logged.
    pub log: String,
    /// Whether the file was updated.
    pub updated: bool,
}

/// Why a script failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct RunFailure {
    /// The failing line and the reason.
    pub reason: String,
    /// What the failing command logged.
    pub output: String,
}

impl RunFailure {
    fn new(error: &(dyn std::error::Error + 'static)) -> Self {
        error_chain(error).into()
    }
}

impl From<String> for RunFailure {
    fn from(reason: String) -> Self {
        Self {
            reason,
            output: String::new(),
        }
    }
}

/// Runs the script in a file against what `assemble` makes for it, in directories of its own. The hive is stopped at the
/// end; one that does not stop well is a failure of the script.
pub async fn run_script<F>(path: &Path, options: RunOptions, assemble: impl FnOnce(Place) -> F) -> Ran
where
    F: Future<Output = Result<Parts, String>>,
{
    let log = Log::default();
    let mut updated = false;
    let result = run(path, options, assemble, &log, &mut updated).await;
    Ran {
        result,
        log: log.text(),
        updated,
    }
}

/// The log of a script.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Log {
    fn push(&self, text: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_str(text);
    }

    fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn run<F>(
    path: &Path,
    options: RunOptions,
    assemble: impl FnOnce(Place) -> F,
    log: &Log,
    updated: &mut bool,
) -> Result<Ending, RunFailure>
where
    F: Future<Output = Result<Parts, String>>,
{
    let mut script = ScriptFile::load(path).map_err(|error| RunFailure::new(&error))?;
    let folder = tempfile::Builder::new()
        .prefix("run-scripts-")
        .tempdir()
        .map_err(|error| RunFailure::from(format!("no folder to work in: {error}")))?;
    let (work_dir, state_dir) = (folder.path().join("001"), folder.path().join("state"));
    for dir in [&work_dir, &state_dir] {
        std::fs::create_dir(dir).map_err(|error| RunFailure::new(&error))?;
    }
    let work = work_dir.to_string_lossy();
    let args = script.args();
    let place = Place {
        args: args.iter().map(|arg| arg.replace("$WORK", &work)).collect(),
        script: script.text().to_owned(),
        work_dir: work_dir.clone(),
        state_dir,
    };
    let Parts {
        hive,
        commands,
        conditions,
        environment,
        keep: _keep,
    } = assemble(place).await?;

    let lifetime = Lifetime::until(Instant::now() + options.time);
    let sink = log.clone();
    let write = Box::new(move |text: &str| {
        if options.break_on_error {
            print!("{text}");
        }
        sink.push(text);
    });
    let mut state = State::new(&work_dir, commands, environment, lifetime, write)
        .with_conditions(conditions)
        .with_retry(options.retry);
    if options.update {
        state = state.update_mode();
    }
    if options.break_on_error {
        state = state.break_on_error();
    }
    let result = match script.unpack(&mut state) {
        Err(error) => Err(RunFailure::new(&error)),
        Ok(()) => {
            if options.verbose {
                // Fails only if the suite has replaced `env`; the script is run all the same.
                let _ = state.context().run_line("env").await;
            }
            script.run(&mut state).await.map_err(|error| RunFailure {
                reason: error.to_string(),
                output: error.failure().map(Failure::log).unwrap_or_default().to_owned(),
            })
        }
    };
    let stopped = stop(hive, options.stop_time).await;
    if options.update {
        *updated = script
            .write_back(&state)
            .map_err(|error| RunFailure::new(&error))?;
    }
    let ending = result?;
    stopped?;
    Ok(ending)
}

/// Stops the hive; one that does not run has nothing to stop.
async fn stop(hive: Option<ScriptHive>, time: Duration) -> Result<(), String> {
    let Some(hive) = hive else { return Ok(()) };
    match tokio::time::timeout(time, hive.controller().stop()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("the hive did not stop well: {}", error_chain(&error))),
        Err(_) => Err(format!("the hive did not stop within {}s", time.as_secs())),
    }
}
