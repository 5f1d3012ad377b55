// SPDX-License-Identifier: Apache-2.0

//! Health: what every part of the program says about itself.

mod memory;

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use crate::module::ModulePath;

pub use memory::{HealthEntry, MemoryHealth};

/// How a component is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Not yet at work.
    Starting,
    /// Does what it should.
    Ok,
    /// Works badly or not at all, and tries to recover.
    Degraded,
    /// Ended on purpose.
    Stopped,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "Starting",
            Self::Ok => "OK",
            Self::Degraded => "Degraded",
            Self::Stopped => "Stopped",
        })
    }
}

/// Whose health it is: a module and a component inside.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HealthId {
    module: ModulePath,
    component: Arc<[Arc<str>]>,
}

impl HealthId {
    /// The id of a component of a module. No component stands for the module as a whole.
    #[must_use]
    pub fn new(module: ModulePath, component: impl IntoIterator<Item = impl Into<Arc<str>>>) -> Self {
        Self {
            module,
            component: component.into_iter().map(Into::into).collect(),
        }
    }

    /// The module.
    #[must_use]
    pub fn module(&self) -> &ModulePath {
        &self.module
    }

    /// Path of the component inside the module.
    #[must_use]
    pub fn component(&self) -> &[Arc<str>] {
        &self.component
    }

    /// Whether this is `other` or a component inside of it. Compares whole segments of one module: `job-10`
    /// is not inside of `job-1`.
    ///
    /// ```
    /// use hive::{HealthId, ModulePath};
    /// let module = ModulePath::root().child("agent");
    /// let job = HealthId::new(module.clone(), ["job-10"]);
    /// assert!(!job.is_inside(&HealthId::new(module, ["job-1"])));
    /// ```
    #[must_use]
    pub fn is_inside(&self, other: &Self) -> bool {
        self.module == other.module && self.component.starts_with(&other.component)
    }
}

impl fmt::Display for HealthId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.module.as_str())?;
        for (index, part) in self.component.iter().enumerate() {
            if index > 0 || !self.module.is_root() {
                f.write_str(".")?;
            }
            f.write_str(part)?;
        }
        Ok(())
    }
}

impl fmt::Debug for HealthId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One statement about a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthReport {
    /// How it is.
    pub level: Level,
    /// What it does, or what happened.
    pub message: String,
    /// The error of a degraded component, with its causes.
    pub error: Option<String>,
}

/// Where reports of health go. A cell that provides `Arc<dyn HealthSink>` receives those of the whole hive;
/// without one they are kept in a [`MemoryHealth`].
///
/// ```
/// use hive::{HealthId, HealthReport, HealthSink};
/// struct Printer;
/// impl HealthSink for Printer {
///     fn report(&self, id: &HealthId, report: HealthReport) { println!("{id}: {}", report.message); }
///     fn close(&self, id: &HealthId) { println!("{id} is gone"); }
/// }
/// # fn new_printer() -> std::sync::Arc<dyn HealthSink> { std::sync::Arc::new(Printer) }
/// # let _ = hive::Cell::module("printer", "Prints health").provide(new_printer);
/// ```
pub trait HealthSink: Send + Sync {
    /// Replaces the report of a component.
    fn report(&self, id: &HealthId, report: HealthReport);

    /// Removes the component and all inside of it.
    fn close(&self, id: &HealthId);
}

/// The sink of a hive, which may be constructed later than its first user.
#[derive(Default)]
pub(crate) struct HealthHub {
    sink: OnceLock<Arc<dyn HealthSink>>,
    early: Mutex<Vec<(HealthId, Option<HealthReport>)>>,
}

impl HealthHub {
    pub(crate) fn connect(&self, sink: Arc<dyn HealthSink>) {
        let mut early = crate::lock(&self.early);
        for (id, report) in early.drain(..) {
            match report {
                Some(report) => sink.report(&id, report),
                None => sink.close(&id),
            }
        }
        let _ = self.sink.set(sink);
    }

    fn send(&self, id: &HealthId, report: Option<HealthReport>) {
        if self.sink.get().is_none() {
            let mut early = crate::lock(&self.early);
            if self.sink.get().is_none() {
                early.push((id.clone(), report));
                return;
            }
        }
        match (self.sink.get(), report) {
            (Some(sink), Some(report)) => sink.report(id, report),
            (Some(sink), None) => sink.close(id),
            (None, _) => {}
        }
    }
}

