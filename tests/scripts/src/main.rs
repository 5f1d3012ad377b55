// SPDX-License-Identifier: Apache-2.0

//! Runs script tests against partial hives: `run-scripts --hive SUITE FILE...`.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use hive_script::CommandError;
use run_scripts::{Maps, Options, reference, run, suites};

/// Time for scripts to go away after Control-C.
const INTERRUPTED: Duration = Duration::from_secs(2);

/// Runs txtar scripts, each against a hive of its own.
///
/// Prints PASS or FAIL for each file, and how many there were of each. Fails if a script did.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    /// Which hive the scripts get.
    #[arg(long = "hive", value_name = "SUITE", value_parser = suite_names(), required_unless_present_any = ["list", "list_commands"])]
    suite: Option<String>,
    /// Which load-balancing maps the scripts work on.
    #[arg(long, value_enum, default_value_t)]
    maps: Maps,
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
    #[arg(long, value_name = "DURATION", value_parser = hive_script::text::parse_duration)]
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

fn suite_names() -> clap::builder::PossibleValuesParser {
    suites::all()
        .iter()
        .map(|suite| clap::builder::PossibleValue::new(suite.name).help(suite.summary))
        .collect::<Vec<_>>()
        .into()
}

fn new_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

fn list_commands() -> ExitCode {
    let text = match new_runtime() {
        Ok(runtime) => runtime
            .block_on(reference::commands())
            .map_err(|error| CommandError::chain(&error)),
        Err(error) => Err(CommandError::chain(&error)),
    };
    match text {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        for suite in suites::all() {
            println!("{:<16}{}", suite.name, suite.summary);
        }
        return ExitCode::SUCCESS;
    }
    if arguments.list_commands {
        return list_commands();
    }
    let Some(suite) = arguments.suite.as_deref().and_then(suites::find) else {
        return ExitCode::FAILURE;
    };
    let mut options = Options {
        maps: arguments.maps,
        update: arguments.update,
        verbose: arguments.verbose,
        break_on_error: arguments.break_on_error,
        time: arguments.time,
        ..Options::default()
    };
    if let Some(jobs) = arguments.jobs {
        options.parallel = jobs;
    }
    if arguments.maps == Maps::Bpf
        && let Err(error) = hide_mounts()
    {
        eprintln!("cannot make a mount namespace for BPF file systems, which needs root: {error}");
        return ExitCode::FAILURE;
    }
    let runtime = match new_runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let all = run(suite, &arguments.files, options, |report| {
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
    if summary.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints a text. Whoever has closed the pipe wants no more of it, but still the exit status.
fn show(text: impl Display) {
    let _ = write!(std::io::stdout(), "{text}");
}

/// Moves this process, which must have one thread still, into a mount namespace of its own: what scripts mount is gone
/// with the process, however it ends.
fn hide_mounts() -> std::io::Result<()> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    let flags = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", flags)?)
}
