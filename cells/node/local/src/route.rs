// SPDX-License-Identifier: Apache-2.0

//! Row of table `routes`: a route of the kernel.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use statedb::row::{self, BoxError};
use statedb::{Index, Key, KeyBuf, KeyWriter, Row, TextKeyError};

/// `RT_TABLE_MAIN`.
pub(crate) const MAIN_TABLE: u32 = 254;

/// Names of the tables that have one.
const TABLES: [(u32, &str); 5] = [
    (0, "unspec"),
    (252, "compat"),
    (253, "default"),
    (254, "main"),
    (255, "local"),
];

/// Names of the types of routes (`RTN_*`), in the order of their numbers.
const TYPES: [&str; 12] = [
    "unspec",
    "unicast",
    "local",
    "broadcast",
    "anycast",
    "multicast",
    "blackhole",
    "unreachable",
    "prohibit",
    "throw",
    "nat",
    "xresolve",
];

/// Names of the scopes (`RT_SCOPE_*`).
const SCOPES: [(u8, &str); 5] = [
    (0, "universe"),
    (200, "site"),
    (253, "link"),
    (254, "host"),
    (255, "nowhere"),
];

fn name_of<T: Copy + PartialEq>(names: &[(T, &'static str)], number: T) -> Option<&'static str> {
    let found = names.iter().find(|(known, _)| *known == number);
    found.map(|(_, name)| *name)
}

fn number_of<T: Copy>(names: &[(T, &str)], name: &str) -> Option<T> {
    let found = names.iter().find(|(_, known)| *known == name);
    found.map(|(number, _)| *number)
}

/// Name of a table of routes; none for most.
pub fn table_name(table: u32) -> Option<&'static str> {
    name_of(&TABLES, table)
}

/// The table of a name or of a number.
pub fn parse_table(text: &str) -> Option<u32> {
    number_of(&TABLES, text).or_else(|| text.parse().ok())
}

/// Name of a type of routes (`RTN_*`).
pub fn type_name(kind: u8) -> Option<&'static str> {
    TYPES.get(usize::from(kind)).copied()
}

/// The type of a name or of a number.
pub fn parse_type(text: &str) -> Option<u8> {
    let at = TYPES.iter().position(|name| *name == text);
    at.map_or_else(|| text.parse().ok(), |at| u8::try_from(at).ok())
}

/// Name of a scope (`RT_SCOPE_*`).
pub fn scope_name(scope: u8) -> Option<&'static str> {
    name_of(&SCOPES, scope)
}

/// The scope of a name or of a number.
pub fn parse_scope(text: &str) -> Option<u8> {
    number_of(&SCOPES, text).or_else(|| text.parse().ok())
}

/// A route of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default, rename_all(serialize = "PascalCase", deserialize = "lowercase"))]
pub struct Route {
    /// Table.
    pub table: u32,
    /// Index of the interface; 0 for a route with several next hops.
    #[serde(rename(serialize = "LinkIndex", deserialize = "linkindex"))]
    pub link_index: u32,
    /// Type (`RTN_*`).
    #[serde(rename(serialize = "Type", deserialize = "type"))]
    pub kind: u8,
    /// Scope (`RT_SCOPE_*`).
    pub scope: u8,
    /// Destination.
    pub dst: IpNet,
    /// Preferred source.
    #[serde(with = "optional_ip")]
    pub src: Option<IpAddr>,
    /// Next hop of the family of the destination.
    #[serde(with = "optional_ip")]
    pub gw: Option<IpAddr>,
    /// Metric.
    pub priority: u32,
    /// MTU; 0 for that of the interface.
    #[serde(rename(serialize = "MTU", deserialize = "mtu"))]
    pub mtu: u32,
    /// Interfaces of the next hops, if there are several.
    #[serde(skip)]
    pub hops: Vec<u32>,
}

/// An address as text, empty if there is none.
mod optional_ip {
    use std::net::IpAddr;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(ip: &Option<IpAddr>, serializer: S) -> Result<S::Ok, S::Error> {
        match ip {
            Some(ip) => serializer.collect_str(ip),
            None => serializer.serialize_str(""),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<IpAddr>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
        match text.as_str() {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(serde::de::Error::custom),
        }
    }
}

/// Key of a route: table, interface, destination, metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    /// Table.
    pub table: u32,
    /// Index of the interface.
    pub link_index: u32,
    /// Destination.
    pub dst: IpNet,
    /// Metric.
    pub priority: u32,
}

