// SPDX-License-Identifier: Apache-2.0

//! The last changes of the objects of one resource, in order, for watches to follow.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::object;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Added,
    Modified,
    Deleted,
}

/// One change.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) revision: u64,
    pub(crate) kind: EventKind,
    /// The state after the change; for deletions the last state.
    pub(crate) object: Arc<Value>,
    /// The state before the change.
    pub(crate) previous: Option<Arc<Value>>,
}

/// The last changes of one resource.
#[derive(Debug)]
pub(crate) struct Log {
    state: Mutex<State>,
    wake: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    /// Changes that were forgotten; the position of `events[0]`.
    forgotten: u64,
    /// Changes up to this revision may be missing.
    compacted: u64,
    /// Counts how often watches were expired.
    epoch: u64,
}

impl Default for Log {
    fn default() -> Self {
        Log {
            state: Mutex::default(),
            wake: watch::Sender::new(()),
        }
    }
}

/// A place in the log.
#[derive(Debug)]
pub(crate) struct Cursor {
    log: Arc<Log>,
    wake: watch::Receiver<()>,
    position: u64,
    /// Changes up to this revision are known already.
    after: u64,
    epoch: u64,
}

/// The revision asked for is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) compacted: u64,
}

impl Log {
    pub(crate) fn push(&self, event: Event, history: usize) {
        let mut state = self.state.lock();
        state.events.push_back(event);
        while state.events.len() > history {
            let Some(old) = state.events.pop_front() else {
                break;
            };
            state.forgotten += 1;
            state.compacted = old.revision;
        }
        drop(state);
        self.wake.send_replace(());
    }

    pub(crate) fn compact(&self, revision: u64) {
        let mut state = self.state.lock();
        state.forgotten += state.events.len() as u64;
        state.events.clear();
        state.compacted = revision;
    }

    pub(crate) fn expire(&self, revision: u64) {
        let mut state = self.state.lock();
        state.forgotten += state.events.len() as u64;
        state.events.clear();
        state.compacted = revision;
        state.epoch += 1;
        drop(state);
        self.wake.send_replace(());
    }

    pub(crate) fn watchers(&self) -> usize {
        self.wake.receiver_count()
    }

    /// Follows the changes after `revision`.
    pub(crate) fn follow(self: &Arc<Self>, revision: u64) -> Result<Cursor, Gone> {
        let state = self.state.lock();
        if revision < state.compacted {
            return Err(Gone {
                compacted: state.compacted,
            });
        }
        let known = state.events.partition_point(|e| e.revision <= revision);
        Ok(Cursor {
            log: self.clone(),
            wake: self.wake.subscribe(),
            position: state.forgotten + known as u64,
            after: revision,
            epoch: state.epoch,
        })
    }

    /// Follows what comes after now; what is known up to `revision` is not reported again.
    pub(crate) fn follow_from_now(self: &Arc<Self>, revision: u64) -> Cursor {
        let state = self.state.lock();
        let known = state.events.partition_point(|e| e.revision <= revision);
        Cursor {
            log: self.clone(),
            wake: self.wake.subscribe(),
            position: state.forgotten + known as u64,
            after: revision,
            epoch: state.epoch,
        }
    }

    /// The state at revision `to` of the objects that changed between it and revision `from`, by place in lists; `None` if
    /// they did not exist then.
    pub(crate) fn before(&self, from: u64, to: u64) -> Result<BTreeMap<String, Option<Arc<Value>>>, Gone> {
        let mut states = BTreeMap::new();
        if to >= from {
            return Ok(states);
        }
        let state = self.state.lock();
        if to < state.compacted {
            return Err(Gone {
                compacted: state.compacted,
            });
        }
        let start = state.events.partition_point(|e| e.revision <= to);
        let end = state.events.partition_point(|e| e.revision <= from);
        // The first change of each counts.
        for event in state.events.range(start..end).rev() {
            states.insert(object::place(&event.object), event.previous.clone());
        }
        Ok(states)
    }
}

impl Cursor {
    /// The next change if there is one already.
    pub(crate) fn poll(&mut self) -> Result<Option<Event>, Gone> {
        let state = self.log.state.lock();
        if self.epoch != state.epoch || self.position < state.forgotten {
            return Err(Gone {
                compacted: state.compacted,
            });
        }
        while let Some(event) = state.events.get((self.position - state.forgotten) as usize) {
            self.position += 1;
            if event.revision > self.after {
                self.after = event.revision;
                return Ok(Some(event.clone()));
            }
        }
        Ok(None)
    }

    /// Waits until there may be a change.
    pub(crate) async fn changed(&mut self) {
        // The sender lives in the log, which this cursor holds, so that there is always one.
        let _ = self.wake.changed().await;
    }

    /// The revision of the last change that was reported.
    pub(crate) fn after(&self) -> u64 {
        self.after
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn version(number: u64) -> Arc<Value> {
        let metadata = json!({ "namespace": "shop", "name": "web", "resourceVersion": number.to_string() });
        Arc::new(json!({ "metadata": metadata }))
    }

    #[test]
    fn old_changes_are_followed_as_they_were_until_they_are_forgotten() {
        let log = Arc::new(Log::default());
        for revision in 1..=30 {
            let event = Event {
                revision,
                kind: EventKind::Modified,
                object: version(revision),
                previous: Some(version(revision - 1)),
            };
            log.push(event, 25);
        }

        let event = log.follow(10).unwrap().poll().unwrap().unwrap();
        assert_eq!(
            (event.revision, event.object, event.previous),
            (11, version(11), Some(version(10)))
        );
        let before = log.before(30, 20).unwrap();
        assert_eq!(
            before,
            BTreeMap::from([("shop/web".to_owned(), Some(version(20)))])
        );
        assert_eq!(log.follow(4).unwrap_err(), Gone { compacted: 5 });
        assert!(log.follow(5).is_ok());
    }
}
