// SPDX-License-Identifier: Apache-2.0

//! Objects as tables hold them.

use std::{fmt, ops::Deref, sync::Arc};

/// Counts the changes of one table: each insert and each delete adds one. 0 is before the first change.
pub type Revision = u64;

struct Entry<T> {
    revision: Revision,
    object: T,
}

/// An immutable object of a table with the revision of its last change; cloning is cheap.
///
/// Objects must not have interior mutability: indexes and readers rely on them staying as they were inserted.
///
/// ```
/// # use statedb::{Db, Index, RwTable};
/// # #[derive(Clone)]
/// # struct Pod { name: String, node: String }
/// # const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
/// # fn pod(name: &str, node: &str) -> Pod { Pod { name: name.into(), node: node.into() } }
/// # fn main() -> Result<(), statedb::Error> {
/// # let db = Db::new();
/// # let pods = RwTable::builder("pods").primary(BY_NAME).build_plain(&db)?;
/// let mut txn = db.write(&[&pods]);
/// let first = pods.insert_get(&mut txn, pod("web-0", "a"))?;
/// let second = pods.insert_get(&mut txn, pod("web-0", "b"))?;
///
/// assert_eq!((first.node.as_str(), first.revision()), ("a", 1));
/// assert_eq!((second.node.as_str(), second.revision()), ("b", 2));
/// assert!(!first.same(&second) && first.same(&first.clone()));
/// # Ok(())
/// # }
/// ```
pub struct Obj<T>(Arc<Entry<T>>);

impl<T> Obj<T> {
    #[inline]
    pub(crate) fn new(object: T, revision: Revision) -> Self {
        Self(Arc::new(Entry { revision, object }))
    }

    /// Sets the revision of an object without other references; false if there are some.
    pub(crate) fn set_revision(&mut self, revision: Revision) -> bool {
        let entry = Arc::get_mut(&mut self.0);
        entry.map(|entry| entry.revision = revision).is_some()
    }

    /// Table revision of the last change of the object.
    #[inline]
    pub fn revision(&self) -> Revision {
        self.0.revision
    }

    /// Another object with the revision of this one, for views of a table.
    pub fn with_object(&self, object: T) -> Self {
        Self::new(object, self.revision())
    }

    /// Returns whether both are the same state of the same object.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Clone for Obj<T> {
    #[inline]
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Obj<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0.object
    }
}

impl<T> AsRef<T> for Obj<T> {
    fn as_ref(&self) -> &T {
        self
    }
}

impl<T: fmt::Debug> fmt::Debug for Obj<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}@{}", self.0.object, self.0.revision)
    }
}

impl<T: PartialEq> PartialEq for Obj<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.object == other.0.object
    }
}

impl<T: Eq> Eq for Obj<T> {}
