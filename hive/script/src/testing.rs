// SPDX-License-Identifier: Apache-2.0

//! Script tests of cells (feature `testing`): `.txtar` files, each run against a hive of its own.
//!
//! [`run_folder`] is a test of your own cells in one line:
//!
//! ```no_run
//! # fn widgets() -> hive::Cell { hive::Cell::module("widgets", "Keeps widgets") }
//! # macro_rules! as_test { ($(#[$attribute:meta])* async fn $name:ident() $body:block) => {
//! #     fn main() { tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async $body) }
//! # } }
//! # as_test! {
//! #[tokio::test]
//! async fn scripts_pass() {
//!     use hive::Hive;
//!
//!     // Beside `Cargo.toml`. Tables need `statedb::cell()` in the list, for `db/show` and its kind.
//!     hive_script::testing::run_folder("testdata", || Hive::new([widgets()])).await;
//! }
//! # }
//! ```
//!
//! A script has the [built-in commands](crate::default_commands), `hive`, `hive/start`, `hive/stop` and
//! `hive/recreate`, and those that cells provide as members of [`CommandHandle`](crate::CommandHandle). The hive is
//! planned with the flags of the script's `#!` line and built before the first line; the script starts it. With the
//! environment variable [`HIVE_SCRIPT_UPDATE`](UPDATE) set, files that `cmp` and `db/cmp` compare with are replaced by
//! what was seen.
//!
//! A crate whose hive other people write scripts for declares a [`Suite`] and registers it with
//! [`suite!`](crate::suite!): its [`Assembly`] says which hive a script has, with which flags, conditions and
//! variables. [`run_tests`] makes a test of each script of the crate; [`main`] is a program like `run-scripts` for the
//! suites of all crates that are linked into it. All of them run scripts in the same way, by [`run`].

mod assembly;
mod harness;
mod program;
mod reference;
mod report;
mod run;
mod runner;
mod suite;
mod world;

use std::fmt::Write;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hive::Hive;

pub use self::assembly::{Assembly, AssemblyError};
pub use self::harness::run_tests;
pub use self::program::main;
pub use self::report::{FileReport, Summary, Verdict};
pub use self::run::{Parts, RunFailure};
pub use self::runner::run;
use self::runner::run_in;
#[doc(hidden)]
pub use self::suite::Registered;
pub use self::suite::{
    Assemble, Assembling, Choice, Choices, Prepare, Setup, Suite, ThreadStart, Threads, find_suite, suites,
};
pub use self::world::Options;
use self::world::World;
use crate::{Retry, default_conditions};

#[doc(hidden)]
pub mod __private {
    pub use inventory;
}

/// The environment variable that makes tests replace what they expected by what they saw.
pub const UPDATE: &str = "HIVE_SCRIPT_UPDATE";

/// Time for a script.
const LIMIT: Duration = Duration::from_secs(10);

/// Runs all scripts (`*.txtar`) of a folder, one after the other, each against a hive that `hive` makes.
///
/// # Panics
///
/// If a script fails, or if there is none: with the failing lines and the logs of all scripts that failed.
#[track_caller]
pub fn run_folder(
    folder: impl AsRef<Path>,
    hive: impl Fn() -> Hive + Send + Sync + 'static,
) -> impl Future<Output = ()> {
    let (folder, place) = (folder.as_ref().to_owned(), Location::caller());
    let world = world_of(hive);
    async move {
        let files = match scripts_of(&folder) {
            Ok(files) if files.is_empty() => panic!("{place}: no scripts in {}", folder.display()),
            Ok(files) => files,
            Err(error) => panic!("{place}: {}: {error}", folder.display()),
        };
        let failures = run_all(&world, &files).await;
        assert!(failures.is_empty(), "{place}: scripts failed{failures}");
    }
}

/// Runs one script against a hive that `hive` makes.
///
/// # Panics
///
/// If the script fails, with the failing line and the log.
#[track_caller]
pub fn run_file(
    file: impl AsRef<Path>,
    hive: impl Fn() -> Hive + Send + Sync + 'static,
) -> impl Future<Output = ()> {
    let (file, place) = (file.as_ref().to_owned(), Location::caller());
    let world = world_of(hive);
    async move {
        let failures = run_all(&world, &[file]).await;
        assert!(failures.is_empty(), "{place}: scripts failed{failures}");
    }
}

