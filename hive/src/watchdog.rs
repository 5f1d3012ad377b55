// SPDX-License-Identifier: Apache-2.0

//! Watches what runs on a thread: constructors, and hooks while they are polled.
//!
//! A function that blocks its thread keeps a runtime from reporting it, and a paused clock from reaching its deadline.
//! So this is a thread of its own with the clock of the system, which lives as long as a build, start or stop.

use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tracing::Dispatch;

use crate::plan::Graph;

/// How long after its deadline a constructor or start hook that blocks its thread ends a program.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Constructor,
    StartHook,
    StopHook,
}

impl What {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Constructor => "constructor",
            Self::StartHook => "start hook",
            Self::StopHook => "stop hook",
        }
    }
}

/// A function that occupies a thread.
#[derive(Clone)]
pub(crate) struct Busy {
    what: What,
    node: u32,
    hook: Option<(Arc<str>, &'static Location<'static>)>,
    /// When it began, before this poll.
    since: Instant,
    deadline: Option<Instant>,
    report: Instant,
    missed: bool,
    overdue: bool,
}

impl Busy {
    /// A constructor that begins now.
    pub(crate) fn constructor(node: u32, deadline: Option<Instant>, now: Instant) -> Self {
        Self {
            what: What::Constructor,
            node,
            hook: None,
            since: now,
            deadline,
            report: now,
            missed: false,
            overdue: false,
        }
    }

    /// A hook that began at `since` and is polled now.
    pub(crate) fn hook(
        what: What,
        node: u32,
        (name, place): (&Arc<str>, &'static Location<'static>),
        since: Instant,
        left: Duration,
        now: Instant,
    ) -> Self {
        Self {
            what,
            hook: Some((name.clone(), place)),
            since,
            ..Self::constructor(node, now.checked_add(left), now)
        }
    }

    /// When there is something to say about it.
    fn next(&self) -> Instant {
        match self.deadline {
            Some(deadline) if !self.missed => self.report.min(deadline),
            Some(deadline) if !self.overdue => self.report.min(deadline + GRACE),
            _ => self.report,
        }
    }
}

/// What the thread has to say.
enum Event {
    Still(Busy),
    Missed(Busy),
    Overdue,
}

/// The watchdog of a hive.
pub(crate) struct Watchdog {
    graph: Arc<Graph>,
    report_every: Duration,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// How a program ends itself.
    end: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Inner {
    next: u64,
    /// By id: few at a time, of which the newest ends first most of the time.
    busy: Vec<(u64, Busy)>,
    /// Builds, starts and stops under way.
    phases: usize,
    has_thread: bool,
    /// When the thread looks again.
    look: Option<Instant>,
}

impl Watchdog {
    pub(crate) fn new(graph: Arc<Graph>, report_every: Duration) -> Arc<Self> {
        Arc::new(Self {
            graph,
            report_every,
            inner: Mutex::default(),
            changed: Condvar::new(),
            end: OnceLock::new(),
        })
    }

    /// What to do when a constructor or start hook blocks its thread long after its deadline.
    #[cfg(feature = "run")]
    pub(crate) fn on_overdue(&self, end: impl Fn() + Send + Sync + 'static) {
        let _ = self.end.set(Box::new(end));
    }

    /// Watches until the guard is dropped.
    pub(crate) fn watch(self: &Arc<Self>) -> Watching<'_> {
        let mut inner = crate::lock(&self.inner);
        inner.phases += 1;
        if !inner.has_thread {
            let this = self.clone();
            // Subscribers of tests belong to a thread.
            let dispatch = tracing::dispatcher::get_default(Dispatch::clone);
            let spawned = std::thread::Builder::new()
                .name("hive-watchdog".into())
                .spawn(move || tracing::dispatcher::with_default(&dispatch, || this.run()));
            match spawned {
                Ok(_) => inner.has_thread = true,
                Err(error) => {
                    tracing::warn!(%error, "Cannot start watchdog thread, blocking hooks are not reported");
                }
            }
        }
        Watching(self)
    }

