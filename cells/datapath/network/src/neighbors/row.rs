// SPDX-License-Identifier: Apache-2.0

//! Row of table `desired-neighbors`.

use std::net::IpAddr;

use serde::Serialize;
use serde_json::Value;
use statedb::{
    Db, Index, Key, KeyBuf, KeyWriter, Row, RwTable, TextKeyError,
    reconciler::{Status, StatusField},
    row::{self, BoxError},
};

/// A neighbour that is desired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DesiredNeighbor {
    pub ip: IpAddr,
    /// Index of the interface.
    pub link: u32,
    pub status: Status,
}

/// Key of a neighbour: interface, then address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DesiredNeighborKey {
    pub(crate) link: u32,
    pub(crate) ip: IpAddr,
}

impl Key for DesiredNeighborKey {
    const PREFIX_FREE: bool = true;

    fn encode(&self, out: &mut KeyWriter) {
        (self.link, self.ip).encode(out);
    }

    /// `<address>@<interface>`
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        let invalid = || TextKeyError::Invalid(format!("`{text}` is not <ip>@<ifindex>"));
        let (ip, link) = text.split_once('@').ok_or_else(invalid)?;
        let ip = ip.parse().map_err(|_| invalid())?;
        let link = link.parse().map_err(|_| invalid())?;
        Ok(KeyBuf::of(&Self { link, ip }))
    }
}

impl DesiredNeighbor {
    pub const BY_ID: Index<Self, DesiredNeighborKey> = Index::new("id", |row, keys| keys.add(&row.key()));

    pub(crate) const STATUS: StatusField<Self> = StatusField {
        get: |row| row.status.clone(),
        set: |row, status| row.status = status,
    };

    pub(crate) fn key(&self) -> DesiredNeighborKey {
        DesiredNeighborKey {
            link: self.link,
            ip: self.ip,
        }
    }
}

impl Row for DesiredNeighbor {
    fn header() -> &'static [&'static str] {
        &["IP", "Link", "Status"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.ip.to_string(),
            self.link.to_string(),
            self.status.kind.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        row::to_json(self)
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<DesiredNeighbor>, statedb::Error> {
    RwTable::builder("desired-neighbors")
        .primary(DesiredNeighbor::BY_ID)
        .build(&db)
}
