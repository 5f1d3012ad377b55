// SPDX-License-Identifier: Apache-2.0

//! Rounds of one operation at a time, and of all at once: their order, and what is measured of them.

use super::*;

/// The same target, which takes all of a round at once: deletions first.
#[derive(Clone, Default)]
pub(super) struct AtOnce(Target);

impl BatchOps<Thing> for AtOnce {
    fn batch(&mut self, round: &Round<'_>, deletes: &mut [Delete<Thing>], updates: &mut [Update<Thing>]) {
        for entry in deletes {
            entry.result = self.0.delete(round, entry.revision, &entry.object);
        }
        for entry in updates {
            entry.result = self.0.update(round, entry.revision, &mut entry.object);
        }
    }
    fn prune(
        &mut self,
        round: &Round<'_>,
        objects: &mut dyn Iterator<Item = &Obj<Thing>>,
    ) -> Result<(), BoxError> {
        Ops::prune(&mut self.0, round, objects)
    }
    fn retriable(&mut self) -> Vec<KeyBuf> {
        Ops::retriable(&mut self.0)
    }
}

impl World<AtOnce> {
    pub(super) fn at_once(config: Config) -> Self {
        Self::of(config, |table| table, AtOnce)
    }
}

#[tokio::test(start_paused = true)]
async fn batches_do_deletions_first_within_the_round_size() {
    let mut world = World::at_once(Config {
        round_size: 3,
        ..config()
    });
    world.put(&[thing(1, 1), thing(2, 1)]);
    world.start();
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.stop().await;

    world.put(&[thing(3, 1)]);
    world.delete(1);
    let revision = world.put(&[thing(4, 1), thing(5, 1)]);
    world.start();
    world.handle.wait_until_reconciled(revision).await;

    assert_eq!(
        world.target.history()[2..],
        ["delete(1)", "update(3)", "update(4)", "update(5)"]
    );
}

/// The same target, which takes one update a round.
struct OneByOne(Target);

impl BatchOps<Thing> for OneByOne {
    fn batch(&mut self, round: &Round<'_>, _: &mut [Delete<Thing>], updates: &mut [Update<Thing>]) {
        for (at, entry) in updates.iter_mut().enumerate() {
            entry.result = match at {
                0 => self.0.update(round, entry.revision, &mut entry.object),
                _ => Err(Deferred.into()),
            };
        }
    }
    fn prune(
        &mut self,
        round: &Round<'_>,
        objects: &mut dyn Iterator<Item = &Obj<Thing>>,
    ) -> Result<(), BoxError> {
        Ops::prune(&mut self.0, round, objects)
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_left_for_the_next_round_is_done_before_a_pruning() {
    let config = Config {
        prune_interval: Some(Duration::from_secs(60)),
        ..config()
    };
    let mut world = World::of(config, |table| table, OneByOne);
    let revision = world.put(&[thing(1, 1), thing(2, 1), thing(3, 1)]);

    world.start();
    let progress = world.handle.wait_until_reconciled(revision).await;
    assert_eq!(progress.failing, None);
    assert!(world.target.history().len() >= 3, "all were tried");
    world.handle.prune_and_wait().await.unwrap();

    assert_eq!(
        world.target.history()[..4],
        ["update(1)", "update(2)", "update(3)", "prune(n=3)"]
    );
    assert_eq!(world.health.last(), "OK, 3 object(s)");
}

#[tokio::test(start_paused = true)]
async fn a_pruning_waits_for_all_rounds_of_the_start() {
    let mut world = World::at_once(Config {
        round_size: 2,
        prune_interval: Some(Duration::from_secs(60)),
        ..config()
    });
    world.put(&[1, 2, 3, 4, 5].map(|id| thing(id, 1)));

    world.start();
    world.handle.prune_and_wait().await.unwrap();

    let history = world.target.history();
    let first = history.iter().position(|text| text == "prune(n=5)");
    assert_eq!(first, Some(5), "{history:?}");
}

#[tokio::test(start_paused = true)]
async fn single_operations_keep_the_order_of_changes() {
    let mut world = World::new(config());
    world.start();
    world
        .handle
        .wait_until_reconciled(world.put(&[thing(1, 1), thing(2, 1)]))
        .await;
    let mut txn = world.db.write(&[&world.table]);
    world.table.insert(&mut txn, thing(3, 1)).unwrap();
    world.table.delete_by(&mut txn, ID.key(&1)).unwrap();
    world.table.insert(&mut txn, thing(4, 1)).unwrap();
    let revision = world.table.revision(&txn.commit());
    world.handle.wait_until_reconciled(revision).await;

    assert_eq!(
        world.target.history()[2..],
        ["update(3)", "delete(1)", "update(4)"]
    );
}

#[derive(Default)]
struct Measured(Mutex<Vec<Operation>>);

impl ReconcilerMetrics for Measured {
    fn operation(&self, operation: Operation, _: Duration) {
        self.0.lock().push(operation);
    }
}

/// What is measured of a round with an update, a deletion and another update.
async fn measured<O: BatchOps<Thing> + 'static>(world: impl FnOnce(Config) -> World<O>) -> Vec<Operation> {
    let metrics = Arc::new(Measured::default());
    let mut world = world(Config {
        metrics: metrics.clone(),
        ..config()
    });
    world.start();
    world
        .handle
        .wait_until_reconciled(world.put(&[thing(1, 1)]))
        .await;
    metrics.0.lock().clear();
    let mut txn = world.db.write(&[&world.table]);
    world.table.insert(&mut txn, thing(2, 1)).unwrap();
    world.table.delete_by(&mut txn, ID.key(&1)).unwrap();
    world.table.insert(&mut txn, thing(3, 1)).unwrap();
    let revision = world.table.revision(&txn.commit());
    world.handle.wait_until_reconciled(revision).await;
    world.stop().await;
    std::mem::take(&mut *metrics.0.lock())
}

#[tokio::test(start_paused = true)]
async fn single_operations_are_measured_each_and_batches_as_one() {
    use Operation::{Delete, Update};

    assert_eq!(measured(World::new).await, [Update, Delete, Update]);
    assert_eq!(measured(World::at_once).await, [Update]);
}

#[tokio::test]
async fn operations_may_block_and_a_run_that_is_dropped_meanwhile_loses_no_round() {
    let mut world = World::new(Config {
        blocking: true,
        ..config()
    });
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    world.target.0.lock().meanwhile = Some(Box::new(move || {
        begin.send(()).unwrap();
        gate.recv().unwrap();
    }));
    let revision = world.put(&[thing(1, 10), thing(2, 20)]);
    let token = CancellationToken::new();

    tokio::select! {
        () = world.reconciler.run(&token, &NoHealth) => panic!("it ended"),
        begun = begun => begun.unwrap(),
    }
    open.send(()).unwrap();
    world.start();
    world.handle.wait_until_reconciled(revision).await;
    world.handle.prune_and_wait().await.unwrap();

    assert_eq!(world.target.history(), ["update(1)", "update(2)", "prune(n=2)"]);
    world.assert_kind(2, StatusKind::Done);
}