    /// Notes that a function occupies this thread from now until the guard is dropped.
    pub(crate) fn enter(&self, mut busy: Busy) -> Entered<'_> {
        let begun = busy.report;
        busy.report += self.report_every;
        let mut inner = crate::lock(&self.inner);
        let id = inner.next;
        inner.next += 1;
        self.look_in_time(&inner, &busy);
        inner.busy.push((id, busy));
        Entered {
            watchdog: self,
            id,
            begun,
        }
    }

    /// Wakes the thread if it would look after there is something to say about `busy`.
    fn look_in_time(&self, inner: &Inner, busy: &Busy) {
        if inner.look.is_some_and(|look| busy.next() < look) {
            self.changed.notify_all();
        }
    }

    /// What occupies a thread now, one line each.
    #[cfg(feature = "run")]
    pub(crate) fn busy(&self) -> Vec<String> {
        let busy = crate::lock(&self.inner).busy.clone();
        busy.iter()
            .map(|(_, busy)| {
                let (name, place) = self.name(busy);
                let age = busy.since.elapsed().as_millis() as u64;
                format!(
                    "{} `{name}` of module `{}` ({place}) blocks its thread for {}",
                    busy.what.name(),
                    self.graph.module_of(busy.node),
                    skep_duration::format_duration(Duration::from_millis(age))
                )
            })
            .collect()
    }

    fn name(&self, busy: &Busy) -> (String, String) {
        let (name, place) = match &busy.hook {
            Some((name, place)) => (name.to_string(), *place),
            None => (
                self.graph.name(busy.node),
                self.graph.nodes[busy.node as usize].function.place,
            ),
        };
        (name, format!("{}:{}", place.file(), place.line()))
    }

    fn run(&self) {
        let mut inner = crate::lock(&self.inner);
        while inner.phases > 0 {
            let now = Instant::now();
            let events = due(&mut inner, now, self.report_every);
            if events.is_empty() {
                let next = inner.busy.iter().map(|(_, busy)| busy.next()).min();
                // A function that begins later has something to say after this.
                let look = next
                    .unwrap_or(now + self.report_every)
                    .min(now + self.report_every);
                inner.look = Some(look);
                inner = match self.changed.wait_timeout(inner, look - now) {
                    Ok((inner, _)) => inner,
                    Err(poisoned) => poisoned.into_inner().0,
                };
                inner.look = None;
                continue;
            }
            drop(inner);
            for event in &events {
                self.report(event);
            }
            inner = crate::lock(&self.inner);
        }
        inner.has_thread = false;
    }

    fn report(&self, event: &Event) {
        let (busy, missed) = match event {
            Event::Still(busy) => (busy, false),
            Event::Missed(busy) => (busy, true),
            Event::Overdue => {
                if let Some(end) = self.end.get() {
                    end();
                }
                return;
            }
        };
        let (name, place) = self.name(busy);
        let (what, module) = (busy.what.name(), self.graph.module_of(busy.node));
        let age = busy.since.elapsed();
        if missed {
            tracing::error!(%module, name, place, ?age, "The {what} blocks its thread past its deadline");
        } else {
            let left = busy
                .deadline
                .map(|at| at.saturating_duration_since(Instant::now()));
            let left = left.unwrap_or(Duration::MAX);
            tracing::warn!(%module, name, place, ?age, ?left, "Still waiting for {what}, which blocks its thread");
        }
    }
}

/// What is due; notes that it is reported.
fn due(inner: &mut Inner, now: Instant, report_every: Duration) -> Vec<Event> {
    let mut events = Vec::new();
    for (_, busy) in inner.busy.iter_mut().filter(|(_, busy)| busy.next() <= now) {
        match busy.deadline {
            Some(deadline) if deadline <= now && !busy.missed => {
                busy.missed = true;
                events.push(Event::Missed(busy.clone()));
            }
            Some(deadline) if busy.missed && !busy.overdue && deadline + GRACE <= now => {
                busy.overdue = true;
                if busy.what != What::StopHook {
                    events.push(Event::Overdue);
                }
                continue;
            }
            _ => events.push(Event::Still(busy.clone())),
        }
        busy.report = now + report_every;
    }
    events
}

/// Keeps the watchdog awake.
pub(crate) struct Watching<'a>(&'a Watchdog);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let mut inner = crate::lock(&self.0.inner);
        inner.phases -= 1;
        if inner.phases == 0 {
            self.0.changed.notify_all();
        }
    }
}

/// A function that occupies a thread.
pub(crate) struct Entered<'a> {
    watchdog: &'a Watchdog,
    id: u64,
    begun: Instant,
}

impl Entered<'_> {
    /// Notes that this function has ended, and another one occupies the thread from now on.
    pub(crate) fn replace(&mut self, mut busy: Busy) {
        self.begun = busy.report;
        busy.report += self.watchdog.report_every;
        let mut inner = crate::lock(&self.watchdog.inner);
        self.watchdog.look_in_time(&inner, &busy);
        if let Some((_, before)) = inner.busy.iter_mut().rfind(|(id, _)| *id == self.id) {
            *before = busy;
        }
    }

    /// How long it has occupied the thread.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut inner = crate::lock(&self.watchdog.inner);
        if let Some(at) = inner.busy.iter().rposition(|(id, _)| *id == self.id) {
            inner.busy.swap_remove(at);
        }
    }
}
