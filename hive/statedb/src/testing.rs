// SPDX-License-Identifier: Apache-2.0

//! Tables for tests of the commands, and clocks.

mod clock;
#[cfg(feature = "testing")]
mod scripts;
#[cfg(feature = "testing")]
mod suite;

use std::collections::BTreeSet;

pub use clock::{FixedClock, TokioClock};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;
#[cfg(feature = "testing")]
pub use suite::cell;

use crate::{
    Db, Error, Index, Row, RwTable,
    row::{self, BoxError},
};

/// An object with one field per kind of index.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct TestObject {
    /// Primary key.
    #[serde(rename(serialize = "ID"))]
    pub id: u64,
    /// A text.
    #[serde(rename(serialize = "Key"))]
    pub key: String,
    /// A network. None is an empty text in JSON and YAML.
    #[serde(rename(serialize = "Prefix"), with = "prefix_text")]
    pub prefix: Option<IpNet>,
    /// A set of texts.
    #[serde(rename(serialize = "Tags"))]
    pub tags: BTreeSet<String>,
}

impl TestObject {
    /// Primary index.
    pub const ID: Index<Self, u64> = Index::new("id", |object, keys| keys.add(&object.id));
    /// By text.
    pub const KEY: Index<Self, str> = Index::new("key", |object, keys| keys.add(&object.key));
    /// By network.
    pub const PREFIX: Index<Self, IpNet> = Index::new("prefix", |object, keys| {
        object.prefix.iter().for_each(|net| keys.add(net))
    });
    /// By each tag.
    pub const TAGS: Index<Self, str> = Index::new("tags", |object, keys| {
        object.tags.iter().for_each(|tag| keys.add(tag))
    });
}

impl Row for TestObject {
    fn header() -> &'static [&'static str] {
        &["ID", "Key", "Prefix", "Tags"]
    }
    fn cells(&self) -> Vec<String> {
        let tags: Vec<&str> = self.tags.iter().map(String::as_str).collect();
        // What tables of the peer show in the place of no network.
        let prefix = self
            .prefix
            .map_or_else(|| "invalid Prefix".to_owned(), |prefix| prefix.to_string());
        vec![self.id.to_string(), self.key.clone(), prefix, tags.join(", ")]
    }
    fn to_json(&self) -> Result<Value, BoxError> {
        row::to_json(self)
    }
    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        row::from_yaml(text)
    }
}

/// A network as text, none as an empty one.
mod prefix_text {
    use ipnet::IpNet;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(prefix: &Option<IpNet>, serializer: S) -> Result<S::Ok, S::Error> {
        match prefix {
            Some(prefix) => serializer.collect_str(prefix),
            None => serializer.serialize_str(""),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IpNet>, D::Error> {
        match Option::<String>::deserialize(deserializer)?.as_deref() {
            None | Some("") => Ok(None),
            Some(text) => text.parse().map(Some).map_err(D::Error::custom),
        }
    }
}

/// The tables `test1` and `test2`.
#[derive(Debug, Clone)]
pub struct TestTables {
    /// `test1`.
    pub test1: RwTable<TestObject>,
    /// `test2`.
    pub test2: RwTable<TestObject>,
}

impl TestTables {
    /// Makes both tables.
    ///
    /// # Errors
    /// If a table of these names exists.
    pub fn new(db: &Db) -> Result<Self, Error> {
        let table = |name| {
            RwTable::builder(name)
                .primary(TestObject::ID)
                .index(TestObject::KEY)
                .index(TestObject::PREFIX)
                .index(TestObject::TAGS)
                .build(db)
        };
        Ok(Self {
            test1: table("test1")?,
            test2: table("test2")?,
        })
    }
}
