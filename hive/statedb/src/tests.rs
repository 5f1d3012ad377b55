// SPDX-License-Identifier: Apache-2.0

//! Tests of tables as a whole.

mod changes;
pub(crate) mod interleave;
mod metrics;
mod model;
mod stress;
mod tables;

use std::collections::BTreeSet;

use crate::{Db, Index, RwTable};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) id: i32,
    pub(crate) name: String,
    pub(crate) tags: BTreeSet<String>,
}

pub(crate) const ID: Index<Item, i32> = Index::new("id", |item, keys| keys.add(&item.id));
pub(crate) const NAME: Index<Item, str> = Index::unique("name", |item, keys| keys.add(&item.name));
pub(crate) const TAG: Index<Item, str> =
    Index::new("tag", |item, keys| item.tags.iter().for_each(|tag| keys.add(tag)));

pub(crate) fn item(id: i32, name: &str, tags: &[&str]) -> Item {
    Item {
        id,
        name: name.into(),
        tags: tags.iter().map(|&tag| tag.into()).collect(),
    }
}

pub(crate) fn items(db: &Db, name: &str) -> RwTable<Item> {
    RwTable::builder(name)
        .primary(ID)
        .index(NAME)
        .index(TAG)
        .build_plain(db)
        .unwrap()
}

pub(crate) fn put(db: &Db, table: &RwTable<Item>, all: &[Item]) {
    let mut txn = db.write(&[table]);
    for item in all {
        table.insert(&mut txn, item.clone()).unwrap();
    }
    txn.commit();
}

pub(crate) fn ids<'a>(found: impl Iterator<Item = &'a crate::Obj<Item>>) -> Vec<i32> {
    found.map(|item| item.id).collect()
}
