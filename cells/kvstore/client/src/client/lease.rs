// SPDX-License-Identifier: Apache-2.0

//! Which keys are attached to which lease, and when leases are renewed.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::backend::{BackendError, Grant};
use crate::types::{Key, LeaseId};

/// Pause before a renewal that failed is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// The leases of one time to live.
#[derive(Debug)]
pub(crate) struct LeaseManager {
    ttl: Duration,
    capacity: usize,
    state: Mutex<State>,
    /// Held while a lease is granted, so that many writers do not acquire one each.
    granting: tokio::sync::Mutex<()>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<LeaseId, Session>,
    keys: HashMap<Key, LeaseId>,
    observers: Vec<Observer>,
}

/// A lease that is kept alive.
#[derive(Debug)]
struct Session {
    keys: usize,
    ttl: Duration,
    renew: Instant,
    expires: Instant,
}

#[derive(Debug)]
struct Observer {
    prefix: String,
    sender: mpsc::UnboundedSender<Vec<Key>>,
}

/// The lease to write a key with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) lease: LeaseId,
    /// Whether the key was attached by this call.
    pub(crate) is_new: bool,
}

/// Reports keys whose lease has ended.
#[derive(Debug)]
pub struct LostKeys {
    receiver: mpsc::UnboundedReceiver<Vec<Key>>,
}

impl LostKeys {
    /// The keys of the next lease that ended. May be dropped while it waits without losing any.
    pub async fn next(&mut self) -> Vec<Key> {
        match self.receiver.recv().await {
            Some(keys) => keys,
            // The client is gone: nothing is lost any more.
            None => std::future::pending().await,
        }
    }
}

