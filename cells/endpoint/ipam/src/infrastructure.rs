// SPDX-License-Identifier: Apache-2.0

//! Table `infrastructure-addresses`: addresses of the node itself, out of its pod networks.

use std::{fmt, net::IpAddr};

use serde_json::{Value, json};
use statedb::{Db, Index, Row, RwTable, row::BoxError};

use crate::Family;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeOwner {
    /// `cilium_host`: gateway of pods.
    Router,
    /// Listener of Ingresses.
    Ingress,
    /// Health endpoint.
    Health,
}

impl NodeOwner {
    /// In the order of allocation.
    pub const ALL: [Self; 3] = [Self::Router, Self::Ingress, Self::Health];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Ingress => "ingress",
            Self::Health => "health",
        }
    }
}

impl fmt::Display for NodeOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An address of the node itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfrastructureAddress {
    pub owner: NodeOwner,
    pub ip: IpAddr,
}

impl InfrastructureAddress {
    /// Primary index: by owner and family, `router/ipv4`.
    pub const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name()));

    fn name(&self) -> String {
        Self::key(self.owner, Family::of(self.ip))
    }

    #[must_use]
    pub fn key(owner: NodeOwner, family: Family) -> String {
        format!("{owner}/{}", family.as_str())
    }
}

impl Row for InfrastructureAddress {
    fn header() -> &'static [&'static str] {
        &["Owner", "Address"]
    }

    fn cells(&self) -> Vec<String> {
        vec![self.owner.to_string(), self.ip.to_string()]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({ "owner": self.owner.as_str(), "ip": self.ip }))
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<InfrastructureAddress>, statedb::Error> {
    RwTable::builder("infrastructure-addresses")
        .primary(InfrastructureAddress::BY_NAME)
        .build(&db)
}
