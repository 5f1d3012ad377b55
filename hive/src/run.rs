// SPDX-License-Identifier: Apache-2.0

//! The `main` of a program that is a hive.

// They panic if the reader is gone; see `console`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod commands;
mod notify;
mod signals;

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::assembly::Hive;
use crate::cell::Cell;
use crate::config::{Settings, UnknownKeys};
use crate::console;
use crate::finding::{Code, Report};
use crate::plan::Plan;
use crate::show::SettingInfo;
use commands::Introspection;
use notify::{Notifier, notified_of_stop};
use signals::Signals;

/// How programs end.
pub mod exit {
    /// Stopped as asked.
    pub const OK: u8 = 0;
    /// A job or module stopped the program with an error.
    pub const RUN: u8 = 1;
    /// Unknown flags or arguments (`EX_USAGE`).
    pub const USAGE: u8 = 64;
    /// A constructor or start hook failed (`EX_UNAVAILABLE`).
    pub const START: u8 = 69;
    /// Stop hooks or jobs failed or hung (`EX_OSERR`).
    pub const STOP: u8 = 71;
    /// The graph or the configuration is wrong (`EX_CONFIG`).
    pub const PLAN: u8 = 78;
    /// Forced by a second signal: this plus the number of the signal.
    pub const FORCED: u8 = 128;
}

/// Calls `run` with the arguments (without the program's name) and the environment of the process; what it returns is the
/// exit code. For programs that have other sub-commands than a [`Program`].
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     hive::with_arguments(|args, env| match args.first().map(String::as_str) {
///         Some("ping") => hive::exit::OK,
///         _ => hive::Program::new("greeter", [hive::Cell::module("hello", "Greets")]).run_with(args, env),
///     })
/// }
/// ```
pub fn with_arguments(run: impl FnOnce(Vec<String>, Vec<(String, String)>) -> u8) -> ExitCode {
    let args: Result<Vec<String>, _> = std::env::args_os()
        .skip(1)
        .map(std::ffi::OsString::into_string)
        .collect();
    let args = match args {
        Ok(args) => args,
        Err(argument) => {
            console::error_line(format_args!("error: argument {argument:?} is not UTF-8"));
            return ExitCode::from(exit::USAGE);
        }
    };
    // Variables that are not UTF-8 are for others.
    let env = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    ExitCode::from(run(args, env.collect()))
}

/// Settings of programs.
#[derive(Clone, hive_macros::Config)]
struct ProgramOptions {
    /// Directory with one file per setting, such as a mounted ConfigMap.
    config_dir: Option<PathBuf>,
    #[cfg_attr(feature = "yaml", doc = "Config file in YAML.")]
    #[cfg_attr(not(feature = "yaml"), doc = "Config file with lines `key: value`.")]
    config: Option<PathBuf>,
    /// Handling of unknown keys in files: error, warn or ignore.
    #[config(default = "error")]
    config_unknown: Unknown,
}

#[derive(Clone)]
struct Unknown(UnknownKeys);

impl std::str::FromStr for Unknown {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "error" => Ok(Self(UnknownKeys::Error)),
            "warn" => Ok(Self(UnknownKeys::Warn)),
            "ignore" => Ok(Self(UnknownKeys::Ignore)),
            _ => Err(format!("`{text}` is neither error, warn nor ignore")),
        }
    }
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            UnknownKeys::Error => "error",
            UnknownKeys::Warn => "warn",
            UnknownKeys::Ignore => "ignore",
        })
    }
}

crate::config_value!(Unknown, "error|warn|ignore");

/// A program: cells, a name, and where its settings come from.
///
/// ```no_run
/// use hive::{Cell, Program};
///
/// fn main() -> std::process::ExitCode {
///     Program::new("greeter", [Cell::module("hello", "Greets").run(|| println!("hello"))])
///         .about("Greets, then waits for a signal")
///         .version(env!("CARGO_PKG_VERSION"))
///         .env_prefix("GREETER")
///         .main()
/// }
/// ```
pub struct Program {
    name: &'static str,
    about: &'static str,
    version: &'static str,
    env_prefix: String,
    tolerated: Vec<&'static str>,
    path_name: &'static str,
    hive: Hive,
    #[allow(clippy::type_complexity, reason = "named nowhere else")]
    setup: Option<Box<dyn FnOnce(&Plan)>>,
}

