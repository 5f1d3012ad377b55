// SPDX-License-Identifier: Apache-2.0

mod convergence;
mod rounds;
mod writes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{Index, KeyBuf, Obj, clock::Clock, row::BoxError, testing::TokioClock};

#[derive(Debug, Clone)]
struct Thing {
    id: u64,
    value: u64,
    note: u64,
    status: Status,
    other: Status,
    applied: u64,
}

const ID: Index<Thing, u64> = Index::new("id", |thing, keys| keys.add(&thing.id));
const STATUS: StatusField<Thing> = StatusField {
    get: |thing| thing.status.clone(),
    set: |thing, status| thing.status = status,
};
const OTHER: StatusField<Thing> = StatusField {
    get: |thing| thing.other.clone(),
    set: |thing, status| thing.other = status,
};

fn thing(id: u64, value: u64) -> Thing {
    let pending = Status::pending();
    Thing {
        id,
        value,
        note: 0,
        status: pending.clone(),
        other: pending,
        applied: 0,
    }
}

/// A target that fails on demand and remembers what was done to it.
#[derive(Clone, Default)]
struct Target(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    content: BTreeMap<u64, u64>,
    faulty: BTreeSet<u64>,
    all_faulty: bool,
    /// Whether all updates fail for the same reason.
    full: bool,
    prune_faulty: bool,
    retriable: Vec<u64>,
    history: Vec<(String, Instant)>,
    /// Run in the middle of the next update, as if another task had.
    meanwhile: Option<Box<dyn FnOnce() + Send>>,
}

impl Target {
    fn history(&self) -> Vec<String> {
        self.0
            .lock()
            .history
            .iter()
            .map(|(text, _)| text.clone())
            .collect()
    }

    fn note(&self, text: String, failed: bool) -> Result<(), BoxError> {
        let text = if failed { text + " fail" } else { text };
        self.0.lock().history.push((text.clone(), Instant::now()));
        if failed { Err(text.into()) } else { Ok(()) }
    }

    fn fails(&self, id: u64) -> bool {
        let inner = self.0.lock();
        inner.all_faulty || inner.faulty.contains(&id)
    }
}

impl Ops<Thing> for Target {
    fn update(&mut self, _: &Round<'_>, _: Revision, thing: &mut Thing) -> Result<(), BoxError> {
        let meanwhile = self.0.lock().meanwhile.take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        if self.0.lock().full {
            return Err("no room".into());
        }
        let fails = self.fails(thing.id);
        if !fails {
            self.0.lock().content.insert(thing.id, thing.value);
            thing.applied = thing.value;
        }
        let kind = if thing.status.kind == StatusKind::Refreshing {
            "update-refresh"
        } else {
            "update"
        };
        self.note(format!("{kind}({})", thing.id), fails)
    }
    fn delete(&mut self, _: &Round<'_>, _: Revision, thing: &Thing) -> Result<(), BoxError> {
        let fails = self.fails(thing.id);
        if !fails {
            self.0.lock().content.remove(&thing.id);
        }
        self.note(format!("delete({})", thing.id), fails)
    }
    fn prune(
        &mut self,
        _: &Round<'_>,
        objects: &mut dyn Iterator<Item = &Obj<Thing>>,
    ) -> Result<(), BoxError> {
        let wanted: BTreeSet<u64> = objects.map(|thing| thing.id).collect();
        let fails = self.0.lock().prune_faulty;
        if !fails {
            self.0.lock().content.retain(|id, _| wanted.contains(id));
        }
        self.note(format!("prune(n={})", wanted.len()), fails)
    }
    fn retriable(&mut self) -> Vec<KeyBuf> {
        let ids = std::mem::take(&mut self.0.lock().retriable);
        ids.iter().map(KeyBuf::of).collect()
    }
}

#[derive(Clone, Default)]
struct Reports(Arc<Mutex<Vec<String>>>);

impl HealthReporter for Reports {
    fn ok(&self, message: &str) {
        self.0.lock().push(message.to_owned());
    }
    fn degraded(&self, message: &str, error: &str) {
        self.0.lock().push(format!("{message}: {error}"));
    }
}

impl Reports {
    fn last(&self) -> String {
        self.0.lock().last().cloned().unwrap_or_default()
    }
}

struct World<O = Target> {
    db: Db,
    table: RwTable<Thing>,
    target: Target,
    reconciler: Arc<Reconciler<Thing, O>>,
    handle: ReconcilerHandle,
    health: Reports,
    refresh_health: Reports,
    token: CancellationToken,
    running: Vec<JoinHandle<()>>,
}

