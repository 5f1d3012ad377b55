// SPDX-License-Identifier: Apache-2.0

//! Drives [`Ops`] from the table of frontends.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use skep_loadbalancer_model::Writer;
use skep_loadbalancer_model::hash::HashSet;
use skep_loadbalancer_model::types::{Frontend, FrontendKind, L3n4Addr};
use skep_loadbalancer_model::{FRONTENDS_BY_ADDRESS, NodeAddresses};
use statedb::reconciler::{
    Config, Delete, Ops as TableOps, Reconciler, ReconcilerHandle, ReconcilerMetrics, Round, StatusField,
    Update,
};
use statedb::row::BoxError;
use statedb::{Obj, Revision, Snapshot, Table};
use tokio::sync::watch;

use super::{FrontendResult, Ops, Surroundings};

/// Time between two reconciliations of what did not change, and between two prunes.
const REFRESH: Duration = Duration::from_secs(30 * 60);

/// The machine, shared with commands.
pub type SharedOps = Arc<Mutex<Ops>>;

/// Reconciles frontends with [`Ops`].
pub struct FrontendOps {
    ops: SharedOps,
    writer: Writer,
    frontends: Table<Frontend>,
    nodes: Arc<dyn NodeAddresses>,
}

impl FrontendOps {
    /// Reconciles the frontends of a writer.
    pub fn new(ops: SharedOps, writer: Writer, nodes: Arc<dyn NodeAddresses>) -> Self {
        let frontends = writer.frontends();
        Self {
            ops,
            writer,
            frontends,
            nodes,
        }
    }

    // Frontends whose address became free for an expansion come again.
    fn requeue(&self, addresses: &[L3n4Addr]) {
        if !addresses.is_empty() {
            let mut txn = self.writer.write();
            self.writer.mark_pending(&mut txn, addresses);
            txn.commit();
        }
    }
}

/// Tables of one snapshot.
struct View<'a> {
    frontends: &'a Table<Frontend>,
    snapshot: &'a Snapshot,
    nodes: Arc<skep_loadbalancer_model::Addresses>,
}

impl Surroundings for View<'_> {
    fn node_port_addresses(&self, ipv6: bool) -> &[IpAddr] {
        if ipv6 {
            &self.nodes.node_port_v6
        } else {
            &self.nodes.node_port_v4
        }
    }

    fn is_node_address(&self, ip: IpAddr) -> bool {
        self.nodes.all.contains(&ip)
    }

    fn frontend_kind(&self, address: &L3n4Addr) -> Option<FrontendKind> {
        let frontend = self
            .frontends
            .get(self.snapshot, FRONTENDS_BY_ADDRESS.key(address))?;
        Some(frontend.params.kind)
    }
}

impl TableOps<Frontend> for FrontendOps {
    fn update(
        &mut self,
        round: &Round<'_>,
        revision: Revision,
        frontend: &mut Frontend,
    ) -> Result<(), BoxError> {
        let mut update = [Update {
            revision,
            object: frontend.clone(),
            result: Ok(()),
        }];
        self.batch(round, &mut [], &mut update);
        let [update] = update;
        frontend.id = update.object.id;
        update.result
    }

    fn delete(
        &mut self,
        _round: &Round<'_>,
        _revision: Revision,
        frontend: &Frontend,
    ) -> Result<(), BoxError> {
        let mut ops = self.ops.lock();
        ops.remove(frontend.address());
        let results = ops.finish();
        let requeue = ops.take_requeue();
        drop(ops);
        self.requeue(&requeue);
        results
            .into_iter()
            .try_for_each(|result| result.map(drop))
            .map_err(Into::into)
    }

