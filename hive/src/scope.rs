// SPDX-License-Identifier: Apache-2.0

//! Parts of a hive with a lifecycle of their own.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;

use crate::control::Control;
use crate::hook_error::{StartError, StopError};
use crate::inject::Value;
use crate::key::Key;

/// A scope type without its type.
#[derive(Clone, Copy)]
pub(crate) struct ScopeType {
    /// Key of `Scope<K>`.
    pub(crate) key: Key,
    pub(crate) make: fn(Control, u32) -> Box<dyn Any + Send + Sync>,
}

impl ScopeType {
    pub(crate) fn of<K: 'static>() -> Self {
        Self {
            key: Key::of::<Scope<K>>(),
            make: |control, lifecycle| {
                Box::new(Scope::<K> {
                    control,
                    lifecycle,
                    marker: PhantomData,
                })
            },
        }
    }
}

/// Starts and stops the cells of a scope: those that only the leader runs, or that run on demand.
///
/// Provided to the whole hive by [`Cell::scope`](crate::Cell::scope). A scope that runs when the hive stops is
/// stopped first.
///
/// ```
/// use hive::{Cell, Cfg, Hive, HookCtx, Lifecycle, Scope, Settings};
///
/// struct Leader;
///
/// fn collect_garbage(lifecycle: Lifecycle) {
///     lifecycle.on_start("collector", |_: HookCtx| async { println!("I lead") });
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let cells = [Cell::scope::<Leader>("leader", [Cell::module("garbage", "Removes leftovers").run(collect_garbage)])];
/// let running = Hive::new(cells).root::<Scope<Leader>>().plan(Settings::new())?.build()?.start().await?;
/// let leader = running.get::<Scope<Leader>>().unwrap();
///
/// leader.start().await?; // elected
/// assert!(leader.is_running());
/// leader.stop().await?; // deposed
/// running.stop().await?;
/// # Ok(()) }
/// ```
pub struct Scope<K> {
    control: Control,
    lifecycle: u32,
    marker: PhantomData<fn() -> K>,
}

impl<K: 'static> Scope<K> {
    /// Starts the cells of the scope. Does nothing if they run.
    ///
    /// # Errors
    ///
    /// If a hook fails, the hive does not run, or a scope whose objects these need does not run.
    pub async fn start(&self) -> Result<(), StartError> {
        self.control
            .scopes()
            .ok_or(StartError::Gone)?
            .start_scope(self.lifecycle)
            .await
    }

    /// Stops the cells of the scope, also if others had [acquired](Self::acquire) it. Does nothing if they do
    /// not run.
    ///
    /// # Errors
    ///
    /// If a hook fails or hangs, or another scope that runs needs objects of this one; then nothing is
    /// stopped.
    pub async fn stop(&self) -> Result<(), StopError> {
        match self.control.scopes() {
            Some(engine) => engine.stop_scope(self.lifecycle).await,
            None => Ok(()),
        }
    }

    /// Counts a user; the first one starts the scope.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start); the user is then not counted.
    ///
    /// ```
    /// # use hive::{Cell, Hive, Scope, Settings};
    /// # struct Leader;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let cells = [Cell::scope::<Leader>("leader", [Cell::module("garbage", "Removes leftovers")])];
    /// # let running = Hive::new(cells).root::<Scope<Leader>>().plan(Settings::new())?.build()?.start().await?;
    /// let leader = running.get::<Scope<Leader>>().unwrap();
    /// leader.acquire().await?; // starts it
    /// leader.acquire().await?; // counts
    /// leader.release().await?;
    /// assert!(leader.is_running());
    /// # running.stop().await?;
    /// # Ok(()) }
    /// ```
    pub async fn acquire(&self) -> Result<(), StartError> {
        self.control
            .scopes()
            .ok_or(StartError::Gone)?
            .acquire_scope(self.lifecycle)
            .await
    }

    /// Counts a user off; the last one stops the scope. Without users this does nothing.
    ///
    /// # Errors
    ///
    /// As [`stop`](Self::stop).
    pub async fn release(&self) -> Result<(), StopError> {
        match self.control.scopes() {
            Some(engine) => engine.release_scope(self.lifecycle).await,
            None => Ok(()),
        }
    }

    /// Whether all cells of the scope have started.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.control
            .scopes()
            .is_some_and(|engine| engine.is_scope_running(self.lifecycle))
    }
}

impl<K> Clone for Scope<K> {
    fn clone(&self) -> Self {
        Self {
            control: self.control.clone(),
            lifecycle: self.lifecycle,
            marker: PhantomData,
        }
    }
}

impl<K: 'static> Value for Scope<K> {}

impl<K> fmt::Debug for Scope<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope<{}>", crate::key::short_type(std::any::type_name::<K>()))
    }
}
