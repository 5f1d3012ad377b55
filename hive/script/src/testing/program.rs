// SPDX-License-Identifier: Apache-2.0

//! A program that runs scripts: `run-scripts --hive SUITE FILE...`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use hive::error_chain;

use super::suite::duplicate;
use super::{Choice, Choices, Options, Suite, find_suite, reference, run, suites};

/// Time for scripts to end after Control-C.
const INTERRUPTED: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
struct Arguments {
    /// Suite of the scripts: the hive that each of them has.
    #[arg(long = "hive", value_name = "SUITE", value_parser = suite_names(), required_unless_present_any = ["list", "list_commands"])]
    suite: Option<String>,
    /// Replace expected files that differ by what came out.
    #[arg(long)]
    update: bool,
    /// Print the log of every script.
    #[arg(short, long)]
    verbose: bool,
    /// Open a prompt at the first failure of a script.
    #[arg(long = "break")]
    break_on_error: bool,
    /// How many scripts run at a time.
    #[arg(short, long, value_name = "N")]
    jobs: Option<usize>,
    /// Time for each script, such as `60s`, in place of the suite's.
    #[arg(long, value_name = "DURATION", value_parser = crate::text::parse_duration)]
    time: Option<Duration>,
    /// List the suites.
    #[arg(long)]
    list: bool,
    /// Print the reference of all commands, in Markdown.
    #[arg(long, conflicts_with_all = ["list", "suite"])]
    list_commands: bool,
    /// The scripts.
    #[arg(value_name = "FILE", required_unless_present_any = ["list", "list_commands"])]
    files: Vec<PathBuf>,
}

fn suite_names() -> PossibleValuesParser {
    suites()
        .into_iter()
        .map(|suite| PossibleValue::new(suite.name()).help(suite.summary()))
        .collect::<Vec<_>>()
        .into()
}

/// The choices of all suites by name. Suites that share a choice may declare it each.
fn all_choices() -> BTreeMap<&'static str, Vec<&'static Choice>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for choice in suites().into_iter().flat_map(Suite::declared) {
        all.entry(choice.name).or_default().push(choice);
    }
    all
}

