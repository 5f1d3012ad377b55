// SPDX-License-Identifier: Apache-2.0

//! Watches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::options::{ListOptions, VersionMatch};
use super::{ApiServer, present};
use crate::error::{ApiError, Fault};
use crate::gvr::Gvr;
use crate::history::{Cursor, Event, EventKind};
use crate::kinds::Kind;
use crate::object;
use crate::selector::{FieldSelector, LabelSelector};
use crate::tracker::Tracker;

/// Type of an event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchKind {
    /// The object is there (now).
    Added,
    /// The object changed.
    Modified,
    /// The object is gone; its last state.
    Deleted,
    /// Only the resource version is news.
    Bookmark,
    /// The watch failed and ends; the object is a `Status`.
    Error,
}

impl WatchKind {
    /// Its name in the events of the API.
    pub fn name(self) -> &'static str {
        match self {
            WatchKind::Added => "ADDED",
            WatchKind::Modified => "MODIFIED",
            WatchKind::Deleted => "DELETED",
            WatchKind::Bookmark => "BOOKMARK",
            WatchKind::Error => "ERROR",
        }
    }
}

/// An event of a watch.
#[derive(Clone, Debug)]
pub struct WatchEvent {
    /// Its type.
    pub kind: WatchKind,
    /// The object it is about.
    pub object: Arc<Value>,
}

/// An open watch.
pub struct Watch {
    kind: Arc<Kind>,
    namespace: Option<String>,
    labels: LabelSelector,
    fields: FieldSelector,
    pending: VecDeque<WatchEvent>,
    cursor: Option<Cursor>,
    bookmarks: Option<Duration>,
    next_bookmark: Instant,
    deadline: Option<Instant>,
    tracker: Tracker,
    at: u64,
}

