// SPDX-License-Identifier: Apache-2.0

//! What a command is: a [`Spec`] that says how it is called, and a run that ends in an [`Outcome`].

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{Context, FlagError, Interruption, Invocation, Spec};

/// A command of the script language and of the shell.
///
/// Cells provide their commands as group members of type [`CommandHandle`].
///
/// ```
/// use hive_script::{Command, CommandError, Context, Invocation, Outcome, Spec};
///
/// struct Greet(Spec);
///
/// #[async_trait::async_trait]
/// impl Command for Greet {
///     fn spec(&self) -> &Spec {
///         &self.0
///     }
///     async fn run(&self, _cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
///         let [name] = inv.args() else {
///             return Err(CommandError::usage("expected a name"));
///         };
///         Ok(Outcome::stdout(format!("hello {name}\n")))
///     }
/// }
///
/// let greet = Greet(Spec::new("greet", "Say hello").args("name"));
/// assert_eq!(greet.spec().name(), "greet");
/// ```
#[async_trait]
pub trait Command: Send + Sync {
    /// How the command is called; the same on every call.
    fn spec(&self) -> &Spec;

    /// Runs the command. Returns at once when the script is interrupted ([`Context::interrupted`]) if it waits for
    /// anything.
    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError>;

    /// Suggestions for the next argument, for the shell's tab completion. `partial` is what was typed after the
    /// command name, not split.
    async fn complete(&self, _cx: &mut Context<'_>, _partial: &str) -> Vec<String> {
        Vec::new()
    }
}

impl fmt::Debug for dyn Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Command").field(&self.spec().name()).finish()
    }
}

/// A shared command, as cells provide it.
pub type CommandHandle = Arc<dyn Command>;

/// The rest of an asynchronous command: what remains to be waited for after it was started.
pub type Pending = Pin<Box<dyn Future<Output = Result<Output, CommandError>> + Send + 'static>>;

/// What a command wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Replaces the stdout buffer.
    pub stdout: String,
    /// Replaces the stderr buffer.
    pub stderr: String,
}

/// How a run that did not fail ended.
pub enum Outcome {
    /// Nothing written: both buffers stay as they are.
    Silent,
    /// Both buffers are replaced.
    Output(Output),
    /// Started; the engine waits for the rest now or, after `&`, at the `wait` command. Only for commands whose spec
    /// says [`Spec::asynchronous`].
    Pending(Pending),
    /// The script ends here as a success.
    Stop(String),
    /// The script is not applicable here and counts as skipped.
    Skip(String),
}

impl Outcome {
    /// Output on stdout only.
    pub fn stdout(text: impl Into<String>) -> Self {
        Self::Output(Output {
            stdout: text.into(),
            stderr: String::new(),
        })
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("Silent"),
            Self::Output(output) => f.debug_tuple("Output").field(output).finish(),
            Self::Pending(_) => f.write_str("Pending"),
            Self::Stop(message) => f.debug_tuple("Stop").field(message).finish(),
            Self::Skip(message) => f.debug_tuple("Skip").field(message).finish(),
        }
    }
}

/// Why a command failed. The text is what the script's log shows, causes included.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Called in a wrong way; see the command's help.
    #[error("invalid usage{}{}", if .0.is_empty() { "" } else { ": " }, .0)]
    Usage(String),
    /// A flag the command does not know or cannot read. No prefix forgives it.
    #[error(transparent)]
    Flag(#[from] FlagError),
    /// No command of that name. No prefix forgives it.
    #[error("unknown command")]
    Unknown,
    /// `&` behind a command that cannot wait. No prefix forgives it.
    #[error("command cannot be run in background")]
    NoBackground,
    /// The script ended while the command ran. No prefix forgives it.
    #[error(transparent)]
    Interrupted(#[from] Interruption),
    /// The command ran and failed.
    #[error("{0}")]
    Failed(String),
    /// Like `Failed`, after output was written: the buffers are replaced all the same.
    #[error("{error}")]
    WithOutput {
        /// What was written before the failure.
        output: Output,
        /// The failure.
        error: Box<CommandError>,
    },
    /// Background commands failed, found by `wait`. No prefix forgives it.
    #[error("{0}")]
    Background(String),
}

impl CommandError {
    /// A failure with this text.
    pub fn new(text: impl fmt::Display) -> Self {
        Self::Failed(text.to_string())
    }

    /// A failure with the text of `error` and of all its causes, joined by `: `.
    pub fn chain(error: &(dyn Error + 'static)) -> Self {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(next) = cause {
            text.push_str(": ");
            text.push_str(&next.to_string());
            cause = next.source();
        }
        Self::Failed(text)
    }

    /// A wrong use; `expected` says what would have been right and may be empty.
    pub fn usage(expected: impl fmt::Display) -> Self {
        Self::Usage(expected.to_string())
    }

    /// The same failure of a command which had written `output` before.
    pub fn with_output(self, output: Output) -> Self {
        Self::WithOutput {
            output,
            error: Box::new(self),
        }
    }

    /// The failure alone, without what was written before it.
    pub(crate) fn without_output(self) -> Self {
        match self {
            Self::WithOutput { error, .. } => *error,
            other => other,
        }
    }

    /// A failed file operation as Go prints it: `open /a/b: no such file or directory`.
    pub fn io(operation: &str, path: impl AsRef<Path>, error: &io::Error) -> Self {
        Self::Failed(format!(
            "{operation} {}: {}",
            path.as_ref().display(),
            io_text(error)
        ))
    }

    /// Whether no prefix (`!`, `?`, `!*`) turns this failure into a success.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Flag(_)
            | Self::Unknown
            | Self::NoBackground
            | Self::Interrupted(_)
            | Self::Background(_) => true,
            Self::WithOutput { error, .. } => error.is_fatal(),
            Self::Usage(_) | Self::Failed(_) => false,
        }
    }

    /// Whether the end of the script caused the failure.
    pub fn interruption(&self) -> Option<Interruption> {
        match self {
            Self::Interrupted(interruption) => Some(*interruption),
            Self::WithOutput { error, .. } => error.interruption(),
            _ => None,
        }
    }
}

/// The error of the system, in lower case and without its number.
pub(crate) fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_lowercase().chain(chars).collect())
        .unwrap_or_default()
}

impl From<String> for CommandError {
    fn from(text: String) -> Self {
        Self::Failed(text)
    }
}

impl From<&str> for CommandError {
    fn from(text: &str) -> Self {
        Self::Failed(text.to_owned())
    }
}

/// A command that never waits, made of a function.
struct Function<F> {
    spec: Spec,
    run: F,
}

#[async_trait]
impl<F> Command for Function<F>
where
    F: Fn(&mut Context<'_>, &Invocation) -> Result<Outcome, CommandError> + Send + Sync,
{
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        (self.run)(cx, &inv)
    }
}

/// A command that never waits, made of a function.
///
/// ```
/// use hive_script::{Outcome, Spec, function};
///
/// let pid = function(Spec::new("pid", "Print the process id"), |_cx, _inv| {
///     Ok(Outcome::stdout(format!("{}\n", std::process::id())))
/// });
/// assert_eq!(pid.spec().name(), "pid");
/// ```
pub fn function<F>(spec: Spec, run: F) -> CommandHandle
where
    F: Fn(&mut Context<'_>, &Invocation) -> Result<Outcome, CommandError> + Send + Sync + 'static,
{
    Arc::new(Function { spec, run })
}
