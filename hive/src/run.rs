// SPDX-License-Identifier: Apache-2.0

//! The `main` of a program that is a hive.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::assembly::Hive;
use crate::cell::Cell;
use crate::config::{Settings, UnknownKeys};
use crate::engine::{Engine, HookState, State};
use crate::finding::{Code, Report};
use crate::plan::Plan;
use crate::show::{GraphFormat, GraphView};
use crate::shutdown::ExitCause;

/// How programs end.
///
/// ```
/// assert_eq!(hive::exit::PLAN, 78);
/// ```
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

/// How long after the deadline of a phase the program is ended, when a hook blocks its thread.
const GRACE: Duration = Duration::from_secs(5);

/// Settings of programs.
#[derive(Clone, hive_macros::Config)]
struct ProgramOptions {
    /// Directory with one file for each setting, such as a mounted ConfigMap.
    config_dir: Option<PathBuf>,
    /// Config file in YAML.
    config: Option<PathBuf>,
    /// What to do about unknown settings in files: error, warn or ignore.
    #[config(default = "error", flag = "config-unknown")]
    _unknown: Unknown,
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
    unknown: UnknownKeys,
    hive: Hive,
    #[allow(clippy::type_complexity, reason = "named nowhere else")]
    setup: Option<Box<dyn FnOnce(&Plan)>>,
}

/// Runs a program of these cells; see [`Program`].
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     hive::run("greeter", [hive::Cell::module("hello", "Greets").run(|| println!("hello"))])
/// }
/// ```
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
            unknown: UnknownKeys::default(),
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

    /// What to do about unknown settings in files, unless the flag `--config-unknown` says otherwise.
    #[must_use]
    pub fn unknown_keys(mut self, unknown: UnknownKeys) -> Self {
        self.unknown = unknown;
        self
    }

    /// Called once the settings are known, before anything is constructed: the place to set up logging.
    #[must_use]
    pub fn setup(mut self, setup: impl FnOnce(&Plan) + 'static) -> Self {
        self.setup = Some(Box::new(setup));
        self
    }

    /// Runs with the arguments and environment of the process, until a signal or a module stops it.
    #[must_use]
    pub fn main(self) -> ExitCode {
        ExitCode::from(self.run_with(std::env::args().skip(1).collect(), std::env::vars().collect()))
    }

    /// Runs with these arguments (without the program's name) and environment; returns the exit code.
    #[must_use]
    pub fn run_with(self, args: Vec<String>, env: Vec<(String, String)>) -> u8 {
        let (args, show) = match Introspection::take(args) {
            Ok(parts) => parts,
            Err(message) => {
                eprintln!("error: {message}");
                return exit::USAGE;
            }
        };
        if args
            .iter()
            .take_while(|arg| *arg != "--")
            .any(|arg| arg == "--help" || arg == "-h")
        {
            return self.help();
        }
        if args
            .iter()
            .take_while(|arg| *arg != "--")
            .any(|arg| arg == "--version")
        {
            print(&format!("{} {}\n", self.name, self.version));
            return exit::OK;
        }
        let settings = match self.settings(args, env) {
            Ok(settings) => settings,
            Err(report) => return refuse(&report),
        };
        match show {
            Some(show) => show.print(self.hive, settings, &self.env_prefix),
            None => self.serve(settings),
        }
    }

    fn help(&self) -> u8 {
        let plan = match self.hive.clone().plan(Settings::new()) {
            Ok(plan) => plan,
            Err(report) => return refuse(&report),
        };
        let mut text = String::new();
        if !self.about.is_empty() {
            text.push_str(self.about);
            text.push_str("\n\n");
        }
        text.push_str(&format!(
            "Usage: {0} [flags]\n       {0} hive [command] [flags]\n\n",
            self.name
        ));
        text.push_str(
            "Commands:\n  hive                     the tree of cells\n  hive check               what is wrong, and what is unused (--json, --variants)\n  \
             hive plan                constructors in their order\n  hive graph, dot-graph    the graph (--format dot|json|mermaid, --module m, --from T, --depth n)\n  \
             hive config              settings with their origin\n  hive catalogue           cells that are linked in\n  hive docs                reference of the flags in Markdown\n\nFlags:\n",
        );
        text.push_str(&plan.help());
        print(&text);
        exit::OK
    }

    /// Reads where the settings are, then all settings.
    fn settings(&self, args: Vec<String>, env: Vec<(String, String)>) -> Result<Settings, Report> {
        let first = Hive::new([Cell::group([]).config::<ProgramOptions>()]);
        let base = Settings::new()
            .env_prefix(self.env_prefix.clone())
            .env(env.clone());
        let names = ["config-dir", "config", "config-unknown"];
        let own = names
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), flag_value(&args, name)?)));
        let flags: Vec<_> = own.collect();
        let chosen = flags.iter().any(|(name, _)| name == "config-unknown")
            || env
                .iter()
                .any(|(name, _)| *name == crate::show::env_name(&self.env_prefix, "config-unknown"));
        let settings = flags
            .into_iter()
            .fold(base.clone(), |settings, (name, value)| settings.flag(name, value));
        let plan = first.plan(settings)?;
        let mut settings = base.args(args).unknown_keys(self.unknown);
        if let Some(options) = plan.config::<ProgramOptions>() {
            if let Some(path) = &options.config_dir {
                settings = settings.config_dir(path);
            }
            if let Some(path) = &options.config {
                settings = settings.config_file(path);
            }
            if chosen {
                settings = settings.unknown_keys(options._unknown.0);
            }
        }
        Ok(settings)
    }

    fn serve(self, settings: Settings) -> u8 {
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("error: cannot start the runtime: {error}");
                return exit::START;
            }
        };
        let code = runtime.block_on(async {
            let signals = match Signals::listen() {
                Ok(signals) => signals,
                Err(error) => {
                    eprintln!("error: cannot listen for signals: {error}");
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
            for finding in plan
                .report()
                .warnings()
                .filter(|finding| finding.code != Code::Unused)
            {
                tracing::warn!(code = %finding.code, "{}", finding.message);
            }
            run_plan(plan, &signals).await
        });
        runtime.shutdown_timeout(Duration::from_secs(1));
        code
    }
}

