// SPDX-License-Identifier: Apache-2.0

//! The reconciliation loop.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    thread,
    time::Duration,
};

use tokio::{sync::watch, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Progress, Shared,
    config::{Config, HealthReporter, Operation},
    ops::{BatchOps, Deferred, Delete, Round, StatusField, Update},
    retries::{Pending, Retries},
    status::Status,
};
use crate::{
    Change, ChangeIterator, Db, Error, KeyBuf, Obj, Revision, RwTable, Snapshot, WriteTxn, row::BoxError,
    slots::Slot, state::Exchange,
};

/// Errors listed in a health report.
const ERRORS_SHOWN: usize = 10;
/// How long a report of health stands that would only be repeated.
const REPORT_STANDS: Duration = Duration::from_secs(1);

/// State of the loop that rounds and runs share.
pub(super) struct Loop<T, O> {
    /// `None` while it is on a thread.
    worker: Option<Box<Worker<T, O>>>,
    /// Stays if the run is dropped: the next one waits for it.
    thread: Option<Thread<T, O>>,
    changes: Option<ChangeIterator<T>>,
    retries: Retries<T>,
    prune: PruneState,
    paced: Option<Instant>,
    /// Objects in the last report of health and its time; `None` if it was of failures.
    reported: Option<(usize, Instant)>,
    /// Origins of the entries of a round.
    update_origins: Vec<Origin>,
    delete_origins: Vec<Revision>,
}

/// The operations, with the entries of a round. Their memory is reused.
struct Worker<T, O> {
    ops: O,
    updates: Vec<Update<T>>,
    deletes: Vec<Delete<T>>,
}

type Thread<T, O> = JoinHandle<(Box<Worker<T, O>>, thread::Result<Result<(), BoxError>>)>;

impl<T, O> Worker<T, O>
where
    T: Clone + Send + Sync + 'static,
    O: BatchOps<T>,
{
    fn operate(&mut self, round: &Round<'_>, _: &RwTable<T>) -> Result<(), BoxError> {
        let Self {
            ops,
            deletes,
            updates,
        } = self;
        let kind = match updates.is_empty() {
            true => Operation::Delete,
            false => Operation::Update,
        };
        match O::IS_MEASURED_EACH {
            true => ops.batch(round, deletes, updates),
            false => round.measure(kind, || ops.batch(round, deletes, updates)),
        }
        Ok(())
    }

    fn prune(&mut self, round: &Round<'_>, table: &RwTable<T>) -> Result<(), BoxError> {
        self.ops.prune(round, &mut table.all(round.snapshot))
    }
}

