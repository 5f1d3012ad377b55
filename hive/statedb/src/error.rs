// SPDX-License-Identifier: Apache-2.0

//! Errors of tables and transactions.

use crate::Revision;

/// Why a table could not be created or written.
///
/// ```
/// use statedb::{Db, Error, Index, RwTable};
///
/// #[derive(Debug)]
/// struct Pod { name: &'static str, ip: u32 }
/// const BY_NAME: Index<Pod, str> = Index::new("name", |pod, keys| keys.add(pod.name));
/// const BY_IP: Index<Pod, u32> = Index::unique("ip", |pod, keys| keys.add(&pod.ip));
///
/// # fn main() -> Result<(), Error> {
/// let db = Db::new();
/// let pods = RwTable::builder("pods").primary(BY_NAME).index(BY_IP).build_plain(&db)?;
/// let mut txn = db.write(&[&pods]);
/// pods.insert(&mut txn, Pod { name: "web-0", ip: 1 })?;
/// let taken = pods.insert(&mut txn, Pod { name: "web-1", ip: 1 }).unwrap_err();
/// assert!(matches!(&taken, Error::Conflict { index: "ip", existing, .. } if existing == "web-0"));
///
/// let unlocked = pods.insert(&mut db.write(&[]), Pod { name: "web-1", ip: 2 }).unwrap_err();
/// assert_eq!(unlocked.to_string(), "table `pods`: not locked for writing");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another table of the database has this name; choose another one.
    #[error("table `{table}`: table already exists")]
    TableExists {
        /// Name of the table.
        table: String,
    },
    /// Names match `[a-z][a-z0-9_-]{0,30}`.
    #[error("table `{table}`: name must match [a-z][a-z0-9_-]{{0,30}}")]
    TableName {
        /// The invalid name.
        table: String,
    },
    /// Two indexes of the table have one name; rename one.
    #[error("table `{table}`: index name `{index}` already in use")]
    IndexExists {
        /// Name of the table.
        table: String,
        /// Name of the index.
        index: &'static str,
    },
    /// Index names are not empty and do not begin with `__`.
    #[error("table `{table}`: index name `{index}` is empty or uses the reserved prefix `__`")]
    IndexName {
        /// Name of the table.
        table: String,
        /// The invalid name.
        index: &'static str,
    },
    /// The write transaction was opened without this table; add it to the call of `write`.
    #[error("table `{table}`: not locked for writing")]
    NotLocked {
        /// Name of the table.
        table: String,
    },
    /// Another object has the same key in a unique index. Nothing was changed.
    #[error("table `{table}`: index `{index}`: key is taken by object `{existing}`")]
    Conflict {
        /// Name of the table.
        table: String,
        /// Name of the unique index.
        index: &'static str,
        /// Primary key of the object that has the key.
        existing: String,
    },
    /// Compare-and-swap found another revision; read again and retry.
    #[error("table `{table}`: object `{key}`: revision not equal, expected {expected}, found {found}")]
    RevisionMismatch {
        /// Name of the table.
        table: String,
        /// Primary key of the object.
        key: String,
        /// Revision that the caller read.
        expected: Revision,
        /// Revision of the object now.
        found: Revision,
    },
    /// Compare-and-swap or modification of an object that is not in the table.
    #[error("table `{table}`: object `{key}` not found")]
    NotFound {
        /// Name of the table.
        table: String,
        /// Primary key that was looked up.
        key: String,
    },
    /// The primary index returned no key or several; it must return exactly one.
    #[error("table `{table}`: primary index returned {keys} keys for an object, expected one")]
    PrimaryKey {
        /// Name of the table.
        table: String,
        /// How many keys it returned.
        keys: usize,
    },
    /// An initialiser of that name is pending or was registered before.
    #[error("table `{table}`: initializer `{name}` already registered")]
    InitializerExists {
        /// Name of the table.
        table: String,
        /// Name of the initialiser.
        name: String,
    },
}
