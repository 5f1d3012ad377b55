// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use skep_base_metrics::workqueue::WorkqueueRecorder;
use tokio::time::advance;

use crate::queue::Queue;
use crate::{RequestError, Retry};

fn queue(keys: &[&'static str]) -> Queue<&'static str> {
    let mut queue = Queue::new(WorkqueueRecorder::default());
    keys.iter().for_each(|key| queue.add(*key));
    queue
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
        while queue.next_due().unwrap() > tokio::time::Instant::now() {
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
    queue.add("a");
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

    queue.add("a");

    assert_eq!(take(&mut queue), Some("a"));
    queue.done(&"a", Some(Duration::from_secs(5)));
    advance(Duration::from_secs(5)).await;
    assert_eq!(take(&mut queue), Some("a"));
}