async fn run_plan(plan: Plan, signals: &Signals) -> u8 {
    let built = match plan.build() {
        Ok(built) => built,
        Err(error) => {
            eprintln!("error: {error}");
            return exit::START;
        }
    };
    let engine = built.engine.clone();
    signals.attach(&engine);
    let watchdog = watch(engine.clone());
    let running = match built.start().await {
        Ok(running) => running,
        Err(error) => {
            watchdog.abort();
            let asked = matches!(&error, crate::StartError::Cancelled { cause, rollback, .. }
                if !cause.is_failure() && rollback.is_empty());
            if asked {
                return exit::OK;
            }
            eprintln!("error: {error}");
            return exit::START;
        }
    };
    let cause = running.wait().await;
    if cause.is_failure() {
        eprintln!("error: {cause}");
    }
    let stopped = running.stop().await;
    watchdog.abort();
    match stopped {
        _ if cause.is_failure() => exit::RUN,
        Ok(_) => exit::OK,
        Err(error) => {
            eprintln!("error: {error}");
            exit::STOP
        }
    }
}

/// Ends the program when a hook blocks its thread, so that no deadline can help.
fn watch(engine: Arc<Engine>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        engine.shutdown.wait().await;
        tokio::time::sleep(engine.options.hive_stop_timeout + GRACE).await;
        eprintln!("error: start or stop did not finish in time");
        print_pending(&engine);
        std::process::exit(exit::STOP.into());
    })
}

/// Says what a start or stop waits for.
fn print_pending(engine: &Engine) {
    let state = engine.state();
    let what = match state {
        State::Starting => "starting",
        State::Stopping => "stopping",
        _ => "running",
    };
    eprintln!("while {what}; not done:");
    for hook in engine.hooks() {
        if matches!(hook.state, HookState::Starting | HookState::Stopping) {
            eprintln!(
                "  hook `{}` of module `{}` ({})",
                hook.name, hook.module, hook.place
            );
        }
    }
    if state == State::Stopping {
        for job in engine.registry.list() {
            eprintln!("  job `{}` of module `{}`", job.name, job.module);
        }
    }
}

/// Signals of the process: the first asks to stop, the second forces it.
struct Signals {
    engine: Arc<Mutex<Weak<Engine>>>,
    first: Arc<Mutex<Option<&'static str>>>,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let this = Self {
            engine: Arc::default(),
            first: Arc::default(),
        };
        let (engine, first) = (this.engine.clone(), this.first.clone());
        let seen = AtomicU32::new(0);
        tokio::spawn(async move {
            loop {
                let (name, number) = tokio::select! {
                    _ = interrupt.recv() => ("SIGINT", 2),
                    _ = terminate.recv() => ("SIGTERM", 15),
                };
                let engine = crate::lock(&engine).upgrade();
                if seen.fetch_add(1, Ordering::Relaxed) > 0 {
                    eprintln!("{name} again: forced to end");
                    if let Some(engine) = engine {
                        print_pending(&engine);
                    }
                    std::process::exit(i32::from(exit::FORCED) + number);
                }
                match engine {
                    Some(engine) => engine.shutdown.request(ExitCause::Signal(name)),
                    None => *crate::lock(&first) = Some(name),
                }
            }
        });
        Ok(this)
    }

    /// Signals go to this engine from now on, also one that has come already.
    fn attach(&self, engine: &Arc<Engine>) {
        *crate::lock(&self.engine) = Arc::downgrade(engine);
        if let Some(name) = crate::lock(&self.first).take() {
            engine.shutdown.request(ExitCause::Signal(name));
        }
    }
}

