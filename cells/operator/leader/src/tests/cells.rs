// SPDX-License-Identifier: Apache-2.0

//! The election in a hive: the scope, the end of the process.

use std::sync::Arc;

use hive::{Cell, Hive, HookCtx, Lifecycle, Scope, testing};
use parking_lot::Mutex;
use serde_json::json;
use skep_k8s_client::Client;
use skep_k8s_client::testing::{Fault, FaultyClient};
use tokio::time::{Instant, sleep};

use super::world::{World, seconds};
use crate::election::Lost;
use crate::{Leader, Process, cell, scope};

#[derive(Clone, Default, hive::Value)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, text: impl Into<String>) {
        self.0.lock().push(text.into());
    }

    fn entries(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

struct TestProcess(Log);

impl Process for TestProcess {
    fn end(&self, lost: &Lost) {
        self.0.add(format!("ended: {lost}"));
    }
}

fn process(log: Log) -> Arc<dyn Process> {
    Arc::new(TestProcess(log))
}

fn work(log: Log, lifecycle: Lifecycle) {
    let (start, stop) = (log.clone(), log);
    lifecycle.on_start("work", move |_: HookCtx| {
        start.add("started");
        async {}
    });
    lifecycle.on_stop("rest", move |_: HookCtx| {
        let stop = stop.clone();
        async move {
            // Longer than a renewal is due.
            sleep(seconds(20)).await;
            stop.add("stopped");
        }
    });
}

fn fails(lifecycle: Lifecycle) {
    lifecycle.on_start("fail", |_: HookCtx| async {
        Err::<(), _>(std::io::Error::other("no CRDs"))
    });
}

fn hive_of(client: &Arc<FaultyClient>, log: &Log, worker: Cell) -> Hive {
    let (client, log) = (client.clone(), log.clone());
    Hive::new([
        cell(),
        scope([worker]),
        Cell::group([])
            .provide(move || -> Arc<dyn Client> { client.clone() })
            .provide(move || log.clone())
            .provide(process),
    ])
}

fn worker() -> Cell {
    Cell::module("worker", "Works").run(work)
}

async fn until(what: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !what().await {
        assert!(began.elapsed() < seconds(120), "timed out");
        sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_leader_runs_the_scope_and_releases_the_lease_after_it_stopped() {
    let (world, log) = (World::new(), Log::default());
    let running = testing::start(hive_of(&world.client(), &log, worker())).await;
    until(async || log.entries() == ["started"]).await;
    let holder = world.holder().await;
    assert!(
        holder.rsplit('-').next().is_some_and(|suffix| suffix.len() == 10
            && suffix
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())),
        "{holder}"
    );

    let stopping = testing::stop(running);
    let watching = async {
        sleep(seconds(18)).await;
        // The scope still stops, and the lease is renewed.
        assert_eq!(log.entries(), ["started"]);
        let mut other = world.candidate("other");
        other.attempt().await.unwrap();
        assert!(!other.leads());
    };
    tokio::join!(stopping, watching);

    assert_eq!(log.entries(), ["started", "stopped"]);
    assert_eq!(world.holder().await, "");
}

#[tokio::test(start_paused = true)]
async fn a_follower_starts_nothing_and_stops_at_once() {
    let (world, log) = (World::new(), Log::default());
    let mut leader = world.candidate("a");
    leader.attempt().await.unwrap();
    let hive = hive_of(&world.client(), &log, worker()).root::<Scope<Leader>>();
    let running = testing::start(hive).await;
    sleep(seconds(10)).await;

    assert!(!running.get::<Scope<Leader>>().unwrap().is_running());
    let began = Instant::now();
    testing::stop(running).await;

    assert!(began.elapsed() < seconds(1));
    assert_eq!(log.entries(), [""; 0]);
    assert_eq!(world.holder().await, "a");
}

#[tokio::test(start_paused = true)]
async fn the_follower_leads_when_the_leader_has_stopped() {
    let (world, log, next) = (World::new(), Log::default(), Log::default());
    let first = testing::start(hive_of(&world.client(), &log, worker())).await;
    until(async || log.entries() == ["started"]).await;
    let second = testing::start(hive_of(&world.client(), &next, worker())).await;

    testing::stop(first).await;
    let released = Instant::now();
    until(async || next.entries() == ["started"]).await;

    assert!(released.elapsed() < seconds(1), "{:?}", released.elapsed());
    testing::stop(second).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_ends_the_process_before_anything_is_stopped() {
    let (world, log) = (World::new(), Log::default());
    let client = world.client();
    let running = testing::start(hive_of(&client, &log, worker())).await;
    testing::expect_failure(&running, "leader election lost");
    until(async || log.entries() == ["started"]).await;
    let mut lease = world.lease().await;
    lease["spec"]["holderIdentity"] = json!("thief");
    world.put(lease).await;

    until(async || log.entries().len() == 2).await;

    assert_eq!(log.entries(), ["started", "ended: `thief` has the lease"]);
    testing::stop(running).await;
    assert_eq!(world.holder().await, "thief");
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_server_ends_the_process_of_the_leader() {
    let (world, log) = (World::new(), Log::default());
    let client = world.client();
    let running = testing::start(hive_of(&client, &log, worker())).await;
    testing::expect_failure(&running, "leader election lost");
    until(async || log.entries() == ["started"]).await;
    client.fail(Fault::Unreachable);

    until(async || log.entries().len() == 2).await;

    assert!(
        log.entries()[1].contains("could not be renewed for 1"),
        "{:?}",
        log.entries()
    );
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn cells_of_the_leader_that_do_not_start_stop_the_program() {
    let (world, log) = (World::new(), Log::default());
    let failing = Cell::module("failing", "Fails").run(fails);
    let running = testing::start(hive_of(&world.client(), &log, failing)).await;
    testing::expect_failure(&running, "the cells of the leader did not start");

    let cause = running.wait().await;

    assert!(cause.to_string().contains("no CRDs"), "{cause}");
    testing::stop(running).await;
    assert_eq!(world.holder().await, "", "released");
}

#[tokio::test(start_paused = true)]
async fn without_a_cluster_the_scope_runs_without_election() {
    let (world, log) = (World::new(), Log::default());
    let client = world.client();
    client.set_enabled(false);
    let running = testing::start(hive_of(&client, &log, worker())).await;

    until(async || log.entries() == ["started"]).await;

    testing::stop(running).await;
    assert_eq!(log.entries(), ["started", "stopped"]);
}