fn config() -> Config {
    Config {
        prune_interval: None,
        refresh_interval: None,
        clock: Arc::new(TokioClock::start()),
        ..Config::default()
    }
}

impl World {
    fn new(config: Config) -> Self {
        Self::with(config, |table| table)
    }

    fn with(
        config: Config,
        add: impl FnOnce(crate::PrimaryBuilder<Thing>) -> crate::PrimaryBuilder<Thing>,
    ) -> Self {
        Self::of(config, add, |target| target)
    }

    fn started(config: Config) -> Self {
        let mut world = Self::new(config);
        world.start();
        world
    }
}

impl<O: BatchOps<Thing> + 'static> World<O> {
    fn of(
        config: Config,
        add: impl FnOnce(crate::PrimaryBuilder<Thing>) -> crate::PrimaryBuilder<Thing>,
        ops: impl FnOnce(Target) -> O,
    ) -> Self {
        let db = Db::new();
        let table = RwTable::<Thing>::builder("things").primary(ID);
        let table = add(table.graveyard_limit(20)).build_plain(&db).unwrap();
        let target = Target::default();
        let reconciler = Arc::new(Reconciler::new(
            &db,
            table.clone(),
            STATUS,
            ops(target.clone()),
            config,
        ));
        let handle = reconciler.handle();
        Self {
            db,
            table,
            target,
            reconciler,
            handle,
            health: Reports::default(),
            refresh_health: Reports::default(),
            token: CancellationToken::new(),
            running: Vec::new(),
        }
    }

    fn start(&mut self) {
        self.token = CancellationToken::new();
        let (reconciler, token, health) = (
            Arc::clone(&self.reconciler),
            self.token.clone(),
            self.health.clone(),
        );
        self.running
            .push(tokio::spawn(async move { reconciler.run(&token, &health).await }));
        let (reconciler, token, health) = (
            Arc::clone(&self.reconciler),
            self.token.clone(),
            self.refresh_health.clone(),
        );
        self.running.push(tokio::spawn(
            async move { reconciler.refresh(&token, &health).await },
        ));
    }

    async fn stop(&mut self) {
        self.token.cancel();
        for job in self.running.drain(..) {
            job.await.unwrap();
        }
    }

    fn put(&self, things: &[Thing]) -> Revision {
        let mut txn = self.db.write(&[&self.table]);
        for thing in things {
            self.table.insert(&mut txn, thing.clone()).unwrap();
        }
        self.table.revision(&txn.commit())
    }

    fn delete(&self, id: u64) -> Revision {
        let mut txn = self.db.write(&[&self.table]);
        self.table.delete_by(&mut txn, ID.key(&id)).unwrap();
        self.table.revision(&txn.commit())
    }

    fn status(&self, id: u64) -> Status {
        self.table
            .get(&self.db.read(), ID.key(&id))
            .unwrap()
            .status
            .clone()
    }

    #[track_caller]
    fn assert_kind(&self, id: u64, kind: StatusKind) {
        assert_eq!(self.status(id).kind, kind, "{:?}", self.status(id));
    }
}

#[tokio::test(start_paused = true)]
async fn pending_becomes_done_and_mutations_are_kept() {
    let world = World::started(config());
    let revision = world.put(&[thing(1, 10), thing(2, 20)]);

    assert_eq!(world.handle.wait_until_reconciled(revision).await.failing, None);

    world.assert_kind(1, StatusKind::Done);
    assert_eq!(world.table.get(&world.db.read(), ID.key(&2)).unwrap().applied, 20);
    assert_eq!(world.target.history(), ["update(1)", "update(2)"]);
    assert_eq!(world.health.last(), "OK, 2 object(s)");

    let revision = world.delete(1);
    world.handle.wait_until_reconciled(revision).await;
    assert_eq!(world.target.history().last().unwrap(), "delete(1)");
    assert_eq!(world.target.0.lock().content, BTreeMap::from([(2, 20)]));
    assert_eq!(world.health.last(), "OK, 1 object(s)");
}

