// SPDX-License-Identifier: Apache-2.0

//! The state of one script, or of one connection of the shell.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use crate::context::clean;
use crate::line::Line;
use crate::{CommandError, CommandHandle, Conditions, Context, Environment, Lifetime, Output};

/// Commands by name.
pub type CommandSet = BTreeMap<String, CommandHandle>;

/// How `*` repeats a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Pause before the first repetition; it doubles each time.
    pub interval: Duration,
    /// The longest pause.
    pub max_interval: Duration,
    /// Time after which a section fails; without it only the end of the script ends it.
    pub limit: Option<Duration>,
}

impl Default for Retry {
    fn default() -> Self {
        Self::every(Duration::from_millis(100))
    }
}

impl Retry {
    /// Starts at `interval`, with the usual maximum of 500 ms and without limit.
    pub const fn every(interval: Duration) -> Self {
        Self {
            interval,
            max_interval: Duration::from_millis(500),
            limit: None,
        }
    }
}

/// The state of one script, or of one connection of the shell.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use hive_script::{Environment, Lifetime, State, default_commands};
///
/// let log = Box::new(|text: &str| print!("{text}"));
/// let mut state = State::new("/tmp", default_commands(), Environment::new(), Lifetime::unlimited(), log);
/// state.execute("greet", "echo hello\nstdout hello\n").await.unwrap();
/// # });
/// ```
pub struct State {
    pub(crate) work_dir: PathBuf,
    pub(crate) cwd: PathBuf,
    pub(crate) environment: Environment,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) commands: CommandSet,
    pub(crate) conditions: Conditions,
    pub(crate) retry: Retry,
    pub(crate) quiet: bool,
    /// Whether lines are logged before they are run.
    pub(crate) echo: bool,
    /// Whether the lines come from a user of the shell, whose working directory is unknown here, not from a script.
    pub(crate) is_shell: bool,
    /// The lifetime of the script; `lifetime` ends with it, and with the background commands.
    pub(crate) base: Lifetime,
    pub(crate) lifetime: Lifetime,
    pub(crate) file: String,
    pub(crate) log: Log,
    pub(crate) update: bool,
    pub(crate) break_on_error: bool,
    pub(crate) retries: u32,
    pub(crate) repeats: bool,
    pub(crate) archive_files: BTreeSet<PathBuf>,
    pub(crate) updates: BTreeMap<PathBuf, String>,
    pub(crate) background: Vec<Background>,
}

/// A command running behind `&`.
pub(crate) struct Background {
    pub(crate) line: Line,
    pub(crate) args: Vec<String>,
    pub(crate) task: AbortOnDropHandle<Result<Output, CommandError>>,
}

impl State {
    /// A fresh state in `work_dir`, with commands, variables and a place for log text.
    pub fn new(
        work_dir: impl Into<PathBuf>,
        commands: CommandSet,
        environment: Environment,
        lifetime: Lifetime,
        log: Box<dyn FnMut(&str) + Send + Sync>,
    ) -> Self {
        let work_dir = work_dir.into();
        Self {
            cwd: work_dir.clone(),
            work_dir,
            environment,
            stdout: String::new(),
            stderr: String::new(),
            commands,
            conditions: Conditions::new(),
            retry: Retry::default(),
            quiet: false,
            echo: true,
            is_shell: false,
            lifetime: lifetime.child(),
            base: lifetime,
            file: String::new(),
            log: Log::new(log),
            update: false,
            break_on_error: false,
            retries: 0,
            repeats: false,
            archive_files: BTreeSet::new(),
            updates: BTreeMap::new(),
            background: Vec::new(),
        }
    }

    /// Provides conditions; without this there are none.
    pub fn with_conditions(mut self, conditions: Conditions) -> Self {
        self.conditions = conditions;
        self
    }

    /// How `*` repeats.
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Drops the log of sections that succeed.
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Replaces expected files that differ instead of failing.
    pub fn update_mode(mut self) -> Self {
        self.update = true;
        self
    }

    /// Opens the `break` prompt at the first failure.
    pub fn break_on_error(mut self) -> Self {
        self.break_on_error = true;
        self
    }

    /// Takes lines from a user of a shell instead of a script: they are not logged before they are run, and relative paths
    /// of files are errors, since the user's directory is unknown.
    pub fn for_shell(mut self) -> Self {
        self.echo = false;
        self.is_shell = true;
        self
    }

    /// The view of it that a command gets.
    pub fn context(&mut self) -> Context<'_> {
        Context { state: self }
    }

    /// The stdout buffer.
    pub fn stdout(&self) -> &str {
        &self.stdout
    }

    /// The stderr buffer.
    pub fn stderr(&self) -> &str {
        &self.stderr
    }

    /// New content of files that update mode changed, by absolute path.
    pub fn updates(&self) -> &BTreeMap<PathBuf, String> {
        &self.updates
    }

    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        clean(&self.cwd.join(path))
    }
}

/// Log text kept for the report of a failed command, in bytes.
const COMMAND_LOG: usize = 1 << 20;

/// Log text: written at once, or held back until its section has ended.
pub(crate) struct Log {
    sink: Box<dyn FnMut(&str) + Send + Sync>,
    held: Option<String>,
    command: Option<String>,
}

impl Log {
    pub(crate) fn new(sink: Box<dyn FnMut(&str) + Send + Sync>) -> Self {
        Self {
            sink,
            held: None,
            command: None,
        }
    }

    pub(crate) fn write(&mut self, text: &str) {
        if let Some(command) = &mut self.command
            && command.len() + text.len() <= COMMAND_LOG
        {
            command.push_str(text);
        }
        match &mut self.held {
            Some(held) => held.push_str(text),
            None => (self.sink)(text),
        }
    }

    /// Writes past the text that is held back.
    pub(crate) fn write_now(&mut self, text: &str) {
        (self.sink)(text);
    }

    /// Holds text back from now on.
    pub(crate) fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Stops holding text back and returns what was.
    pub(crate) fn release(&mut self) -> Option<String> {
        self.held.take()
    }

    /// Starts to collect what a command logs.
    pub(crate) fn start_command(&mut self) {
        self.command = Some(String::new());
    }

    /// What was logged since the command started.
    pub(crate) fn take_command(&mut self) -> String {
        self.command.take().unwrap_or_default()
    }
}
