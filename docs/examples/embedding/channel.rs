// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use futures::{Stream, stream};
use hive::{Job, JobCtx, Jobs, SpawnError};
use tokio::sync::{Mutex, mpsc};

/// What other cells send to the consumer.
#[derive(Debug, PartialEq)]
pub(crate) struct Event(pub(crate) u32);

/// The receiving end. A job may be started again and takes the same end then, so it is shared.
#[derive(Clone)]
pub(crate) struct Events(Arc<Mutex<mpsc::Receiver<Event>>>);

impl Events {
    pub(crate) fn new(receiver: mpsc::Receiver<Event>) -> Self {
        Self(Arc::new(Mutex::new(receiver)))
    }

    fn stream(&self) -> impl Stream<Item = Event> + Send + use<> {
        stream::unfold(self.clone(), |events| async move {
            let event = events.0.lock().await.recv().await?;
            Some((event, events))
        })
    }
}

/// Handles one event after the other until all senders are gone.
pub(crate) fn consume(events: Events, totals: mpsc::Sender<u32>, jobs: &Jobs) -> Result<(), SpawnError> {
    jobs.spawn(Job::for_each(
        "events",
        move || events.stream(),
        move |_: JobCtx, Event(number)| {
            let totals = totals.clone();
            async move { totals.send(number * 10).await }
        },
    ))
}
