// SPDX-License-Identifier: Apache-2.0

//! Rows of policy maps, of the recording and of the model, in one form.

use std::collections::BTreeSet;

use serde_json::Value;
use skep_identity::NumericIdentity;
use skep_policy_model::{Direction, MapState, Protocol, entries::Auth, map_state::MapRow, ports::TrafficKey};

/// Where a row is.
pub(crate) type Place = (Direction, u32, TrafficKey);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub place: Place,
    pub precedence: u32,
    pub is_deny: bool,
    pub proxy: String,
    pub auth: String,
    pub origins: BTreeSet<String>,
    pub logs: BTreeSet<String>,
}

pub(crate) fn auth_text(auth: Option<Auth>) -> String {
    match auth {
        None => String::new(),
        Some(auth) if auth.is_explicit => format!("{}!", auth.kind.name()),
        Some(auth) => auth.kind.name().to_owned(),
    }
}

impl Row {
    fn of(row: &MapRow<'_>) -> Self {
        let entry = row.entry;
        Self {
            place: (row.direction, row.identity.get(), row.key),
            precedence: entry.precedence,
            is_deny: entry.is_deny,
            proxy: entry
                .proxy
                .as_ref()
                .map(|proxy| proxy.class.to_string())
                .unwrap_or_default(),
            auth: auth_text(entry.auth),
            origins: entry
                .origins
                .labels()
                .into_iter()
                .map(|labels| labels.join(","))
                .collect(),
            logs: entry.origins.logs().into_iter().map(str::to_owned).collect(),
        }
    }

    pub(crate) fn all(map: &MapState) -> Vec<Self> {
        map.rows().map(|row| Self::of(&row)).collect()
    }

    /// A recorded row. `None` for one without a verdict: marks that never leave user space.
    pub(crate) fn recorded(
        value: &Value,
        origins: &[String],
        identity: impl Fn(u32) -> u32,
    ) -> Result<Option<Self>, String> {
        let broken = || format!("row {value} is not of this format");
        let text = |index: usize| value.get(index).and_then(Value::as_str).ok_or_else(broken);
        let number = |index: usize| value.get(index).and_then(Value::as_u64).ok_or_else(broken);
        let narrow = |number: u64| u32::try_from(number).map_err(|_| broken());
        if text(6)? == "pass-only" {
            return Ok(None);
        }
        let direction = match text(0)? {
            "I" => Direction::Ingress,
            _ => Direction::Egress,
        };
        let key = TrafficKey::new(
            protocol(text(2)?).ok_or_else(broken)?,
            u16::try_from(number(3)?).map_err(|_| broken())?,
            u8::try_from(number(4)?).map_err(|_| broken())?,
        );
        let indexes = value.get(9).and_then(Value::as_array).ok_or_else(broken)?;
        let origin = |index: &Value| origins.get(usize::try_from(index.as_u64()?).ok()?).cloned();
        let logs = value
            .get(10)
            .and_then(|extra| extra.get("log"))
            .and_then(Value::as_array);
        Ok(Some(Self {
            place: (direction, identity(narrow(number(1)?)?), key),
            precedence: u32::from_str_radix(text(5)?, 16).map_err(|_| broken())?,
            is_deny: text(6)? == "deny",
            proxy: text(7)?.to_owned(),
            auth: text(8)?.to_owned(),
            origins: indexes.iter().filter_map(origin).collect(),
            logs: logs
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        }))
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (direction, identity, key) = &self.place;
        let direction = if *direction == Direction::Ingress {
            'I'
        } else {
            'E'
        };
        let verdict = if self.is_deny { "deny" } else { "allow" };
        write!(
            f,
            "[{direction} {identity} {key} {:08X} {verdict} {} {}",
            self.precedence, self.proxy, self.auth
        )?;
        write!(f, " from {:?} {:?}]", self.origins, self.logs)
    }
}

/// A protocol as recordings name it.
pub(crate) fn protocol(name: &str) -> Option<Protocol> {
    match name {
        "*" | "ANY" => Some(Protocol::ANY),
        "ICMPv6" => Some(Protocol::ICMPV6),
        name => Protocol::from_name(name).or_else(|| name.parse().ok().map(Protocol)),
    }
}

/// The first difference between rows.
pub(crate) fn first_difference(recorded: &[Row], found: &[Row]) -> Option<String> {
    for row in recorded {
        match found.iter().find(|other| other.place == row.place) {
            None => return Some(format!("recorded {row}, found none")),
            Some(other) if other != row => return Some(format!("recorded {row}, found {other}")),
            Some(_) => {}
        }
    }
    let more = found
        .iter()
        .find(|row| recorded.iter().all(|other| other.place != row.place));
    more.map(|row| format!("recorded none, found {row}"))
}

/// The row that decides about a packet.
fn lookup(rows: &[Row], direction: Direction, identity: u32, key: TrafficKey) -> Option<&Row> {
    let longest = |of: u32| {
        let covering = rows.iter().filter(|row| {
            let (to, who, known) = row.place;
            to == direction && who == of && known.covers(key)
        });
        covering.max_by_key(|row| row.place.2.length())
    };
    match (longest(identity), longest(0)) {
        (Some(own), Some(_)) if own.precedence == u32::MAX => Some(own),
        (Some(own), Some(any)) => {
            let is_longer = any.place.2.length() > own.place.2.length();
            match any.precedence > own.precedence || any.precedence == own.precedence && is_longer {
                true => Some(any),
                false => Some(own),
            }
        }
        (own, any) => own.or(any),
    }
}

/// The first packet that two maps treat in another way: verdict, redirect, authentication, deciding rules.
pub(crate) fn first_packet(
    recorded: &[Row],
    found: &[Row],
    identities: &[NumericIdentity],
) -> Option<String> {
    let all = || recorded.iter().chain(found);
    let mut keys: BTreeSet<TrafficKey> = [Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMP]
        .into_iter()
        .map(|protocol| TrafficKey::new(protocol, 65_533, 16))
        .collect();
    for row in all() {
        let key = row.place.2;
        if key.protocol == Protocol::ANY {
            continue;
        }
        let last = key.port | u16::MAX.checked_shr(u32::from(key.bits)).unwrap_or(0);
        for port in [key.port, last, key.port.wrapping_sub(1), last.wrapping_add(1)] {
            keys.insert(TrafficKey::new(key.protocol, port, 16));
        }
    }
    let mut peers: BTreeSet<u32> = identities.iter().map(|identity| identity.get()).collect();
    peers.extend(all().map(|row| row.place.1).filter(|identity| *identity != 0));
    let facts = |row: Option<&Row>| {
        row.map(|row| {
            (
                row.is_deny,
                row.proxy.clone(),
                row.auth.clone(),
                row.origins.clone(),
                row.logs.clone(),
            )
        })
    };
    for direction in Direction::BOTH {
        for peer in &peers {
            for key in &keys {
                let (one, other) = (
                    lookup(recorded, direction, *peer, *key),
                    lookup(found, direction, *peer, *key),
                );
                if facts(one) != facts(other) {
                    let text = |row: Option<&Row>| row.map_or_else(|| "drop".to_owned(), ToString::to_string);
                    return Some(format!(
                        "{} {peer} {key}: recorded {}, found {}",
                        direction.name(),
                        text(one),
                        text(other)
                    ));
                }
            }
        }
    }
    None
}
