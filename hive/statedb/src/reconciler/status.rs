// SPDX-License-Identifier: Apache-2.0

//! The status of an object, which its reconciler writes into the object.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeMap};

/// Progress of the reconciliation of an object.
///
/// ```
/// use statedb::reconciler::StatusKind;
///
/// assert_eq!(StatusKind::Done.to_string(), "Done");
/// assert_eq!(StatusKind::default().as_str(), "");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
pub enum StatusKind {
    /// The reconciler ignores the object.
    #[default]
    #[serde(rename = "")]
    Unset,
    /// Desired, not applied yet.
    Pending,
    /// Applied before, and due to be applied again to repair changes by others.
    Refreshing,
    /// Applied.
    Done,
    /// Applying failed; it is retried.
    Error,
}

impl StatusKind {
    /// Returns the text shown: empty for [`StatusKind::Unset`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unset => "",
            Self::Pending => "Pending",
            Self::Refreshing => "Refreshing",
            Self::Done => "Done",
            Self::Error => "Error",
        }
    }
}

impl fmt::Display for StatusKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<'de> Deserialize<'de> for StatusKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let kinds = [
            Self::Unset,
            Self::Pending,
            Self::Refreshing,
            Self::Done,
            Self::Error,
        ];
        let found = kinds
            .into_iter()
            .find(|kind| kind.as_str().eq_ignore_ascii_case(&text));
        found.ok_or_else(|| serde::de::Error::custom(format!("unknown status kind `{text}`")))
    }
}

/// Status of one object with one reconciler.
///
/// Writers set [`Status::pending`] whenever they insert or change an object. Its id names that version of the
/// desired state and stays with the outcome, so that a reconciler recognises whether an object that changed meanwhile
/// still stands for what it applied.
///
/// ```
/// use statedb::reconciler::{Status, StatusKind};
///
/// let pending = Status::pending();
/// assert!(pending.is_due());
/// let failed = pending.clone().into_error(pending.updated_at, "no route");
/// assert_eq!((failed.kind, failed.id, failed.error_text()), (StatusKind::Error, pending.id, "no route"));
/// assert!(failed.to_string().starts_with("Error: no route ("));
/// assert!(Status::refreshing_at(failed.updated_at).is_due());
/// assert_eq!(Status::default().kind, StatusKind::Unset);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Progress.
    pub kind: StatusKind,
    /// Version of the desired state.
    pub id: u64,
    /// When the status was set; the first moment of the year 1 if it never was.
    #[serde(rename = "updated-at")]
    pub updated_at: Timestamp,
    /// Why applying failed.
    #[serde(deserialize_with = "empty_is_none")]
    pub error: Option<Arc<str>>,
}

/// The time that Go programs take for none.
const NEVER: Timestamp = Timestamp::constant(-62_135_596_800, 0);

impl Default for Status {
    fn default() -> Self {
        Self {
            kind: StatusKind::Unset,
            id: 0,
            updated_at: NEVER,
            error: None,
        }
    }
}

fn empty_is_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<str>>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()).map(Arc::from))
}

fn fresh_id() -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(1);
    IDS.fetch_add(1, Ordering::Relaxed)
}

impl Status {
    /// Pending, as a new version of the desired state.
    pub fn pending() -> Self {
        Self::pending_at(Timestamp::now())
    }

    /// [`Status::pending`] with a time.
    pub fn pending_at(updated_at: Timestamp) -> Self {
        Self {
            kind: StatusKind::Pending,
            id: fresh_id(),
            updated_at,
            error: None,
        }
    }

    /// Due to be applied again.
    pub fn refreshing_at(updated_at: Timestamp) -> Self {
        Self {
            kind: StatusKind::Refreshing,
            id: fresh_id(),
            updated_at,
            error: None,
        }
    }

    /// Applied.
    pub fn done() -> Self {
        Self {
            kind: StatusKind::Done,
            id: fresh_id(),
            updated_at: Timestamp::now(),
            error: None,
        }
    }

    /// This version applied.
    pub fn into_done(self, updated_at: Timestamp) -> Self {
        Self {
            kind: StatusKind::Done,
            id: self.id,
            updated_at,
            error: None,
        }
    }

    /// This version failed to apply.
    pub fn into_error(self, updated_at: Timestamp, error: impl Into<Arc<str>>) -> Self {
        Self {
            kind: StatusKind::Error,
            id: self.id,
            updated_at,
            error: Some(error.into()),
        }
    }

    /// Returns whether the reconciler must handle it: pending or refreshing.
    pub fn is_due(&self) -> bool {
        matches!(self.kind, StatusKind::Pending | StatusKind::Refreshing)
    }

    /// Text of the error, empty if there is none.
    pub fn error_text(&self) -> &str {
        self.error.as_deref().unwrap_or_default()
    }

    fn age(&self) -> String {
        let age = Timestamp::now().duration_since(self.updated_at);
        short_age(age.as_secs_f64().max(0.0))
    }
}

/// Returns an age as `12.3ms`, `1.2s`, `3.4m` or `5.6h`.
fn short_age(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1}us", s * 1e6),
        s if s < 1.0 => format!("{:.1}ms", s * 1e3),
        s if s < 60.0 => format!("{s:.1}s"),
        s if s < 3600.0 => format!("{:.1}m", s / 60.0),
        s => format!("{:.1}h", s / 3600.0),
    }
}

/// The long text: `Done (1.2s ago)`, `Error: no such device (3.4s ago)`; empty if unset.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, &self.error) {
            (StatusKind::Unset, _) => Ok(()),
            (StatusKind::Error, Some(error)) => write!(f, "Error: {error} ({} ago)", self.age()),
            (kind, _) => write!(f, "{kind} ({} ago)", self.age()),
        }
    }
}

