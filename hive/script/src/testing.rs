// SPDX-License-Identifier: Apache-2.0

//! Script tests of your own cells (feature `testing`): a folder of `.txtar` files, each run against a hive of its own.
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
//! A script has the [usual commands](crate::default_commands), `hive`, `hive/start`, `hive/stop` and `hive/recreate`, and
//! those that cells provide as members of [`CommandHandle`]. The hive is planned with the flags of the script's `#!`
//! line and built before the first line; the script starts it. With the environment variable
//! [`HIVE_SCRIPT_UPDATE`](UPDATE) set, files that `cmp` and `db/cmp` compare with are replaced by what was seen.
//!
//! [`run_script`] is for runners of their own, with other commands, conditions and reports.

mod run;

use std::fmt::Write;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hive::{All, Hive, Settings, error_chain};

pub use self::run::{Parts, Place, Ran, RunFailure, RunOptions, run_script};
use crate::hive_command::{HiveParts, Rebuild, ScriptHive};
use crate::{CommandError, CommandHandle, Retry, default_commands, default_conditions, named};

/// The environment variable that makes tests replace what they expected by what they saw.
pub const UPDATE: &str = "HIVE_SCRIPT_UPDATE";

/// Time for a script, and for its hive to stop afterwards.
const LIMIT: Duration = Duration::from_secs(10);

type MakeHive = Arc<dyn Fn() -> Hive + Send + Sync>;

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
    let hive: MakeHive = Arc::new(hive);
    async move {
        let files = match scripts_of(&folder) {
            Ok(files) if files.is_empty() => panic!("{place}: no scripts in {}", folder.display()),
            Ok(files) => files,
            Err(error) => panic!("{place}: {}: {error}", folder.display()),
        };
        let mut failures = String::new();
        for file in files {
            if let Err(report) = run(&file, &hive).await {
                let _ = write!(failures, "\n--- {}\n{report}", file.display());
            }
        }
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
    let hive: MakeHive = Arc::new(hive);
    async move {
        if let Err(report) = run(&file, &hive).await {
            panic!("{place}: script {} failed\n{report}", file.display());
        }
    }
}

/// The scripts (`*.txtar`) in a folder, sorted by name.
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

/// Runs a script; a failure is a text for people.
async fn run(path: &Path, hive: &MakeHive) -> Result<(), String> {
    let options = RunOptions {
        time: LIMIT,
        stop_time: LIMIT,
        retry: Retry::default(),
        update: std::env::var_os(UPDATE).is_some(),
        verbose: false,
        break_on_error: false,
    };
    let ran = run_script(path, options, |place| assemble(hive.clone(), place)).await;
    match ran.result {
        Ok(_) => Ok(()),
        Err(failure) => Err(format!("{}{failure}\n", ran.log)),
    }
}

/// A hive with the flags of the script, its commands and the usual ones.
async fn assemble(hive: MakeHive, place: Place) -> Result<Parts, String> {
    let mut arguments = place.args;
    arguments.retain(|argument| !argument.is_empty());
    let first = parts(&hive(), &arguments)?;
    let rebuild: Rebuild = Arc::new(move || {
        let parts = parts(&hive(), &arguments).map_err(CommandError::new);
        Box::pin(async move { parts })
    });
    let hive = ScriptHive::new(first, Some(rebuild));
    let mut commands = default_commands();
    commands.extend(hive.commands());
    Ok(Parts {
        hive: Some(hive),
        commands,
        conditions: default_conditions(),
        ..Parts::default()
    })
}

fn parts(hive: &Hive, arguments: &[String]) -> Result<HiveParts, String> {
    let settings = Settings::new().args(arguments.iter().cloned());
    let built = hive
        .clone()
        .root::<All<CommandHandle>>()
        .plan(settings)
        .map_err(|report| report.to_string())?
        .build()
        .map_err(|error| error_chain(&error))?;
    let commands = built.get::<All<CommandHandle>>().into_iter().flatten();
    Ok(HiveParts {
        controller: built.controller(),
        commands: commands.map(named).collect(),
        keep: Arc::new(built),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Mutex;

    use hive::{Cell, Cfg, HookCtx, Lifecycle, Member};

    use super::*;
    use crate::{Outcome, Spec, function};

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
        Member(function(Spec::new("greet", "Greet somebody"), move |_, _| {
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
