// SPDX-License-Identifier: Apache-2.0

//! Watches that are needed at times.

use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use skep_k8s_client::{Backoff, ListerWatcher, WatcherEvent, watcher};
use skep_k8s_types::Resource;
use tokio::sync::watch;

/// Turns a watch on and off.
pub(crate) struct Switch<R> {
    switch: watch::Sender<bool>,
    is_wanted: fn(&R) -> bool,
    is_listed: fn(&mut R) -> bool,
    forget: fn(&mut R),
}

impl<R> Switch<R> {
    pub(crate) fn new(is_wanted: fn(&R) -> bool, is_listed: fn(&mut R) -> bool, forget: fn(&mut R)) -> Self {
        let switch = watch::Sender::new(false);
        Self {
            switch,
            is_wanted,
            is_listed,
            forget,
        }
    }

    /// Returns whether nothing is waited for.
    pub(crate) fn turn(&self, reconciler: &mut R) -> bool {
        let is_wanted = (self.is_wanted)(reconciler);
        let is_turned = self
            .switch
            .send_if_modified(|was| std::mem::replace(was, is_wanted) != is_wanted);
        if is_turned && !is_wanted {
            (self.forget)(reconciler);
        }
        !is_wanted || (self.is_listed)(reconciler)
    }

    /// The events of a watcher that exists while it is switched on.
    pub(crate) fn events<T: Resource>(
        &self,
        source: Arc<dyn ListerWatcher<T>>,
    ) -> impl Stream<Item = WatcherEvent<T>> + use<T, R> {
        stream::unfold(
            (self.switch.subscribe(), None),
            move |(mut switch, mut events)| {
                let source = source.clone();
                async move {
                    loop {
                        let is_on = *switch.borrow_and_update();
                        let on = || watcher(source.clone(), Backoff::default());
                        events = is_on.then(|| events.take().unwrap_or_else(on));
                        let next = async {
                            match &mut events {
                                Some(events) => events.next().await,
                                None => std::future::pending().await,
                            }
                        };
                        tokio::select! {
                            biased;
                            turned = switch.changed() => turned.ok()?,
                            event = next => return Some((event?, (switch, events))),
                        }
                    }
                }
            },
        )
    }
}
