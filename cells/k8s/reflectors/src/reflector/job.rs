// SPDX-License-Identifier: Apache-2.0

//! The job of a reflector.

use std::sync::Arc;

use futures::StreamExt;
use hive::{Health, Job, JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_k8s_client::{ApiError, ObjectEvent, WatcherEvent, watcher};
use skep_k8s_types::Resource;
use statedb::{Db, InitGuard};

use super::batch::{Batch, Counts, Mirror};
use super::config::Reflector;

/// Objects in one transaction, unless they come from one list.
const LARGEST_BATCH: usize = 10_000;

/// Most rejected objects that health names.
const NAMED: usize = 10;

/// Why a reflector cannot be registered: a programming error, unless the hive is stopping.
#[derive(Debug, thiserror::Error)]
pub enum ReflectError {
    /// Its table does not accept the initialiser.
    #[error("table of {job}")]
    Table {
        /// Name of the job.
        job: String,
        /// Cause.
        #[source]
        cause: statedb::Error,
    },
    /// Its job is not accepted.
    #[error(transparent)]
    Job(#[from] SpawnError),
}

/// Objects that cannot become rows.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct Rejected {
    text: String,
}

impl<T: Resource, R: Send + Sync + 'static> Reflector<T, R> {
    /// Registers the table's initialiser, at once, and a job that does the work.
    ///
    /// # Errors
    ///
    /// [`ReflectError`] if the table has a reflector of that name already, or the hive is stopping.
    pub fn register(self, jobs: &Jobs, db: &Db) -> Result<(), ReflectError> {
        let job = self.job_name();
        let mut txn = db.write(&[&self.table]);
        let registered = self.table.announce_initializer(&mut txn, &self.name);
        let initializer = registered.map_err(|cause| ReflectError::Table {
            job: job.clone(),
            cause,
        })?;
        txn.commit();
        let work = Arc::new(Work {
            reflector: self,
            db: db.clone(),
            initializer,
            // Kept over restarts of the job: the rows are still in the table.
            mirror: Mutex::new(Mirror::default()),
        });
        jobs.spawn(Job::once(job, move |cx: JobCtx| {
            let work = work.clone();
            async move { work.run(cx).await }
        }))?;
        Ok(())
    }
}

struct Work<T, R> {
    reflector: Reflector<T, R>,
    db: Db,
    initializer: InitGuard,
    mirror: Mutex<Mirror>,
}

impl<T: Resource, R: Send + Sync + 'static> Work<T, R> {
    async fn run(&self, cx: JobCtx) -> Result<(), statedb::Error> {
        self.initializer.begin();
        let result = tokio::select! {
            biased;
            () = cx.token.cancelled() => Ok(()),
            result = self.reflect(&cx.health) => result,
        };
        if self.reflector.clear_on_stop {
            self.mirror.lock().clear(&self.reflector, &self.db)?;
        }
        result
    }

    async fn reflect(&self, health: &Health) -> Result<(), statedb::Error> {
        if let Some(ready) = &self.reflector.ready {
            ready().await;
        }
        let mut chunks =
            watcher(self.reflector.source.clone(), self.reflector.backoff).ready_chunks(LARGEST_BATCH);
        let mut failing: Option<Arc<ApiError>> = None;
        let mut counts = Counts::default();
        while let Some(chunk) = chunks.next().await {
            let mut batch = Batch::default();
            for event in chunk {
                self.count(&event);
                match batch.add(event) {
                    Some(WatcherEvent::Failing(error)) => failing = Some(error),
                    Some(WatcherEvent::Working) => failing = None,
                    _ => {}
                }
            }
            let mut mirror = self.mirror.lock();
            if !batch.is_empty() {
                failing = None;
                counts = mirror.commit(&self.reflector, &self.db, batch, &self.initializer)?;
            }
            report(health, &mirror, counts, failing.as_deref());
        }
        Ok(())
    }

    fn count(&self, event: &WatcherEvent<T>) {
        let Some(observe) = &self.reflector.observe else {
            return;
        };
        match event {
            WatcherEvent::Replaced { .. } => observe("replace"),
            WatcherEvent::Object(ObjectEvent::Applied(_)) => observe("upsert"),
            WatcherEvent::Object(ObjectEvent::Deleted(_, Some(_))) => observe("delete"),
            WatcherEvent::Object(_) => observe("invalid"),
            WatcherEvent::InitPage { .. }
            | WatcherEvent::InitDone
            | WatcherEvent::Failing(_)
            | WatcherEvent::Working => {}
        }
    }
}

fn report(health: &Health, mirror: &Mirror, counts: Counts, failing: Option<&ApiError>) {
    if let Some(error) = failing {
        health.degraded("Waiting for the Kubernetes API server", error);
    } else if mirror.rejected.is_empty() {
        let total = mirror.total();
        health.ok(format!(
            "{} upserted, {} deleted, {total} total objects",
            counts.upserted, counts.deleted
        ));
    } else {
        let mut text: Vec<String> = mirror.rejected.values().take(NAMED).cloned().collect();
        if mirror.rejected.len() > NAMED {
            text.push(format!("and {} more", mirror.rejected.len() - NAMED));
        }
        let message = format!(
            "{} objects rejected, {} total objects",
            mirror.rejected.len(),
            mirror.total()
        );
        health.degraded(
            message,
            &Rejected {
                text: text.join("; "),
            },
        );
    }
}
