// SPDX-License-Identifier: Apache-2.0

//! Options of a reflector.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use skep_k8s_client::{Backoff, ListerWatcher};
use skep_k8s_types::Resource;
use statedb::RwTable;

/// An object that cannot become a row. The rows it had stay.
pub type TransformError = Box<dyn std::error::Error + Send + Sync>;

pub(super) type Transform<T, R> =
    dyn Fn(&Arc<T>, bool, &mut Vec<R>) -> Result<(), TransformError> + Send + Sync;
pub(super) type Ready = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Keeps the rows of a table in sync with the objects of a source.
///
/// ```
/// # async fn example(client: std::sync::Arc<dyn skep_k8s_client::Client>, jobs: hive::Jobs) -> Result<(), Box<dyn std::error::Error>> {
/// use skep_k8s_client::Api;
/// use skep_k8s_reflectors::Reflector;
/// use skep_k8s_types::slim::Service;
/// use statedb::{Db, Index, Row, RwTable};
///
/// struct Name(String);
/// impl Row for Name {
///     fn header() -> &'static [&'static str] { &["Name"] }
///     fn cells(&self) -> Vec<String> { vec![self.0.clone()] }
/// }
/// const BY_NAME: Index<Name, str> = Index::new("name", |row, keys| keys.add(&row.0));
///
/// let db = Db::new();
/// let table = RwTable::builder("names").primary(BY_NAME).build(&db)?;
/// let source = std::sync::Arc::new(Api::<Service>::all(client));
/// Reflector::new("services", table, source, |service: &std::sync::Arc<Service>| {
///     Some(Name(service.metadata.name.to_string()))
/// })
/// .register(&jobs, &db)?;
/// # Ok(()) }
/// ```
pub struct Reflector<T, R> {
    pub(super) name: String,
    pub(super) table: RwTable<R>,
    pub(super) source: Arc<dyn ListerWatcher<T>>,
    pub(super) transform: Box<Transform<T, R>>,
    pub(super) merge: Option<fn(&R, R) -> R>,
    pub(super) same: Option<fn(&R, &R) -> bool>,
    pub(super) owns: Option<fn(&R) -> bool>,
    pub(super) ready: Option<Ready>,
    pub(super) clear_on_stop: bool,
    pub(super) is_optional: bool,
    pub(super) backoff: Backoff,
    pub(super) observe: Option<Box<dyn Fn(&'static str) + Send + Sync>>,
}

impl<T: Resource, R: Send + Sync + 'static> Reflector<T, R> {
    /// Maps an object to one row or none. `name` distinguishes the reflectors of a table.
    pub fn new(
        name: &str,
        table: RwTable<R>,
        source: Arc<dyn ListerWatcher<T>>,
        transform: impl Fn(&Arc<T>) -> Option<R> + Send + Sync + 'static,
    ) -> Self {
        Self::many(name, table, source, move |object, deleted, rows| {
            if !deleted {
                rows.extend(transform(object));
            }
            Ok(())
        })
    }

    /// Maps an object to one row or none, or fails: then the last valid rows of the object stay, and health names the
    /// object.
    pub fn fallible<E: Into<TransformError>>(
        name: &str,
        table: RwTable<R>,
        source: Arc<dyn ListerWatcher<T>>,
        transform: impl Fn(&Arc<T>) -> Result<Option<R>, E> + Send + Sync + 'static,
    ) -> Self {
        Self::many(name, table, source, move |object, deleted, rows| {
            if !deleted {
                rows.extend(transform(object).map_err(Into::into)?);
            }
            Ok(())
        })
    }

    /// Maps an object to any number of rows. Earlier rows of the object that are not among them are deleted.
    /// The second argument is true if the object was deleted; usually there are no rows then.
    pub fn many(
        name: &str,
        table: RwTable<R>,
        source: Arc<dyn ListerWatcher<T>>,
        transform: impl Fn(&Arc<T>, bool, &mut Vec<R>) -> Result<(), TransformError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            table,
            source,
            transform: Box::new(transform),
            merge: None,
            same: None,
            owns: None,
            ready: None,
            clear_on_stop: false,
            is_optional: false,
            backoff: Backoff::default(),
            observe: None,
        }
    }

    /// Combines the row in the table with the new one, to keep what other writers have set.
    pub fn merge(mut self, merge: fn(&R, R) -> R) -> Self {
        self.merge = Some(merge);
        self
    }

    /// Does not write a row that is the same as the one in the table.
    pub fn skip_same(mut self, same: fn(&R, &R) -> bool) -> Self {
        self.same = Some(same);
        self
    }

    /// Selects rows of an earlier run, which the first list replaces as well. Without this a reflector deletes only rows
    /// that it wrote.
    pub fn owns(mut self, owns: fn(&R) -> bool) -> Self {
        self.owns = Some(owns);
        self
    }

    /// Waits before the first list, for instance until the kind exists.
    pub fn after<F>(mut self, ready: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.ready = Some(Arc::new(move || Box::pin(ready())));
        self
    }

    /// Deletes all rows of the reflector when it stops, for use on demand.
    pub fn clear_on_stop(mut self) -> Self {
        self.clear_on_stop = true;
        self
    }

    /// While the kind is not registered, there are no objects of it: the table is initialised.
    pub fn optional_kind(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// Sets the backoff after failures.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Called with `upsert`, `delete`, `replace` or `invalid` for each event, to count them.
    pub fn observe(mut self, observe: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        self.observe = Some(Box::new(observe));
        self
    }

    /// Name of the job: `k8s-reflector-<table>-<name>`.
    pub fn job_name(&self) -> String {
        format!("k8s-reflector-{}-{}", self.table.name(), self.name)
    }
}
