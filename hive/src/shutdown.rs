// SPDX-License-Identifier: Apache-2.0

//! Why a hive stops.

use std::fmt;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use crate::error::{BoxError, SharedError};
use crate::health::error_chain;
use crate::module::ModulePath;

/// Why a hive stopped. The first cause counts; later ones are logged.
#[derive(Clone, Debug)]
pub enum ExitCause {
    /// A signal.
    Signal(&'static str),
    /// A job failed that must not fail.
    JobFailed {
        /// Its module.
        module: ModulePath,
        /// The job.
        job: Arc<str>,
        /// Its error.
        error: SharedError,
    },
    /// A module asked for it.
    Requested {
        /// The module.
        module: ModulePath,
        /// What it said.
        why: String,
        /// The error, if it is one.
        error: Option<SharedError>,
    },
}

impl ExitCause {
    /// Whether the program failed.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Signal(_) => false,
            Self::JobFailed { .. } => true,
            Self::Requested { error, .. } => error.is_some(),
        }
    }
}

impl fmt::Display for ExitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(name) => write!(f, "signal {name}"),
            Self::JobFailed { module, job, error } => {
                write!(
                    f,
                    "job `{job}` of module `{module}` failed: {}",
                    error_chain(error)
                )
            }
            Self::Requested { module, why, error } => {
                write!(f, "module `{module}` asked to stop: {why}")?;
                match error {
                    Some(error) => write!(f, ": {}", error_chain(error)),
                    None => Ok(()),
                }
            }
        }
    }
}

/// The request to stop, shared by everybody.
#[derive(Default)]
pub(crate) struct ShutdownState {
    inner: Mutex<(Option<ExitCause>, CancellationToken)>,
}

impl ShutdownState {
    /// Notes the cause, unless there is one.
    pub(crate) fn request(&self, cause: ExitCause) {
        let mut inner = crate::lock(&self.inner);
        if let Some(first) = &inner.0 {
            tracing::info!(%cause, %first, "Received another stop signal");
            return;
        }
        tracing::info!(%cause, "Stopping");
        inner.0 = Some(cause);
        inner.1.cancel();
    }

    pub(crate) fn token(&self) -> CancellationToken {
        crate::lock(&self.inner).1.clone()
    }

    pub(crate) fn cause(&self) -> Option<ExitCause> {
        crate::lock(&self.inner).0.clone()
    }

    /// Waits for a request.
    pub(crate) async fn wait(&self) -> ExitCause {
        loop {
            self.token().cancelled().await;
            if let Some(cause) = self.cause() {
                return cause;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Forgets the request, for a new start.
    pub(crate) fn reset(&self) {
        *crate::lock(&self.inner) = Default::default();
    }
}

/// Lets a module stop the hive, at any time, also during start. Constructors ask for it.
///
/// ```
/// use hive::{Cell, Shutdown};
/// use std::sync::Arc;
/// struct OneShot(Shutdown);
/// impl OneShot {
///     fn new(shutdown: Shutdown) -> Arc<OneShot> { Arc::new(OneShot(shutdown)) }
///     fn done(&self) { self.0.request("all work is done"); }
/// }
/// # let _ = Cell::module("one-shot", "Works once").provide(OneShot::new);
/// ```
#[derive(Clone)]
pub struct Shutdown {
    state: Arc<ShutdownState>,
    module: ModulePath,
}

impl Shutdown {
    pub(crate) fn new(state: Arc<ShutdownState>, module: ModulePath) -> Self {
        Self { state, module }
    }

    /// Stops the hive as a success.
    pub fn request(&self, why: impl Into<String>) {
        self.state.request(ExitCause::Requested {
            module: self.module.clone(),
            why: why.into(),
            error: None,
        });
    }

    /// Stops the hive with an error.
    ///
    /// ```
    /// # use hive::{Cell, ExitCause, Hive, Settings, Shutdown};
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cell = Cell::module("app", "App").provide(|shutdown: Shutdown| Arc::new(shutdown));
    /// # let running = Hive::new([cell]).root::<Arc<Shutdown>>().plan(Settings::new())?.build()?.start().await?;
    /// # let shutdown = running.get::<Arc<Shutdown>>().unwrap();
    /// shutdown.fail("cannot go on", std::io::Error::other("disk full"));
    /// assert_eq!(running.wait().await.to_string(), "module `app` asked to stop: cannot go on: disk full");
    /// # running.stop().await?;
    /// # Ok(()) }
    /// ```
    pub fn fail(&self, why: impl Into<String>, error: impl Into<BoxError>) {
        let error = Some(SharedError::from(error.into()));
        self.state.request(ExitCause::Requested {
            module: self.module.clone(),
            why: why.into(),
            error,
        });
    }
}

impl fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shutdown({})", self.module)
    }
}
