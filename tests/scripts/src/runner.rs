// SPDX-License-Identifier: Apache-2.0

//! Runs scripts, several at a time, each in a world of its own.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hive_script::hive_command::ScriptHive;
use hive_script::{CommandError, Ending, Lifetime, ScriptError, ScriptFile, State};

use crate::{FileReport, Maps, Parts, Setup, Suite, Summary, Verdict};

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
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "txtar"))
        .collect();
    files.sort();
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

/// The log of a script, shared with its report.
type SharedLog = Arc<Mutex<String>>;

async fn run_file(suite: &'static Suite, path: PathBuf, options: Options) -> FileReport {
    let started = Instant::now();
    let log = SharedLog::default();
    let mut updated = false;
    let verdict = match run_script(suite, &path, options, &log, &mut updated).await {
        Ok(Ending::Skipped(message)) => Verdict::Skipped(message),
        Ok(_) => Verdict::Passed,
        Err(reason) => Verdict::Failed(reason),
    };
    let log = log.lock().unwrap_or_else(PoisonError::into_inner).clone();
    FileReport {
        path,
        verdict,
        log,
        took: started.elapsed(),
        updated,
    }
}

async fn run_script(
    suite: &'static Suite,
    path: &Path,
    options: Options,
    log: &SharedLog,
    updated: &mut bool,
) -> Result<Ending, String> {
    let mut script = ScriptFile::load(path).map_err(|error| chain(&error))?;
    let place = tempfile::Builder::new()
        .prefix("run-scripts-")
        .tempdir()
        .map_err(|error| chain(&error))?;
    let (work_dir, state_dir) = (place.path().join("001"), place.path().join("state"));
    for dir in [&work_dir, &state_dir] {
        std::fs::create_dir(dir).map_err(|error| chain(&error))?;
    }
    let work = work_dir.to_string_lossy();
    let setup = Setup {
        args: script
            .args()
            .iter()
            .map(|arg| arg.replace("$WORK", &work))
            .collect(),
        script: script.text().to_owned(),
        work_dir: work_dir.clone(),
        state_dir,
        maps: options.maps,
        verbose: options.verbose,
    };
    let _mount = (options.maps == Maps::Bpf).then(|| BpfMount(setup.bpf_root()));
    let Parts {
        hive,
        commands,
        conditions,
        environment,
    } = (suite.assemble)(setup).await.map_err(|error| chain(&error))?;

    let lifetime = Lifetime::until(tokio::time::Instant::now() + options.time.unwrap_or(suite.timeout));
    let sink = log.clone();
    let echo = options.break_on_error;
    let write = Box::new(move |text: &str| {
        if echo {
            print!("{text}");
        }
        sink.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
    });
    let mut state = State::new(&work_dir, commands, environment, lifetime, write)
        .with_conditions(conditions)
        .with_retry(suite.retry);
    if options.update {
        state = state.update_mode();
    }
    if options.break_on_error {
        state = state.break_on_error();
    }
    let result = match script.unpack(&mut state) {
        Err(error) => Err(chain(&error)),
        Ok(()) => {
            if options.verbose {
                // Fails only if the suite has replaced `env`; the script is run all the same.
                let _ = state.context().run_line("env").await;
            }
            script.run(&mut state).await.map_err(|error| explain(&error))
        }
    };
    let stopped = stop(hive).await;
    if options.update {
        *updated = script.write_back(&state).map_err(|error| chain(&error))?;
    }
    let ending = result?;
    stopped?;
    Ok(ending)
}

/// The BPF file system of a script. It is unmounted at the end, also if the script is interrupted.
struct BpfMount(PathBuf);

impl Drop for BpfMount {
    fn drop(&mut self) {
        // Not mounted if the hive was never started.
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Stops the hive; one that does not run has nothing to stop.
async fn stop(hive: Option<ScriptHive>) -> Result<(), String> {
    let Some(hive) = hive else { return Ok(()) };
    let controller = hive.controller();
    match tokio::time::timeout(STOP_LIMIT, controller.stop()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("the hive did not stop well: {}", chain(&error))),
        Err(_) => Err("the hive did not stop in a minute".to_owned()),
    }
}

/// The error and what its command logged.
fn explain(error: &ScriptError) -> String {
    let log = error
        .failure()
        .map(hive_script::Failure::log)
        .unwrap_or_default()
        .trim_end();
    if log.is_empty() {
        error.to_string()
    } else {
        format!("{error}\n{log}")
    }
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    CommandError::chain(error).to_string()
}
