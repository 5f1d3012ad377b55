// SPDX-License-Identifier: Apache-2.0

//! Help for tests of cells and constructors.
//!
//! A test must not pass over a hive that is half dead. When a hive that [`start`] or one of its variants has started
//! is stopped or dropped, the test fails if a job has failed for good or panicked, or a module has stopped the hive with
//! an error, unless the test [expects](expect_failure) it. Warnings and errors are printed to the output of the test if
//! the process has no subscriber of `tracing`.

use std::any::type_name;
use std::panic::Location;
use std::sync::Arc;

use crate::assembly::Hive;
use crate::build::Running;
use crate::cell::{Cell, CellKind, Item};
use crate::config::Settings;
use crate::health::{Health, MemoryHealth};
use crate::inject::Inject;
use crate::key::short_type;
use crate::module::ModulePath;
use crate::plan::Plan;

/// Plans, builds and starts a hive with default settings.
///
/// # Panics
///
/// With the report or error, at the place of the call.
///
/// ```
/// # use hive::{Cell, Hive};
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let running = hive::testing::start(Hive::new([Cell::module("hello", "Greets").run(|| ())])).await;
/// hive::testing::stop(running).await;
/// # }
/// ```
#[track_caller]
pub fn start(hive: Hive) -> impl Future<Output = Running> {
    start_with(hive, Settings::new())
}

/// Plans, builds and starts a hive.
///
/// # Panics
///
/// With the report or error, at the place of the call.
#[track_caller]
pub fn start_with(hive: Hive, settings: Settings) -> impl Future<Output = Running> {
    // Captured by the test harness.
    crate::fallback::install(|line| eprintln!("{line}"));
    let built = match plan(hive, settings).build() {
        Ok(built) => built,
        Err(error) => panic!("{error}"),
    };
    built.engine.registry.failures.record();
    async move {
        match built.start().await {
            Ok(running) => running,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Starts a hive and gets at an object inside, or at several as a tuple: [`Hive::root`], [`start`] and
/// [`Running::get`] in one.
///
/// # Panics
///
/// With the report or error, at the place of the call.
///
/// ```
/// # use hive::{Cell, Hive};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let cell = Cell::module("sizes", "Sizes").provide(|| (Arc::new(3_u8), Arc::new("three")));
/// let (running, (size, name)) = hive::testing::start_with_root(Hive::new([cell])).await;
/// let (size, name): (Arc<u8>, Arc<&str>) = (size, name);
/// assert_eq!((*size, *name), (3, "three"));
/// hive::testing::stop(running).await;
/// # }
/// ```
#[track_caller]
pub fn start_with_root<T: Inject>(hive: Hive) -> impl Future<Output = (Running, T)> {
    let starting = start(hive.root::<T>());
    async move {
        let running = starting.await;
        match running.get::<T>() {
            Some(object) => (running, object),
            None => panic!(
                "`{}` is made for the module that asks and cannot be had from outside",
                short_type(type_name::<T>())
            ),
        }
    }
}

/// Plans a hive.
///
/// # Panics
///
/// With the report, at the place of the call.
#[track_caller]
#[must_use]
pub fn plan(hive: Hive, settings: Settings) -> Plan {
    match hive.plan(settings) {
        Ok(plan) => plan,
        Err(report) => panic!("{report}"),
    }
}

/// Stops a hive, once every job has run at least to its first pause.
///
/// # Panics
///
/// With the hooks and jobs that failed or hung; in hives of [`start`] also with every job that has failed for good or
/// panicked, and with the error with which a module has stopped the hive, unless the test [expects](expect_failure) it.
pub async fn stop(running: Running) {
    let engine = running.engine.clone();
    // A job that has not run at all would be cancelled before it can fail.
    let begun = std::time::Instant::now();
    while !engine.registry.all_begun() && begun.elapsed() < FIRST_RUN {
        tokio::task::yield_now().await;
    }
    engine.registry.failures.disarm();
    let stopped = running.stop().await.err().map(|error| error.to_string());
    let problems: Vec<String> = stopped.into_iter().chain(engine.verdict()).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// How long [`stop`] waits for jobs that other threads keep from running.
const FIRST_RUN: std::time::Duration = std::time::Duration::from_secs(10);

/// Says that the test expects a failure whose message contains `text`: of a job, or of a module that stops the hive with
/// an error. Without such a failure, [`stop`] and dropping the hive fail the test.
///
/// ```
/// # use hive::{Cell, Hive, Job, JobCtx, Jobs, OnFailure, SpawnError, testing};
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// fn poll(jobs: Jobs) -> Result<(), SpawnError> {
///     let job = Job::once("poll", |_: JobCtx| async { Err::<(), _>(std::io::Error::other("no route")) });
///     jobs.spawn(job.on_failure(OnFailure::Shutdown))
/// }
/// let running = testing::start(Hive::new([Cell::module("poller", "Polls").run(poll)])).await;
/// testing::expect_failure(&running, "job `poll` of module `poller` failed: no route");
/// testing::stop(running).await;
/// # }
/// ```
pub fn expect_failure(running: &Running, text: impl Into<String>) {
    running.engine.registry.failures.expect(text.into());
}

/// Health outside of a hive, and where its reports are.
///
/// ```
/// let (health, reports) = hive::testing::health("cache");
/// health.ok("Filled");
/// assert_eq!(reports.get("cache").unwrap().message, "Filled");
/// ```
#[must_use]
pub fn health(module: &str) -> (Health, Arc<MemoryHealth>) {
    let memory = Arc::new(MemoryHealth::new());
    (
        Health::new(memory.clone(), ModulePath::root().child(module)),
        memory,
    )
}

/// Checks that the catalogue contains a cell, as made by `cell`.
#[must_use]
pub fn in_catalogue(cell: &Cell) -> bool {
    crate::catalogue::catalogue().any(|entry| (entry.cell)().node.place == cell.node.place)
}

/// The modules among these cells, and in groups of them, that are not in the catalogue: their ids and where they were
/// made. A test of a binary asserts that there are none.
///
/// ```
/// use hive::Cell;
/// fn cell() -> Cell { Cell::module("greeter", "Greets") }
/// hive::catalogue!(cell);
/// # fn main() {
/// let forgotten = Cell::module("mute", "Does not greet");
/// let missing = hive::testing::not_in_catalogue(&[Cell::group([cell(), forgotten])]);
/// assert!(missing[0].starts_with("mute ("), "{missing:?}");
/// assert_eq!(missing.len(), 1);
/// # }
/// ```
#[must_use]
pub fn not_in_catalogue(cells: &[Cell]) -> Vec<String> {
    let known: Vec<_> = crate::catalogue::catalogue()
        .map(|entry| (entry.cell)().node.place)
        .collect();
    let mut missing = Vec::new();
    cells.iter().for_each(|cell| seek(cell, &known, &mut missing));
    missing
}

fn seek(cell: &Cell, known: &[&'static Location<'static>], missing: &mut Vec<String>) {
    if known.contains(&cell.node.place) {
        return;
    }
    if let CellKind::Module { id, .. } = &cell.node.kind {
        missing.push(format!("{} ({})", &**id, cell.node.place));
        return;
    }
    for item in &cell.node.items {
        if let Item::Cell(cell) = item {
            seek(cell, known, missing);
        }
    }
}
