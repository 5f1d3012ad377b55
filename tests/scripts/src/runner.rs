// SPDX-License-Identifier: Apache-2.0

//! Runs scripts, several at a time, each in a world of its own.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hive::error_chain;
use hive_script::Ending;
use hive_script::testing::{Parts, Place, Ran, RunFailure, RunOptions, run_script, scripts_of};

use crate::{FileReport, Maps, Setup, Suite, Summary, Verdict};

/// Time for the hive to stop after a script.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Time for each script of a folder that is run as a test.
const FOLDER_TIME: Duration = Duration::from_secs(60);

/// How scripts are run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Which maps.
    pub maps: Maps,
    /// Replace expected files that differ.
    pub update: bool,
    /// List the variables at the start of the log; the condition `verbose` holds.
    pub verbose: bool,
    /// Open the `break` prompt at the first failure; scripts run one after the other.
    pub break_on_error: bool,
    /// How many scripts at a time.
    pub parallel: usize,
    /// Time for each script, if it is not to be that of the suite.
    pub time: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        let parallel = std::thread::available_parallelism().map_or(2, usize::from) * 2;
        Self {
            maps: Maps::Fake,
            update: false,
            verbose: false,
            break_on_error: false,
            parallel,
            time: None,
        }
    }
}

/// Runs `files` as scripts of `suite` and passes the reports to `show`, in the order of the files.
pub async fn run(
    suite: &'static Suite,
    files: &[PathBuf],
    options: Options,
    mut show: impl FnMut(&FileReport),
) -> Summary {
    let parallel = if options.break_on_error {
        1
    } else {
        options.parallel.max(1)
    };
    let mut reports = futures::stream::iter(files.to_vec())
        .map(|path| async move {
            let started = Instant::now();
            // A task of its own, so that a panic fails this script only.
            let task = tokio::spawn(run_file(suite, path.clone(), options));
            task.await.unwrap_or_else(|error| FileReport {
                path,
                verdict: Verdict::Failed(format!("PANIC: {error}")),
                log: String::new(),
                took: started.elapsed(),
                updated: false,
            })
        })
        .buffered(parallel);
    let mut summary = Summary::default();
    while let Some(report) = reports.next().await {
        summary.add(&report);
        show(&report);
    }
    summary
}

/// Runs all scripts in a folder, for tests: the reports of those that failed, or `Ok` with their number. Each has time
/// enough for a machine that is busy with other tests.
///
/// # Errors
/// The texts of the failures with their logs, or why there is nothing to run.
pub async fn run_folder(suite: &str, folder: &Path, options: Options) -> Result<usize, String> {
    let suite = crate::suites::find(suite).ok_or_else(|| format!("no suite `{suite}`"))?;
    let options = Options {
        time: options.time.or(Some(FOLDER_TIME)),
        ..options
    };
    let files = scripts_of(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    if files.is_empty() {
        return Err(format!("no scripts in {}", folder.display()));
    }
    let mut failures = String::new();
    let summary = run(suite, &files, options, |report| {
        if !report.is_ok() {
            let _ = write!(failures, "{report}{}", report.log);
        }
    })
    .await;
    if failures.is_empty() {
        Ok(summary.passed)
    } else {
        Err(failures)
    }
}

async fn run_file(suite: &'static Suite, path: PathBuf, options: Options) -> FileReport {
    let started = Instant::now();
    let how = RunOptions {
        time: options.time.unwrap_or(suite.timeout),
        stop_time: STOP_LIMIT,
        retry: suite.retry,
        update: options.update,
        verbose: options.verbose,
        break_on_error: options.break_on_error,
    };
    let Ran { result, log, updated } = run_script(&path, how, |place| assemble(suite, place, options)).await;
    let verdict = match result {
        Ok(Ending::Skipped(message)) => Verdict::Skipped(message),
        Ok(_) => Verdict::Passed,
        Err(failure) => Verdict::Failed(explain(&failure)),
    };
    FileReport {
        path,
        verdict,
        log,
        took: started.elapsed(),
        updated,
    }
}

async fn assemble(suite: &'static Suite, place: Place, options: Options) -> Result<Parts, String> {
    let setup = Setup {
        args: place.args,
        script: place.script,
        work_dir: place.work_dir,
        state_dir: place.state_dir,
        maps: options.maps,
        verbose: options.verbose,
    };
    let mount = (options.maps == Maps::Bpf).then(|| BpfMount(setup.bpf_root()));
    let mut parts = (suite.assemble)(setup)
        .await
        .map_err(|error| error_chain(&error))?;
    parts.keep = mount.map(|mount| Box::new(mount) as _);
    Ok(parts)
}

/// The BPF file system of a script. It is unmounted at the end, also if the script is interrupted.
struct BpfMount(PathBuf);

impl Drop for BpfMount {
    fn drop(&mut self) {
        // Not mounted if the hive was never started.
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// The error and what its command logged.
fn explain(failure: &RunFailure) -> String {
    match failure.output.trim_end() {
        "" => failure.reason.clone(),
        output => format!("{failure}\n{output}"),
    }
}
