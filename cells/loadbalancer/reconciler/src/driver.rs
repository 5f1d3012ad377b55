// SPDX-License-Identifier: Apache-2.0

//! Drives [`Ops`] from the table of frontends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use skep_loadbalancer_model::Writer;
use skep_loadbalancer_model::hash::{HashMap, HashSet};
use skep_loadbalancer_model::types::{Frontend, L3n4Addr, ServiceName};
use statedb::reconciler::{
    BatchOps, Config, Deferred, Delete, Reconciler, ReconcilerHandle, ReconcilerMetrics, Round, StatusField,
    Update,
};
use statedb::row::BoxError;
use statedb::{KeyBuf, Obj, Revision};
use tokio::sync::watch;

use super::{FrontendResult, Ops, ReconcileError};

/// Time between two reconciliations of what did not change, and between two prunes.
const REFRESH: Duration = Duration::from_secs(30 * 60);

/// Time after which a round leaves what it has not planned for the next one.
const ROUND: Duration = Duration::from_millis(250);

/// Frontends of one service that wait for those of others in a round, if it has more.
const LARGE: usize = 64;

/// The machine, shared with commands.
pub type SharedOps = Arc<Mutex<Ops>>;

/// Reconciles frontends with [`Ops`].
pub struct FrontendOps(SharedOps);

impl FrontendOps {
    /// Reconciles frontends with a machine that others look into.
    pub fn new(ops: SharedOps) -> Self {
        Self(ops)
    }
}

/// The operation of a round on one frontend.
#[derive(Clone, Copy)]
enum Step {
    /// Index among the deletions.
    Delete(usize),
    /// Index among the updates.
    Update(usize),
}

/// Steps of a round in the order in which ids are allocated: updates by their sequence, and deletions where they happened.
fn in_sequence(deletes: &[Delete<Frontend>], updates: &[Update<Frontend>]) -> Vec<Step> {
    let deletes = deletes.iter().enumerate();
    let deletes = deletes.map(|(at, delete)| (delete.revision, Step::Delete(at)));
    let updates = updates.iter().enumerate();
    let updates = updates.map(|(at, update)| (update.object.sequence, Step::Update(at)));
    let mut steps: Vec<(Revision, Step)> = deletes.chain(updates).collect();
    steps.sort_by_key(|(position, _)| *position);
    steps.into_iter().map(|(_, step)| step).collect()
}

/// Frontends of large services go behind those of others, which are not to wait for them.
fn smaller_first(steps: &mut [Step], updates: &[Update<Frontend>]) {
    if updates.len() <= LARGE {
        return;
    }
    let mut sizes: HashMap<&ServiceName, usize> = HashMap::default();
    for update in updates {
        *sizes.entry(&update.object.service.name).or_default() += 1;
    }
    steps.sort_by_key(|step| match step {
        Step::Delete(_) => false,
        Step::Update(at) => sizes[&updates[*at].object.service.name] > LARGE,
    });
}

impl BatchOps<Frontend> for FrontendOps {
    fn prune(
        &mut self,
        _round: &Round<'_>,
        objects: &mut dyn Iterator<Item = &Obj<Frontend>>,
    ) -> Result<(), BoxError> {
        let known: HashSet<L3n4Addr> = objects.map(|frontend| *frontend.address()).collect();
        let mut ops = self.0.lock();
        for address in ops.unknown_frontends(|address| known.contains(address)) {
            ops.remove(&address);
        }
        ops.finish();
        ops.prune().map_err(Into::into)
    }

    fn retriable(&mut self) -> Vec<KeyBuf> {
        let addresses = self.0.lock().take_retriable();
        addresses.iter().map(KeyBuf::of).collect()
    }

    fn batch(
        &mut self,
        _round: &Round<'_>,
        deletes: &mut [Delete<Frontend>],
        updates: &mut [Update<Frontend>],
    ) {
        let mut ops = self.0.lock();
        let removed: Vec<L3n4Addr> = deletes.iter().map(|delete| *delete.object.address()).collect();
        let updated: Vec<&Frontend> = updates.iter().map(|update| &update.object).collect();
        ops.part_moved(&removed, &updated);
        let mut steps = in_sequence(deletes, updates);
        smaller_first(&mut steps, updates);
        let started = Instant::now();
        let mut deferred = Vec::new();
        steps.retain(|step| match *step {
            Step::Delete(at) => {
                ops.remove(deletes[at].object.address());
                true
            }
            Step::Update(at) if deferred.is_empty() && started.elapsed() < ROUND => {
                ops.upsert(&updates[at].object);
                true
            }
            Step::Update(at) => {
                deferred.push(at);
                false
            }
        });
        let mut results = ops.finish();
        retry_refused(&mut ops, &steps, updates, &mut results);
        for (step, result) in steps.into_iter().zip(results) {
            match step {
                Step::Delete(at) => deletes[at].result = result.map(drop).map_err(Into::into),
                Step::Update(at) => {
                    let update = &mut updates[at];
                    update.object.quarantined = ops.quarantined(update.object.address());
                    update.result = result.map(|id| update.object.id = id).map_err(Into::into);
                }
            }
        }
        for at in deferred {
            updates[at].result = Err(Deferred.into());
        }
    }
}

