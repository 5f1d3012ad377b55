// SPDX-License-Identifier: Apache-2.0

//! Index definitions and the queries made from them.

use std::{fmt, marker::PhantomData, sync::Arc};

use smallvec::SmallVec;

use crate::key::{Key, KeyBuf, KeyBytes, KeyWriter, TextKeyError, encoded, printable};

/// Keys of one object in one index.
pub(crate) type KeyList = SmallVec<[KeyBytes; 1]>;

/// Collects the keys that an index function finds in an object.
///
/// ```
/// use statedb::Index;
///
/// struct Pod { addresses: Vec<std::net::IpAddr> }
/// const BY_ADDRESS: Index<Pod, std::net::IpAddr> = Index::new("address", |pod, keys| {
///     for address in pod.addresses.iter().filter(|address| !address.is_loopback()) {
///         keys.add(address);
///     }
/// });
/// # let _ = BY_ADDRESS;
/// ```
pub struct Keys<'a, K: ?Sized> {
    list: &'a mut KeyList,
    kind: PhantomData<fn(&K)>,
}

impl<K: Key + ?Sized> Keys<'_, K> {
    /// Adds one key. Adding the same key twice counts once.
    #[inline]
    pub fn add(&mut self, key: &K) {
        self.list.push(encoded(key));
    }
}

impl<K: ?Sized> fmt::Debug for Keys<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.list.iter().map(|key| printable(key)))
            .finish()
    }
}

/// An index: finds objects of type `T` by keys of type `K`.
///
/// A constant beside the object type, for the builder of the table and for queries.
///
/// ```
/// use statedb::Index;
///
/// struct Pod { name: String, labels: Vec<String> }
///
/// impl Pod {
///     const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
///     const BY_LABEL: Index<Pod, str> =
///         Index::new("label", |pod, keys| pod.labels.iter().for_each(|label| keys.add(label)));
/// }
/// let query = Pod::BY_NAME.key("web-0");
/// # let _ = (query, Pod::BY_LABEL);
/// ```
pub struct Index<T, K: ?Sized> {
    name: &'static str,
    unique: bool,
    keys: fn(&T, &mut Keys<'_, K>),
}

impl<T, K: ?Sized> Clone for Index<T, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, K: ?Sized> Copy for Index<T, K> {}

impl<T, K: ?Sized> fmt::Debug for Index<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("name", &self.name)
            .field("unique", &self.unique)
            .finish()
    }
}

impl<T, K: Key + ?Sized> Index<T, K> {
    /// Defines an index named `name`; `keys` adds any number of keys of an object (the primary index: exactly one).
    /// Several objects may have the same key unless the index is [unique](Index::unique) or primary.
    pub const fn new(name: &'static str, keys: fn(&T, &mut Keys<'_, K>)) -> Self {
        Self {
            name,
            unique: false,
            keys,
        }
    }

    /// Like [`Index::new`], but only one object may have a key: inserting a second one fails with
    /// [`Error::Conflict`](crate::Error::Conflict).
    pub const fn unique(name: &'static str, keys: fn(&T, &mut Keys<'_, K>)) -> Self {
        Self {
            name,
            unique: true,
            keys,
        }
    }

    pub(crate) const fn into_unique(mut self) -> Self {
        self.unique = true;
        self
    }

    /// Returns the name of the index.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns a query for this key.
    #[inline]
    pub fn key(&self, key: &K) -> Query<T> {
        Query {
            index: self.name,
            key: encoded(key),
            kind: PhantomData,
        }
    }

    /// Returns a query for keys whose encoding starts with, or is at least, `bytes`.
    pub fn bytes(&self, bytes: &[u8]) -> Query<T> {
        Query {
            index: self.name,
            key: KeyBytes::from_slice(bytes),
            kind: PhantomData,
        }
    }

    pub(crate) fn definition(self) -> IndexDef<T>
    where
        T: 'static,
        K: 'static,
    {
        IndexDef {
            name: self.name,
            unique: self.unique,
            prefix_free: K::PREFIX_FREE,
            keys: Arc::new(move |object, list| {
                (self.keys)(
                    object,
                    &mut Keys {
                        list,
                        kind: PhantomData,
                    },
                )
            }),
            from_text: K::from_text,
            prefix_from_text: K::prefix_from_text,
        }
    }
}

/// A key in an index; made by [`Index::key`].
///
/// ```
/// use statedb::Index;
///
/// struct Pod { name: String }
/// const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(&pod.name));
/// assert_eq!(format!("{:?}", BY_NAME.key("web-0")), "name=web-0");
/// assert_eq!(format!("{:?}", BY_NAME.bytes(b"web")), "name=web");
/// ```
pub struct Query<T> {
    pub(crate) index: &'static str,
    pub(crate) key: KeyBytes,
    kind: PhantomData<fn(&T)>,
}

impl<T> Clone for Query<T> {
    fn clone(&self) -> Self {
        Self {
            index: self.index,
            key: self.key.clone(),
            kind: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Query<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.index, printable(&self.key))
    }
}

type KeysFn<T> = dyn Fn(&T, &mut KeyList) + Send + Sync;

/// An index with its key type erased.
pub(crate) struct IndexDef<T> {
    pub(crate) name: &'static str,
    pub(crate) unique: bool,
    pub(crate) prefix_free: bool,
    keys: Arc<KeysFn<T>>,
    pub(crate) from_text: fn(&str) -> Result<KeyBuf, TextKeyError>,
    pub(crate) prefix_from_text: fn(&str) -> Result<KeyBuf, TextKeyError>,
}

impl<T> IndexDef<T> {
    /// Index keys of an object as the index function returns them.
    #[inline]
    pub(crate) fn keys(&self, object: &T) -> KeyList {
        let mut list = KeyList::new();
        (self.keys)(object, &mut list);
        if list.len() > 1 {
            list.sort_unstable();
            list.dedup();
        }
        list
    }

    /// Keys under which a secondary index stores an object that has the keys `list`: unique ones as they are, others
    /// followed by the primary key.
    pub(crate) fn stored(&self, mut list: KeyList, primary: &[u8]) -> KeyList {
        if !self.unique {
            for key in &mut list {
                if self.prefix_free {
                    key.extend_from_slice(primary);
                } else {
                    let mut writer = KeyWriter::new();
                    self.write_first_part(key, &mut writer);
                    writer.bytes(primary);
                    *key = writer.into_bytes();
                }
            }
        }
        list
    }

    fn write_first_part(&self, key: &[u8], writer: &mut KeyWriter) {
        if self.prefix_free {
            writer.bytes(key);
        } else {
            writer.escaped(key);
            writer.end_mark();
        }
    }

    /// Returns what stored keys of exactly this index key start with (for unique indexes: the stored key).
    pub(crate) fn stored_exact(&self, key: KeyBytes) -> KeyBytes {
        if self.unique || self.prefix_free {
            return key;
        }
        let mut writer = KeyWriter::new();
        self.write_first_part(&key, &mut writer);
        writer.into_bytes()
    }

    /// Returns what stored keys start with if their index key starts with `key`; also the position of the first stored
    /// key at or after `key`.
    pub(crate) fn stored_prefix(&self, key: KeyBytes) -> KeyBytes {
        if self.unique || self.prefix_free || !key.contains(&0) {
            return key;
        }
        let mut writer = KeyWriter::new();
        writer.escaped(&key);
        writer.into_bytes()
    }
}
