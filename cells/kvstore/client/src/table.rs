// SPDX-License-Identifier: Apache-2.0

//! Cell: the keys of a store in memory as table `kvstore-<name>`, as scripts of Cilium's suites know it.
//! Requires: a client of the store, a database.

use bytes::Bytes;
use hive::{BoxError, Cell, JobCtx, Jobs};
use statedb::{Db, Index, Row, RwTable};

use crate::client::{Client, Event};
use crate::types::Key;

/// Row of `kvstore-<name>`: a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct KeyRow {
    key: Key,
    value: Bytes,
}

impl KeyRow {
    const BY_KEY: Index<Self, str> = Index::new("key", |row, keys| keys.add(&*row.key));
}

impl Row for KeyRow {
    fn header() -> &'static [&'static str] {
        &["Key", "Value"]
    }

    fn cells(&self) -> Vec<String> {
        vec![self.key.to_string(), text(&self.value)]
    }
}

/// A value that is printable ASCII as it is, another one in hexadecimal.
fn text(value: &[u8]) -> String {
    match std::str::from_utf8(value) {
        Ok(text) if text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) => text.to_owned(),
        _ => {
            let digits: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("0x{digits}")
        }
    }
}

/// The keys of the store as table `kvstore-<name>`: Cilium's suites call the store of one cluster `__local__`, that of several
/// `__all__`.
#[must_use]
pub fn cell(name: &'static str) -> Cell {
    Cell::module("kvstore-table", "Keys of the key-value store as a table")
        .run(move |client: Client, db: Db, jobs: Jobs| start(name, client, db, &jobs))
}

fn start(name: &str, client: Client, db: Db, jobs: &Jobs) -> Result<(), BoxError> {
    let table = RwTable::builder(&format!("kvstore-{name}"))
        .primary(KeyRow::BY_KEY)
        .build(&db)?;
    Ok(jobs.keep("follow", (client, db, table), follow)?)
}

async fn follow(
    (client, db, table): &(Client, Db, RwTable<KeyRow>),
    _: &JobCtx,
) -> Result<(), statedb::Error> {
    let mut watcher = client.list_and_watch("");
    loop {
        let event = watcher.next().await;
        let mut txn = db.write(&[table]);
        match event {
            Event::Create(item) | Event::Modify(item) => {
                let row = KeyRow {
                    key: item.key,
                    value: item.value,
                };
                table.insert(&mut txn, row)?;
            }
            Event::Delete(key) => {
                table.delete_by(&mut txn, KeyRow::BY_KEY.key(&key))?;
            }
            Event::ListDone => continue,
        }
        txn.commit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_not_printable_are_hexadecimal() {
        for (value, expected) in [
            (&b"a b{}~"[..], "a b{}~"),
            (b"", ""),
            (b"\x28\xb5\x2f", "0x28b52f"),
            (b"a\n", "0x610a"),
            ("\u{e4}".as_bytes(), "0xc3a4"),
        ] {
            assert_eq!(text(value), expected);
        }
    }
}
