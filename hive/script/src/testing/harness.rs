// SPDX-License-Identifier: Apache-2.0

//! The scripts of a crate as tests, one test a file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use hive::error_chain;
use libtest_mimic::{Arguments, Failed, Trial};

use super::program::new_runtime;
use super::suite::suites_of;
use super::{Choices, Options, Suite, UPDATE, describe, run, scripts_of};

/// Time for each script: enough for a machine that is busy with other tests.
const TIME: Duration = Duration::from_secs(60);

/// Main function of a test target that runs the scripts of the suites which a package registers.
///
/// Each script is a test: `SUITE::SCRIPT`, and `SUITE::VALUE::SCRIPT` for each value of a [`Choice`](super::Choice)
/// that is not the default. `cargo test` and cargo-nextest list, filter and run them like any others. With the
/// environment variable [`HIVE_SCRIPT_UPDATE`](UPDATE) set, expected files are replaced by what was seen.
///
/// ```toml
/// [[test]]
/// name = "scripts"
/// harness = false
/// ```
///
/// ```no_run
/// // Links the suites: `use widgets as _;`
/// fn main() -> std::process::ExitCode {
///     hive_script::testing::run_tests(env!("CARGO_PKG_NAME"))
/// }
/// ```
pub fn run_tests(package: &str) -> ExitCode {
    let arguments = Arguments::from_args();
    match trials(package, Path::new("."), arguments.list) {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// All scripts of a package's suites as tests. Unless they are only listed, the process is prepared for them.
fn trials(package: &str, root: &Path, only_list: bool) -> Result<Vec<Trial>, String> {
    let suites = suites_of(package);
    if suites.is_empty() {
        return Err(format!("package {package} registers no suite"));
    }
    let mut trials = Vec::new();
    for suite in suites {
        let folder = root.join(suite.folder());
        let files = scripts_of(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        if files.is_empty() {
            return Err(format!("no scripts in {}", folder.display()));
        }
        for (prefix, choices) in variants(suite) {
            // The tests of a variant that this process cannot run fail; those of others do not.
            let prepared = match only_list {
                true => Ok(()),
                false => suite
                    .prepare_process(&choices)
                    .map_err(|error| error_chain(&error)),
            };
            for file in &files {
                let name = file.file_stem().unwrap_or_default().to_string_lossy();
                let (file, choices, prepared) = (file.clone(), choices.clone(), prepared.clone());
                trials.push(Trial::test(format!("{prefix}::{name}"), move || {
                    prepared?;
                    run_trial(suite, file, choices)
                }));
            }
        }
    }
    Ok(trials)
}

/// The defaults of a suite, and each other value of each choice.
fn variants(suite: &Suite) -> Vec<(String, Choices)> {
    let name = suite.name();
    let mut variants = vec![(name.to_owned(), Choices::default())];
    for choice in suite.declared() {
        for (value, _) in choice.values.iter().skip(1) {
            let choices = Choices::default().with(choice.name, *value);
            variants.push((format!("{name}::{value}"), choices));
        }
    }
    variants
}

fn run_trial(suite: &'static Suite, file: PathBuf, choices: Choices) -> Result<(), Failed> {
    let options = Options {
        // One test of a file writes it.
        update: choices == Choices::default() && std::env::var_os(UPDATE).is_some(),
        choices,
        time: Some(TIME),
        ..Options::default()
    };
    let runtime = new_runtime()?;
    let mut failure = None;
    runtime.block_on(run(suite, &[file], &options, |report| {
        failure = describe(report);
    }));
    // What a script left behind must not keep the process.
    runtime.shutdown_background();
    failure.map_or(Ok(()), |text| Err(text.into()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use hive::Hive;

    use super::*;
    use crate::testing::{Assembling, Assembly, AssemblyError, Choice, Setup};

    const PACKAGE: &str = env!("CARGO_PKG_NAME");
    const PLACE: Choice = Choice {
        name: "place",
        summary: "Where it is",
        values: &[("here", "On this machine"), ("moon", "Out of reach")],
    };

    crate::suite!(
        Suite::new("harness", "Tests of the harness", "scripts", assemble)
            .choices(&[PLACE])
            .prepare(prepare)
    );

    fn assemble(setup: Setup) -> Assembling {
        Assembly::new(|| Hive::new([]))
            .variable("PLACE", setup.choices.value(&PLACE))
            .build()
    }

    fn prepare(choices: &Choices) -> Result<(), AssemblyError> {
        match choices.value(&PLACE) {
            "here" => Ok(()),
            _ => Err(AssemblyError::Prepare {
                what: "the moon",
                cause: "too far".into(),
            }),
        }
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("scripts")).unwrap();
        for (name, text) in [
            ("good.txtar", "echo $PLACE\nstdout ^here$\n"),
            ("bad.txtar", "echo $PLACE\nstdout ^there$\n"),
            ("note.md", "no script"),
        ] {
            fs::write(folder.path().join("scripts").join(name), text).unwrap();
        }
        folder
    }

    fn count(root: &Path, filter: &str) -> (u64, u64) {
        let arguments = Arguments {
            filter: Some(filter.to_owned()),
            exact: true,
            ..Arguments::default()
        };
        let conclusion = libtest_mimic::run(&arguments, trials(PACKAGE, root, false).unwrap());
        (conclusion.num_passed, conclusion.num_failed)
    }

    #[test]
    fn each_script_is_a_test_of_each_value() {
        let folder = folder();

        let trials = trials(PACKAGE, folder.path(), true).unwrap();

        let mut names: Vec<&str> = trials.iter().map(Trial::name).collect();
        names.sort();
        assert_eq!(
            names,
            [
                "harness::bad",
                "harness::good",
                "harness::moon::bad",
                "harness::moon::good"
            ]
        );
    }

    #[test]
    fn a_test_fails_with_its_script_or_if_its_value_is_out_of_reach() {
        let folder = folder();

        assert_eq!(count(folder.path(), "harness::good"), (1, 0));
        assert_eq!(count(folder.path(), "harness::bad"), (0, 1));
        assert_eq!(count(folder.path(), "harness::moon::good"), (0, 1));
    }

    #[test]
    fn a_package_without_suites_or_scripts_is_an_error() {
        let empty = tempfile::tempdir().unwrap();
        let error = |package, root: &Path| trials(package, root, true).map(|_| ()).unwrap_err();

        assert_eq!(
            error("nothing", empty.path()),
            "package nothing registers no suite"
        );
        assert!(error(PACKAGE, empty.path()).contains("scripts: No such file"));
        fs::create_dir(empty.path().join("scripts")).unwrap();
        assert!(error(PACKAGE, empty.path()).starts_with("no scripts in "));
    }
}