/// What a thread with operations does.
type Work<T, O> = fn(&mut Worker<T, O>, &Round<'_>, &RwTable<T>) -> Result<(), BoxError>;

/// Origin of an update.
struct Origin {
    /// Version of the desired state.
    id: u64,
    /// Revision of the first change that requires it.
    first: Revision,
    /// Number of the object in its table.
    slot: Slot,
}

/// An object with its new status, to be written.
struct Outcome<T> {
    origin: Origin,
    /// Revision at which the object was read.
    revision: Revision,
    exchange: Exchange<T>,
    /// Its primary key and why it failed.
    error: Option<(KeyBuf, Arc<str>)>,
}

#[derive(Default)]
struct PruneState {
    /// When to prune next; `None` before the first one.
    due: Option<Instant>,
    /// Deletions were missed.
    missed: bool,
    error: Option<String>,
    /// Request served last.
    served: u64,
}

/// What of a reconciler does not change.
pub(super) struct Parts<T> {
    pub(super) db: Db,
    pub(super) table: RwTable<T>,
    pub(super) status: StatusField<T>,
    pub(super) config: Config,
}

impl<T, O> Loop<T, O>
where
    T: Clone + Send + Sync + 'static,
    O: BatchOps<T>,
{
    pub(super) fn new(ops: O, config: &Config) -> Self {
        let worker = Worker {
            ops,
            updates: Vec::new(),
            deletes: Vec::new(),
        };
        Self {
            worker: Some(Box::new(worker)),
            thread: None,
            changes: None,
            retries: Retries::new(config.retry_min, config.retry_max),
            prune: PruneState::default(),
            paced: None,
            reported: None,
            update_origins: Vec::new(),
            delete_origins: Vec::new(),
        }
    }

    pub(super) fn into_ops(self) -> O {
        let worker = self.worker.expect("no run was dropped in the middle of a round");
        worker.ops
    }

    fn worker(&mut self) -> &mut Worker<T, O> {
        self.worker.as_mut().expect("no operations are running")
    }

    /// Does work with the operations, on a thread that may block if they are configured so. What an earlier run has left
    /// unfinished is finished instead.
    async fn work(
        &mut self,
        parts: &Parts<T>,
        snapshot: &Snapshot,
        token: &CancellationToken,
        work: Work<T, O>,
    ) -> Result<(), BoxError> {
        let metrics = &parts.config.metrics;
        if self.thread.is_none() && !parts.config.blocking {
            let round = Round {
                snapshot,
                token,
                metrics: &**metrics,
            };
            return work(self.worker(), &round, &parts.table);
        }
        if let Some(mut worker) = self.worker.take() {
            let (snapshot, token) = (snapshot.clone(), token.clone());
            let (metrics, table) = (Arc::clone(metrics), parts.table.clone());
            self.thread = Some(tokio::task::spawn_blocking(move || {
                let round = Round {
                    snapshot: &snapshot,
                    token: &token,
                    metrics: &*metrics,
                };
                let done = panic::catch_unwind(AssertUnwindSafe(|| work(&mut worker, &round, &table)));
                (worker, done)
            }));
        }
        let Some(thread) = &mut self.thread else {
            return Ok(());
        };
        let joined = thread.await;
        self.thread = None;
        match joined {
            Ok((worker, done)) => {
                self.worker = Some(worker);
                done.unwrap_or_else(|cause| panic::resume_unwind(cause))
            }
            // The runtime ends, and this future with it.
            Err(_) => std::future::pending().await,
        }
    }

    pub(super) async fn run(
        &mut self,
        parts: &Parts<T>,
        shared: &Shared,
        token: &CancellationToken,
        health: &dyn HealthReporter,
    ) {
        let mut requests = shared.prune_requests.subscribe();
        self.reported = None;
        self.report(parts, &parts.db.read(), health);
        while !token.is_cancelled() {
            if !self.pace(&parts.config, token).await {
                return;
            }
            let (busy, snapshot) = self.round(parts, shared, parts.db.read(), token, health).await;
            // All changes come before a pruning, so that it does not remove what is about to be handled.
            if !busy && self.prune_due(parts, &snapshot, *requests.borrow_and_update()) {
                let snapshot = parts.db.read();
                self.run_prune(parts, shared, &snapshot, token, health).await;
            }
            if busy {
                // Yields to other tasks between rounds.
                tokio::task::yield_now().await;
            } else if !self.wait(parts, snapshot, token, &mut requests).await {
                return;
            }
        }
    }

    /// Keeps the mean rate of rounds; false if stopped meanwhile.
    async fn pace(&mut self, config: &Config, token: &CancellationToken) -> bool {
        let rate = config.rounds_per_second.max(1);
        let period = Duration::from_secs(1) / rate;
        let burst = period * (rate / 10).max(1);
        let now = Instant::now();
        let earliest = now.checked_sub(burst).unwrap_or(now);
        let slot = self.paced.map_or(earliest, |last| (last + period).max(earliest));
        self.paced = Some(slot);
        if slot > now {
            tokio::select! {
                () = token.cancelled() => return false,
                () = tokio::time::sleep_until(slot) => {}
            }
        }
        true
    }

    /// Waits for changes, due retries or requests; false if stopped.
    async fn wait(
        &mut self,
        parts: &Parts<T>,
        snapshot: Snapshot,
        token: &CancellationToken,
        requests: &mut watch::Receiver<u64>,
    ) -> bool {
        let changed = parts.table.table_watch(&snapshot);
        let (initialized, init) = parts.table.initialized_watch(&snapshot);
        // A snapshot held here would keep removed objects alive.
        drop(snapshot);
        let mut until = self.retries.next_due();
        if initialized && let Some(due) = self.prune.due {
            until = Some(until.map_or(due, |other| other.min(due)));
        }
        tokio::select! {
            biased;
            () = token.cancelled() => return false,
            () = changed.closed() => {}
            () = init.closed(), if !initialized => {}
            changed = requests.changed() => return changed.is_ok(),
            () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
        }
        true
    }

    /// Handles up to a round's size of changes and due retries. Returns whether there may be more at once, and, if not,
    /// a snapshot in which everything was handled.
    async fn round(
        &mut self,
        parts: &Parts<T>,
        shared: &Shared,
        mut snapshot: Snapshot,
        token: &CancellationToken,
        health: &dyn HealthReporter,
    ) -> (bool, Snapshot) {
        let is_left = self.thread.is_some();
        let mut busy = is_left || self.collect(parts, &snapshot);
        let worked = is_left || !self.worker().updates.is_empty() || !self.worker().deletes.is_empty();
        if worked {
            // The entries have their own results.
            let _ = self.work(parts, &snapshot, token, Worker::operate).await;
            let (failed, settled) = self.settle(parts, &snapshot);
            self.hasten_retries();
            parts.config.metrics.round();
            parts.config.metrics.errors(failed, self.retries.len());
            match settled {
                // The statuses are all that is new.
                Some(settled) if !busy => {
                    if let Some(changes) = &mut self.changes {
                        changes.skip_to(&settled);
                    }
                    snapshot = settled;
                }
                _ => {
                    busy = true;
                    snapshot = parts.db.read();
                }
            }
        }
        let deferred = self.retries.lowest_deferred();
        busy |= deferred.is_some();
        let seen = self.changes.as_ref().map_or(0, ChangeIterator::seen);
        // What was left for the next round was not tried.
        let tried = deferred.map_or(seen, |revision| seen.min(revision.saturating_sub(1)));
        let lowest = self.retries.lowest();
        shared.progress.send_if_modified(|progress| {
            let next = Progress {
                revision: tried.max(progress.revision),
                failing: lowest,
            };
            let modified = *progress != next;
            *progress = next;
            modified
        });
        if worked {
            self.report(parts, &snapshot, health);
        }
        (busy, snapshot)
    }

    /// Fills the buffers with pending changes and due retries; true if the round is full.
    fn collect(&mut self, parts: &Parts<T>, snapshot: &Snapshot) -> bool {
        let worker = self.worker.as_mut().expect("no operations are running");
        worker.updates.clear();
        worker.deletes.clear();
        self.update_origins.clear();
        self.delete_origins.clear();
        let size = parts.config.round_size.max(1);
        let table = &parts.table;
        let changes = self.changes.get_or_insert_with(|| table.follow(&parts.db));
        let mut taken = 0;
        let mut changes = changes.next(snapshot);
        while let Some((change, slot)) = changes.next_numbered() {
            match change {
                Change::Upsert(object) => {
                    let status = (parts.status.get)(&object);
                    if !status.is_due() {
                        continue;
                    }
                    if !self.retries.is_empty()
                        && let Ok(key) = table.primary_key(&object)
                    {
                        self.retries.clear(&key);
                    }
                    let Some(slot) = slot else { continue };
                    worker.updates.push(update(&object));
                    self.update_origins.push(Origin {
                        id: status.id,
                        first: object.revision(),
                        slot,
                    });
                }
                Change::Delete { object, revision } => {
                    if !self.retries.is_empty()
                        && let Ok(key) = table.primary_key(&object)
                    {
                        self.retries.clear(&key);
                    }
                    worker.deletes.push(Delete {
                        revision,
                        object,
                        result: Ok(()),
                    });
                    self.delete_origins.push(revision);
                }
                Change::Relist => {
                    self.prune.missed = true;
                    continue;
                }
            }
            taken += 1;
            if taken >= size {
                return true;
            }
        }
        drop(changes);
        let now = Instant::now();
        while taken < size {
            let Some((key, pending, first)) = self.retries.pop(now) else {
                return false;
            };
            match pending {
                Pending::Delete(object) => {
                    worker.deletes.push(Delete {
                        revision: first,
                        object: object.clone(),
                        result: Ok(()),
                    });
                    self.delete_origins.push(first);
                }
                Pending::Update(id) => {
                    let current = table.numbered(snapshot, key.as_bytes());
                    match current.filter(|(_, object)| (parts.status.get)(object).id == *id) {
                        Some((slot, object)) => {
                            self.update_origins.push(Origin { id: *id, first, slot });
                            worker.updates.push(update(object));
                        }
                        // Deleted or changed since: the change stream has it.
                        None => {
                            self.retries.clear(&key);
                            continue;
                        }
                    }
                }
            }
            taken += 1;
        }
        true
    }

    /// Writes the statuses and plans retries. Returns the number of failures, and a snapshot with the statuses unless
    /// others changed the table since `snapshot`.
    fn settle(&mut self, parts: &Parts<T>, snapshot: &Snapshot) -> (usize, Option<Snapshot>) {
        let now = Instant::now();
        let mut failed = 0;
        let worker = self.worker.as_mut().expect("no operations are running");
        for (entry, first) in worker.deletes.drain(..).zip(self.delete_origins.drain(..)) {
            if entry.result.is_ok() && self.retries.is_empty() {
                continue;
            }
            let Ok(key) = parts.table.primary_key(&entry.object) else {
                continue;
            };
            match entry.result {
                Ok(()) => self.retries.clear(&key),
                Err(err) => {
                    failed += 1;
                    let error = err.to_string().into();
                    self.retries
                        .add(now, key, Pending::Delete(entry.object), first, error);
                }
            }
        }
        if worker.updates.is_empty() {
            return (failed, Some(snapshot.clone()));
        }
        self.defer(parts, now);
        // Writers wait while the table is locked: all that can be is done before and after.
        let mut outcomes = self.outcomes(parts, snapshot);
        failed += outcomes.iter().filter(|outcome| outcome.error.is_some()).count();
        let mut txn = parts.db.write(&[&parts.table]);
        let is_alone = parts.table.revision(&txn) == parts.table.revision(snapshot);
        let written = parts
            .table
            .exchange_all(&mut txn, &mut outcomes, |outcome| &mut outcome.exchange);
        if let Err(err) = written {
            log_status_error(&parts.table, &err);
        }
        for outcome in &mut outcomes {
            if let Some(object) = outcome.exchange.object.take() {
                let is_alive = merge_status(parts, &mut txn, &object, outcome).unwrap_or_else(|err| {
                    log_status_error(&parts.table, &err);
                    true
                });
                if !is_alive && let Some((key, _)) = outcome.error.take() {
                    self.retries.clear(&key);
                }
            }
        }
        let settled = txn.commit();
        for outcome in outcomes {
            if let Some((key, error)) = outcome.error {
                let Origin { id, first, .. } = outcome.origin;
                self.retries.add(now, key, Pending::Update(id), first, error);
            }
        }
        (failed, is_alone.then_some(settled))
    }

    /// Keeps the updates that were left for the next round, without a status.
    fn defer(&mut self, parts: &Parts<T>, now: Instant) {
        let is_deferred = |entry: &Update<T>| entry.result.as_ref().is_err_and(|err| err.is::<Deferred>());
        let worker = self.worker.as_mut().expect("no operations are running");
        if !worker.updates.iter().any(is_deferred) {
            return;
        }
        let entries = std::mem::take(&mut worker.updates);
        let origins = std::mem::take(&mut self.update_origins);
        for (entry, origin) in entries.into_iter().zip(origins) {
            if !is_deferred(&entry) {
                worker.updates.push(entry);
                self.update_origins.push(origin);
            } else if let Ok(key) = parts.table.primary_key(&entry.object) {
                self.retries
                    .defer(now, key, Pending::Update(origin.id), origin.first);
            }
        }
    }

    /// Empties the updates of a round; retries of what failed before and does not now are cancelled.
    fn outcomes(&mut self, parts: &Parts<T>, snapshot: &Snapshot) -> Vec<Outcome<T>> {
        let at = parts.config.clock.now();
        let state = parts.table.state(snapshot);
        let worker = self.worker.as_mut().expect("no operations are running");
        let mut outcomes = Vec::with_capacity(worker.updates.len());
        for (entry, origin) in worker.updates.drain(..).zip(self.update_origins.drain(..)) {
            let (revision, mut object) = (entry.revision, entry.object);
            let base = Status {
                id: origin.id,
                ..Status::default()
            };
            let text: Option<Arc<str>> = entry.result.err().map(|err| err.to_string().into());
            let status = match &text {
                None => base.into_done(at),
                Some(text) => base.into_error(at, Arc::clone(text)),
            };
            (parts.status.set)(&mut object, status);
            let mut error = None;
            if text.is_some() || !self.retries.is_empty() {
                let Ok(key) = parts.table.primary_key(&object) else {
                    continue;
                };
                match text {
                    Some(text) => error = Some((key, text)),
                    None => self.retries.clear(&key),
                }
            }
            let before = state.objects.get(origin.slot);
            let keeps_keys = before.is_some_and(|before| parts.table.same_keys(before, &object));
            let exchange = Exchange {
                slot: origin.slot,
                // Nothing is at revision 0.
                revision: if keeps_keys { revision } else { 0 },
                object: Some(Obj::new(object, 0)),
            };
            outcomes.push(Outcome {
                origin,
                revision,
                exchange,
                error,
            });
        }
        outcomes
    }

    fn hasten_retries(&mut self) {
        let now = Instant::now();
        for key in self.worker().ops.retriable() {
            self.retries.hasten(now, &key);
        }
    }

    fn prune_due(&self, parts: &Parts<T>, snapshot: &Snapshot, requested: u64) -> bool {
        if !parts.table.is_initialized(snapshot) {
            return false;
        }
        let by_time = match (self.prune.due, parts.config.prune_interval) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(due), Some(_)) => due <= Instant::now(),
        };
        by_time || self.prune.missed || requested > self.prune.served
    }

    async fn run_prune(
        &mut self,
        parts: &Parts<T>,
        shared: &Shared,
        snapshot: &Snapshot,
        token: &CancellationToken,
        health: &dyn HealthReporter,
    ) {
        let requested = *shared.prune_requests.borrow();
        let started = Instant::now();
        let outcome = self.work(parts, snapshot, token, Worker::prune).await;
        parts.config.metrics.prune(started.elapsed(), outcome.is_err());
        self.hasten_retries();
        self.prune = PruneState {
            due: parts
                .config
                .prune_interval
                .map(|interval| Instant::now() + interval),
            missed: false,
            error: outcome.err().map(|err| err.to_string()),
            served: requested,
        };
        shared.pruned.send_replace((requested, self.prune.error.clone()));
        self.report(parts, snapshot, health);
    }

    /// Reports health. While thousands of objects a second change that are as many as before, the same report would cost as
    /// much as a round.
    fn report(&mut self, parts: &Parts<T>, snapshot: &Snapshot, health: &dyn HealthReporter) {
        let prune_error = self
            .prune
            .error
            .iter()
            .map(|error| format!("pruning failed: {error}"));
        let failing = self.retries.len() + usize::from(self.prune.error.is_some());
        if failing == 0 {
            let (objects, now) = (parts.table.len(snapshot), Instant::now());
            let stands = |(reported, at): (usize, Instant)| reported == objects && now - at < REPORT_STANDS;
            if !self.reported.is_some_and(stands) {
                self.reported = Some((objects, now));
                health.ok(&format!("OK, {objects} object(s)"));
            }
            return;
        }
        self.reported = None;
        let errors = self.retries.errors(ERRORS_SHOWN).into_iter();
        let errors = errors.map(|(text, count)| match count {
            1 => text.to_owned(),
            count => format!("{text} ({count} objects)"),
        });
        let mut errors: Vec<String> = errors.chain(prune_error).collect();
        errors.truncate(ERRORS_SHOWN);
        health.degraded(&format!("{failing} error(s)"), &errors.join("; "));
    }
}