/// The scripts (`*.txtar`) in a folder, sorted by name.
///
/// # Errors
///
/// If the folder cannot be read.
pub fn scripts_of(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "txtar") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Scripts against the hives that a function makes.
fn world_of(hive: impl Fn() -> Hive + Send + Sync + 'static) -> World {
    let hive = Arc::new(hive);
    World {
        time: LIMIT,
        threads: None,
        retry: Retry::default(),
        assemble: Arc::new(move |setup| {
            let hive = hive.clone();
            Assembly::new(move || hive())
                .flags(&setup)
                .conditions(default_conditions())
                .recreatable()
                .build()
        }),
    }
}

/// Runs scripts one after the other, since they may share what the process has once. The logs and errors of those that
/// fail.
async fn run_all(world: &World, files: &[PathBuf]) -> String {
    let options = Options {
        update: std::env::var_os(UPDATE).is_some(),
        parallel: 1,
        ..Options::default()
    };
    let mut failures = String::new();
    run_in(world, files, &options, |report| {
        if let Some(text) = describe(report) {
            let _ = write!(failures, "\n--- {}\n{text}", report.path.display());
        }
    })
    .await;
    failures
}

/// The log and the error of a script that failed.
fn describe(report: &FileReport) -> Option<String> {
    let failure = report.failure()?;
    Some(format!("{}{failure}\n", report.log))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Mutex;

    use hive::{Cell, Cfg, HookCtx, Lifecycle, Member};

    use super::*;
    use crate::{CommandHandle, Outcome, Spec, function};

    #[derive(Clone, hive::Config)]
    struct Config {
        /// Whom to greet.
        #[config(default = "world", flag = "greeted")]
        name: String,
    }

    fn commands(config: Cfg<Config>, lifecycle: Lifecycle) -> Member<CommandHandle> {
        let started = Arc::new(Mutex::new("not started"));
        let (up, down) = (started.clone(), started.clone());
        lifecycle.on_start("note", move |_: HookCtx| {
            *up.lock().unwrap() = "started";
            async {}
        });
        lifecycle.on_stop("note", move |_: HookCtx| {
            *down.lock().unwrap() = "stopped";
            async {}
        });
        Member(function(Spec::new("greet", "Greet a person"), move |_, _| {
            let state = *started.lock().unwrap();
            Ok(Outcome::stdout(format!("hello {}, {state}\n", config.name)))
        }))
    }

    fn greeter() -> Hive {
        Hive::new([Cell::module("greeter", "Greets")
            .config::<Config>()
            .provide(commands)])
    }

    fn folder(scripts: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in scripts {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    /// The text of the panic.
    async fn failure(folder: &Path) -> String {
        let folder = folder.to_owned();
        let failed = tokio::task::spawn(async move { run_folder(folder, greeter).await }).await;
        let panic = failed.unwrap_err().into_panic();
        panic.downcast_ref::<String>().unwrap().clone()
    }

    #[tokio::test]
    async fn each_script_has_a_hive_of_its_own_with_its_flags() {
        let folder = folder(&[
            (
                "a.txtar",
                "#! --greeted=you\ngreet\nstdout '^hello you, not started'\nhive/start\ngreet\nstdout started$\n",
            ),
            (
                "b.txtar",
                "hive/start\nhive/stop\ngreet\nstdout '^hello world, stopped'\nhive/recreate\ngreet\nstdout 'not started'\n",
            ),
            ("note.md", "no script"),
        ]);

        run_folder(folder.path(), greeter).await;
        run_file(folder.path().join("a.txtar"), greeter).await;
    }

    #[tokio::test]
    async fn all_failures_are_told_with_their_logs() {
        let folder = folder(&[
            ("a.txtar", "greet\nstdout nobody\n"),
            ("b.txtar", "greet\n"),
            ("c.txtar", "#! --gretted=you\n"),
        ]);

        let text = failure(folder.path()).await;

        for part in [
            "testing.rs:",
            "a.txtar\n> greet\n[stdout]\nhello world, not started\n",
            "> stdout nobody\na.txtar:2: stdout nobody: no match for",
            "unknown argument `--gretted`",
            "did you mean `--greeted`?",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains("b.txtar"), "{text}");
    }

    #[tokio::test]
    async fn a_folder_without_scripts_is_a_failure() {
        let folder = folder(&[("note.md", "no script")]);

        assert!(failure(folder.path()).await.contains("no scripts in "));
        assert!(
            failure(&folder.path().join("nowhere"))
                .await
                .contains("No such file")
        );
    }
}