    fn prune(
        &mut self,
        round: &Round<'_>,
        objects: &mut dyn Iterator<Item = &Obj<Frontend>>,
    ) -> Result<(), BoxError> {
        let view = View {
            frontends: &self.frontends,
            snapshot: round.snapshot,
            nodes: self.nodes.addresses(round.snapshot),
        };
        let known: HashSet<L3n4Addr> = objects.map(|frontend| *frontend.address()).collect();
        let mut ops = self.ops.lock();
        for address in ops.unknown_frontends(|address| known.contains(address)) {
            ops.remove(&address);
        }
        ops.finish();
        let pruned = ops.prune(&view).map_err(Into::into);
        let requeue = ops.take_requeue();
        drop(ops);
        self.requeue(&requeue);
        pruned
    }

    fn batched(&self) -> bool {
        true
    }

    fn batch(
        &mut self,
        round: &Round<'_>,
        deletes: &mut [Delete<Frontend>],
        updates: &mut [Update<Frontend>],
    ) {
        let view = View {
            frontends: &self.frontends,
            snapshot: round.snapshot,
            nodes: self.nodes.addresses(round.snapshot),
        };
        let mut ops = self.ops.lock();
        // In the order of the changes, which decides about numbers.
        let mut removed = deletes.iter().peekable();
        for update in updates.iter() {
            while let Some(delete) = removed.next_if(|delete| delete.revision < update.revision) {
                ops.remove(delete.object.address());
            }
            ops.upsert(&update.object, &view);
        }
        removed.for_each(|delete| ops.remove(delete.object.address()));
        let results = ops.finish();
        let mut results = retry_refused(&mut ops, deletes, updates, results, &view).into_iter();
        let requeue = ops.take_requeue();
        drop(ops);
        let mut removed = deletes.iter_mut().peekable();
        let settle = |delete: &mut Delete<Frontend>, results: &mut std::vec::IntoIter<FrontendResult>| {
            delete.result = results
                .next()
                .map_or(Ok(()), |result| result.map(drop).map_err(Into::into));
        };
        for update in updates.iter_mut() {
            while let Some(delete) = removed.next_if(|delete| delete.revision < update.revision) {
                settle(delete, &mut results);
            }
            update.result = match results.next() {
                Some(Ok(id)) => {
                    update.object.id = id;
                    Ok(())
                }
                Some(Err(error)) => Err(error.into()),
                None => Ok(()),
            };
        }
        removed.for_each(|delete| settle(delete, &mut results));
        self.requeue(&requeue);
    }
}

// Tries those that full maps refused again, which may fit one by one.
fn retry_refused(
    ops: &mut Ops,
    deletes: &[Delete<Frontend>],
    updates: &[Update<Frontend>],
    mut results: Vec<FrontendResult>,
    view: &View<'_>,
) -> Vec<FrontendResult> {
    let mut places = Vec::new();
    let mut refused = Vec::new();
    let mut at = 0;
    let mut removed = deletes.iter().peekable();
    for update in updates {
        while removed
            .next_if(|delete| delete.revision < update.revision)
            .is_some()
        {
            at += 1;
        }
        if let Some(Err(error)) = results.get(at)
            && error.is_full()
        {
            places.push(at);
            refused.push((&update.object, error.clone()));
        }
        at += 1;
    }
    if !refused.is_empty() {
        let retried = ops.retry_refused(&refused, view);
        for (at, result) in places.into_iter().zip(retried) {
            results[at] = result;
        }
    }
    results
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
        nodes: Arc<dyn NodeAddresses>,
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
        let frontend_ops = FrontendOps::new(ops.clone(), writer.clone(), nodes);
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
                error = &error as &dyn std::error::Error,
                "Cannot take over the load-balancing maps, service ids will change"
            ),
            Ok(0) => {}
            Ok(services) => {
                tracing::info!(services, "Took over load-balancing maps, waiting for all sources");
                let (db, frontends) = (self.writer.db().clone(), self.writer.frontends());
                let complete = frontends.wait_initialized(&db);
                if tokio::time::timeout(self.init_wait_timeout, complete)
                    .await
                    .is_err()
                {
                    let pending = frontends.pending_initializers(&db.read()).join(", ");
                    tracing::warn!(
                        pending,
                        "Not all sources delivered in time, reconciling what is known"
                    );
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