/// Runs a program of these cells; see [`Program`].
#[must_use]
pub fn run(name: &'static str, cells: impl IntoIterator<Item = Cell>) -> ExitCode {
    Program::new(name, cells).main()
}

impl Program {
    /// A program of these cells.
    #[must_use]
    pub fn new(name: &'static str, cells: impl IntoIterator<Item = Cell>) -> Self {
        let env_prefix = name.to_uppercase().replace('-', "_");
        Self {
            name,
            about: "",
            version: "",
            env_prefix,
            tolerated: Vec::new(),
            path_name: name,
            hive: Hive::new(cells).with(Cell::group([]).config::<ProgramOptions>()),
            setup: None,
        }
    }

    /// One sentence for the help text.
    #[must_use]
    pub fn about(mut self, about: &'static str) -> Self {
        self.about = about;
        self
    }

    /// What `--version` prints.
    #[must_use]
    pub fn version(mut self, version: &'static str) -> Self {
        self.version = version;
        self
    }

    /// Prefix of environment variables; otherwise the name in upper case.
    #[must_use]
    pub fn env_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.env_prefix = prefix.into();
        self
    }

    /// What `{program}` in [defaults](macro@crate::Config) stands for, such as those of the paths of sockets; otherwise
    /// the program's name. Two programs on one machine need two.
    #[must_use]
    pub fn path_name(mut self, name: &'static str) -> Self {
        self.path_name = name;
        self
    }

    /// Settings in files that are no errors though no cell knows them, such as those of other programs that share a
    /// ConfigMap. All others are, unless `--config-unknown` says otherwise.
    #[must_use]
    pub fn tolerate_keys(mut self, keys: impl IntoIterator<Item = &'static str>) -> Self {
        self.tolerated.extend(keys);
        self
    }

    /// Called once the settings are known, before anything is constructed: the place to set up logging. Without a
    /// subscriber of `tracing` warnings and errors are printed on standard error, and nothing else.
    ///
    /// ```
    /// # use hive::{Cell, Program};
    /// let program = Program::new("greeter", [Cell::module("hello", "Greets")])
    ///     .setup(|plan| println!("{} settings", plan.settings().len()));
    /// # let _ = program;
    /// ```
    #[must_use]
    pub fn setup(mut self, setup: impl FnOnce(&Plan) + 'static) -> Self {
        self.setup = Some(Box::new(setup));
        self
    }

    /// The flags of the program, sorted by name: for completion scripts. Without those that are hidden or deprecated.
    #[must_use]
    pub fn flags(&self) -> Vec<SettingInfo> {
        let settings = Settings::new().program(self.path_name);
        let mut flags = crate::show::declared(&self.hive, &settings);
        flags.retain(|flag| flag.deprecated.is_none());
        flags
    }

    /// Runs with the arguments and environment of the process, until a signal or a module stops it.
    #[must_use]
    pub fn main(self) -> ExitCode {
        with_arguments(|args, env| self.run_with(args, env))
    }

    /// Runs with these arguments (without the program's name) and environment; returns the exit code.
    #[must_use]
    pub fn run_with(self, args: Vec<String>, env: Vec<(String, String)>) -> u8 {
        let (args, show) = match Introspection::take(self.words_first(args)) {
            Ok(parts) => parts,
            Err(message) => {
                console::error_line(format_args!("error: {message}"));
                return exit::USAGE;
            }
        };
        let word = args.first().map_or("", String::as_str);
        if word == "help"
            || args
                .iter()
                .take_while(|arg| *arg != "--")
                .any(|arg| arg == "--help" || arg == "-h")
        {
            return self.help();
        }
        if word == "version"
            || args
                .iter()
                .take_while(|arg| *arg != "--")
                .any(|arg| arg == "--version")
        {
            console::print(format_args!("{} {}\n", self.name, self.version));
            return exit::OK;
        }
        let process_env = env.clone();
        let settings = match self.settings(args, env) {
            Ok(settings) => settings,
            Err(report) => return refuse(&report),
        };
        match show {
            Some(show) => show.print(self.hive, settings, self.name, &self.env_prefix),
            None => self.serve(settings, &process_env),
        }
    }

    /// The arguments with sub-commands in front of flags.
    fn words_first(&self, args: Vec<String>) -> Vec<String> {
        if !commands::may_have_words(&args) {
            return args;
        }
        let settings = Settings::new().program(self.path_name);
        let flags = crate::show::with_hidden(&self.hive, &settings);
        let with_value: HashSet<String> = flags
            .iter()
            .filter(|flag| !flag.is_bool)
            .flat_map(|flag| std::iter::once(&flag.name).chain(&flag.aliases))
            .map(|name| crate::config::normalize(name))
            .collect();
        commands::words_first(args, |flag| with_value.contains(&crate::config::normalize(flag)))
    }

    fn help(&self) -> u8 {
        let settings = Settings::new().program(self.path_name);
        let plan = self.hive.clone().plan(settings.clone());
        let mut text = String::new();
        if !self.about.is_empty() {
            text.push_str(self.about);
            text.push_str("\n\n");
        }
        text.push_str(&format!(
            "Usage: {0} [flags]\n       {0} [flags] hive [command] [flags]\n\n",
            self.name
        ));
        text.push_str(
            "Commands:\n  \
             hive                     the tree of cells\n  \
             hive check               errors, warnings and unused cells (--json, --strict, --stats, --variants)\n  \
             hive plan                constructors in execution order\n  \
             hive graph, dot-graph    the graph (--format dot|json|mermaid, --module m, --from T, --depth n)\n  \
             hive config              settings with their origin (--json, --schema)\n  \
             hive catalogue           linked cells\n  \
             hive docs                reference of the flags in Markdown\n  \
             help, version            this text, and the version\n\n\
             Flags:\n",
        );
        match plan {
            Ok(plan) => {
                text.push_str(&plan.help());
                console::print(&text);
                exit::OK
            }
            Err(report) => {
                text.push_str(&crate::show::help_of_unplanned(&self.hive, &settings));
                console::print(&text);
                // Settings that must be given are what the reader looks for. A default that cannot be read is an error,
                // but no reason to leave the reader alone.
                if report.errors().all(|finding| finding.code == Code::Invalid) {
                    exit::OK
                } else {
                    refuse(&report)
                }
            }
        }
    }

    /// Reads where the settings are, then all settings.
    fn settings(&self, args: Vec<String>, env: Vec<(String, String)>) -> Result<Settings, Report> {
        let first = Hive::new([Cell::group([]).config::<ProgramOptions>()]);
        let base = Settings::new()
            .env_prefix(self.env_prefix.clone())
            .program(self.path_name)
            .env(env.clone());
        let names = ["config-dir", "config", "config-unknown"];
        let own = names
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), flag_value(&args, name)?)));
        let flags: Vec<_> = own.collect();
        let first_settings = flags
            .into_iter()
            .fold(base.clone(), |settings, (name, value)| settings.flag(name, value));
        let plan = first.clone().plan(first_settings.clone())?;
        let mut files = Settings::new();
        let mut unknown = UnknownKeys::default();
        if let Some(options) = plan.config::<ProgramOptions>() {
            files.directories.extend(options.config_dir.clone());
            files.files.extend(options.config.clone());
            unknown = options.config_unknown.0;
        }
        // The files may say themselves what unknown keys are. Whatever else is wrong with them is reported later.
        let mut reading = first_settings.unknown_keys(UnknownKeys::Ignore);
        reading.directories.clone_from(&files.directories);
        reading.files.clone_from(&files.files);
        if let Ok(plan) = first.plan(reading)
            && let Some(options) = plan.config::<ProgramOptions>()
        {
            unknown = options.config_unknown.0;
        }
        let mut settings = base
            .args(args)
            .unknown_keys(unknown)
            .tolerate_keys(&self.tolerated);
        settings.directories = files.directories;
        settings.files = files.files;
        Ok(settings)
    }

    fn serve(self, settings: Settings, env: &[(String, String)]) -> u8 {
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                console::error_line(format_args!("error: cannot start the runtime: {error}"));
                return exit::START;
            }
        };
        let code = runtime.block_on(async {
            let signals = match Signals::listen() {
                Ok(signals) => signals,
                Err(error) => {
                    console::error_line(format_args!("error: cannot listen for signals: {error}"));
                    return exit::START;
                }
            };
            let plan = match self.hive.plan(settings) {
                Ok(plan) => plan,
                Err(report) => return refuse(&report),
            };
            if let Some(setup) = self.setup {
                setup(&plan);
            }
            crate::fallback::install(|line| console::error_line(line));
            for finding in plan
                .report()
                .warnings()
                .filter(|finding| finding.code != Code::Unused)
            {
                let help = (!finding.help.is_empty()).then(|| finding.help.join("; "));
                tracing::warn!(code = %finding.code, help, "{}", finding.message);
            }
            run_plan(plan, env, &signals).await
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        code
    }
}

