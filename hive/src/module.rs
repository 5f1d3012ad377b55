// SPDX-License-Identifier: Apache-2.0

//! Names of modules: the key of health, logs and metrics.

use std::fmt;
use std::sync::Arc;

/// Path of a module from the root of the hive, printed dotted: `agent.service-cache`.
///
/// Constructors get the path of the module they stand in. The root has the empty path.
///
/// ```
/// use hive::ModulePath;
/// let path = ModulePath::root().child("agent").child("health");
/// assert_eq!(path.to_string(), "agent.health");
/// assert_eq!(path.segments().collect::<Vec<_>>(), ["agent", "health"]);
/// assert_eq!(path.id(), "health");
/// assert!(path.starts_with(&ModulePath::root().child("agent")));
/// assert!(!path.starts_with(&ModulePath::root().child("age")));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModulePath(Arc<str>);

impl ModulePath {
    /// The empty path: what stands outside of all modules.
    #[must_use]
    pub fn root() -> Self {
        Self(Arc::default())
    }

    /// The path of a module `id` inside this one.
    #[must_use]
    pub fn child(&self, id: &str) -> Self {
        if self.0.is_empty() {
            Self(Arc::from(id))
        } else {
            Self(Arc::from([&*self.0, ".", id].concat()))
        }
    }

    /// The dotted text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last segment: the module's own id. Empty at the root.
    #[must_use]
    pub fn id(&self) -> &str {
        self.0.rsplit('.').next().unwrap_or_default()
    }

    /// Whether this is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The ids from the root to this module.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split('.').filter(|segment| !segment.is_empty())
    }

    /// Whether `other` is this module or one around it. Compares whole segments.
    #[must_use]
    pub fn starts_with(&self, other: &Self) -> bool {
        match self.0.strip_prefix(&*other.0) {
            Some(rest) => other.0.is_empty() || rest.is_empty() || rest.starts_with('.'),
            None => false,
        }
    }
}

impl Default for ModulePath {
    fn default() -> Self {
        Self::root()
    }
}

impl fmt::Display for ModulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ModulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether `id` may name a module: `[a-z][a-z0-9_-]{1,30}`.
pub(crate) fn is_module_id(id: &str) -> bool {
    (2..=31).contains(&id.len())
        && id.starts_with(|c: char| c.is_ascii_lowercase())
        && id
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
}

/// Whether `title` may describe a module: `[a-zA-Z0-9_\- ]{1,80}`.
pub(crate) fn is_module_title(title: &str) -> bool {
    (1..=80).contains(&title.len())
        && title
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b' ')
}