impl ApiServer {
    /// Follows the objects of a namespace, or of all.
    pub fn watch(
        &self,
        gvr: &Gvr,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<Watch, ApiError> {
        let kind = self.kind(gvr)?;
        options.fields.check(&kind)?;
        check_watch(options)?;
        let domain = self.domain(&kind);
        let stored = kind.stored();
        self.tracker().note(domain, &stored);
        let log = self.tracker().log(domain, &stored);
        let every = self.settings().bookmark_every.max(Duration::from_millis(10));
        let mut watch = Watch {
            namespace: namespace.map(str::to_owned),
            labels: options.labels.clone(),
            fields: options.fields.clone(),
            pending: VecDeque::new(),
            cursor: None,
            bookmarks: options.bookmarks.then_some(every),
            next_bookmark: Instant::now() + every,
            tracker: self.tracker().clone(),
            deadline: options
                .timeout
                .and_then(|timeout| Instant::now().checked_add(timeout)),
            at: 0,
            kind,
        };
        let current = self.tracker().revision();
        let asked = options.resource_version;
        if let Some(asked) = asked.filter(|asked| *asked > current) {
            watch.fail(&ApiError::revision_too_large(asked, current));
            return Ok(watch);
        }
        let from_scratch = asked.is_none_or(|asked| asked == 0);
        let initial = options.send_initial_events || (from_scratch && options.version_match.is_none());
        if initial {
            let (objects, revision) = self.tracker().list(domain, &stored, namespace);
            watch.at = revision;
            // Changes that come in between are after `revision` and follow.
            watch.cursor = Some(log.follow_from_now(revision));
            for object in objects {
                if watch.selects(&object) {
                    let object = present(&watch.kind, object);
                    watch.pending.push_back(WatchEvent {
                        kind: WatchKind::Added,
                        object,
                    });
                }
            }
            if options.send_initial_events && options.bookmarks {
                let bookmark = watch.bookmark(true);
                watch.pending.push_back(bookmark);
            }
            return Ok(watch);
        }
        let from = asked.filter(|asked| *asked > 0).unwrap_or(current);
        watch.at = from;
        match log.follow(from) {
            Ok(cursor) => watch.cursor = Some(cursor),
            Err(gone) => watch.fail(&too_old(from, gone.compacted)),
        }
        Ok(watch)
    }
}

fn check_watch(options: &ListOptions) -> Result<(), ApiError> {
    let fault = |field: &str, detail: &str| {
        Err(ApiError::invalid(
            "meta.k8s.io",
            "ListOptions",
            "",
            &[Fault::forbidden(field, detail)],
        ))
    };
    if !options.continue_token.is_empty() {
        return fault("continue", "continue is forbidden for watch");
    }
    if options.version_match.is_some() && !options.send_initial_events {
        return fault(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        );
    }
    if options.send_initial_events && options.version_match != Some(VersionMatch::NotOlderThan) {
        return fault(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
    }
    Ok(())
}

fn too_old(asked: u64, compacted: u64) -> ApiError {
    ApiError::expired(format!("too old resource version: {asked} ({compacted})"))
}

impl Watch {
    /// The kind of the objects.
    pub fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    /// The next event; `None` when the watch is over.
    pub async fn next(&mut self) -> Option<WatchEvent> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some(event);
            }
            let cursor = self.cursor.as_mut()?;
            // Read before the log, so that nothing up to it can be missing there.
            let published = self.tracker.published();
            match cursor.poll() {
                Ok(Some(event)) => {
                    self.at = cursor.after();
                    if let Some(event) = self.translate(event) {
                        return Some(event);
                    }
                    continue;
                }
                Ok(None) => self.at = self.at.max(published),
                Err(gone) => {
                    let at = self.at;
                    self.fail(&too_old(at, gone.compacted));
                    continue;
                }
            }
            let bookmark_due = async {
                match self.bookmarks {
                    Some(_) => tokio::time::sleep_until(self.next_bookmark).await,
                    None => std::future::pending().await,
                }
            };
            let deadline = async {
                match self.deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = cursor.changed() => {}
                () = deadline => {
                    self.cursor = None;
                    return self.bookmarks.is_some().then(|| self.bookmark(false));
                }
                () = bookmark_due => {
                    self.next_bookmark = Instant::now() + self.bookmarks.unwrap_or_default();
                    return Some(self.bookmark(false));
                }
            }
        }
    }

    fn selects(&self, object: &Value) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|n| object::namespace(object) == n)
            && self.labels.matches(object)
            && self.fields.matches(object)
    }

    /// The event as this watch sees it: objects that start or cease to be selected appear and disappear.
    fn translate(&self, event: Event) -> Option<WatchEvent> {
        let before = event.previous.as_ref().is_some_and(|o| self.selects(o));
        let after = event.kind != EventKind::Deleted && self.selects(&event.object);
        let (kind, object) = match (before, after) {
            (false, false) => return None,
            (false, true) => (WatchKind::Added, event.object),
            (true, true) => (WatchKind::Modified, event.object),
            (true, false) if event.kind == EventKind::Deleted => (WatchKind::Deleted, event.object),
            (true, false) => {
                // The last state that was selected, with the version of the change.
                let mut last = (*event.previous?).clone();
                object::set_metadata(&mut last, "resourceVersion", &event.revision.to_string());
                (WatchKind::Deleted, Arc::new(last))
            }
        };
        Some(WatchEvent {
            kind,
            object: present(&self.kind, object),
        })
    }

    fn bookmark(&self, initial_end: bool) -> WatchEvent {
        let mut metadata = json!({ "resourceVersion": self.at.to_string(), "creationTimestamp": null });
        if initial_end {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let object = json!({
            "kind": self.kind.kind.as_str(),
            "apiVersion": self.kind.api_version(),
            "metadata": metadata,
        });
        WatchEvent {
            kind: WatchKind::Bookmark,
            object: Arc::new(object),
        }
    }

    fn fail(&mut self, error: &ApiError) {
        self.cursor = None;
        self.pending.push_back(WatchEvent {
            kind: WatchKind::Error,
            object: Arc::new(error.status()),
        });
    }
}
