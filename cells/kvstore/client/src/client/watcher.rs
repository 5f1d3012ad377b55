// SPDX-License-Identifier: Apache-2.0

//! Lists a prefix or a key, then watches it, whatever happens to the store.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use compact_str::CompactString;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use tokio::time::Instant;

use super::{Client, Pages};
use crate::backend::{BackendError, Change, KeyRange, WatchRequest, WatchStream};
use crate::backoff::backoff;
use crate::error::Error;
use crate::operation::Operation;
use crate::types::{Header, Key, KeyValue, Revision};

/// Pauses before a watch that ended is created again: from the first to the last, doubling.
const WATCH_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
const LIST_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(60));
/// The longest of them while nothing answers: that costs the store nothing, and it may be back at any time.
const UNREACHABLE_BACKOFF: Duration = Duration::from_secs(10);
/// From this attempt on a failing list is a warning.
const WARN_AFTER: u32 = 10;

/// What a [`Watcher`] yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A key that the watcher has not reported before, or has reported as deleted.
    Create(KeyValue),
    /// A key that the watcher has reported before. After the store could not be watched for a while, keys that have not
    /// changed are reported as well.
    Modify(KeyValue),
    Delete(Key),
    /// All keys that existed at first have been reported. Comes once in the life of a watcher.
    ListDone,
}

impl Event {
    fn action(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Modify(_) => "modify",
            Self::Delete(_) => "delete",
            Self::ListDone => "listDone",
        }
    }
}

/// What a [`RawWatcher`] yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawEvent {
    /// A list begins: all keys that exist are reported, then [`Listed`](Self::Listed). If it fails, another one begins.
    ListStarted,
    /// A key exists: of a list, or it was written.
    Put(KeyValue),
    /// A key was deleted. It may be one that was never reported.
    Delete(Key),
    /// Keys that were not reported since the list began do not exist.
    Listed,
}

impl RawEvent {
    fn action(&self) -> Option<&'static str> {
        match self {
            Self::ListStarted => None,
            Self::Put(_) => Some("modify"),
            Self::Delete(_) => Some("delete"),
            Self::Listed => Some("listDone"),
        }
    }
}

/// All changes of a prefix: its keys, [`Event::ListDone`], then what changes. Made by
/// [`Client::list_and_watch`], and for a single key by [`Client::watch_key`].
///
/// It never ends. If the store cannot be reached, or has compacted what was missed, it lists again and reports the
/// difference: what is new, what may have changed, what is gone. A consumer that is slow delays the watch; nothing is
/// queued. A wait for the next event may be dropped without losing any.
#[must_use = "a watcher does nothing unless it is polled"]
pub struct Watcher {
    events: BoxStream<'static, Event>,
    prefix: String,
}

impl Watcher {
    pub(super) fn new(client: Client, prefix: &str, range: KeyRange) -> Self {
        let differences = Differences {
            known: Known::new(prefix.to_owned()),
            machine: Machine::new(client, prefix.to_owned(), range),
            is_listed: false,
            queue: VecDeque::new(),
        };
        Self {
            events: stream::unfold(differences, |mut differences| async move {
                let event = differences.next().await;
                Some((event, differences))
            })
            .boxed(),
            prefix: prefix.to_owned(),
        }
    }

    /// The prefix or the key that is watched.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub async fn next(&mut self) -> Event {
        match self.events.next().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }
}

impl Stream for Watcher {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_next_unpin(cx)
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// As a [`Watcher`], but remembers no keys: for a consumer that knows them itself. Made by
/// [`Client::list_and_watch_raw`].
#[must_use = "a watcher does nothing unless it is polled"]
pub struct RawWatcher(BoxStream<'static, RawEvent>);

impl RawWatcher {
    pub(super) fn new(client: Client, prefix: &str, range: KeyRange) -> Self {
        let machine = Machine::new(client, prefix.to_owned(), range);
        let events = stream::unfold(machine, |mut machine| async move {
            machine.took();
            let event = machine.next().await;
            if let Some(action) = event.action() {
                machine.take(action);
            }
            Some((event, machine))
        });
        Self(events.boxed())
    }

    /// Waits for the next event. The wait may be dropped without losing any.
    pub async fn next(&mut self) -> RawEvent {
        match self.0.next().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }
}

impl fmt::Debug for RawWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawWatcher").finish_non_exhaustive()
    }
}

