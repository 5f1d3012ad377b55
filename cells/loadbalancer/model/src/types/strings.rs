// SPDX-License-Identifier: Apache-2.0

//! Compact shared collections of texts: label maps, name lists.
//!
//! Both know the difference between *absent* and *empty*, because dumps print `null` for the one and `{}` or `[]` for
//! the other. An absent one takes no heap memory.

use std::sync::Arc;

use compact_str::CompactString;

/// A sorted map of texts, shared by its clones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StringMap(Option<Arc<[(CompactString, CompactString)]>>);

impl StringMap {
    /// The absent map, printed as `null`.
    pub const ABSENT: Self = Self(None);

    /// A map of entries that are sorted by key, each key once.
    pub fn from_sorted<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let entries: Arc<[(CompactString, CompactString)]> =
            entries.map(|(key, value)| (key.into(), value.into())).collect();
        debug_assert!(entries.is_sorted_by(|a, b| a.0 < b.0), "sorted keys, each once");
        Self(Some(entries))
    }

    /// Whether the map is absent (an empty map is not).
    pub const fn is_absent(&self) -> bool {
        self.0.is_none()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Entries sorted by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.entries()
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let entries = self.entries();
        let index = entries.binary_search_by(|(k, _)| k.as_str().cmp(key)).ok()?;
        Some(entries[index].1.as_str())
    }

    fn entries(&self) -> &[(CompactString, CompactString)] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl<K: Into<CompactString>, V: Into<CompactString>> FromIterator<(K, V)> for StringMap {
    /// Collects entries; the last of several values of a key wins. The result is never absent.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        let mut entries: Vec<(CompactString, CompactString)> =
            iter.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        let mut unique: Vec<(CompactString, CompactString)> = Vec::with_capacity(entries.len());
        for entry in entries {
            match unique.last_mut() {
                Some(last) if last.0 == entry.0 => *last = entry,
                _ => unique.push(entry),
            }
        }
        Self(Some(unique.into()))
    }
}

/// A list of names, shared by its clones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Names(Option<Arc<[CompactString]>>);

impl Names {
    /// The absent list, printed as `null`.
    pub const ABSENT: Self = Self(None);

    /// Whether the list is absent (an empty list is not).
    pub const fn is_absent(&self) -> bool {
        self.0.is_none()
    }

    /// Whether two lists are one allocation (or both absent).
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// The names.
    pub fn as_slice(&self) -> &[CompactString] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// Whether a name is in the list.
    pub fn contains(&self, name: &str) -> bool {
        self.as_slice().iter().any(|n| n == name)
    }

    /// The names in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.as_slice().iter().map(CompactString::as_str)
    }
}

impl From<Arc<[CompactString]>> for Names {
    fn from(names: Arc<[CompactString]>) -> Self {
        Self(Some(names))
    }
}

impl<S: Into<CompactString>> FromIterator<S> for Names {
    fn from_iter<I: IntoIterator<Item = S>>(iter: I) -> Self {
        Self(Some(iter.into_iter().map(Into::into).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_is_sorted_and_last_value_wins() {
        let map: StringMap = [("b", "1"), ("a", "2"), ("b", "3")].into_iter().collect();
        assert_eq!(map.iter().collect::<Vec<_>>(), [("a", "2"), ("b", "3")]);
        assert_eq!(map.get("b"), Some("3"));
        assert_eq!(map.get("c"), None);
    }

    #[test]
    fn absent_and_empty_differ() {
        let empty: StringMap = std::iter::empty::<(&str, &str)>().collect();
        assert_ne!(empty, StringMap::ABSENT);
        assert!(empty.is_empty() && StringMap::ABSENT.is_empty());
        assert_ne!(Names::from_iter(Vec::<&str>::new()), Names::ABSENT);
    }
}
