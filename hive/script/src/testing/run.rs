// SPDX-License-Identifier: Apache-2.0

//! One script, from its file to the stopped hive.

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hive::error_chain;
use tokio::time::Instant;

use super::world::{Options, World};
use super::{FileReport, Setup, Verdict};
use crate::hive_command::ScriptHive;
use crate::{CommandSet, Conditions, Ending, Environment, Failure, Lifetime, ScriptFile, State};

/// Time for the hive to stop after a script.
const STOP_LIMIT: Duration = Duration::from_secs(60);

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

/// Why a script failed. Displays as the reason.
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

/// Runs the script in a file against the hive that `world` makes for it, in directories of its own. The hive is stopped
/// at the end; an error while it stops fails the script.
pub(super) async fn run_script(path: &Path, world: &World, options: &Options) -> FileReport {
    let started = Instant::now();
    let log = Log::default();
    let mut updated = false;
    let verdict = match run(path, world, options, &log, &mut updated).await {
        Ok(Ending::Skipped(message)) => Verdict::Skipped(message),
        Ok(_) => Verdict::Passed,
        Err(failure) => Verdict::Failed(failure),
    };
    FileReport {
        path: path.to_owned(),
        verdict,
        log: log.text(),
        took: started.elapsed(),
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

async fn run(
    path: &Path,
    world: &World,
    options: &Options,
    log: &Log,
    updated: &mut bool,
) -> Result<Ending, RunFailure> {
    let mut script = ScriptFile::load(path).map_err(|error| RunFailure::new(&error))?;
    let folder = tempfile::Builder::new()
        .prefix("run-scripts-")
        .tempdir()
        .map_err(|error| RunFailure::from(format!("cannot create a work directory: {error}")))?;
    let (work_dir, state_dir) = (folder.path().join("001"), folder.path().join("state"));
    for dir in [&work_dir, &state_dir] {
        std::fs::create_dir(dir).map_err(|error| RunFailure::new(&error))?;
    }
    let work = work_dir.to_string_lossy();
    let args = script.args();
    let setup = Setup {
        args: args.iter().map(|arg| arg.replace("$WORK", &work)).collect(),
        script: script.text().to_owned(),
        work_dir: work_dir.clone(),
        state_dir,
        choices: options.choices.clone(),
        verbose: options.verbose,
    };
    let Parts {
        hive,
        commands,
        conditions,
        environment,
        keep: _keep,
    } = (world.assemble)(setup)
        .await
        .map_err(|error| RunFailure::new(&error))?;

    let lifetime = Lifetime::until(Instant::now() + options.time.unwrap_or(world.time));
    let (sink, prints) = (log.clone(), options.break_on_error);
    let write = Box::new(move |text: &str| {
        if prints {
            print!("{text}");
        }
        sink.push(text);
    });
    let mut state = State::new(&work_dir, commands, environment, lifetime, write)
        .with_conditions(conditions)
        .with_retry(world.retry);
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
    let stopped = stop(hive).await;
    if options.update {
        *updated = script
            .write_back(&state)
            .map_err(|error| RunFailure::new(&error))?;
    }
    let ending = result?;
    stopped?;
    Ok(ending)
}

/// Stops the hive, if the script has not stopped it.
async fn stop(hive: Option<ScriptHive>) -> Result<(), String> {
    let Some(hive) = hive else { return Ok(()) };
    match tokio::time::timeout(STOP_LIMIT, hive.controller().stop()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("the hive failed to stop: {}", error_chain(&error))),
        Err(_) => Err(format!("the hive did not stop within {}s", STOP_LIMIT.as_secs())),
    }
}
