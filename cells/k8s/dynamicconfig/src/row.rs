// SPDX-License-Identifier: Apache-2.0

//! Row of `cilium-configs`.

use serde::Deserialize;
use serde_json::{Value, json};
use statedb::row::{self, BoxError};
use statedb::{Index, ReadTxn, Row, Table};

/// A key of the configuration, as one source sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigEntry {
    /// Key, such as `debug`.
    pub name: String,
    /// Name of the object that sets it.
    pub source: String,
    /// Of several sources the one with the lowest number counts.
    pub priority: usize,
    pub value: String,
}

impl ConfigEntry {
    /// Primary index: by key and source, as `key/source`.
    pub const BY_KEY: Index<Self, str> = Index::new("key", |row, keys| keys.add(&row.id()));
    pub const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));

    pub(crate) fn id(&self) -> String {
        format!("{}/{}", self.name, self.source)
    }
}

/// The row of a key that counts.
pub fn effective<'a>(
    table: &'a Table<ConfigEntry>,
    txn: &'a impl ReadTxn,
    name: &str,
) -> Option<&'a ConfigEntry> {
    let rows = table.list(txn, ConfigEntry::BY_NAME.key(name));
    // Of CiliumNodeConfigs of one source the last one by name counts.
    let row = rows.min_by(|a, b| (a.priority, &b.source).cmp(&(b.priority, &a.source)))?;
    Some(row)
}

impl Row for ConfigEntry {
    fn header() -> &'static [&'static str] {
        &["Key", "Source", "Priority", "Value"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.source.clone(),
            self.priority.to_string(),
            self.value.clone(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({
            "key": { "name": self.name, "source": self.source },
            "value": self.value,
            "priority": self.priority,
        }))
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Text {
            key: Key,
            value: String,
            priority: usize,
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Key {
            name: String,
            source: String,
        }
        let text: Text = row::from_yaml(text)?;
        Ok(Self {
            name: text.key.name,
            source: text.key.source,
            priority: text.priority,
            value: text.value,
        })
    }

    fn type_name() -> String {
        "dynamicconfig.DynamicConfig".to_owned()
    }
}
