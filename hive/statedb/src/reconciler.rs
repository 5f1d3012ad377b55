// SPDX-License-Identifier: Apache-2.0

//! Reconciles a target outside with a table.
//!
//! Writers insert objects with [`Status::pending`]; a [`Reconciler`] applies them with its [`Ops`], or [`BatchOps`], and writes the outcome
//! back as the status of the object. What fails is retried with backoff, what was deleted is removed, what no object
//! stands for is pruned once the table is initialised.
//!
//! A reconciler is driven by [`Reconciler::run`] (and [`Reconciler::refresh`]), futures that end with a
//! cancellation token; with feature `hive` they are registered as jobs. A later run continues where the one before ended.

mod config;
mod driver;
mod ops;
mod retries;
mod status;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;

pub use config::{Config, HealthReporter, NoHealth, NoReconcilerMetrics, Operation, ReconcilerMetrics};
use driver::{Loop, Parts};
pub use ops::{BatchOps, Deferred, Delete, Ops, Round, StatusField, Update};
pub use status::{Status, StatusKind, StatusSet};

use crate::{Db, Revision, RwTable};

/// Progress of a reconciler.
///
/// See [`Reconciler`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// All changes up to this table revision were attempted at least once.
    pub revision: Revision,
    /// Lowest revision of a change that fails now.
    pub failing: Option<Revision>,
}

/// Why pruning on request failed; see [`ReconcilerHandle::prune_and_wait`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PruneError {
    /// The operation failed.
    #[error("pruning failed: {0}")]
    Failed(String),
    /// The reconciler was dropped.
    #[error("the reconciler was dropped before pruning")]
    Dropped,
}

pub(crate) struct Shared {
    progress: watch::Sender<Progress>,
    /// Number of the newest request.
    prune_requests: watch::Sender<u64>,
    /// Newest request served, and its error.
    pruned: watch::Sender<(u64, Option<String>)>,
}

/// The progress of a reconciler, for its table. Keeps nothing alive.
#[derive(Debug, Clone)]
pub(crate) struct ReconcilerProgress(watch::Receiver<Progress>);

impl ReconcilerProgress {
    pub(crate) fn is_alive(&self) -> bool {
        self.0.has_changed().is_ok()
    }

    /// Waits until all changes up to `revision` were attempted, or the reconciler is dropped.
    pub(crate) async fn wait(mut self, revision: Revision) {
        let _ = self.0.wait_for(|progress| progress.revision >= revision).await;
    }
}

/// Requests pruning of a reconciler and waits for its progress; cheap to clone.
///
/// See [`Reconciler`] for an example.
#[derive(Clone)]
pub struct ReconcilerHandle(Arc<Shared>);

impl fmt::Debug for ReconcilerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReconcilerHandle")
            .field("progress", &self.progress())
            .finish()
    }
}

impl ReconcilerHandle {
    /// Requests pruning; requests made before it starts are one. The table is not pruned before it is initialised.
    pub fn prune(&self) {
        self.0.prune_requests.send_modify(|number| *number += 1);
    }

    /// Requests pruning and waits until it is done.
    ///
    /// # Errors
    /// [`PruneError::Failed`] with the operation's error.
    pub async fn prune_and_wait(&self) -> Result<(), PruneError> {
        let mut pruned = self.0.pruned.subscribe();
        let mut wanted = 0;
        self.0.prune_requests.send_modify(|number| {
            *number += 1;
            wanted = *number;
        });
        let done = pruned
            .wait_for(|(served, _)| *served >= wanted)
            .await
            .map_err(|_| PruneError::Dropped)?;
        done.1
            .clone()
            .map_or(Ok(()), |error| Err(PruneError::Failed(error)))
    }

    /// Waits until all changes up to `revision` were attempted at least once; returns what still fails.
    pub async fn wait_until_reconciled(&self, revision: Revision) -> Progress {
        let mut progress = self.0.progress.subscribe();
        match progress.wait_for(|progress| progress.revision >= revision).await {
            Ok(progress) => *progress,
            Err(_) => self.progress(),
        }
    }

    /// Returns its progress.
    pub fn progress(&self) -> Progress {
        *self.0.progress.borrow()
    }
}

