// SPDX-License-Identifier: Apache-2.0

//! Hooks that run when the hive starts and stops.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::BoxError;
use crate::health::Health;
use crate::module::ModulePath;

pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
pub(crate) type HookFn = Arc<dyn Fn(HookCtx) -> BoxFuture<Result<(), BoxError>> + Send + Sync>;

/// What a hook gets to know.
#[derive(Clone, Debug)]
pub struct HookCtx {
    /// Cancelled when the hook should give up: its deadline has passed, or the start was called off. And once all
    /// hooks are done: work that goes on is a job.
    pub token: CancellationToken,
    /// When the hook must be done.
    pub deadline: Instant,
    /// Health of the module.
    pub health: Health,
    /// The module.
    pub module: ModulePath,
}

/// The result of a hook or job: nothing, or an error. An endless loop has none: it must end when its token
/// is cancelled.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a hook or job",
    label = "hooks and jobs end with `()` or `Result<(), E>`",
    note = "a job that loops must return when its token is cancelled: `select!` on `cx.cancelled()`, or \
            `cx.until_cancelled(future)`"
)]
pub trait HookOutput: Send {
    /// As a result.
    ///
    /// # Errors
    ///
    /// The error of the hook.
    fn into_result(self) -> Result<(), BoxError>;
}

impl HookOutput for () {
    fn into_result(self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<E: Into<BoxError> + Send> HookOutput for Result<(), E> {
    fn into_result(self) -> Result<(), BoxError> {
        self.map_err(Into::into)
    }
}

pub(crate) fn hook_fn<F, Fut>(hook: F) -> HookFn
where
    F: Fn(HookCtx) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: HookOutput,
{
    Arc::new(move |cx| {
        let future = hook(cx);
        Box::pin(async move { future.await.into_result() })
    })
}

/// A start function and the stop function that undoes it.
///
/// Stop runs only if start succeeded. Both can run again: a stopped hive can start again.
///
/// ```
/// use hive::{Hook, HookCtx};
/// use std::time::Duration;
///
/// let hook = Hook::new("listener")
///     .on_start(|_cx: HookCtx| async { /* bind */ })
///     .on_stop(|_cx: HookCtx| async { /* close */ })
///     .start_timeout(Duration::from_secs(10));
/// # let _ = hook;
/// ```
#[derive(Clone)]
pub struct Hook {
    pub(crate) name: Arc<str>,
    pub(crate) start: Option<HookFn>,
    pub(crate) stop: Option<HookFn>,
    pub(crate) start_timeout: Option<Duration>,
    pub(crate) stop_timeout: Option<Duration>,
    pub(crate) place: &'static Location<'static>,
}

impl Hook {
    /// A hook that does nothing yet.
    #[track_caller]
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            name: name.into(),
            start: None,
            stop: None,
            start_timeout: None,
            stop_timeout: None,
            place: Location::caller(),
        }
    }

    /// What to do at start.
    #[must_use]
    pub fn on_start<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(HookCtx) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: HookOutput,
    {
        self.start = Some(hook_fn(hook));
        self
    }

    /// What to do at stop. Must return only when the resources are gone.
    #[must_use]
    pub fn on_stop<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(HookCtx) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: HookOutput,
    {
        self.stop = Some(hook_fn(hook));
        self
    }

    /// How long the start may take; otherwise the time left for the whole start.
    #[must_use]
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = Some(timeout);
        self
    }

    /// How long the stop may take; otherwise half of the time left for the whole stop.
    #[must_use]
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.stop_timeout = Some(timeout);
        self
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hook({})", self.name)
    }
}

/// Adds hooks. Only constructors can have one: it cannot be sent or kept, so no hook is ever added late.
///
/// Hooks start in the order of construction: after those of everything that the constructor depends on. They
/// stop in reverse order.
///
/// ```
/// use hive::{Cell, HookCtx, Lifecycle};
/// use std::sync::Arc;
///
/// struct Server;
///
/// impl Server {
///     fn new(lifecycle: Lifecycle) -> Arc<Server> {
///         let server = Arc::new(Server);
///         let starting = server.clone();
///         lifecycle.on_start("listen", move |_cx: HookCtx| {
///             let server = starting.clone();
///             async move { server.listen().await }
///         });
///         lifecycle.on_stop("drain", |_cx: HookCtx| async {});
///         server
///     }
///
///     async fn listen(&self) -> Result<(), std::io::Error> { Ok(()) }
/// }
/// # let _ = Cell::module("server", "Serves").provide(Server::new);
/// ```
pub struct Lifecycle {
    hooks: Rc<RefCell<Vec<Hook>>>,
}

impl Lifecycle {
    pub(crate) fn new(hooks: Rc<RefCell<Vec<Hook>>>) -> Self {
        Self { hooks }
    }

    /// Adds a start function.
    #[track_caller]
    pub fn on_start<F, Fut>(&self, name: impl Into<Arc<str>>, hook: F)
    where
        F: Fn(HookCtx) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: HookOutput,
    {
        self.add(Hook::new(name).on_start(hook));
    }

    /// Adds a stop function. It runs if everything added before it was started.
    #[track_caller]
    pub fn on_stop<F, Fut>(&self, name: impl Into<Arc<str>>, hook: F)
    where
        F: Fn(HookCtx) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: HookOutput,
    {
        self.add(Hook::new(name).on_stop(hook));
    }

    /// Adds a pair of start and stop.
    pub fn add(&self, hook: Hook) {
        self.hooks.borrow_mut().push(hook);
    }
}
