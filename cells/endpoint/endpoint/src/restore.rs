// SPDX-License-Identifier: Apache-2.0

//! Endpoints of the run before: from files into the table.

use std::sync::Arc;

use hive::JobCtx;
use skep_identity::NumericIdentity;
use statedb::InitGuard;

use crate::{
    Endpoints, Interfaces,
    state_dir::{BadFiles, Saved, StateDir, StateError},
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    /// The state directory cannot be read.
    #[error(transparent)]
    Files(#[from] StateError),
    /// It is not known whether an interface is there.
    #[error("looking for interface {name}")]
    Interface {
        name: String,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Table(#[from] statedb::Error),
    /// The thread that does the work ended.
    #[error("endpoints were not restored")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// Reads the endpoints of the run before.
pub(crate) struct Restore {
    pub(crate) endpoints: Endpoints,
    pub(crate) files: StateDir,
    pub(crate) interfaces: Arc<dyn Interfaces>,
    pub(crate) guard: Arc<InitGuard>,
}

impl Restore {
    pub(crate) async fn run(self: Arc<Self>, cx: &JobCtx) -> Result<(), RestoreError> {
        let work = self.clone();
        let (restored, errors) = tokio::task::spawn_blocking(move || work.restore()).await??;
        match errors.is_empty() {
            true => cx.health.ok(format!("{restored} endpoints restored")),
            false => {
                cx.health.degraded(
                    format!("{restored} endpoints restored, not all"),
                    &BadFiles(errors.into()),
                );
                // The report ends with the job.
                cx.cancelled().await;
            }
        }
        Ok(())
    }

    /// Returns how many endpoints were restored, and which files were not.
    pub(crate) fn restore(&self) -> Result<(usize, Vec<StateError>), RestoreError> {
        let (saved, errors) = self.files.read_all()?;
        let mut found = Vec::new();
        for saved in saved {
            let is_there = saved.is_ingress() || self.is_there(&saved)?;
            if !is_there && saved.identity != Some(NumericIdentity::HOST) {
                tracing::info!(
                    endpoint = saved.id,
                    interface = saved.spec.interface,
                    "Interface of endpoint is gone, deleting endpoint"
                );
            }
            found.push((saved, is_there));
        }
        let total = found.iter().filter(|(_, is_there)| *is_there).count();
        // The names of endpoints are there before their policies.
        let names = self.files.dns_names();
        for (saved, _) in found.iter().filter(|(_, is_there)| *is_there) {
            if let Some(names) = names {
                names.restore(saved.id, &saved.dns);
            }
        }
        let refused = self.endpoints.restore(&self.guard, found)?;
        if let Some(names) = names {
            names.restored();
        }
        for (endpoint, error) in &refused {
            tracing::warn!(endpoint, %error, "Cannot restore endpoint, keeping its state file");
        }
        Ok((total.saturating_sub(refused.len()), errors))
    }

    /// Whether its interface is there: the one of that index, not another one of the same name.
    fn is_there(&self, saved: &Saved) -> Result<bool, RestoreError> {
        let name = &saved.spec.interface;
        let index = self
            .interfaces
            .index(name)
            .map_err(|source| RestoreError::Interface {
                name: name.clone(),
                source,
            })?;
        Ok(index == Some(saved.spec.ifindex))
    }
}