/// Prints a report; the exit code says whether only the command line was wrong.
fn refuse(report: &Report) -> u8 {
    eprintln!("{report}");
    let usage = report.errors().all(|finding| finding.code == Code::UnknownFlag);
    if usage { exit::USAGE } else { exit::PLAN }
}

/// Prints to standard output; a closed pipe is nobody's fault.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
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

/// A sub-command that shows the hive instead of running it.
struct Introspection {
    command: String,
    view: GraphView,
    json: bool,
    variants: bool,
}

impl Introspection {
    /// Takes `hive [command]` and its flags out of the arguments.
    fn take(args: Vec<String>) -> Result<(Vec<String>, Option<Self>), String> {
        if args.first().map(String::as_str) != Some("hive") {
            return Ok((args, None));
        }
        let mut rest = args.into_iter().skip(1).peekable();
        let command = match rest.peek() {
            Some(word) if !word.starts_with('-') => rest.next().unwrap_or_default(),
            _ => "tree".to_owned(),
        };
        const COMMANDS: [&str; 9] = [
            "tree",
            "check",
            "plan",
            "graph",
            "dot-graph",
            "config",
            "catalogue",
            "docs",
            "cells",
        ];
        if !COMMANDS.contains(&command.as_str()) {
            let near = crate::similar::closest(&command, COMMANDS.into_iter());
            let hint = near
                .map(|near| format!("; did you mean `{near}`?"))
                .unwrap_or_default();
            return Err(format!("unknown command `hive {command}`{hint}"));
        }
        let mut this = Self {
            command,
            view: GraphView::default(),
            json: false,
            variants: false,
        };
        let mut others = Vec::new();
        while let Some(arg) = rest.next() {
            let (name, value) = match arg.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (arg.clone(), None),
            };
            let drawing = matches!(this.command.as_str(), "graph" | "dot-graph");
            match name.as_str() {
                "--json" if this.command == "check" => this.json = true,
                "--variants" if this.command == "check" => this.variants = true,
                "--format" | "--module" | "--from" | "--depth" if drawing => {
                    let value = value
                        .or_else(|| rest.next())
                        .ok_or_else(|| format!("{name} needs a value"))?;
                    match name.as_str() {
                        "--format" => this.view.format = value.parse::<GraphFormat>()?,
                        "--module" => this.view.module = Some(value),
                        "--from" => this.view.from = Some(value),
                        _ => {
                            let depth = value
                                .parse()
                                .map_err(|_| format!("--depth: `{value}` is not a number"))?;
                            this.view.depth = Some(depth);
                        }
                    }
                }
                _ => others.push(arg),
            }
        }
        Ok((others, Some(this)))
    }

    fn print(self, hive: Hive, settings: Settings, env_prefix: &str) -> u8 {
        if self.command == "check" {
            return self.check(hive, settings);
        }
        let plan = match hive.plan(settings) {
            Ok(plan) => plan,
            Err(report) => return refuse(&report),
        };
        print(&match self.command.as_str() {
            "plan" => plan.order(),
            "graph" | "dot-graph" => plan.draw(&self.view),
            "config" => plan.show_config(),
            "catalogue" => plan.catalogue(),
            "docs" => plan.docs(env_prefix),
            _ => plan.tree(),
        });
        exit::OK
    }

    fn check(&self, hive: Hive, settings: Settings) -> u8 {
        let variants = if self.variants {
            hive.variants()
        } else {
            vec![(String::new(), hive)]
        };
        let mut code = exit::OK;
        for (name, hive) in variants {
            let report = match hive.plan(settings.clone()) {
                Ok(plan) => plan.report().clone(),
                Err(report) => {
                    code = exit::PLAN;
                    report
                }
            };
            if !name.is_empty() {
                print(&format!("with {name}:\n"));
            }
            print(&if self.json {
                report.to_json()
            } else {
                format!("{report}\n")
            });
        }
        code
    }
}
