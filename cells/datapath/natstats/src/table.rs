// SPDX-License-Identifier: Apache-2.0

//! Table `nat-stats`.

use std::net::IpAddr;

use serde_json::{Value, json};
use skep_bpf_maps::{nat::NatTuple, text::protocol};
use statedb::{Db, Index, Row, RwTable, row::BoxError};

use crate::metrics::family;

/// Source ports that flows from one address to another have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatStat {
    pub tuple: NatTuple,
    pub ports: u32,
}

/// Protocol, address of this node, address and port of the others.
type Id = (u8, IpAddr, IpAddr, u16);

impl NatStat {
    pub const BY_TUPLE: Index<Self, Id> = Index::new("id", |row, keys| {
        let NatTuple {
            protocol,
            source,
            destination,
        } = row.tuple;
        keys.add(&(protocol, source, destination.ip(), destination.port()));
    });

    fn remote(&self) -> String {
        let remote = self.tuple.destination;
        match remote.port() {
            0 => remote.ip().to_string(),
            _ => remote.to_string(),
        }
    }
}

impl Row for NatStat {
    fn header() -> &'static [&'static str] {
        &["IPFamily", "Proto", "EgressIP", "RemoteAddr", "Count"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            family(self.tuple.source.is_ipv6()).to_owned(),
            protocol(self.tuple.protocol).to_owned(),
            self.tuple.source.to_string(),
            self.remote(),
            self.ports.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({
            "IPFamily": family(self.tuple.source.is_ipv6()),
            "Proto": protocol(self.tuple.protocol),
            "EgressIP": self.tuple.source,
            "RemoteAddr": self.remote(),
            "Count": self.ports,
        }))
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<NatStat>, statedb::Error> {
    RwTable::builder("nat-stats")
        .primary(NatStat::BY_TUPLE)
        .build(&db)
}
