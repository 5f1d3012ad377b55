// SPDX-License-Identifier: Apache-2.0

//! Why a start or stop failed.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::error::SharedError;
use crate::health::error_chain;
use crate::module::ModulePath;
use crate::shutdown::ExitCause;

/// Which hook: its name, its module, and where it was added.
#[derive(Clone, Debug)]
pub struct HookId {
    /// Its module.
    pub module: ModulePath,
    /// Its name.
    pub name: Arc<str>,
    /// Where it was added.
    pub place: &'static Location<'static>,
}

impl fmt::Display for HookId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hook `{}` of module `{}`", self.name, self.module)
    }
}

/// What went wrong in one hook or job.
#[derive(Clone, Debug)]
pub enum HookFailure {
    /// The hook returned an error or panicked.
    Failed {
        /// The hook.
        hook: HookId,
        /// Its error.
        error: SharedError,
    },
    /// The hook was not done by its deadline, and was abandoned.
    Stuck {
        /// The hook.
        hook: HookId,
        /// How long it had.
        after: Duration,
    },
    /// The hook was done, but only after its deadline: it blocked its thread.
    Late {
        /// The hook.
        hook: HookId,
        /// How long it had.
        limit: Duration,
        /// How long it took.
        took: Duration,
    },
    /// A job did not end when asked to, and was aborted.
    StuckJob {
        /// Its module.
        module: ModulePath,
        /// The job.
        job: Arc<str>,
        /// How long it had.
        after: Duration,
    },
}

impl fmt::Display for HookFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounded =
            |time: &Duration| skep_duration::format_duration(Duration::from_millis(time.as_millis() as u64));
        match self {
            Self::Failed { hook, error } => write!(f, "{hook}: {}", error_chain(error)),
            Self::Stuck { hook, after } => {
                let (after, place) = (rounded(after), hook.place);
                write!(
                    f,
                    "{hook} was not done after {after} ({}:{})",
                    place.file(),
                    place.line()
                )
            }
            Self::Late { hook, limit, took } => {
                let (limit, took, place) = (rounded(limit), rounded(took), hook.place);
                write!(
                    f,
                    "{hook} was done too late: it took {took}, blocked its thread and had {limit} ({}:{})",
                    place.file(),
                    place.line()
                )
            }
            Self::StuckJob { module, job, after } => {
                let after = rounded(after);
                write!(f, "job `{job}` of module `{module}` did not end within {after}")
            }
        }
    }
}

/// Why a hive or scope did not start. What had started was stopped again.
///
/// ```
/// # use hive::{Cell, Hive, HookCtx, HookFailure, Lifecycle, Settings, StartError};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// fn listen(lifecycle: Lifecycle) {
///     lifecycle.on_start("listen", |_: HookCtx| async { Err::<(), _>(std::io::Error::other("port taken")) });
/// }
/// let built = Hive::new([Cell::module("server", "Serves").run(listen)]).plan(Settings::new())?.build()?;
/// let error = built.start().await.unwrap_err();
/// assert_eq!(error.to_string(), "failed to start: hook `listen` of module `server`: port taken");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub enum StartError {
    /// A hook failed or hung. Long-running work belongs into a job.
    Hook {
        /// The hook.
        failure: HookFailure,
        /// What failed when the others were stopped.
        rollback: Vec<HookFailure>,
    },
    /// The start was called off.
    Cancelled {
        /// Who asked.
        cause: ExitCause,
        /// The hook that was running.
        during: Option<HookId>,
        /// What failed when the others were stopped.
        rollback: Vec<HookFailure>,
    },
    /// The scope needs something that does not run: the hive, or a scope around it or whose objects it uses.
    NotRunning {
        /// What would have to run.
        needs: String,
    },
    /// The hive is stopping.
    Stopping,
    /// The hive is gone.
    Gone,
}

fn list(f: &mut fmt::Formatter<'_>, failures: &[HookFailure]) -> fmt::Result {
    for failure in failures {
        write!(f, "\nfailed to stop: {failure}")?;
    }
    Ok(())
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hook { failure, rollback } => {
                write!(f, "failed to start: {failure}")?;
                if matches!(failure, HookFailure::Stuck { .. }) {
                    f.write_str("; use a job for long-running work")?;
                }
                list(f, rollback)
            }
            Self::Cancelled {
                cause,
                during,
                rollback,
            } => {
                write!(f, "start called off: {cause}")?;
                if let Some(hook) = during {
                    write!(f, "; {hook} was running")?;
                }
                list(f, rollback)
            }
            Self::NotRunning { needs } => write!(f, "cannot start: {needs} does not run"),
            Self::Stopping => f.write_str("cannot start: the hive is stopping"),
            Self::Gone => f.write_str("cannot start: the hive is gone"),
        }
    }
}

impl std::error::Error for StartError {}

/// What failed while a hive or scope stopped. All other hooks have run.
#[derive(Clone, Debug)]
pub enum StopError {
    /// Hooks or jobs failed or hung.
    Failed(Vec<HookFailure>),
    /// Another scope that runs uses objects of this one; nothing was stopped.
    InUse {
        /// The other scope.
        by: &'static str,
    },
}

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failures) => {
                for (index, failure) in failures.iter().enumerate() {
                    if index > 0 {
                        f.write_str("\n")?;
                    }
                    write!(f, "failed to stop: {failure}")?;
                }
                Ok(())
            }
            Self::InUse { by } => write!(f, "cannot stop: scope `{by}` runs and needs this one"),
        }
    }
}

impl std::error::Error for StopError {}
