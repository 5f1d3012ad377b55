// SPDX-License-Identifier: Apache-2.0

//! What happened to the objects of one resource, in order, for watches to follow.
//!
//! Watches read the newest changes: those are kept as they are. Older ones are kept as text, which needs a tenth of the
//! memory, and as many as fit into [`TEXT`].

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

/// Changes that are kept as they are.
const WHOLE: usize = 256;
/// Text that is kept of the changes before them, in bytes.
const TEXT: usize = 8 << 20;

/// The state of an object.
#[derive(Debug)]
enum Version {
    Whole(Arc<Value>),
    Text(Box<[u8]>),
}

impl Version {
    fn object(&self) -> Arc<Value> {
        match self {
            Version::Whole(object) => object.clone(),
            Version::Text(text) => {
                Arc::new(serde_json::from_slice(text).expect("the text was made from an object"))
            }
        }
    }

    /// Keeps the text only; its length.
    fn pack(&mut self) -> usize {
        if let Version::Whole(object) = self {
            let text = serde_json::to_vec(object).expect("an object has string keys");
            *self = Version::Text(text.into());
        }
        self.text()
    }

    fn text(&self) -> usize {
        match self {
            Version::Whole(_) => 0,
            Version::Text(text) => text.len(),
        }
    }
}

/// A change as it is kept.
#[derive(Debug)]
struct Kept {
    revision: u64,
    kind: EventKind,
    object: Version,
    previous: Option<Version>,
}

impl Kept {
    fn event(&self) -> Event {
        Event {
            revision: self.revision,
            kind: self.kind,
            object: self.object.object(),
            previous: self.previous.as_ref().map(Version::object),
        }
    }

    fn pack(&mut self) -> usize {
        self.object.pack() + self.previous.as_mut().map_or(0, Version::pack)
    }

    fn text(&self) -> usize {
        self.object.text() + self.previous.as_ref().map_or(0, Version::text)
    }
}

impl From<Event> for Kept {
    fn from(event: Event) -> Self {
        Kept {
            revision: event.revision,
            kind: event.kind,
            object: Version::Whole(event.object),
            previous: event.previous.map(Version::Whole),
        }
    }
}

/// The last changes of one resource.
#[derive(Debug)]
pub(crate) struct Log {
    state: Mutex<State>,
    wake: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Kept>,
    /// Bytes of text in `events`.
    text: usize,
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
        state.events.push_back(event.into());
        let aged = state.events.len().checked_sub(WHOLE + 1);
        if let Some(aged) = aged.and_then(|at| state.events.get_mut(at)) {
            let text = aged.pack();
            state.text += text;
        }
        while state.events.len() > history || state.text > TEXT {
            let Some(old) = state.events.pop_front() else {
                break;
            };
            state.forgotten += 1;
            state.compacted = old.revision;
            state.text -= old.text();
        }
        drop(state);
        self.wake.send_replace(());
    }

    pub(crate) fn compact(&self, revision: u64) {
        let mut state = self.state.lock();
        state.forgotten += state.events.len() as u64;
        state.events.clear();
        state.text = 0;
        state.compacted = revision;
    }

    pub(crate) fn expire(&self, revision: u64) {
        let mut state = self.state.lock();
        state.forgotten += state.events.len() as u64;
        state.events.clear();
        state.text = 0;
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
            let event = event.event();
            states.insert(object::place(&event.object), event.previous);
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
                return Ok(Some(event.event()));
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
        Arc::new(json!({
            "metadata": { "namespace": "shop", "name": "web", "resourceVersion": number.to_string() },
            "data": { "text": "x".repeat(1000) },
        }))
    }

    /// A log with so many changes of one object, and all its versions.
    fn changed(times: u64, history: usize) -> (Arc<Log>, Vec<std::sync::Weak<Value>>) {
        let log = Arc::new(Log::default());
        let mut previous = None;
        let mut versions = Vec::new();
        for revision in 1..=times {
            let object = version(revision);
            versions.push(Arc::downgrade(&object));
            let kind = if previous.is_some() {
                EventKind::Modified
            } else {
                EventKind::Added
            };
            let event = Event {
                revision,
                kind,
                object: object.clone(),
                previous,
            };
            log.push(event, history);
            previous = Some(object);
        }
        (log, versions)
    }

    #[test]
    fn memory_does_not_grow_with_the_number_of_changes() {
        let (log, versions) = changed(5_000, 10_000);

        let whole = versions
            .iter()
            .filter(|version| version.strong_count() > 0)
            .count();
        assert!((WHOLE..=WHOLE + 1).contains(&whole), "{whole}");
        let state = log.state.lock();
        let text: usize = state.events.iter().map(Kept::text).sum();
        assert_eq!(state.text, text);
        assert!(text <= TEXT && text > TEXT / 2, "{text}");
    }

    #[test]
    fn old_changes_are_followed_as_they_were() {
        let (log, _) = changed(1_000, 10_000);

        let mut cursor = log.follow(10).unwrap();
        let event = cursor.poll().unwrap().unwrap();
        assert_eq!((event.revision, event.kind), (11, EventKind::Modified));
        assert_eq!((event.object, event.previous), (version(11), Some(version(10))));
        let before = log.before(1_000, 20).unwrap();
        assert_eq!(
            before,
            BTreeMap::from([("shop/web".to_owned(), Some(version(20)))])
        );
    }

    #[test]
    fn changes_that_did_not_fit_are_gone() {
        let (log, _) = changed(5_000, 10_000);

        let gone = log.follow(1).unwrap_err();
        assert!(gone.compacted > 500, "{gone:?}");
        assert!(log.follow(gone.compacted).is_ok());
    }
}