/// What a watcher reports, of what the store says and what was reported before.
struct Differences {
    machine: Machine,
    known: Known,
    is_listed: bool,
    /// Events after a list that have not been taken.
    queue: VecDeque<Event>,
}

impl Differences {
    async fn next(&mut self) -> Event {
        self.machine.took();
        let event = loop {
            if let Some(event) = self.queue.pop_front() {
                break event;
            }
            match self.machine.next().await {
                RawEvent::ListStarted => self.known.list = self.known.list.wrapping_add(1),
                RawEvent::Put(item) => break self.known.upsert(item),
                RawEvent::Delete(key) => {
                    if let Some(event) = self.known.delete(key) {
                        break event;
                    }
                }
                RawEvent::Listed => {
                    let stale = self.known.take_stale();
                    self.queue.extend(stale.into_iter().map(Event::Delete));
                    if !self.is_listed {
                        self.is_listed = true;
                        self.queue.push_back(Event::ListDone);
                    }
                }
            }
        };
        self.machine.take(event.action());
        event
    }
}

/// Keys that were reported, with the list that contained them last.
#[derive(Debug)]
struct Known {
    prefix: String,
    /// By what follows the prefix, which is mostly short enough to need no memory of its own.
    keys: HashMap<CompactString, u32>,
    list: u32,
}

impl Known {
    fn new(prefix: String) -> Self {
        Self {
            prefix,
            keys: HashMap::new(),
            list: 0,
        }
    }

    fn rest<'a>(&self, key: &'a str) -> &'a str {
        key.strip_prefix(&*self.prefix).unwrap_or(key)
    }

    fn upsert(&mut self, item: KeyValue) -> Event {
        let rest = self.rest(&item.key).into();
        match self.keys.insert(rest, self.list) {
            Some(_) => Event::Modify(item),
            None => Event::Create(item),
        }
    }

    fn delete(&mut self, key: Key) -> Option<Event> {
        let known = self.keys.remove(self.rest(&key));
        known.map(|_| Event::Delete(key))
    }

    /// Takes out what the present list does not contain, sorted.
    fn take_stale(&mut self) -> Vec<Key> {
        let (list, prefix) = (self.list, &self.prefix);
        let mut stale: Vec<Key> = Vec::new();
        self.keys.retain(|rest, seen| {
            let is_present = *seen == list;
            if !is_present {
                stale.push(format!("{prefix}{rest}").into());
            }
            is_present
        });
        stale.sort_unstable();
        stale
    }
}

enum Phase {
    Start,
    /// Between two pages of a list.
    Pages {
        pages: Pages,
        /// State of the store at the first page.
        header: Option<Header>,
    },
    Watch {
        header: Header,
        /// The first revision that has not been seen.
        next: Revision,
        stream: Option<WatchStream>,
    },
}

struct Machine {
    client: Client,
    prefix: String,
    range: KeyRange,
    phase: Phase,
    failures: u32,
    /// Events of a page or a response that have not been taken.
    queue: VecDeque<RawEvent>,
    /// The event that was taken last, and when.
    taken: Option<(&'static str, Instant)>,
}

impl Machine {
    fn new(client: Client, prefix: String, range: KeyRange) -> Self {
        Self {
            client,
            prefix,
            range,
            phase: Phase::Start,
            failures: 0,
            queue: VecDeque::new(),
            taken: None,
        }
    }

    fn take(&mut self, action: &'static str) {
        self.taken = Some((action, Instant::now()));
    }