// Tries those that full maps refused again, which may fit one by one.
fn retry_refused(
    ops: &mut Ops,
    steps: &[Step],
    updates: &[Update<Frontend>],
    results: &mut [FrontendResult],
) {
    let is_refused = |result: &FrontendResult| result.as_ref().is_err_and(ReconcileError::is_full);
    if !results.iter().any(is_refused) {
        return;
    }
    let mut places = Vec::new();
    let mut refused = Vec::new();
    for (place, (step, result)) in steps.iter().zip(&*results).enumerate() {
        if let (Step::Update(at), Err(error)) = (step, result)
            && error.is_full()
        {
            places.push(place);
            refused.push((&updates[*at].object, error.clone()));
        }
    }
    for (place, result) in places.into_iter().zip(ops.retry_refused(&refused)) {
        results[place] = result;
    }
}

/// The reconciler of the frontends, and what it waits for.
pub struct FrontendReconciler {
    reconciler: Reconciler<Frontend, FrontendOps>,
    ops: SharedOps,
    writer: Writer,
    init_wait_timeout: Duration,
    started: watch::Sender<bool>,
}

/// Timing of the reconciler.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Pause before the first retry.
    pub retry_min: Duration,
    /// Longest pause between retries.
    pub retry_max: Duration,
    /// Longest wait for all sources if maps of an earlier run are there.
    pub init_wait_timeout: Duration,
}

impl FrontendReconciler {
    /// A reconciler that does not run yet.
    pub fn new(
        writer: Writer,
        ops: SharedOps,
        timing: Timing,
        metrics: Option<Arc<dyn ReconcilerMetrics>>,
    ) -> Self {
        let defaults = Config::default();
        let config = Config {
            metrics: metrics.unwrap_or_else(|| defaults.metrics.clone()),
            retry_min: timing.retry_min,
            retry_max: timing.retry_max,
            refresh_interval: Some(REFRESH),
            prune_interval: Some(REFRESH),
            ..defaults
        };
        let status = StatusField {
            get: |row: &Frontend| row.status.clone(),
            set: |row, status| row.status = status,
        };
        let table = writer.frontends_to_reconcile();
        let frontend_ops = FrontendOps::new(ops.clone());
        let reconciler = Reconciler::new(writer.db(), table, status, frontend_ops, config);
        let init_wait_timeout = timing.init_wait_timeout;
        Self {
            reconciler,
            ops,
            writer,
            init_wait_timeout,
            started: watch::Sender::new(false),
        }
    }

    /// For those who ask for prunes and wait.
    pub fn handle(&self) -> ReconcilerHandle {
        self.reconciler.handle()
    }

    /// Takes over the maps of an earlier run and waits, if there were any, until all sources delivered: maps that
    /// serve traffic are not changed on partial knowledge.
    pub async fn start(&self) {
        if *self.started.borrow() {
            return;
        }
        let restored = self.ops.lock().restore();
        match restored {
            Err(error) => tracing::error!(
                error = hive::error_chain(&error),
                "Cannot restore load-balancing maps, service ids will change"
            ),
            Ok(0) => {}
            Ok(services) => {
                tracing::info!(services, "Restored load-balancing maps, waiting for all sources");
                let (db, frontends) = (self.writer.db().clone(), self.writer.frontends());
                let complete = frontends.wait_initialized(&db);
                if let Ok(snapshot) = tokio::time::timeout(self.init_wait_timeout, complete).await {
                    let all = frontends.all(&snapshot).map(|frontend| &**frontend);
                    self.ops.lock().forget_moved(all);
                } else {
                    let pending = frontends.pending_initializers(&db.read()).join(", ");
                    tracing::warn!(pending, "Timed out waiting for sources, reconciling without them");
                }
            }
        }
        self.started.send_replace(true);
    }

    /// Reconciles from [`start`](Self::start) on, until the token is cancelled.
    pub async fn run(
        &self,
        token: &tokio_util::sync::CancellationToken,
        health: &dyn statedb::reconciler::HealthReporter,
    ) {
        let mut started = self.started.subscribe();
        tokio::select! {
            _ = started.wait_for(|started| *started) => {}
            () = token.cancelled() => return,
        }
        self.reconciler.run(token, health).await;
    }

    /// Marks frontends for reconciliation when nothing happened to them for half an hour.
    pub async fn refresh(
        &self,
        token: &tokio_util::sync::CancellationToken,
        health: &dyn statedb::reconciler::HealthReporter,
    ) {
        self.reconciler.refresh(token, health).await;
    }
}

/// Waits for the first state of the load balancer to be in the maps.
#[derive(Clone, hive::Value)]
pub struct InitWait {
    writer: Writer,
    handle: ReconcilerHandle,
}

impl InitWait {
    /// Waits for a reconciler.
    pub fn new(writer: Writer, handle: ReconcilerHandle) -> Self {
        Self { writer, handle }
    }

    /// Removes from the maps what no frontend needs, and waits until it is done.
    ///
    /// # Errors
    /// If something could not be removed.
    pub async fn prune(&self) -> Result<(), statedb::reconciler::PruneError> {
        self.handle.prune_and_wait().await
    }

    /// Returns when all sources delivered and every frontend was tried.
    pub async fn wait(&self) {
        let frontends = self.writer.frontends();
        let snapshot = frontends.wait_initialized(self.writer.db()).await;
        self.handle
            .wait_until_reconciled(frontends.revision(&snapshot))
            .await;
    }
}
