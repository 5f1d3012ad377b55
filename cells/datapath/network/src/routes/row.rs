// SPDX-License-Identifier: Apache-2.0

//! Row of table `desired-routes`.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use serde::Serialize;
use serde_json::Value;
use skep_base_net::{
    Hop, Route,
    packet::route::{RouteProtocol, RouteScope, RouteType},
};
use skep_node_local::route::{parse_table, scope_name, table_name, type_name};
use statedb::{
    Db, Index, Key, KeyBuf, KeyWriter, Row, RwTable, TextKeyError,
    reconciler::{Status, StatusField},
    row::{self, BoxError},
};

use crate::Owner;

/// Metric of IPv6 routes without one (`IP6_RT_PRIO_USER`).
const IPV6_PRIORITY: u32 = 1024;
/// `RTN_UNICAST`, `RTN_LOCAL`.
const UNICAST: u8 = 1;
const LOCAL: u8 = 2;
/// `RT_SCOPE_HOST`.
const HOST: u8 = 254;

/// A device of a route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceRef {
    pub name: String,
    pub index: u32,
}

impl fmt::Display for DeviceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.index)
    }
}

/// One of several next hops.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct NextHop {
    pub device: Option<DeviceRef>,
    pub nexthop: Option<IpAddr>,
}

impl fmt::Display for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.nexthop, &self.device) {
            (Some(nexthop), Some(device)) => write!(f, "{nexthop} {device}"),
            (Some(nexthop), None) => write!(f, "{nexthop}"),
            (None, Some(device)) => write!(f, "{device}"),
            (None, None) => f.write_str("none"),
        }
    }
}

/// A route that an owner desires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DesiredRoute {
    pub owner: Owner,
    pub table: u32,
    pub prefix: IpNet,
    /// Metric; 0: that of the kernel.
    pub priority: u32,
    /// Of several routes with one table, prefix and priority, that with the smallest distance is in the kernel. Not 0.
    #[serde(rename = "adminDistance")]
    pub admin_distance: u32,
    /// It is the one in the kernel.
    pub selected: bool,
    pub nexthop: Option<IpAddr>,
    /// Preferred source.
    pub src: Option<IpAddr>,
    pub device: Option<DeviceRef>,
    #[serde(rename = "multiPath")]
    pub multi_path: Vec<NextHop>,
    /// 0: that of the device.
    pub mtu: u32,
    /// `RT_SCOPE_*`; 0: universe, host for local routes.
    pub scope: u8,
    /// `RTN_*`; 0: unicast.
    #[serde(rename = "type")]
    pub kind: u8,
    pub status: Status,
}

/// What a route is in the kernel: table, prefix, priority.
pub(crate) type Place = (u32, IpNet, u32);

/// Key of a row: owner, table, prefix, priority.
#[derive(Debug, Clone)]
pub struct RouteId {
    owner: Owner,
    place: Place,
}

impl Key for RouteId {
    const PREFIX_FREE: bool = true;

    fn encode(&self, out: &mut KeyWriter) {
        out.delimited(self.owner.name());
        self.place.encode(out);
    }

    /// `<owner>[:<table>[:<prefix>[:<priority>]]]`.
    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        let mut out = KeyWriter::new();
        match text.split_once(':') {
            None => out.delimited(text),
            Some((owner, place)) => {
                out.delimited(owner);
                encode_place(place, &mut out)?;
            }
        }
        Ok(out.finish())
    }

    /// The owner may be incomplete.
    fn prefix_from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        match text.contains(':') {
            true => Self::from_text(text),
            false => Ok(KeyBuf::new(text.as_bytes())),
        }
    }
}

/// Key of table and prefix.
#[derive(Debug, Clone, Copy)]
pub struct TablePrefix(u32, IpNet);

impl TablePrefix {
    pub(crate) fn new(table: u32, prefix: IpNet) -> Self {
        Self(table, prefix)
    }
}

impl Key for TablePrefix {
    const PREFIX_FREE: bool = true;

    fn encode(&self, out: &mut KeyWriter) {
        (self.0, self.1).encode(out);
    }

    fn from_text(text: &str) -> Result<KeyBuf, TextKeyError> {
        let mut out = KeyWriter::new();
        encode_place(text, &mut out)?;
        Ok(out.finish())
    }
}

/// `<table>[:<prefix>[:<priority>]]`.
fn encode_place(text: &str, out: &mut KeyWriter) -> Result<(), TextKeyError> {
    let invalid = || TextKeyError::Invalid(format!("`{text}` is not <table>:<prefix>:<priority>"));
    let (table, rest) = text.split_once(':').unwrap_or((text, ""));
    if table.is_empty() {
        return Ok(());
    }
    parse_table(table).ok_or_else(invalid)?.encode(out);
    if rest.is_empty() {
        return Ok(());
    }
    // An IPv6 prefix has colons, too.
    if let Ok(prefix) = rest.parse::<IpNet>() {
        prefix.encode(out);
        return Ok(());
    }
    let (prefix, priority) = rest.rsplit_once(':').ok_or_else(invalid)?;
    prefix.parse::<IpNet>().map_err(|_| invalid())?.encode(out);
    priority.parse::<u32>().map_err(|_| invalid())?.encode(out);
    Ok(())
}