impl LeaseManager {
    pub(crate) fn new(ttl: Duration, capacity: usize) -> Self {
        Self {
            ttl,
            capacity: capacity.max(1),
            state: Mutex::default(),
            granting: tokio::sync::Mutex::default(),
            changed: Notify::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.state.lock().sessions.len()
    }

    /// The lease that a key is attached to.
    pub(crate) fn lease_of(&self, key: &str) -> Option<LeaseId> {
        self.state.lock().keys.get(key).copied()
    }

    /// Returns the lease of a key: the one it has, one with a free slot, or a new one.
    pub(crate) async fn attach<F, Fut>(&self, key: &Key, grant: F) -> Result<Slot, BackendError>
    where
        F: FnOnce(Duration) -> Fut,
        Fut: Future<Output = Result<Grant, BackendError>>,
    {
        if let Some(slot) = self.state.lock().attach(key, self.capacity) {
            return Ok(slot);
        }
        let _granting = self.granting.lock().await;
        if let Some(slot) = self.state.lock().attach(key, self.capacity) {
            return Ok(slot);
        }
        let asked = Instant::now();
        let granted = grant(self.ttl).await?;
        let mut state = self.state.lock();
        state
            .sessions
            .insert(granted.id, Session::new(asked, granted.ttl));
        state.insert(key, granted.id);
        drop(state);
        self.changed.notify_one();
        Ok(Slot {
            lease: granted.id,
            is_new: true,
        })
    }

    /// Makes sure that there is a lease.
    pub(crate) async fn ensure<F, Fut>(&self, grant: F) -> Result<(), BackendError>
    where
        F: FnOnce(Duration) -> Fut,
        Fut: Future<Output = Result<Grant, BackendError>>,
    {
        let _granting = self.granting.lock().await;
        if self.count() > 0 {
            return Ok(());
        }
        let asked = Instant::now();
        let granted = grant(self.ttl).await?;
        self.state
            .lock()
            .sessions
            .insert(granted.id, Session::new(asked, granted.ttl));
        self.changed.notify_one();
        Ok(())
    }

    /// Keeps a lease alive that a former program acquired, with the keys that it wrote. `asked` is when it was renewed.
    pub(crate) fn adopt(&self, lease: LeaseId, asked: Instant, ttl: Duration, keys: &[Key]) {
        let mut state = self.state.lock();
        state
            .sessions
            .entry(lease)
            .or_insert_with(|| Session::new(asked, ttl));
        for key in keys {
            state.release(key);
            state.insert(key, lease);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Frees the slot of a key. The lease stays for others.
    pub(crate) fn release(&self, key: &str) {
        self.state.lock().release(key);
    }

    /// Frees the slots of all keys below a prefix.
    pub(crate) fn release_prefix(&self, prefix: &str) {
        let mut state = self.state.lock();
        let keys: Vec<Key> = state
            .keys
            .keys()
            .filter(|key| key.starts_with(prefix))
            .cloned()
            .collect();
        for key in keys {
            state.release(&key);
        }
    }

    /// Forgets a lease that has ended, and reports its keys; except those that are being written again.
    pub(crate) fn lost(&self, lease: LeaseId, except: &[&str]) {
        let mut state = self.state.lock();
        if state.sessions.remove(&lease).is_none() {
            return;
        }
        let mut lost: Vec<Key> = Vec::new();
        state.keys.retain(|key, attached| {
            let stays = *attached != lease;
            if !stays && !except.contains(&&**key) {
                lost.push(key.clone());
            }
            stays
        });
        lost.sort_unstable();
        state.observers.retain(|observer| {
            let keys: Vec<Key> = lost
                .iter()
                .filter(|key| key.starts_with(&observer.prefix))
                .cloned()
                .collect();
            if keys.is_empty() {
                !observer.sender.is_closed()
            } else {
                observer.sender.send(keys).is_ok()
            }
        });
    }

    /// Reports lost keys below a prefix from now on.
    pub(crate) fn observe(&self, prefix: &str) -> LostKeys {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.state.lock().observers.push(Observer {
            prefix: prefix.to_owned(),
            sender,
        });
        LostKeys { receiver }
    }

    /// Takes out the leases that are to be renewed now, and ends those that were not renewed in time. Whoever takes one
    /// reports how it went by [`renewed`](Self::renewed) or [`not_renewed`](Self::not_renewed).
    pub(crate) fn due(&self, now: Instant) -> Vec<LeaseId> {
        let (expired, due) = {
            let mut state = self.state.lock();
            let mut expired = Vec::new();
            let mut due = Vec::new();
            for (id, session) in &mut state.sessions {
                if session.expires <= now {
                    expired.push(*id);
                } else if session.renew <= now {
                    // Not again until the outcome is known.
                    session.renew = session.expires;
                    due.push(*id);
                }
            }
            (expired, due)
        };
        for lease in expired {
            tracing::warn!(%lease, "Lease was not renewed in time");
            self.lost(lease, &[]);
        }
        due
    }

    /// Waits until [`due`](Self::due) should be called.
    pub(crate) async fn wait_due(&self) {
        loop {
            let changed = self.changed.notified();
            let next = self
                .state
                .lock()
                .sessions
                .values()
                .map(|session| session.renew.min(session.expires))
                .min();
            match next {
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => return,
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }

    /// A lease that was asked to be renewed at `asked` lives for `ttl` from then on.
    pub(crate) fn renewed(&self, lease: LeaseId, asked: Instant, ttl: Duration) {
        if let Some(session) = self.state.lock().sessions.get_mut(&lease) {
            *session = Session {
                keys: session.keys,
                ..Session::new(asked, ttl)
            };
        }
        self.changed.notify_one();
    }

    /// A lease could not be renewed; tried again soon, as long as it lives.
    pub(crate) fn not_renewed(&self, lease: LeaseId, now: Instant) {
        if let Some(session) = self.state.lock().sessions.get_mut(&lease) {
            let pause = RETRY.max(session.ttl / 100);
            session.renew = (now + pause).min(session.expires);
        }
        self.changed.notify_one();
    }

    /// How long a renewal may take.
    pub(crate) fn patience(&self, lease: LeaseId, now: Instant) -> Duration {
        self.state.lock().sessions.get(&lease).map_or(RETRY, |session| {
            (session.ttl / 3).min(session.expires.saturating_duration_since(now))
        })
    }

    pub(crate) fn all(&self) -> Vec<LeaseId> {
        self.state.lock().sessions.keys().copied().collect()
    }
}

impl Session {
    fn new(asked: Instant, ttl: Duration) -> Self {
        Self {
            keys: 0,
            ttl,
            renew: asked + ttl / 3,
            expires: asked + ttl,
        }
    }
}

impl State {
    fn attach(&mut self, key: &Key, capacity: usize) -> Option<Slot> {
        if let Some(lease) = self.keys.get(key) {
            return Some(Slot {
                lease: *lease,
                is_new: false,
            });
        }
        let free = self
            .sessions
            .iter()
            .filter(|(_, session)| session.keys < capacity)
            .map(|(id, _)| *id)
            .min()?;
        self.insert(key, free);
        Some(Slot {
            lease: free,
            is_new: true,
        })
    }

    fn insert(&mut self, key: &Key, lease: LeaseId) {
        self.keys.insert(key.clone(), lease);
        if let Some(session) = self.sessions.get_mut(&lease) {
            session.keys += 1;
        }
    }

    fn release(&mut self, key: &str) {
        if let Some(lease) = self.keys.remove(key)
            && let Some(session) = self.sessions.get_mut(&lease)
        {
            session.keys = session.keys.saturating_sub(1);
        }
    }
}
