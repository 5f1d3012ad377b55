// SPDX-License-Identifier: Apache-2.0

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{FutureExt, future, stream};
use hive::{Cell, Hive, Jobs};

use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_k8s_client::{ObjectEvent, WatcherEvent};
use skep_k8s_types::RawObject;
use skep_k8s_types::slim::Pod;
use tokio::sync::Notify;
use tokio::time::{Instant, advance, sleep};

use crate::queue::{Lane, Queue};
use crate::{Controller, Reconciler, RequestError, Retry, Store, Work, job};

fn queue(keys: &[&'static str]) -> Queue<&'static str> {
    let mut queue = Queue::new(4, WorkqueueRecorder::default());
    keys.iter().for_each(|key| add(&mut queue, key));
    queue
}

fn add(queue: &mut Queue<&'static str>, key: &'static str) {
    queue.add(key, Duration::ZERO, Lane::Normal);
}

fn take(queue: &mut Queue<&'static str>) -> Option<&'static str> {
    queue.take().map(|(key, _)| key)
}

/// Fails a key until its pauses no longer grow; returns them in seconds.
async fn pauses(retry: Retry) -> Vec<u64> {
    let mut queue = queue(&["a"]);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let key = take(&mut queue).unwrap();
        queue.fail(key, retry, "no".to_owned());
        let mut pause = 0;
        while queue.next_due().unwrap() > Instant::now() {
            assert_eq!(take(&mut queue), None);
            advance(Duration::from_secs(1)).await;
            pause += 1;
        }
        pauses.push(pause);
    }
    pauses
}

#[tokio::test(start_paused = true)]
async fn pauses_of_failures_double_and_those_of_conflicts_do_not() {
    assert_eq!(pauses(Retry::Backoff).await, [1, 2, 4, 8, 16, 32, 60, 60]);
    assert_eq!(pauses(Retry::Conflict).await, [1; 8]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_changes_while_it_is_taken_is_taken_again_when_it_is_done() {
    let mut queue = queue(&["a"]);
    assert_eq!(take(&mut queue), Some("a"));
    add(&mut queue, "a");
    assert_eq!(take(&mut queue), None);

    // The change is not delayed by the failure.
    queue.fail("a", Retry::Backoff, "no".to_owned());
    assert_eq!(take(&mut queue), Some("a"));
    queue.done(&"a", None);

    assert_eq!((take(&mut queue), queue.next_due()), (None, None));
    assert_eq!(queue.failed().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_answer_all_keys_wait() {
    let mut queue = queue(&["a", "b"]);
    let key = take(&mut queue).unwrap();
    queue.fail(key, Retry::Unanswered, RequestError::Timeout.to_string());
    assert_eq!(take(&mut queue), None);

    advance(Duration::from_secs(1)).await;

    let both = [take(&mut queue), take(&mut queue)];
    assert_eq!(both, [Some("b"), Some("a")]);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_a_change_stays_in_health_until_then() {
    let mut queue = queue(&["a"]);
    let key = take(&mut queue).unwrap();
    queue.fail(key, Retry::OnChange, "missing".to_owned());
    advance(Duration::from_secs(3600)).await;
    assert_eq!(take(&mut queue), None);
    assert_eq!(queue.failed().collect::<Vec<_>>(), [(&"a", "missing")]);

    add(&mut queue, "a");

    assert_eq!(take(&mut queue), Some("a"));
    queue.done(&"a", Some(Duration::from_secs(5)));
    advance(Duration::from_secs(5)).await;
    assert_eq!(take(&mut queue), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn changes_wait_for_others_once() {
    let mut queue = queue(&[]);
    let second = Duration::from_secs(1);
    queue.add("a", second, Lane::Normal);
    advance(second / 2).await;
    queue.add("a", second, Lane::Normal);
    assert_eq!(take(&mut queue), None);

    advance(second / 2).await;

    assert_eq!((take(&mut queue), take(&mut queue)), (Some("a"), None));
}

#[tokio::test(start_paused = true)]
async fn keys_with_priority_are_first_and_each_lane_has_its_limit() {
    let mut queue = queue(&["a", "b", "c"]);
    queue.set_concurrency(2);
    queue.add("d", Duration::ZERO, Lane::Priority);
    // Its priority has changed.
    queue.add("c", Duration::ZERO, Lane::Priority);

    let taken: Vec<_> = std::iter::from_fn(|| take(&mut queue)).collect();
    assert_eq!(taken, ["c", "d", "a", "b"]);
    add(&mut queue, "a");
    add(&mut queue, "e");
    assert_eq!(queue.next_due(), None);
    queue.done(&"d", None);
    assert_eq!(take(&mut queue), None, "the other lane is full");
    queue.done(&"a", None);

    assert_eq!((take(&mut queue), take(&mut queue)), (Some("a"), None));
}

/// Minutes, if each key looks at all others.
#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_keys_are_no_burden() {
    let mut queue = Queue::new(4, WorkqueueRecorder::default());
    for key in 0..100_000 {
        queue.add(key, Duration::from_millis(1), Lane::Normal);
    }
    advance(Duration::from_secs(1)).await;

    for round in 0..2 {
        while let Some((key, _)) = queue.take() {
            assert!(queue.next_due().is_some() || key == 99_999);
            match round {
                0 => queue.fail(key, Retry::Backoff, "no".to_owned()),
                _ => queue.done(&key, None),
            }
        }
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!((queue.next_due(), queue.failed().len()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_never_settles_is_a_failure() {
    let mut queue = queue(&["a"]);
    let mut passes = 0;
    while let Some(key) = take(&mut queue) {
        queue.done(&key, Some(Duration::ZERO));
        passes += 1;
    }

    assert_eq!(passes, 13);
    assert!(queue.failed().next().unwrap().1.contains("another writer"));
}

fn pod(name: &str, uid: &str, version: u32) -> Arc<Pod> {
    let mut pod = Pod::default();
    pod.metadata.name = name.into();
    pod.metadata.uid = uid.into();
    pod.metadata.resource_version = version.to_string().into();
    Arc::new(pod)
}

#[test]
fn answers_to_writes_are_taken_in_unless_the_watch_has_come_further() {
    let mut store = Store::default();
    let (items, invalid) = (vec![pod("a", "1", 3)], Vec::new());
    store.apply(WatcherEvent::Replaced { items, invalid });

    assert!(store.written(pod("a", "1", 2)).is_none());
    assert!(store.written(pod("a", "1", 5)).is_some());
    assert!(store.written(pod("b", "2", 4)).is_some());
    let applied = |pod| WatcherEvent::Object(ObjectEvent::Applied(pod));
    assert!(store.apply(applied(pod("a", "1", 4))).is_empty());
    store.apply(WatcherEvent::Object(ObjectEvent::deleted(pod("b", "2", 6))));
    assert!(store.written(pod("b", "2", 5)).is_none(), "it is deleted");
    store.apply(applied(pod("a", "3", 8)));

    assert!(store.removed(&pod("a", "1", 5).metadata).is_none(), "another pod");
    assert!(store.removed(&pod("a", "3", 8).metadata).is_some());
    assert_eq!(store.keys().len(), 0);
}

#[test]
fn objects_that_were_never_valid_are_deleted_by_a_list_without_them() {
    let mut store = Store::<Pod>::default();
    let object = RawObject::from_json(r#"{"metadata": {"name": "a"}, "spec": 1}"#.into());
    let error = object.decode::<Pod>().unwrap_err();
    store.apply(WatcherEvent::Object(ObjectEvent::Invalid(error)));
    assert!(store.has_gaps());

    let (items, invalid) = (Vec::new(), Vec::new());
    let changes = store.apply(WatcherEvent::Replaced { items, invalid });

    let [change] = &*changes else {
        panic!("{changes:?}")
    };
    assert_eq!((&*change.key.name, change.new.is_none()), ("a", true));
}

const KEYS: u32 = 20_000;

/// Takes down the keys that are reconciled; each of the first [`KEYS`] affects another one by its result.
struct Log {
    keys: Arc<Mutex<Vec<u32>>>,
    affected: Vec<u32>,
    not_before: Instant,
}

impl Reconciler for Log {
    type Key = u32;
    type Output = u32;
    type Error = RequestError;
    const KEYS: &'static str = "keys";
    const FAILED: &'static str = "failed";

    fn reconcile(&mut self, key: &u32) -> Work<Self> {
        let mut keys = self.keys.lock().unwrap();
        keys.push(*key);
        if keys.len() == 2 {
            self.not_before = Instant::now() + Duration::from_secs(1);
        }
        future::ready(Ok(key + KEYS)).boxed()
    }

    fn finished(
        &mut self,
        key: &u32,
        result: Result<u32, RequestError>,
    ) -> Result<Option<Duration>, RequestError> {
        self.affected.extend(result.ok().filter(|_| *key < KEYS));
        Ok(None)
    }

    fn affected_by_results(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.affected)
    }

    fn synced(&mut self) -> Vec<u32> {
        vec![KEYS * 2]
    }

    fn has_priority(&self, key: &u32) -> bool {
        *key == KEYS * 2
    }

    fn wait(&self) -> Duration {
        self.not_before.saturating_duration_since(Instant::now())
    }

    fn total(&self) -> usize {
        0
    }
}

#[tokio::test(start_paused = true)]
async fn a_controller_begins_when_all_is_ready_and_takes_in_sources_and_results() {
    let (keys, is_ready) = (Arc::new(Mutex::default()), Arc::new(Notify::new()));
    let (log, ready) = (keys.clone(), is_ready.clone());
    let cell = Cell::module("test", "Controller").run(move |jobs: Jobs| {
        let (log, ready) = (log.clone(), ready.clone());
        jobs.spawn(job("log", move || {
            let (keys, ready) = (log.clone(), ready.clone());
            let log = Log {
                keys,
                affected: Vec::new(),
                not_before: Instant::now(),
            };
            Controller::new(log, WorkqueueRecorder::default())
                .source(stream::once(async { 0..KEYS }), |_, keys| keys.collect())
                .wait_for(async move { ready.notified().await })
        }))
    });
    let running = hive::testing::start(Hive::new([cell])).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(*keys.lock().unwrap(), [0; 0]);

    is_ready.notify_one();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(*keys.lock().unwrap(), [KEYS * 2, 0]);
    sleep(Duration::from_secs(1)).await;

    assert_eq!(keys.lock().unwrap().len(), 2 * KEYS as usize + 1);
    hive::testing::stop(running).await;
}
