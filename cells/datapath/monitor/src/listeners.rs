// SPDX-License-Identifier: Apache-2.0

//! The listeners, with a queue for each.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use parking_lot::RwLock;
use skep_datapath_monitor_events::payload;
use tokio::sync::{mpsc, watch};

use crate::metrics::MonitorMetrics;

/// All listeners. Messages are encoded once for all of them.
#[derive(Debug)]
pub(crate) struct Listeners {
    queues: RwLock<Vec<Arc<Queue>>>,
    count: watch::Sender<usize>,
    metrics: Arc<MonitorMetrics>,
}

#[derive(Debug)]
struct Queue {
    sender: mpsc::Sender<Bytes>,
    /// Messages lost since the last one that was queued.
    lost: AtomicU64,
}

impl Queue {
    /// Queues a message, after saying how many were lost before it. Returns whether there was room.
    fn offer(&self, message: &Bytes) -> bool {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let report = payload::lost_message(0, lost).into();
            if self.sender.try_send(report).is_err() {
                self.lost.fetch_add(lost + 1, Ordering::Relaxed);
                return false;
            }
        }
        if self.sender.try_send(message.clone()).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        true
    }
}

impl Listeners {
    pub(crate) fn new(metrics: Arc<MonitorMetrics>) -> Self {
        Self {
            queues: RwLock::default(),
            count: watch::Sender::new(0),
            metrics,
        }
    }

    fn changed(&self, queues: &[Arc<Queue>]) {
        self.metrics.listeners.set(queues.len() as f64);
        self.count.send_replace(queues.len());
    }

    /// Adds a listener that has room for so many messages.
    pub(crate) fn add(self: &Arc<Self>, room: usize) -> Listener {
        let (sender, receiver) = mpsc::channel(room.max(1));
        let queue = Arc::new(Queue {
            sender,
            lost: AtomicU64::new(0),
        });
        let mut queues = self.queues.write();
        queues.push(queue.clone());
        self.changed(&queues);
        drop(queues);
        Listener {
            receiver,
            queue,
            listeners: self.clone(),
        }
    }

    /// How many there are, now and whenever that changes.
    pub(crate) fn count(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self.count.borrow() == 0
    }

    /// Sends a message to all of them; returns how many lost it.
    pub(crate) fn send(&self, message: &Bytes) -> usize {
        let queues = self.queues.read();
        queues.iter().filter(|queue| !queue.offer(message)).count()
    }
}

/// A registered listener; dropping it removes it.
#[derive(Debug)]
pub(crate) struct Listener {
    receiver: mpsc::Receiver<Bytes>,
    queue: Arc<Queue>,
    listeners: Arc<Listeners>,
}

impl Listener {
    /// Waits for messages, and adds them to `out`: at most so many.
    pub(crate) async fn receive(&mut self, out: &mut Vec<Bytes>, most: usize) {
        self.receiver.recv_many(out, most).await;
        if self.receiver.is_empty() {
            let lost = self.queue.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                out.push(payload::lost_message(0, lost).into());
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut queues = self.listeners.queues.write();
        queues.retain(|queue| !Arc::ptr_eq(queue, &self.queue));
        self.listeners.changed(&queues);
    }
}

#[cfg(test)]
mod tests {
    use skep_datapath_monitor_events::payload::{Payload, PayloadReader};

    use super::*;

    fn message(number: u8) -> Bytes {
        payload::event_message(1, [&[number], &[]]).into()
    }

    fn read(messages: &[Bytes]) -> Vec<Payload> {
        let mut reader = PayloadReader::default();
        reader.push(payload::DEFINITION);
        for message in messages {
            reader.push(message);
        }
        std::iter::from_fn(|| reader.next_payload().unwrap()).collect()
    }

    fn event(number: u8) -> Payload {
        Payload::Event {
            cpu: 1,
            data: vec![number],
        }
    }

    fn lost(count: u64) -> Payload {
        Payload::Lost { cpu: 0, count }
    }

    #[tokio::test]
    async fn a_slow_listener_gets_a_record_of_lost_events_in_their_place() {
        let listeners = Arc::new(Listeners::new(Arc::default()));
        let mut slow = listeners.add(3);
        let mut fast = listeners.add(100);
        let (mut seen, mut all) = (Vec::new(), Vec::new());

        let missed: Vec<usize> = (0..5).map(|number| listeners.send(&message(number))).collect();
        slow.receive(&mut seen, 2).await;
        listeners.send(&message(5));
        slow.receive(&mut seen, 10).await;
        fast.receive(&mut all, 10).await;

        assert_eq!(missed, [0, 0, 0, 1, 1]);
        assert_eq!(
            read(&seen),
            [event(0), event(1), event(2), lost(2), event(5)],
            "the report is where the events would be"
        );
        assert_eq!(read(&all).len(), 6);
    }

    #[tokio::test]
    async fn losses_are_reported_when_nothing_follows() {
        let listeners = Arc::new(Listeners::new(Arc::default()));
        let mut slow = listeners.add(1);
        let mut seen = Vec::new();
        for number in 0..4 {
            listeners.send(&message(number));
        }

        slow.receive(&mut seen, 10).await;

        assert_eq!(read(&seen), [event(0), lost(3)]);
    }

    #[test]
    fn those_who_leave_are_not_counted() {
        let listeners = Arc::new(Listeners::new(Arc::default()));
        let count = listeners.count();
        let (one, two) = (listeners.add(1), listeners.add(1));
        assert_eq!((*count.borrow(), listeners.is_empty()), (2, false));

        drop(one);
        assert_eq!(*count.borrow(), 1);
        drop(two);
        assert!(listeners.is_empty());
        assert_eq!(listeners.send(&message(0)), 0);
    }
}