/// Fields in the order `updated-at`, `error` (left out when empty), `id`, `kind`.
impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("updated-at", &self.updated_at)?;
        if let Some(error) = &self.error {
            map.serialize_entry("error", &**error)?;
        }
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("kind", &self.kind)?;
        map.end()
    }
}

/// Statuses of one object with several reconcilers, by name. Cloning is cheap.
///
/// A reconciler that is not in the set sees the object as pending since the last [`StatusSet::pending`].
///
/// ```
/// use statedb::reconciler::{Status, StatusKind, StatusSet};
///
/// let set = StatusSet::new().with("kernel", Status::done());
/// assert_eq!((set.get("kernel").kind, set.get("other").kind), (StatusKind::Done, StatusKind::Pending));
/// assert_eq!(set.iter().count(), 1);
/// assert_eq!(set.pending().get("kernel").kind, StatusKind::Pending);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatusSet {
    since: Status,
    named: Arc<Vec<(Arc<str>, Status)>>,
}

impl StatusSet {
    /// Pending for all reconcilers, as a new version.
    pub fn new() -> Self {
        Self {
            since: Status::pending(),
            named: Arc::default(),
        }
    }

    /// A new version, pending for all reconcilers.
    pub fn pending(&self) -> Self {
        let since = Status::pending();
        let named = self
            .named
            .iter()
            .map(|(name, _)| (Arc::clone(name), since.clone()))
            .collect();
        Self {
            since,
            named: Arc::new(named),
        }
    }

    /// Returns the status with the reconciler called `name`.
    pub fn get(&self, name: &str) -> Status {
        let found = self.named.iter().find(|(other, _)| &**other == name);
        found.map_or_else(|| self.since.clone(), |(_, status)| status.clone())
    }

    /// The set with one status replaced.
    #[must_use]
    pub fn with(&self, name: &str, status: Status) -> Self {
        let mut named = Vec::clone(&self.named);
        match named.iter_mut().find(|(other, _)| &**other == name) {
            Some((_, old)) => *old = status,
            None => {
                named.push((name.into(), status));
                named.sort_by(|(a, _), (b, _)| a.cmp(b));
            }
        }
        Self {
            since: self.since.clone(),
            named: Arc::new(named),
        }
    }

    /// Returns all named statuses, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Status)> {
        self.named.iter().map(|(name, status)| (&**name, status))
    }
}

/// One text per kind: `Errored: a (no route), Pending: b c, Done: d (1.2s ago)`.
impl fmt::Display for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.named.is_empty() {
            return write!(f, "{}", self.since);
        }
        let mut parts: Vec<String> = Vec::new();
        let of = |kind| self.iter().filter(move |(_, status)| status.kind == kind);
        let errors: Vec<String> = of(StatusKind::Error)
            .map(|(name, status)| format!("{name} ({})", status.error_text()))
            .collect();
        if !errors.is_empty() {
            parts.push(format!("Errored: {}", errors.join(" ")));
        }
        for (kind, title) in [
            (StatusKind::Pending, "Pending"),
            (StatusKind::Refreshing, "Refreshing"),
            (StatusKind::Done, "Done"),
        ] {
            let names: Vec<&str> = of(kind).map(|(name, _)| name).collect();
            if !names.is_empty() {
                parts.push(format!("{title}: {}", names.join(" ")));
            }
        }
        let newest = self
            .iter()
            .map(|(_, status)| status)
            .max_by_key(|status| status.updated_at);
        write!(
            f,
            "{} ({} ago)",
            parts.join(", "),
            newest.unwrap_or(&self.since).age()
        )
    }
}

impl Serialize for StatusSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_written_in_the_fixed_order() {
        let status = Status::pending_at(Timestamp::UNIX_EPOCH).into_error(Timestamp::UNIX_EPOCH, "no route");
        let json = serde_json::to_string(&status).unwrap();
        let want = format!(
            r#"{{"updated-at":"1970-01-01T00:00:00Z","error":"no route","id":{},"kind":"Error"}}"#,
            status.id
        );
        assert_eq!(json, want);

        assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
        assert_eq!(serde_json::from_str::<Status>("{}").unwrap(), Status::default());
        let unset = serde_json::to_string(&Status::default()).unwrap();
        assert_eq!(unset, r#"{"updated-at":"0001-01-01T00:00:00Z","id":0,"kind":""}"#);
        let done = serde_json::to_string(&status.into_done(Timestamp::UNIX_EPOCH)).unwrap();
        assert!(!done.contains("error"));
    }

    #[test]
    fn long_text_has_kind_error_and_age() {
        let now = Timestamp::now();
        let status = Status::pending_at(now - std::time::Duration::from_secs(90));
        assert!(status.to_string().starts_with("Pending (1.5m ago"), "{status}");
        assert!(
            status
                .into_error(now, "broken")
                .to_string()
                .starts_with("Error: broken (")
        );
        assert_eq!(Status::default().to_string(), "");
    }

    #[test]
    fn a_set_is_pending_for_unknown_reconcilers() {
        let set = StatusSet::new();
        let first = set.get("a");
        assert_eq!(first.kind, StatusKind::Pending);
        assert_eq!(set.get("b").id, first.id);

        let set = set.with("a", first.clone().into_done(Timestamp::now()));
        assert_eq!(
            (set.get("a").kind, set.get("b").kind),
            (StatusKind::Done, StatusKind::Pending)
        );
        assert!(set.to_string().starts_with("Done: a ("));

        let next = set.pending();
        assert_eq!(next.get("a").kind, StatusKind::Pending);
        assert_ne!(next.get("a").id, first.id);
    }
}