impl DesiredRoute {
    pub const BY_ID: Index<Self, RouteId> = Index::new("id", |route, keys| keys.add(&route.id()));
    pub const BY_TABLE_PREFIX: Index<Self, TablePrefix> = Index::new("table-prefix", |route, keys| {
        keys.add(&TablePrefix(route.table, route.prefix));
    });
    /// By name of the device.
    pub const BY_DEVICE: Index<Self, str> = Index::new("device", |route, keys| {
        let hops = route.multi_path.iter().filter_map(|hop| hop.device.as_ref());
        for device in route.device.iter().chain(hops) {
            keys.add(&device.name);
        }
    });

    pub(crate) const STATUS: StatusField<Self> = StatusField {
        get: |route| route.status.clone(),
        set: |route, status| route.status = status,
    };

    /// A route of the main table.
    pub fn new(owner: &Owner, prefix: IpNet, admin_distance: u32) -> Self {
        Self {
            owner: owner.clone(),
            table: 254,
            prefix: prefix.trunc(),
            priority: 0,
            admin_distance,
            selected: false,
            nexthop: None,
            src: None,
            device: None,
            multi_path: Vec::new(),
            mtu: 0,
            scope: 0,
            kind: 0,
            status: Status::pending(),
        }
    }

    pub(crate) fn id(&self) -> RouteId {
        RouteId {
            owner: self.owner.clone(),
            place: self.place(),
        }
    }

    pub(crate) fn place(&self) -> Place {
        (self.table, self.prefix, self.priority)
    }

    /// Whether two rows desire the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let plain = |route: &Self| Self {
            selected: false,
            status: Status::default(),
            ..route.clone()
        };
        plain(self) == plain(other)
    }

    /// The route as the kernel has it.
    pub(crate) fn kernel_route(&self) -> Route {
        let scope = match (self.scope, self.kind) {
            _ if self.prefix.addr().is_ipv6() => 0, // IPv6 has no scopes of routes
            (0, LOCAL) => HOST,
            (scope, _) => scope,
        };
        let hop = |hop: &NextHop| Hop {
            device: hop.device.as_ref().map(|device| device.index),
            gateway: hop.nexthop,
        };
        Route {
            device: self.device.as_ref().map(|device| device.index),
            gateway: self.nexthop,
            hops: self.multi_path.iter().map(hop).collect(),
            source: self.src,
            mtu: (self.mtu != 0).then_some(self.mtu),
            metric: match kernel_priority(&self.place()) {
                0 => None,
                priority => Some(priority),
            },
            table: self.table,
            scope: RouteScope::from(scope),
            protocol: RouteProtocol::Kernel,
            kind: match self.kind {
                0 => RouteType::Unicast,
                kind => RouteType::from(kind),
            },
            ..Route::to(self.prefix)
        }
    }

    /// Whether a row of table `routes` is what this one desires. What this leaves to the kernel does not count.
    pub(crate) fn is_realized_by(&self, route: &skep_node_local::Route) -> bool {
        let wanted = self.kernel_route();
        let kind = |kind: u8| if kind == 0 { UNICAST } else { kind };
        // Next hops of the other family have no column.
        let gateway = wanted
            .gateway
            .filter(|gateway| gateway.is_ipv4() == self.prefix.addr().is_ipv4());
        kind(route.kind) == u8::from(wanted.kind)
            && RouteScope::from(route.scope) == wanted.scope
            && route.src == wanted.source
            && route.gw == gateway
            && route.mtu == self.mtu
            && wanted.device.is_none_or(|device| device == route.link_index)
    }
}

/// The metric that the kernel has for a route.
pub(crate) fn kernel_priority((_, prefix, priority): &Place) -> u32 {
    match (prefix, priority) {
        (IpNet::V6(_), 0) => IPV6_PRIORITY,
        _ => *priority,
    }
}

impl Row for DesiredRoute {
    fn header() -> &'static [&'static str] {
        &[
            "Owner",
            "Table",
            "Prefix",
            "Priority",
            "AD",
            "Selected",
            "Nexthop",
            "Src",
            "Device",
            "MultiPath",
            "MTU",
            "Scope",
            "Type",
            "Status",
        ]
    }

    fn cells(&self) -> Vec<String> {
        fn or_none(value: Option<impl ToString>) -> String {
            value.map_or_else(|| "none".to_owned(), |value| value.to_string())
        }
        let number = |number: u32| or_none((number != 0).then_some(number));
        let hops: Vec<String> = self.multi_path.iter().map(ToString::to_string).collect();
        vec![
            self.owner.to_string(),
            match table_name(self.table) {
                Some(name) if matches!(name, "main" | "local") => format!("{name} ({})", self.table),
                _ => self.table.to_string(),
            },
            self.prefix.to_string(),
            number(self.priority),
            self.admin_distance.to_string(),
            self.selected.to_string(),
            or_none(self.nexthop),
            or_none(self.src),
            or_none(self.device.as_ref()),
            match hops.is_empty() {
                true => "none".to_owned(),
                false => format!("[{}]", hops.join(", ")),
            },
            number(self.mtu),
            scope_name(self.scope).map_or_else(|| self.scope.to_string(), str::to_owned),
            type_name(self.kind).map_or_else(|| format!("unknown ({})", self.kind), str::to_owned),
            self.status.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        row::to_json(self)
    }
}

pub(crate) fn new_table(db: Db) -> Result<RwTable<DesiredRoute>, statedb::Error> {
    RwTable::builder("desired-routes")
        .primary(DesiredRoute::BY_ID)
        .index(DesiredRoute::BY_TABLE_PREFIX)
        .index(DesiredRoute::BY_DEVICE)
        .build(&db)
}
