// SPDX-License-Identifier: Apache-2.0

//! A handle on a whole hive, for commands and shells.

use std::fmt;
use std::sync::Arc;

use crate::control::Control;
use crate::engine::{Engine, HookInfo, State};
use crate::hook_error::{StartError, StopError};
use crate::inject::{Arguments, Builtin, Inject, NeedKind, Needs};
use crate::jobs::JobInfo;
use crate::key::Key;

/// Starts, stops and shows a hive whose type is not at hand: for script commands and the shell.
///
/// Constructors can ask for it; from outside it comes from [`Built::controller`](crate::Built::controller). It
/// does not keep the hive alive.
///
/// ```
/// use hive::{Cell, Controller, Hive, HookCtx, Lifecycle, Settings};
///
/// fn hooks(lifecycle: Lifecycle) {
///     lifecycle.on_start("open", |_: HookCtx| async {});
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cell = Cell::module("door", "Opens").run(hooks);
/// let built = Hive::new([cell]).plan(Settings::new())?.build()?;
/// let controller = built.controller();
/// controller.start().await?;
/// controller.start().await?; // does nothing
/// controller.stop().await?;
/// controller.start().await?; // a stopped hive can start again
/// assert!(controller.tree().contains("door (Opens)"));
/// controller.stop().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Controller(pub(crate) Control);

impl Inject for Controller {
    #[inline]
    fn needs(needs: &mut Needs) {
        needs.push(Key::of::<Self>(), NeedKind::Builtin(Builtin::Controller));
    }

    #[inline]
    fn inject(arguments: &mut Arguments<'_>) -> Self {
        Self(arguments.site().shared.control.clone())
    }
}

impl Controller {
    fn engine(&self) -> Option<Arc<Engine>> {
        self.0.engine()
    }

    /// Runs the start hooks and jobs. Does nothing if the hive runs.
    ///
    /// # Errors
    ///
    /// If a hook fails; what had started is stopped.
    pub async fn start(&self) -> Result<(), StartError> {
        self.engine().ok_or(StartError::Gone)?.start().await
    }

    /// Runs the stop hooks. Does nothing if the hive does not run.
    ///
    /// # Errors
    ///
    /// If hooks failed or hung; all others have run.
    pub async fn stop(&self) -> Result<(), StopError> {
        match self.engine() {
            Some(engine) => engine.stop().await,
            None => Ok(()),
        }
    }

    /// Where the hive is in its life.
    #[must_use]
    pub fn state(&self) -> State {
        self.engine().map_or(State::Stopped, |engine| engine.state())
    }

    /// The cells as a tree, with the values of their settings; then the hooks.
    #[must_use]
    pub fn tree(&self) -> String {
        self.engine().map(|engine| engine.tree()).unwrap_or_default()
    }

    /// The hooks in the order in which they start, with states and durations.
    #[must_use]
    pub fn hooks(&self) -> Vec<HookInfo> {
        self.engine().map(|engine| engine.hooks()).unwrap_or_default()
    }

    /// State, readiness, hooks with durations, jobs, scopes and settings as JSON: what a debug endpoint serves.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.engine()
            .map_or_else(|| "{}\n".to_owned(), |engine| engine.to_json())
    }

    /// Draws the graph, as [`Plan::draw`](crate::Plan::draw) does.
    ///
    /// # Errors
    ///
    /// If the view asks for a module or function that is not there.
    pub fn draw(&self, view: &crate::show::GraphView) -> Result<String, crate::show::DrawError> {
        match self.engine() {
            Some(engine) => engine.graph.draw(view),
            None => Ok(String::new()),
        }
    }

    /// The jobs at work, and those that failed for good.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobInfo> {
        self.engine()
            .map(|engine| engine.registry.list())
            .unwrap_or_default()
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Controller({:?})", self.state())
    }
}