    /// The consumer is done with the event that it has taken.
    fn took(&mut self) {
        if let Some((action, at)) = self.taken.take() {
            let recorder = &self.client.inner.options.recorder;
            recorder.event(&self.prefix, action, at.elapsed());
        }
    }

    async fn next(&mut self) -> RawEvent {
        if !self.client.is_enabled() {
            std::future::pending::<()>().await;
        }
        loop {
            if let Some(event) = self.queue.pop_front() {
                return event;
            }
            self.advance().await;
        }
    }

    async fn advance(&mut self) {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Start) {
            Phase::Start => match verify(self.client.clone()).await {
                Ok(()) => {
                    self.queue.push_back(RawEvent::ListStarted);
                    let pages = Pages::new(self.range.clone(), self.client.inner.options.page);
                    self.page(pages, None).await
                }
                Err(cause) => {
                    let error = self.client.error(Operation::List, &self.prefix, cause);
                    self.not_listed(error).await
                }
            },
            Phase::Pages { pages, header } => self.page(pages, header).await,
            Phase::Watch {
                header,
                next,
                stream: None,
            } => self.watch(header, next).await,
            Phase::Watch {
                header,
                next,
                stream: Some(stream),
            } => self.receive(header, next, stream).await,
        };
    }

    /// Reads a page of the list.
    async fn page(&mut self, mut pages: Pages, header: Option<Header>) -> Phase {
        let Some(request) = pages.request() else {
            return self.listed(header.unwrap_or_default());
        };
        // One token for the whole list. No place is held while the consumer looks at the page.
        let permit = match header {
            None => self.client.admit().await,
            Some(_) => self.client.inner.limit.place().await,
        };
        let started = Instant::now();
        let result = self
            .client
            .read(Operation::List, &self.prefix, None, request)
            .await;
        drop(permit);
        self.client
            .record(Operation::List, false, &self.prefix, result.is_ok(), started);
        match result {
            Ok(response) => {
                pages.advance(&response);
                self.client.inner.history.note_read(response.items.iter());
                self.queue.extend(response.items.into_iter().map(RawEvent::Put));
                Phase::Pages {
                    pages,
                    header: header.or(Some(response.header)),
                }
            }
            Err(error) => self.not_listed(error).await,
        }
    }

    async fn not_listed(&mut self, error: Error) -> Phase {
        self.failures += 1;
        let monitor = &self.client.inner.monitor;
        monitor.watched(&self.prefix, self.failures, error.backend());
        self.log_list(&error);
        let (first, last) = LIST_BACKOFF;
        let last = match error.backend() {
            Some(BackendError::Unavailable { .. }) => UNREACHABLE_BACKOFF,
            _ => last,
        };
        tokio::time::sleep(backoff(self.failures, (first, last))).await;
        Phase::Start
    }

    fn listed(&mut self, header: Header) -> Phase {
        self.failures = 0;
        self.client.inner.monitor.watched(&self.prefix, 0, None);
        self.queue.push_back(RawEvent::Listed);
        Phase::Watch {
            header,
            next: header.revision.next(),
            stream: None,
        }
    }

    async fn watch(&mut self, header: Header, next: Revision) -> Phase {
        // Right after the list it is the same.
        let verified = match self.failures {
            0 => Ok(()),
            _ => verify(self.client.clone()).await,
        };
        let started = match verified {
            Ok(()) => start(&self.client, &self.prefix, self.range.clone(), next).await,
            Err(error) => Err(error),
        };
        let monitor = &self.client.inner.monitor;
        monitor.watched(&self.prefix, self.failures, started.as_ref().err());
        match started {
            Ok(stream) => Phase::Watch {
                header,
                next,
                stream: Some(stream),
            },
            Err(error) => self.interrupted(header, next, Some(error)).await,
        }
    }