#[tokio::test(start_paused = true)]
async fn objects_that_are_not_pending_are_left_alone() {
    let world = World::started(config());
    let done = Thing {
        status: Status::done(),
        ..thing(1, 1)
    };
    let unset = Thing {
        status: Status::default(),
        ..thing(2, 1)
    };

    let revision = world.put(&[done, unset]);
    world.handle.wait_until_reconciled(revision).await;

    assert!(world.target.history().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_may_succeed_now_is_retried_at_once() {
    let hour = Duration::from_secs(3600);
    let world = World::started(Config {
        retry_min: hour,
        retry_max: hour,
        ..config()
    });
    world.target.0.lock().faulty = [1, 2].into();
    let revision = world.put(&[thing(1, 10), thing(2, 20), thing(3, 30)]);
    world.handle.wait_until_reconciled(revision).await;
    let start = Instant::now();

    {
        let mut inner = world.target.0.lock();
        inner.faulty.clear();
        inner.retriable = vec![2, 3, 4];
    }
    let revision = world.delete(3);
    world.handle.wait_until_reconciled(revision).await;
    while world.status(2).kind != StatusKind::Done {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    world.assert_kind(1, StatusKind::Error);
    let history = world.target.history();
    assert_eq!(history[3..], ["delete(3)", "update(2)"]);

    // A pruning may make room as well.
    world.target.0.lock().retriable = vec![1];
    world.handle.prune_and_wait().await.unwrap();
    while world.status(1).kind != StatusKind::Done {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn failures_are_retried_with_growing_pauses() {
    let world = World::started(Config {
        retry_max: Duration::from_millis(350),
        ..config()
    });
    world.target.0.lock().all_faulty = true;
    let start = Instant::now();
    let revision = world.put(&[thing(1, 10)]);

    let progress = world.handle.wait_until_reconciled(revision).await;
    assert_eq!(progress.failing, Some(revision));
    world.assert_kind(1, StatusKind::Error);
    assert_eq!(world.status(1).error_text(), "update(1) fail");
    assert_eq!(world.health.last(), "1 error(s): update(1) fail");

    tokio::time::sleep(Duration::from_millis(1005)).await;
    let times: Vec<u128> = world
        .target
        .0
        .lock()
        .history
        .iter()
        .map(|(_, at)| (*at - start).as_millis())
        .collect();
    let gaps: Vec<u128> = times
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) / 10 * 10)
        .collect();
    assert_eq!(gaps, [100, 200, 350, 350]);

    world.target.0.lock().all_faulty = false;
    tokio::time::sleep(Duration::from_millis(400)).await;
    world.assert_kind(1, StatusKind::Done);
    assert_eq!(world.handle.progress().failing, None);
    assert_eq!(world.health.last(), "OK, 1 object(s)");
    let count = world.target.history().len();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.target.history().len(), count);
}

/// A map that is full was named once for each object that found no room.
#[tokio::test(start_paused = true)]
async fn an_error_of_several_objects_is_named_once() {
    let world = World::started(config());
    world.target.0.lock().full = true;

    let revision = world.put(&[thing(1, 10), thing(2, 20), thing(3, 30)]);
    world.handle.wait_until_reconciled(revision).await;

    assert_eq!(world.health.last(), "3 error(s): no room (3 objects)");
}

#[tokio::test(start_paused = true)]
async fn failed_deletion_is_retried_unless_the_object_comes_back() {
    let world = World::started(config());
    world
        .handle
        .wait_until_reconciled(world.put(&[thing(1, 10), thing(2, 20)]))
        .await;
    world.target.0.lock().all_faulty = true;
    world.delete(1);
    let progress = world.handle.wait_until_reconciled(world.delete(2)).await;
    assert!(progress.failing.is_some());

    world.put(&[thing(2, 30)]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.target.0.lock().all_faulty = false;
    tokio::time::sleep(Duration::from_secs(5)).await;

    assert_eq!(world.target.0.lock().content, BTreeMap::from([(2, 30)]));
    assert_eq!(world.handle.progress().failing, None);
}

#[tokio::test(start_paused = true)]
async fn new_version_written_during_an_update_is_handled_later() {
    let world = World::started(config());
    let (db, table) = (world.db.clone(), world.table.clone());
    world.target.0.lock().meanwhile = Some(Box::new(move || {
        let mut txn = db.write(&[&table]);
        table.insert(&mut txn, thing(1, 11)).unwrap();
        txn.commit();
    }));

    world.put(&[thing(1, 10)]);
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(world.target.history(), ["update(1)", "update(1)"]);
    assert_eq!(world.target.0.lock().content[&1], 11);
    world.assert_kind(1, StatusKind::Done);
}

/// A writer that changes an object but not what is wanted of it must not make the reconciler forget a failure
/// (cilium#48247), nor lose its change.
#[tokio::test(start_paused = true)]
async fn status_conflict_keeps_the_retry_and_the_others_change() {
    let world = World::started(config());
    let (db, table) = (world.db.clone(), world.table.clone());
    world.target.0.lock().all_faulty = true;
    world.target.0.lock().meanwhile = Some(Box::new(move || {
        let mut txn = db.write(&[&table]);
        table
            .update(&mut txn, ID.key(&1), |old| Thing {
                note: 7,
                ..old.clone()
            })
            .unwrap();
        txn.commit();
    }));

    let progress = world
        .handle
        .wait_until_reconciled(world.put(&[thing(1, 10)]))
        .await;
    assert_eq!(progress.failing, Some(1));
    world.assert_kind(1, StatusKind::Error);
    world.target.0.lock().all_faulty = false;
    tokio::time::sleep(Duration::from_secs(1)).await;

    world.assert_kind(1, StatusKind::Done);
    let found = world.table.get(&world.db.read(), ID.key(&1)).unwrap().clone();
    assert_eq!((found.note, world.target.0.lock().content[&1]), (7, 10));
}

#[tokio::test(start_paused = true)]
async fn retry_uses_the_newest_object() {
    let world = World::started(config());
    world.target.0.lock().all_faulty = true;
    world
        .handle
        .wait_until_reconciled(world.put(&[thing(1, 10)]))
        .await;

    let mut txn = world.db.write(&[&world.table]);
    world
        .table
        .update(&mut txn, ID.key(&1), |old| Thing {
            value: 12,
            ..old.clone()
        })
        .unwrap();
    txn.commit();
    world.target.0.lock().all_faulty = false;
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(world.target.0.lock().content[&1], 12);
    world.assert_kind(1, StatusKind::Done);
}

#[tokio::test(start_paused = true)]
async fn prunes_only_after_initialization_then_at_intervals() {
    let world = World::new(Config {
        prune_interval: Some(Duration::from_secs(60)),
        ..config()
    });
    world.target.0.lock().content.insert(99, 0);
    let mut txn = world.db.write(&[&world.table]);
    let guard = world.table.register_initializer(&mut txn, "test").unwrap();
    txn.commit();
    let mut world = world;
    world.start();
    world.handle.prune();
    world
        .handle
        .wait_until_reconciled(world.put(&[thing(1, 1)]))
        .await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(world.target.history(), ["update(1)"], "not even on request");

    let mut txn = world.db.write(&[&world.table]);
    txn.initialized(&guard).unwrap();
    txn.commit();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.target.history(), ["update(1)", "prune(n=1)"]);
    assert!(!world.target.0.lock().content.contains_key(&99));

    tokio::time::sleep(Duration::from_secs(121)).await;
    assert_eq!(world.target.history().len(), 4);
    world.stop().await;
}

/// statedb#47
#[tokio::test(start_paused = true)]
async fn prunes_with_an_empty_table() {
    let world = World::new(Config {
        prune_interval: Some(Duration::from_secs(60)),
        ..config()
    });
    world.target.0.lock().content.insert(99, 0);
    let mut world = world;
    world.start();
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(world.target.history(), ["prune(n=0)"]);
    assert!(world.target.0.lock().content.is_empty());
}

#[tokio::test(start_paused = true)]
async fn pruning_on_request_tells_its_outcome() {
    let world = World::started(config());
    world.put(&[thing(1, 1)]);
    assert_eq!(world.handle.prune_and_wait().await, Ok(()));

    world.target.0.lock().prune_faulty = true;
    let failed = world.handle.prune_and_wait().await;
    assert_eq!(failed, Err(PruneError::Failed("prune(n=1) fail".into())));
    assert_eq!(world.health.last(), "1 error(s): pruning failed: prune(n=1) fail");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(
        world.target.history().len(),
        3,
        "a failed pruning waits for the interval or a request"
    );

    world.target.0.lock().prune_faulty = false;
    assert_eq!(world.handle.prune_and_wait().await, Ok(()));
    assert_eq!(world.health.last(), "OK, 1 object(s)");
}

#[tokio::test(start_paused = true)]
async fn refreshes_what_was_applied_long_ago() {
    let world = World::started(Config {
        refresh_interval: Some(Duration::from_secs(1800)),
        ..config()
    });
    tokio::task::yield_now().await;
    assert_eq!(world.refresh_health.last(), "Next refresh in 30m0s");
    world
        .handle
        .wait_until_reconciled(world.put(&[thing(1, 1)]))
        .await;
    tokio::time::sleep(Duration::from_secs(900)).await;
    world
        .handle
        .wait_until_reconciled(world.put(&[thing(2, 2)]))
        .await;
    world.target.0.lock().content.clear();

    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(
        world.target.history(),
        ["update(1)", "update(2)", "update-refresh(1)"]
    );
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(world.target.history()[3..], ["update-refresh(2)"]);
    assert_eq!(world.target.0.lock().content, BTreeMap::from([(1, 1), (2, 2)]));
    world.assert_kind(1, StatusKind::Done);
}

/// The clock of the runtime, set back by a day once the test says so.
#[derive(Debug)]
struct JumpingClock(TokioClock, AtomicBool);

impl Clock for JumpingClock {
    fn now(&self) -> Timestamp {
        let days = i64::from(self.1.load(Ordering::SeqCst));
        self.0.now() - SignedDuration::from_hours(24 * days)
    }
}

#[tokio::test(start_paused = true)]
async fn refreshes_although_the_clock_was_set_back() {
    let clock = Arc::new(JumpingClock(TokioClock::start(), AtomicBool::new(false)));
    let world = World::started(Config {
        refresh_interval: Some(Duration::from_secs(1800)),
        clock: clock.clone(),
        ..config()
    });
    world
        .handle
        .wait_until_reconciled(world.put(&[thing(1, 1)]))
        .await;

    clock.1.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(2000)).await;

    assert_eq!(world.target.history(), ["update(1)", "update-refresh(1)"]);
}

#[tokio::test(start_paused = true)]
async fn stopped_reconciler_goes_on_where_it_was() {
    let mut world = World::started(config());
    world.target.0.lock().faulty.insert(2);
    world
        .handle
        .wait_until_reconciled(world.put(&[thing(1, 1), thing(2, 1)]))
        .await;
    world.stop().await;
    world.delete(1);
    world.put(&[thing(3, 1)]);
    world.target.0.lock().faulty.clear();

    world.start();
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(world.target.0.lock().content, BTreeMap::from([(2, 1), (3, 1)]));
    world.assert_kind(2, StatusKind::Done);
}

/// More deletions than the table keeps for it while it is stopped: what was missed is pruned.
#[tokio::test(start_paused = true)]
async fn missed_deletions_are_pruned() {
    let mut world = World::started(config());
    world
        .handle
        .wait_until_reconciled(world.put(&(0..60).map(|id| thing(id, 1)).collect::<Vec<_>>()))
        .await;
    world.stop().await;
    for id in 0..50 {
        world.delete(id);
    }

    world.start();
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(
        world.target.0.lock().content.keys().copied().collect::<Vec<_>>(),
        (50..60).collect::<Vec<_>>()
    );
}

#[tokio::test(start_paused = true)]
async fn two_reconcilers_serve_one_table() {
    let world = World::started(config());
    let second_target = Target::default();
    let second = Reconciler::new(
        &world.db,
        world.table.clone(),
        OTHER,
        second_target.clone(),
        config(),
    );
    let handle = second.handle();
    let token = world.token.clone();
    tokio::spawn(async move { second.run(&token, &NoHealth).await });
    second_target.0.lock().all_faulty = true;

    let revision = world.put(&(0..5).map(|id| thing(id, 1)).collect::<Vec<_>>());
    world.handle.wait_until_reconciled(revision).await;
    handle.wait_until_reconciled(revision).await;
    second_target.0.lock().all_faulty = false;
    tokio::time::sleep(Duration::from_secs(5)).await;

    for thing in world.table.all(&world.db.read()) {
        assert_eq!(
            (thing.status.kind, thing.other.kind),
            (StatusKind::Done, StatusKind::Done)
        );
    }
    assert_eq!(
        world.target.history().len(),
        5,
        "the other one's statuses cause no work"
    );
    world.token.cancel();
}

#[tokio::test(start_paused = true)]
async fn the_same_health_is_not_reported_again_within_a_second() {
    let mut world = World::started(config());
    let taken = |world: &World| std::mem::take(&mut *world.health.0.lock());
    for value in 0..3 {
        let revision = world.put(&[thing(1, value)]);
        world.handle.wait_until_reconciled(revision).await;
    }
    assert_eq!(taken(&world), ["OK, 1 object(s)"]);

    tokio::time::sleep(Duration::from_secs(1)).await;
    let revision = world.put(&[thing(1, 3)]);
    world.handle.wait_until_reconciled(revision).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(taken(&world), ["OK, 1 object(s)"]);

    world.stop().await;
    world.start();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(
        taken(&world),
        ["OK, 1 object(s)"],
        "a new run begins without a report"
    );
}
