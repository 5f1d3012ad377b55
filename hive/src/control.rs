// SPDX-License-Identifier: Apache-2.0

//! The engine as handles inside its graph know it.

use std::any::Any;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};

use crate::hook_error::{StartError, StopError};

pub(crate) type ScopeFuture<'a, E> = Pin<Box<dyn Future<Output = Result<(), E>> + Send + 'a>>;

/// Starts and stops scopes. Handles stand below the engine and know no more of it.
pub(crate) trait ScopeControl: Any + Send + Sync {
    fn start_scope(&self, lifecycle: u32) -> ScopeFuture<'_, StartError>;
    fn stop_scope(&self, lifecycle: u32) -> ScopeFuture<'_, StopError>;
    fn acquire_scope(&self, lifecycle: u32) -> ScopeFuture<'_, StartError>;
    fn release_scope(&self, lifecycle: u32) -> ScopeFuture<'_, StopError>;
    fn is_scope_running(&self, lifecycle: u32) -> bool;
}

/// The engine, known once the hive is built. Held weakly: values of the graph must not keep the graph alive.
#[derive(Clone, Default)]
pub(crate) struct Control(Arc<OnceLock<Weak<dyn ScopeControl>>>);

impl Control {
    pub(crate) fn set<E: ScopeControl>(&self, engine: &Arc<E>) {
        let engine: Weak<E> = Arc::downgrade(engine);
        let _ = self.0.set(engine);
    }

    pub(crate) fn scopes(&self) -> Option<Arc<dyn ScopeControl>> {
        self.0.get().and_then(Weak::upgrade)
    }

    /// The engine itself, for who knows its type.
    pub(crate) fn engine<E: ScopeControl>(&self) -> Option<Arc<E>> {
        let engine: Arc<dyn Any + Send + Sync> = self.scopes()?;
        engine.downcast().ok()
    }
}
