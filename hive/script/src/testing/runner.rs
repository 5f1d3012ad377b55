// SPDX-License-Identifier: Apache-2.0

//! Runs scripts, several at a time, each against a hive of its own.

use std::path::PathBuf;
use std::time::Instant;

use futures::StreamExt;

use super::run::run_script;
use super::world::{Options, World};
use super::{FileReport, Suite, Summary, Verdict};

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
