// SPDX-License-Identifier: Apache-2.0

//! What scopes ask of the engine.

use super::Engine;
use crate::control::{ScopeControl, ScopeFuture};
use crate::hook_error::{StartError, StopError};

impl ScopeControl for Engine {
    fn start_scope(&self, lifecycle: u32) -> ScopeFuture<'_, StartError> {
        Box::pin(Self::start_scope(self, lifecycle))
    }

    fn stop_scope(&self, lifecycle: u32) -> ScopeFuture<'_, StopError> {
        Box::pin(Self::stop_scope(self, lifecycle))
    }

    fn acquire_scope(&self, lifecycle: u32) -> ScopeFuture<'_, StartError> {
        Box::pin(Self::acquire_scope(self, lifecycle))
    }

    fn release_scope(&self, lifecycle: u32) -> ScopeFuture<'_, StopError> {
        Box::pin(Self::release_scope(self, lifecycle))
    }

    fn is_scope_running(&self, lifecycle: u32) -> bool {
        Self::is_scope_running(self, lifecycle)
    }
}
