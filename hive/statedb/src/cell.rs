// SPDX-License-Identifier: Apache-2.0

//! Cell: the database of a hive (feature `hive`), and its parts as values of one.
//! Provides: a [`Db`] to every module, named after it; with feature `script` the `db` commands.
//! Requires: optionally `Arc<dyn Metrics>`.
//! Tables are values of the graph, too: the owner provides a [`Table`](struct@Table) and keeps the [`RwTable`].

use std::sync::Arc;

use hive::{Cell, Health, Job, JobCtx, Jobs, ModulePath, SpawnError, Value};

use crate::{
    Db, Metrics, RwTable, Table,
    reconciler::{BatchOps, HealthReporter, Reconciler, ReconcilerHandle},
};

impl Value for Db {}
impl Value for ReconcilerHandle {}
impl<T: Send + Sync + 'static> Value for Table<T> {}
impl<T: Send + Sync + 'static> Value for RwTable<T> {}

/// The database of a hive.
///
/// ```
/// use hive::Cell;
/// use statedb::{Db, Index, RwTable, Table};
///
/// struct Pod { name: String }
/// const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
///
/// fn pods(db: Db) -> Result<RwTable<Pod>, statedb::Error> {
///     RwTable::builder("pods").primary(BY_NAME).build_plain(&db)
/// }
///
/// # let _ =
/// Cell::group([
///     statedb::cell(),
///     Cell::module("pods", "Pods").provide_private(pods).provide(statedb::read_only::<Pod>),
/// ]);
/// ```
pub fn cell() -> Cell {
    let cell = Cell::module("statedb", "In-memory tables")
        .provide(database)
        .provide_per_module(handle);
    #[cfg(feature = "script")]
    let cell = cell.provide(commands);
    cell
}

/// A constructor: the table of a module, which keeps the [`RwTable`], for other modules.
pub fn read_only<T: Send + Sync + 'static>(table: RwTable<T>) -> Table<T> {
    table.reader()
}

/// The one database behind all handles.
struct Database(Db);

fn database(metrics: Option<Arc<dyn Metrics>>) -> Arc<Database> {
    Arc::new(Database(metrics.map_or_else(Db::new, Db::with_metrics)))
}

fn handle(database: Arc<Database>, module: ModulePath) -> Db {
    if module.is_root() {
        database.0.clone()
    } else {
        database.0.handle(module.as_str())
    }
}

#[cfg(feature = "script")]
fn commands(database: Arc<Database>) -> hive::Members<hive_script::CommandHandle> {
    hive::Members(crate::command::commands(&database.0))
}

/// Errors of a report as one error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Reported(String);

impl HealthReporter for Health {
    fn ok(&self, message: &str) {
        Health::ok(self, message);
    }
    fn degraded(&self, message: &str, error: &str) {
        Health::degraded(self, message, &Reported(error.to_owned()));
    }
}

impl<T, O> Reconciler<T, O>
where
    T: Clone + Send + Sync + 'static,
    O: BatchOps<T> + 'static,
{
    /// Registers the reconciler as jobs of a module: `reconcile` and, if refreshing is on, `refresh`, each followed
    /// by `-<name>` if the configuration has a name.
    ///
    /// # Errors
    /// If the module has stopped or has jobs of these names.
    pub fn spawn(self, jobs: &Jobs) -> Result<ReconcilerHandle, SpawnError> {
        let handle = self.handle();
        let name = |job: &str| match &self.config().name {
            Some(name) => format!("{job}-{name}"),
            None => job.to_owned(),
        };
        let (reconcile, refresh) = (name("reconcile"), name("refresh"));
        let refreshes = self.config().refresh_interval.is_some();
        let reconciler = Arc::new(self);
        let shared = Arc::clone(&reconciler);
        jobs.spawn(Job::once(reconcile, move |cx: JobCtx| {
            let reconciler = Arc::clone(&shared);
            async move { reconciler.run(&cx.token, &cx.health).await }
        }))?;
        if refreshes {
            jobs.spawn(Job::once(refresh, move |cx: JobCtx| {
                let reconciler = Arc::clone(&reconciler);
                async move { reconciler.refresh(&cx.token, &cx.health).await }
            }))?;
        }
        Ok(handle)
    }
}

#[cfg(test)]
mod tests;
