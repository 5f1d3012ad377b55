// SPDX-License-Identifier: Apache-2.0

//! Row of table `desired-devices`.

use std::fmt;

use serde::Serialize;
use serde_json::Value;
use statedb::{
    Db, Index, Row, RwTable,
    reconciler::{Status, StatusField},
    row::{self, BoxError},
};

use crate::Owner;

/// The interface of a VLAN.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Vlan {
    /// The interface that carries it.
    pub parent_name: String,
    pub parent_index: u32,
    #[serde(rename = "vlanID")]
    pub id: u16,
    /// 0: that of the parent.
    pub mtu: u32,
}

impl fmt::Display for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Type=vlan, ParentDevice={} ({}), VLAN={}",
            self.parent_name, self.parent_index, self.id
        )
    }
}

/// A device that is desired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredDevice {
    pub owner: Owner,
    pub name: String,
    pub spec: Vlan,
    pub status: Status,
}

impl DesiredDevice {
    pub const BY_ID: Index<Self, str> = Index::new("id", |device, keys| keys.add(&device.id()));
    pub const BY_NAME: Index<Self, str> = Index::new("name", |device, keys| keys.add(&device.name));

    pub(crate) const STATUS: StatusField<Self> = StatusField {
        get: |device| device.status.clone(),
        set: |device, status| device.status = status,
    };

    /// Owner and name: the key in the table and in the log.
    pub(crate) fn id(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }
}

impl Row for DesiredDevice {
    fn header() -> &'static [&'static str] {
        &["Owner", "Name", "Properties", "Status"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.owner.to_string(),
            self.name.clone(),
            self.spec.to_string(),
            self.status.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        #[derive(Serialize)]
        struct Form<'a> {
            owner: &'a str,
            name: &'a str,
            spec: &'a Vlan,
        }
        row::to_json(&Form {
            owner: self.owner.name(),
            name: &self.name,
            spec: &self.spec,
        })
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<DesiredDevice>, statedb::Error> {
    RwTable::builder("desired-devices")
        .primary(DesiredDevice::BY_ID)
        .index(DesiredDevice::BY_NAME)
        .build(&db)
}
