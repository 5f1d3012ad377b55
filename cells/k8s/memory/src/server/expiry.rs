// SPDX-License-Identifier: Apache-2.0

//! Events are deleted a while after they were written last, so that they do not fill the memory.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use compact_str::CompactString;
use serde_json::Value;
use tokio::time::Instant;

use super::ApiServer;
use crate::gvr::Gvr;
use crate::kinds::Kind;
use crate::object;
use crate::tracker::Transaction;

/// Namespace and name of an event.
type Key = (CompactString, CompactString);

/// When each event expires.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    /// The events by deadline; the number distinguishes events of one moment.
    due: BTreeMap<(Instant, u64), Key>,
    deadlines: HashMap<Key, (Instant, u64)>,
    count: u64,
}

impl Expiry {
    /// Notes that an event was written.
    fn written(&mut self, key: Key, deadline: Instant) {
        self.count += 1;
        let at = (deadline, self.count);
        if let Some(before) = self.deadlines.insert(key.clone(), at) {
            self.due.remove(&before);
        }
        self.due.insert(at, key);
    }

    /// Takes an event whose time is up.
    fn next_due(&mut self, now: Instant) -> Option<Key> {
        let first = self.due.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        let key = first.remove();
        self.deadlines.remove(&key);
        Some(key)
    }
}

fn is_event(kind: &Kind) -> bool {
    kind.gvr.group.is_empty() && kind.gvr.resource == "events"
}

impl ApiServer {
    /// Notes that an event was written, and deletes those whose time is up.
    pub(super) fn note_event(&self, tx: &mut Transaction<'_>, kind: &Kind, object: &Value) {
        let Some(ttl) = self.0.event_ttl.filter(|_| is_event(kind)) else {
            return;
        };
        let key = (object::namespace(object).into(), object::name(object).into());
        let now = Instant::now();
        self.0.expiry.lock().written(key, now + ttl);
        self.expire_in(tx, kind, now);
    }

    fn expire_in(&self, tx: &mut Transaction<'_>, kind: &Kind, now: Instant) {
        let mut expiry = self.0.expiry.lock();
        while let Some((namespace, name)) = expiry.next_due(now) {
            tx.delete(self.domain(kind), kind, &namespace, &name);
        }
    }

    /// Deletes the events whose time is up. A server that listens does so by itself, and so does one that gets events.
    pub fn expire_events(&self) {
        let Ok(kind) = self.kind(&Gvr::new("", "v1", "events")) else {
            return;
        };
        let now = Instant::now();
        let is_due = self
            .0
            .expiry
            .lock()
            .due
            .keys()
            .next()
            .is_some_and(|(at, _)| *at <= now);
        if is_due {
            let _: Result<(), std::convert::Infallible> = self.tracker().write(|tx| {
                self.expire_in(tx, &kind, now);
                Ok(())
            });
        }
    }

    /// How often to look for events whose time is up; never if they are kept.
    pub fn expiry_interval(&self) -> Option<Duration> {
        /// Often enough for people who look.
        const LONGEST: Duration = Duration::from_secs(10);
        let ttl = self.0.event_ttl?;
        Some((ttl / 10).clamp(Duration::from_millis(10), LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_written_again_expires_later() {
        let (mut expiry, start) = (Expiry::default(), Instant::now());
        let key = |name: &str| (CompactString::from("shop"), CompactString::from(name));
        let after = |seconds| start + Duration::from_secs(seconds);
        for (name, deadline) in [("a", 1), ("b", 1), ("a", 3)] {
            expiry.written(key(name), after(deadline));
        }

        assert_eq!(expiry.next_due(after(0)), None);
        assert_eq!(expiry.next_due(after(2)), Some(key("b")));
        assert_eq!(expiry.next_due(after(2)), None);
        assert_eq!(expiry.next_due(after(3)), Some(key("a")));
        assert!(expiry.deadlines.is_empty() && expiry.due.is_empty());
    }
}
