// SPDX-License-Identifier: Apache-2.0

//! Table `forwardable-ip` and its writer.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use statedb::{
    Db, Index, InitGuard, Row, RwTable,
    row::{self, BoxError},
};

/// What an address belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnerKind {
    Node,
    Service,
}

/// An owner of an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ForwardableIpOwner {
    #[serde(rename = "type")]
    pub kind: OwnerKind,
    #[serde(deserialize_with = "text_or_number")]
    pub id: String,
}

impl fmt::Display for ForwardableIpOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            OwnerKind::Node => "node",
            OwnerKind::Service => "service",
        };
        write!(f, "{kind}:{}", self.id)
    }
}

fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Text(String),
        Number(i64),
    }
    Ok(match Form::deserialize(deserializer)? {
        Form::Text(text) => text,
        Form::Number(number) => number.to_string(),
    })
}

/// An address that the datapath forwards to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardableIp {
    pub ip: IpAddr,
    #[serde(default)]
    pub owners: Vec<ForwardableIpOwner>,
}

impl ForwardableIp {
    pub const BY_IP: Index<Self, IpAddr> = Index::new("ip", |row, keys| keys.add(&row.ip));
}

impl Row for ForwardableIp {
    fn header() -> &'static [&'static str] {
        &["IP", "Owners"]
    }

    fn cells(&self) -> Vec<String> {
        let owners: Vec<String> = self.owners.iter().map(ToString::to_string).collect();
        vec![self.ip.to_string(), owners.join(", ")]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        row::to_json(self)
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        row::from_yaml(text)
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<ForwardableIp>, statedb::Error> {
    RwTable::builder("forwardable-ip")
        .primary(ForwardableIp::BY_IP)
        .build(&db)
}

/// Writes table `forwardable-ip`.
#[derive(Debug, Clone)]
pub struct ForwardableIps {
    db: Db,
    table: RwTable<ForwardableIp>,
}

impl hive::Value for ForwardableIps {}

impl ForwardableIps {
    pub(crate) fn new(db: Db, table: RwTable<ForwardableIp>) -> Self {
        Self { db, table }
    }

    /// Registers a source of addresses. No neighbour is deleted before all sources are [initialized](Self::initialized).
    pub fn register_initializer(&self, name: &str) -> Result<InitGuard, statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        let guard = self.table.register_initializer(&mut txn, name)?;
        txn.commit();
        Ok(guard)
    }

    /// Reports that a source has delivered all addresses.
    pub fn initialized(&self, guard: &InitGuard) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        txn.initialized(guard)?;
        txn.commit();
        Ok(())
    }

    /// Replaces all owners of a kind: addresses with the ids of those that they belong to.
    pub fn replace(
        &self,
        kind: OwnerKind,
        wanted: &BTreeMap<IpAddr, BTreeSet<String>>,
    ) -> Result<(), statedb::Error> {
        let snapshot = self.db.read();
        let mut rows: BTreeMap<IpAddr, Vec<ForwardableIpOwner>> =
            wanted.keys().map(|ip| (*ip, Vec::new())).collect();
        for row in self.table.all(&snapshot) {
            let others = row.owners.iter().filter(|owner| owner.kind != kind);
            rows.entry(row.ip).or_default().extend(others.cloned());
        }
        let mut changed = Vec::new();
        for (ip, mut owners) in rows {
            let ids = wanted.get(&ip).into_iter().flatten();
            owners.extend(ids.map(|id| ForwardableIpOwner { kind, id: id.clone() }));
            owners.sort();
            let present = self.table.get(&snapshot, ForwardableIp::BY_IP.key(&ip));
            if present.is_none_or(|present| present.owners != owners) {
                changed.push(ForwardableIp { ip, owners });
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        let mut txn = self.db.write(&[&self.table]);
        for row in changed {
            match row.owners.is_empty() {
                true => drop(self.table.delete(&mut txn, &row)?),
                false => drop(self.table.insert(&mut txn, row)?),
            }
        }
        txn.commit();
        Ok(())
    }
}