impl Key for RouteKey {
    const PREFIX_FREE: bool = true;

    fn encode(&self, out: &mut KeyWriter) {
        (self.table, self.link_index, self.dst, self.priority).encode(out);
    }

    /// `<table>:<link>:<destination>`; parts at the end may be missing.
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        let invalid =
            |part: &str| TextKeyError::Invalid(format!("`{part}` is not part of <table>:<link>:<dst>"));
        let mut parts = text.splitn(3, ':').filter(|part| !part.is_empty());
        let mut out = KeyWriter::new();
        if let Some(table) = parts.next() {
            parse_table(table).ok_or_else(|| invalid(table))?.encode(&mut out);
        }
        if let Some(link) = parts.next() {
            link.parse::<u32>().map_err(|_| invalid(link))?.encode(&mut out);
        }
        if let Some(dst) = parts.next() {
            dst.parse::<IpNet>().map_err(|_| invalid(dst))?.encode(&mut out);
        }
        Ok(out.finish())
    }
}

impl Route {
    /// Primary index.
    pub const BY_ID: Index<Self, RouteKey> = Index::new("id", |route, keys| keys.add(&route.key()));
    /// By interface, those of next hops included.
    pub const BY_LINK: Index<Self, u32> = Index::new("LinkIndex", |route, keys| {
        route.links().for_each(|link| keys.add(&link));
    });

    /// A unicast route of the main table.
    pub fn to(dst: IpNet, link_index: u32) -> Self {
        Self {
            table: MAIN_TABLE,
            link_index,
            kind: 1,
            dst,
            ..Self::default()
        }
    }

    /// Identity of a route.
    pub fn key(&self) -> RouteKey {
        RouteKey {
            table: self.table,
            link_index: self.link_index,
            dst: self.dst,
            priority: self.priority,
        }
    }

    /// Interfaces, 0 for none.
    pub(crate) fn links(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.link_index).chain(self.hops.iter().copied())
    }
}

impl Row for Route {
    fn header() -> &'static [&'static str] {
        &[
            "Destination",
            "Source",
            "Gateway",
            "LinkIndex",
            "MTU",
            "Table",
            "Type",
            "Scope",
            "Priority",
        ]
    }

    fn cells(&self) -> Vec<String> {
        let ip = |ip: Option<IpAddr>| ip.map(|ip| ip.to_string()).unwrap_or_default();
        let named = |name: Option<&str>, number: u32| name.map_or_else(|| number.to_string(), str::to_owned);
        vec![
            self.dst.to_string(),
            ip(self.src),
            ip(self.gw),
            self.link_index.to_string(),
            match self.mtu {
                0 => String::new(),
                mtu => mtu.to_string(),
            },
            named(table_name(self.table), self.table),
            named(type_name(self.kind), self.kind.into()),
            named(scope_name(self.scope), self.scope.into()),
            self.priority.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        row::to_json(self)
    }

    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        row::from_yaml(text)
    }

    fn type_name() -> String {
        "*tables.Route".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_from_yaml_and_are_found_by_parts_of_the_key() {
        let text = "linkindex: 7\ndst: 198.51.100.0/24\ngw: 192.0.2.1\ntable: 254\n";

        let route = Route::from_yaml(text).unwrap();

        assert_eq!(
            route.cells(),
            [
                "198.51.100.0/24",
                "",
                "192.0.2.1",
                "7",
                "",
                "main",
                "unspec",
                "universe",
                "0"
            ]
        );
        let key = KeyBuf::of(&route.key());
        for text in ["", "254", "main:7", "254:7:198.51.100.0/24"] {
            let part = RouteKey::from_text(text).unwrap();
            assert!(key.as_bytes().starts_with(part.as_bytes()), "{text}");
        }
        assert!(RouteKey::from_text("254:x").is_err());
        assert_eq!(route.to_json().unwrap()["Src"], "");
    }
}