/// A reconciler of one table.
///
/// ```
/// use std::collections::BTreeSet;
///
/// use statedb::{
///     Db, Index, Obj, RwTable,
///     reconciler::{Config, NoHealth, Ops, Reconciler, Round, Status, StatusField, StatusKind},
///     row::BoxError,
/// };
/// use tokio_util::sync::CancellationToken;
///
/// #[derive(Clone)]
/// struct Route { name: String, status: Status }
/// const NAME: Index<Route, str> = Index::new("name", |route, keys| keys.add(&route.name));
///
/// #[derive(Default)]
/// struct Kernel(BTreeSet<String>);
///
/// impl Ops<Route> for Kernel {
///     fn update(&mut self, _: &Round<'_>, _: u64, route: &mut Route) -> Result<(), BoxError> {
///         self.0.insert(route.name.clone());
///         Ok(())
///     }
///     fn delete(&mut self, _: &Round<'_>, _: u64, route: &Route) -> Result<(), BoxError> {
///         self.0.remove(&route.name);
///         Ok(())
///     }
///     fn prune(&mut self, _: &Round<'_>, all: &mut dyn Iterator<Item = &Obj<Route>>) -> Result<(), BoxError> {
///         let wanted: BTreeSet<_> = all.map(|route| route.name.clone()).collect();
///         self.0.retain(|name| wanted.contains(name));
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let db = Db::new();
/// let routes = RwTable::<Route>::builder("routes").primary(NAME).build_plain(&db).unwrap();
/// let field = StatusField { get: |route: &Route| route.status.clone(), set: |route, status| route.status = status };
/// let reconciler = Reconciler::new(&db, routes.clone(), field, Kernel::default(), Config::default());
/// let (handle, token) = (reconciler.handle(), CancellationToken::new());
/// let stop = token.clone();
/// let running = tokio::spawn(async move {
///     reconciler.run(&stop, &NoHealth).await;
///     reconciler.into_ops()
/// });
///
/// let mut txn = db.write(&[&routes]);
/// routes.insert(&mut txn, Route { name: "default".into(), status: Status::pending() }).unwrap();
/// let revision = routes.revision(&txn.commit());
/// assert_eq!(handle.wait_until_reconciled(revision).await.failing, None);
/// // Without a handle:
/// routes.reader().wait_until_reconciled(revision).await;
/// let stored = routes.get(&db.read(), NAME.key("default")).unwrap().status.kind;
/// assert_eq!(stored, StatusKind::Done);
/// handle.prune_and_wait().await.unwrap();
/// assert_eq!(handle.progress().failing, None);
/// token.cancel();
/// assert!(running.await.unwrap().0.contains("default"));
/// # }
/// ```
pub struct Reconciler<T, O> {
    parts: Parts<T>,
    shared: Arc<Shared>,
    state: Mutex<Loop<T, O>>,
}

impl<T, O> fmt::Debug for Reconciler<T, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciler")
            .field("table", &self.parts.table)
            .field("config", &self.parts.config)
            .finish()
    }
}

impl<T, O> Reconciler<T, O>
where
    T: Clone + Send + Sync + 'static,
    O: BatchOps<T>,
{
    /// Creates a reconciler; [`Reconciler::run`] runs it.
    pub fn new(db: &Db, table: RwTable<T>, status: StatusField<T>, ops: O, config: Config) -> Self {
        let state = Mutex::new(Loop::new(ops, &config));
        let shared = Arc::new(Shared {
            progress: watch::Sender::new(Progress::default()),
            prune_requests: watch::Sender::new(0),
            pruned: watch::Sender::new((0, None)),
        });
        let progress = ReconcilerProgress(shared.progress.subscribe());
        table.reader().add_reconciler(progress);
        Self {
            parts: Parts {
                db: db.clone(),
                table,
                status,
                config,
            },
            shared,
            state,
        }
    }

    /// Returns a handle for requests.
    pub fn handle(&self) -> ReconcilerHandle {
        ReconcilerHandle(Arc::clone(&self.shared))
    }

    /// Returns the settings of the reconciler.
    pub fn config(&self) -> &Config {
        &self.parts.config
    }

    /// Reconciles until `token` is cancelled. A second run at the same time waits for the first to end.
    pub async fn run(&self, token: &CancellationToken, health: &dyn HealthReporter) {
        let mut state = self.state.lock().await;
        state.run(&self.parts, &self.shared, token, health).await;
    }

    /// Marks objects for refreshing until `token` is cancelled; returns at once if refreshing is off.
    pub async fn refresh(&self, token: &CancellationToken, health: &dyn HealthReporter) {
        if let Some(interval) = self.parts.config.refresh_interval {
            driver::refresh(&self.parts, interval, token, health).await;
        }
    }

    /// Returns the operations.
    pub fn into_ops(self) -> O {
        self.state.into_inner().into_ops()
    }
}