impl HealthSink for HealthHub {
    fn report(&self, id: &HealthId, report: HealthReport) {
        self.send(id, Some(report));
    }

    fn close(&self, id: &HealthId) {
        self.send(id, None);
    }
}

/// Reports the health of a module or of a component of it. Constructors ask for the one of their module.
///
/// ```
/// use hive::{Health, Level, MemoryHealth, ModulePath};
/// use std::sync::Arc;
///
/// let memory = Arc::new(MemoryHealth::new());
/// let health = Health::new(memory.clone(), ModulePath::root().child("cache"));
///
/// let refill = health.scope("refill");
/// refill.ok("Filled");
/// assert_eq!(memory.get("cache.refill").unwrap().level, Level::Ok);
///
/// refill.degraded("No peer", &std::io::Error::other("refused"));
/// assert_eq!(memory.get("cache.refill").unwrap().error.as_deref(), Some("refused"));
///
/// health.close();
/// assert!(memory.get("cache.refill").is_none());
/// ```
#[derive(Clone)]
pub struct Health {
    sink: Arc<dyn HealthSink>,
    id: HealthId,
}

impl Health {
    /// Reports for `module` to `sink`; for tests of constructors.
    #[must_use]
    pub fn new(sink: Arc<dyn HealthSink>, module: ModulePath) -> Self {
        Self {
            sink,
            id: HealthId {
                module,
                component: Arc::default(),
            },
        }
    }

    /// The id under which this reports.
    #[must_use]
    pub fn id(&self) -> &HealthId {
        &self.id
    }

    /// It works.
    pub fn ok(&self, message: impl Into<String>) {
        self.report(Level::Ok, message.into(), None);
    }

    /// It is not yet at work.
    pub fn starting(&self, message: impl Into<String>) {
        self.report(Level::Starting, message.into(), None);
    }

    /// It works badly. The error is printed with its causes.
    pub fn degraded(&self, message: impl Into<String>, error: &(dyn Error + 'static)) {
        self.report(Level::Degraded, message.into(), Some(error_chain(error)));
    }

    /// It ended on purpose.
    pub fn stopped(&self, message: impl Into<String>) {
        self.report(Level::Stopped, message.into(), None);
    }

    /// A component inside of this one. It stays reported until closed.
    #[must_use]
    pub fn scope(&self, name: impl Into<Arc<str>>) -> Self {
        let component = self.id.component.iter().cloned().chain([name.into()]).collect();
        Self {
            sink: self.sink.clone(),
            id: HealthId {
                module: self.id.module.clone(),
                component,
            },
        }
    }

    /// A component that is closed when the guard is dropped.
    ///
    /// ```
    /// # use hive::{Health, MemoryHealth, ModulePath};
    /// # let memory = std::sync::Arc::new(MemoryHealth::new());
    /// # let health = Health::new(memory.clone(), ModulePath::root().child("server"));
    /// let connection = health.guard("connection-1");
    /// connection.ok("Open");
    /// drop(connection);
    /// assert!(memory.get("server.connection-1").is_none());
    /// ```
    #[must_use]
    pub fn guard(&self, name: impl Into<Arc<str>>) -> HealthGuard {
        HealthGuard(self.scope(name))
    }

    /// Removes this component and all inside of it.
    pub fn close(&self) {
        self.sink.close(&self.id);
    }

    fn report(&self, level: Level, message: String, error: Option<String>) {
        self.sink.report(
            &self.id,
            HealthReport {
                level,
                message,
                error,
            },
        );
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Health({})", self.id)
    }
}

/// A component of [`Health`] that is closed when this is dropped. See [`Health::guard`].
#[derive(Debug)]
pub struct HealthGuard(Health);

impl std::ops::Deref for HealthGuard {
    type Target = Health;

    fn deref(&self) -> &Health {
        &self.0
    }
}

impl Drop for HealthGuard {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// An error and its causes, joined by colons. A cause that ends the text before it is not repeated.
///
/// ```
/// let error = std::io::Error::other("disk full");
/// assert_eq!(hive::error_chain(&error), "disk full");
/// ```
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = error.source();
    }
    text
}