async fn run_plan(plan: Plan, env: &[(String, String)], signals: &Signals) -> u8 {
    let watchdog = crate::build::watchdog(&plan);
    signals.watch_build(&watchdog);
    let built = match crate::build::build_watched(plan, watchdog) {
        Ok(built) => built,
        Err(error) => {
            console::error_line(format_args!("error: {error}"));
            return exit::START;
        }
    };
    let engine = built.engine.clone();
    signals.attach(&engine);
    let notifying = Notifier::from_env(env).map(|notifier| notifier.follow(&engine, env));
    let watchdog = match signals::watch(engine.clone()) {
        Ok(watchdog) => watchdog,
        Err(error) => {
            console::error_line(format_args!("error: cannot start the watchdog: {error}"));
            return exit::START;
        }
    };
    let running = match built.start().await {
        Ok(running) => running,
        Err(error) => {
            drop(watchdog);
            let asked = matches!(&error, crate::hook_error::StartError::Cancelled { cause, rollback, .. }
                if !cause.is_failure() && rollback.is_empty());
            if matches!(&error, crate::hook_error::StartError::Cancelled { .. }) {
                notified_of_stop(notifying).await;
            }
            if asked {
                return exit::OK;
            }
            console::error_line(format_args!("error: {error}"));
            return exit::START;
        }
    };
    let cause = running.wait().await;
    if cause.is_failure() {
        console::error_line(format_args!("error: {cause}"));
    }
    notified_of_stop(notifying).await;
    let stopped = running.stop().await;
    drop(watchdog);
    match stopped {
        Ok(_) if !cause.is_failure() => exit::OK,
        Ok(_) => exit::RUN,
        Err(error) => {
            console::error_line(format_args!("error: {error}"));
            if cause.is_failure() { exit::RUN } else { exit::STOP }
        }
    }
}

/// Prints a report; the exit code says whether only the command line was wrong.
fn refuse(report: &Report) -> u8 {
    console::error_line(report);
    let usage = report.errors().all(|finding| finding.code == Code::UnknownFlag);
    if usage { exit::USAGE } else { exit::PLAN }
}

/// The value of a flag among arguments; the last one counts.
fn flag_value(args: &[String], name: &str) -> Option<String> {
    let mut found = None;
    for (index, arg) in args.iter().enumerate().take_while(|(_, arg)| *arg != "--") {
        let Some(flag) = arg.strip_prefix("--") else {
            continue;
        };
        let (flag, value) = flag
            .split_once('=')
            .map_or((flag, None), |(flag, value)| (flag, Some(value)));
        if crate::config::normalize(flag) == name {
            found = value.map(str::to_owned).or_else(|| args.get(index + 1).cloned());
        }
    }
    found
}
