// SPDX-License-Identifier: Apache-2.0

//! Runs scripts, several at a time, each against a hive of its own.

use std::path::PathBuf;
use std::time::Instant;

use futures::StreamExt;
use hive::error_chain;
use tokio::runtime::Runtime;

use super::run::run_script;
use super::suite::Threads;
use super::world::{Options, World};
use super::{AssemblyError, FileReport, Suite, Summary, Verdict};

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
    let failed = |failure: String| FileReport {
        path: path.clone(),
        verdict: Verdict::Failed(failure.into()),
        log: String::new(),
        took: started.elapsed(),
        updated: false,
    };
    let threads = match world.threads.map(ScriptThreads::new).transpose() {
        Ok(threads) => threads,
        Err(error) => return failed(error_chain(&error)),
    };
    let script = path.clone();
    let work = async move { run_script(&script, &world, &options).await };
    let task = match &threads {
        Some(ScriptThreads(Some(runtime))) => runtime.spawn(work),
        _ => tokio::spawn(work),
    };
    task.await
        .unwrap_or_else(|error| failed(format!("PANIC: {error}")))
}

/// A runtime for one script.
struct ScriptThreads(Option<Runtime>);

impl ScriptThreads {
    fn new(threads: Threads) -> Result<Self, AssemblyError> {
        let start = threads()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .on_thread_start(move || start())
            .enable_all()
            .build()
            .map_err(|error| AssemblyError::Prepare {
                what: "threads",
                cause: error.into(),
            })?;
        Ok(Self(Some(runtime)))
    }
}

/// What a script left behind must not keep the process.
impl Drop for ScriptThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