    /// Takes a response of the watch.
    async fn receive(&mut self, header: Header, mut next: Revision, mut stream: WatchStream) -> Phase {
        let response = match stream.next().await {
            Some(Ok(response)) => response,
            Some(Err(error)) => return self.interrupted(header, next, Some(error)).await,
            None => return self.interrupted(header, next, None).await,
        };
        if let Err(error) = continues(&header, &response.header, next) {
            return self.interrupted(header, next, Some(error)).await;
        }
        self.failures = 0;
        let puts = response.events.iter().filter_map(|change| match change {
            Change::Put(item) => Some(item),
            Change::Delete { .. } => None,
        });
        self.client.inner.history.note_read(puts);
        for change in response.events {
            next = next.max(change.revision().next());
            self.queue.push_back(match change {
                Change::Put(item) => RawEvent::Put(item),
                Change::Delete { key, .. } => RawEvent::Delete(key),
            });
        }
        Phase::Watch {
            header,
            next,
            stream: Some(stream),
        }
    }

    /// Goes on with the watch after a pause, or lists again if what was missed is not known.
    async fn interrupted(&mut self, header: Header, next: Revision, error: Option<BackendError>) -> Phase {
        self.failures += 1;
        let cause = error.as_ref().map(ToString::to_string).unwrap_or_default();
        let name = self.client.name();
        match error {
            Some(error) if is_lost(&error) => {
                tracing::info!(
                    client = name, prefix = self.prefix, error = %cause,
                    "Kvstore watch interrupted, relisting"
                );
                self.client.check_store(&error);
                tokio::time::sleep(backoff(self.failures, LIST_BACKOFF)).await;
                Phase::Start
            }
            _ => {
                tracing::debug!(
                    client = name, prefix = self.prefix, attempt = self.failures, error = %cause,
                    "Kvstore watch ended, resuming"
                );
                tokio::time::sleep(backoff(self.failures, WATCH_BACKOFF)).await;
                Phase::Watch {
                    header,
                    next,
                    stream: None,
                }
            }
        }
    }

    fn log_list(&self, error: &Error) {
        let cause = error.backend().map(BackendError::chain).unwrap_or_default();
        let (client, prefix, attempt) = (self.client.name(), &self.prefix, self.failures);
        if attempt >= WARN_AFTER {
            tracing::warn!(client, prefix, attempt, error = %cause, "Unable to list kvstore keys");
        } else {
            tracing::info!(client, prefix, attempt, error = %cause, "Unable to list kvstore keys");
        }
    }
}

/// Checks that the store is the one that was read before.
async fn verify(client: Client) -> Result<(), BackendError> {
    client.inner.history.verify_read(&*client.inner.backend).await
}

async fn start(
    client: &Client,
    prefix: &str,
    range: KeyRange,
    start: Revision,
) -> Result<WatchStream, BackendError> {
    let _permit = client.admit().await;
    let started = Instant::now();
    let result = client.inner.backend.watch(WatchRequest { range, start }).await;
    client.record(Operation::Watch, false, prefix, result.is_ok(), started);
    result
}

/// Whether a response is of the store that was listed, and not of one that was set up anew.
fn continues(listed: &Header, answer: &Header, next: Revision) -> Result<(), BackendError> {
    if listed.cluster_id != answer.cluster_id {
        return Err(BackendError::ClusterChanged {
            expected: listed.cluster_id,
            found: answer.cluster_id,
        });
    }
    if answer.revision.next() < next {
        return Err(BackendError::FutureRevision { requested: next });
    }
    Ok(())
}

/// Whether what was missed is not known after this error. Otherwise the watch goes on where it was.
fn is_lost(error: &BackendError) -> bool {
    matches!(
        error,
        BackendError::Compacted { .. }
            | BackendError::FutureRevision { .. }
            | BackendError::ClusterChanged { .. }
            | BackendError::Replaced { .. }
            | BackendError::NoHeader
            | BackendError::Denied { .. }
            | BackendError::Invalid { .. }
    )
}