fn flag(choices: &[&'static Choice]) -> Option<Arg> {
    let first = choices.first()?;
    let mut values: Vec<(&str, &str)> = Vec::new();
    for value in choices.iter().flat_map(|choice| choice.values) {
        if !values.iter().any(|(known, _)| *known == value.0) {
            values.push(*value);
        }
    }
    let values = values
        .into_iter()
        .map(|(value, help)| PossibleValue::new(value).help(help));
    let flag = Arg::new(first.name)
        .long(first.name)
        .value_name(first.name.to_uppercase())
        .help(first.summary)
        .value_parser(PossibleValuesParser::new(values))
        .default_value(first.default_value());
    Some(flag)
}

fn command(name: &'static str, version: &'static str) -> Command {
    let command = Command::new(name)
        .version(version)
        .about("Runs txtar scripts, each against a hive of its own")
        .long_about(
            "Runs txtar scripts, each against a hive of its own.\n\n\
             Prints PASS or FAIL for each file, and how many there were of each. Fails if a script did.",
        )
        .arg_required_else_help(true);
    let flags: Vec<Arg> = all_choices()
        .values()
        .filter_map(|choices| flag(choices))
        .collect();
    Arguments::augment_args(command).args(flags)
}

fn chosen(matches: &ArgMatches) -> Choices {
    let mut choices = Choices::default();
    for name in all_choices().into_keys() {
        if let Some(value) = matches.get_one::<String>(name) {
            choices = choices.with(name, value);
        }
    }
    choices
}

/// Main function of a program that runs scripts against the suites that are linked into it.
///
/// ```no_run
/// // Links suites: `use widgets as _;`
/// fn main() -> std::process::ExitCode {
///     hive_script::testing::main(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
/// }
/// ```
pub fn main(name: &'static str, version: &'static str) -> ExitCode {
    if let Some((suite, [one, other])) = duplicate() {
        return fail(format_args!(
            "packages {one} and {other} both register suite `{suite}`"
        ));
    }
    let matches = command(name, version).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if arguments.list {
        let suites = suites();
        let width = suites.iter().map(|suite| suite.name().len()).max().unwrap_or(0);
        for suite in suites {
            show(format_args!("{:<width$}  {}\n", suite.name(), suite.summary()));
        }
        return ExitCode::SUCCESS;
    }
    if arguments.list_commands {
        return list_commands();
    }
    let Some(suite) = arguments.suite.as_deref().and_then(find_suite) else {
        return ExitCode::FAILURE;
    };
    let mut options = Options {
        choices: chosen(&matches),
        update: arguments.update,
        verbose: arguments.verbose,
        break_on_error: arguments.break_on_error,
        time: arguments.time,
        ..Options::default()
    };
    if let Some(jobs) = arguments.jobs {
        options.parallel = jobs;
    }
    if let Some((choice, value)) = options.choices.unknown(suite) {
        return fail(format_args!(
            "suite `{}` has no `--{}={value}`",
            suite.name(),
            choice.name
        ));
    }
    if let Err(error) = suite.prepare_process(&options.choices) {
        return fail(error_chain(&error));
    }
    run_files(suite, &arguments.files, &options)
}

fn run_files(suite: &'static Suite, files: &[PathBuf], options: &Options) -> ExitCode {
    let runtime = match new_runtime() {
        Ok(runtime) => runtime,
        Err(error) => return fail(format_args!("cannot start: {error}")),
    };
    let all = run(suite, files, options, |report| {
        if options.verbose {
            show(&report.log);
        }
        show(report);
    });
    let finished = runtime.block_on(async {
        tokio::select! {
            summary = all => Some(summary),
            _ = tokio::signal::ctrl_c() => None,
        }
    });
    let Some(summary) = finished else {
        // Drops the scripts, and with them their directories.
        runtime.shutdown_timeout(INTERRUPTED);
        eprintln!("interrupted");
        return ExitCode::from(130);
    };
    // What a script left behind must not keep the process.
    runtime.shutdown_background();
    show(format_args!("{summary}\n"));
    match summary.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn list_commands() -> ExitCode {
    let text = match new_runtime() {
        Ok(runtime) => runtime
            .block_on(reference::commands())
            .map_err(|error| error_chain(&error)),
        Err(error) => Err(format!("cannot start: {error}")),
    };
    match text {
        Ok(text) => {
            show(text);
            ExitCode::SUCCESS
        }
        Err(error) => fail(error),
    }
}

/// The runtime of scripts. Of one thread: what a command of a script does is whole before a cell acts on it, so that what
/// arrives together does not depend on how busy the machine is.
pub(super) fn new_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Prints a text. A closed pipe ends the output, not the program: its exit status still counts.
fn show(text: impl Display) {
    let _ = write!(std::io::stdout(), "{text}");
}

fn fail(text: impl Display) -> ExitCode {
    eprintln!("{text}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEARER: Choice = Choice {
        name: "clock",
        summary: "Which clock",
        values: &[("fixed", "Stands still"), ("system", "The system's")],
    };
    const OTHER: Choice = Choice {
        values: &[("fixed", "Stands still"), ("slow", "Half as fast")],
        ..NEARER
    };

    #[test]
    fn flags_are_consistent() {
        command("run", "1").debug_assert();
    }

    #[test]
    fn a_choice_of_two_suites_is_one_flag_with_the_values_of_both() {
        let command = Command::new("run").args(flag(&[&NEARER, &OTHER]));

        let chosen = command.clone().get_matches_from(["run", "--clock=slow"]);
        let default = command.clone().get_matches_from(["run"]);
        let wrong = command.try_get_matches_from(["run", "--clock=none"]).unwrap_err();

        assert_eq!(chosen.get_one::<String>("clock").unwrap(), "slow");
        assert_eq!(default.get_one::<String>("clock").unwrap(), "fixed");
        assert!(
            wrong
                .to_string()
                .contains("[possible values: fixed, system, slow]"),
            "{wrong}"
        );
    }
}