fn update<T: Clone>(object: &Obj<T>) -> Update<T> {
    Update {
        revision: object.revision(),
        object: T::clone(object),
        result: Ok(()),
    }
}

/// Writes the status of an object that changed since it was read, if it still stands for the same desired state, or
/// whose keys the reconciler changed. False if there is no such object any more.
fn merge_status<T: Clone + Send + Sync + 'static>(
    parts: &Parts<T>,
    txn: &mut WriteTxn,
    object: &Obj<T>,
    outcome: &Outcome<T>,
) -> Result<bool, Error> {
    let key = parts.table.primary_bytes(object)?;
    let changed = match parts.table.get_by_bytes(txn, &key) {
        None => return Ok(false),
        Some(current) if current.revision() == outcome.revision => T::clone(object),
        Some(current) if (parts.status.get)(current).id == outcome.origin.id => {
            let mut current = T::clone(current);
            (parts.status.set)(&mut current, (parts.status.get)(object));
            current
        }
        Some(_) => return Ok(false),
    };
    parts.table.insert(txn, changed)?;
    Ok(true)
}

fn log_status_error<T: Send + Sync + 'static>(table: &RwTable<T>, err: &Error) {
    tracing::error!(table = table.name(), error = %err, "Cannot write status of object");
}

/// Marks objects applied long ago for refreshing, oldest first, until stopped.
pub(super) async fn refresh<T: Clone + Send + Sync + 'static>(
    parts: &Parts<T>,
    interval: Duration,
    token: &CancellationToken,
    health: &dyn HealthReporter,
) {
    let mut seen: Revision = 0;
    loop {
        let mut pause = interval;
        loop {
            let snapshot = parts.db.read();
            let now = parts.config.clock.now();
            let mut due: Option<(KeyBuf, Obj<T>)> = None;
            for object in parts.table.by_revision(&snapshot, seen + 1) {
                let status = (parts.status.get)(object);
                let age = now.duration_since(status.updated_at);
                // Of a time ahead of a clock that was set back nothing is known.
                let age = Duration::try_from(age).unwrap_or(Duration::MAX);
                if age < interval {
                    pause = interval - age;
                    break;
                }
                seen = object.revision();
                if status.kind == super::StatusKind::Done
                    && let Ok(key) = parts.table.primary_key(object)
                {
                    due = Some((key, object.clone()));
                    break;
                }
            }
            let Some((key, object)) = due else { break };
            {
                let mut txn = parts.db.write(&[&parts.table]);
                let unchanged = parts
                    .table
                    .get_by_primary(&txn, &key)
                    .is_some_and(|current| current.same(&object));
                if unchanged {
                    let mut object = T::clone(&object);
                    (parts.status.set)(&mut object, Status::refreshing_at(now));
                    if let Err(err) = parts.table.insert(&mut txn, object) {
                        log_status_error(&parts.table, &err);
                    }
                }
                txn.commit();
            }
            tokio::select! {
                () = token.cancelled() => return,
                () = tokio::time::sleep(Duration::from_secs(1) / parts.config.refresh_rate.max(1)) => {}
            }
        }
        health.ok(&format!("Next refresh in {}", go_duration(pause)));
        tokio::select! {
            () = token.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Returns a duration as `30m0s` or `1.5s`: hours, minutes and seconds, as many as are needed. From a minute on it is
/// rounded to seconds.
fn go_duration(duration: Duration) -> String {
    let duration = match duration {
        long if long >= Duration::from_secs(60) => {
            Duration::from_secs((long + Duration::from_millis(500)).as_secs())
        }
        short => short,
    };
    let total = duration.as_secs();
    let (hours, minutes) = (total / 3600, total / 60 % 60);
    let seconds = (total % 60) as f64 + f64::from(duration.subsec_millis()) / 1000.0;
    match (hours, minutes) {
        (0, 0) if total == 0 && duration.subsec_nanos() > 0 => format!("{}ms", duration.subsec_millis()),
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_like_elsewhere() {
        let texts = [
            (1800, "30m0s"),
            (90, "1m30s"),
            (5, "5s"),
            (3661, "1h1m1s"),
            (0, "0s"),
        ];
        for (seconds, text) in texts {
            assert_eq!(go_duration(Duration::from_secs(seconds)), text);
        }
        assert_eq!(go_duration(Duration::from_millis(1_799_990)), "30m0s");
        assert_eq!(go_duration(Duration::from_millis(20)), "20ms");
        assert_eq!(go_duration(Duration::from_millis(1500)), "1.5s");
    }
}
