// SPDX-License-Identifier: Apache-2.0

//! Names and DNS rules in the state file of an endpoint, in Cilium's form.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    cache::NameCache,
    zombies::{Zombie, Zombies},
};

/// `DNSHistory`, `DNSZombies` and `DNSRulesV2` of `ep_config.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DnsState {
    #[serde(rename = "DNSHistory", deserialize_with = "or_default")]
    pub history: Vec<SavedAnswer>,
    #[serde(rename = "DNSZombies", deserialize_with = "or_default")]
    pub zombies: SavedZombies,
    #[serde(
        rename = "DNSRulesV2",
        deserialize_with = "or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub rules: SavedRules,
}

/// Reads `null` as empty.
fn or_default<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// An answer. A file of `tofqdns-pre-cache` has a list of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SavedAnswer {
    #[serde(default)]
    pub fqdn: String,
    #[serde(rename = "lookup-time")]
    pub lookup: Timestamp,
    #[serde(rename = "expiration-time")]
    pub expiration: Timestamp,
    #[serde(default)]
    pub ttl: i64,
    #[serde(default, deserialize_with = "or_default")]
    pub ips: Vec<IpAddr>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedZombies {
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub deletes: BTreeMap<IpAddr, SavedZombie>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedZombie {
    #[serde(default, deserialize_with = "or_default")]
    pub names: BTreeSet<String>,
    pub ip: IpAddr,
    #[serde(rename = "alive-at", skip_serializing_if = "is_never", default)]
    pub alive_at: Timestamp,
    #[serde(rename = "delete-pending-at", skip_serializing_if = "is_never", default)]
    pub delete_pending_at: Timestamp,
}

fn is_never(time: &Timestamp) -> bool {
    *time == Timestamp::UNIX_EPOCH
}

/// Rules by port and protocol, see [`port_key`].
pub type SavedRules = BTreeMap<u32, Vec<SavedRule>>;

/// Names that servers may be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRule {
    /// Regular expression of the names.
    #[serde(rename = "Re")]
    pub names: String,
    /// Servers; `None`: any.
    #[serde(rename = "IPs")]
    pub servers: Option<BTreeMap<String, Empty>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// Key of the rules of a port of a protocol.
pub const fn port_key(protocol: u8, port: u16) -> u32 {
    1 << 24 | (protocol as u32) << 16 | port as u32
}

impl DnsState {
    pub(crate) fn of(cache: &NameCache, zombies: &Zombies, rules: SavedRules) -> Self {
        let mut history: BTreeMap<(&str, Timestamp, u32), Vec<IpAddr>> = BTreeMap::new();
        for (name, records) in cache.iter() {
            for record in records {
                history
                    .entry((name, record.lookup(), record.ttl))
                    .or_default()
                    .push(record.address);
            }
        }
        let history = history.into_iter().map(|((name, lookup, ttl), mut ips)| {
            ips.sort_unstable();
            SavedAnswer {
                fqdn: name.to_owned(),
                lookup,
                expiration: expiration(lookup, ttl),
                ttl: ttl.into(),
                ips,
            }
        });
        let deletes = zombies.iter().map(|(ip, zombie)| {
            let saved = SavedZombie {
                names: zombie.names.iter().map(|name| name.to_string()).collect(),
                ip,
                alive_at: zombie.alive_at,
                delete_pending_at: zombie.delete_pending_at,
            };
            (ip, saved)
        });
        Self {
            history: history.collect(),
            zombies: SavedZombies {
                deletes: deletes.collect(),
            },
            rules,
        }
    }

    pub(crate) fn cache(&self, limit: usize) -> NameCache {
        let mut cache = NameCache::new(limit);
        for answer in &self.history {
            answer.load(&mut cache);
        }
        cache
    }

    pub(crate) fn zombies(&self) -> Zombies {
        let zombies = self.zombies.deletes.iter().map(|(address, saved)| {
            let names = saved.names.iter().map(|name| name.as_str().into()).collect();
            (
                *address,
                Zombie::restored(names, saved.alive_at, saved.delete_pending_at),
            )
        });
        Zombies(zombies.filter(|(_, zombie)| !zombie.names.is_empty()).collect())
    }
}

impl SavedAnswer {
    pub(crate) fn load(&self, cache: &mut NameCache) {
        let name = skep_policy_model::fqdn::canonical_name(&self.fqdn);
        // What the file says of its end counts: the TTL may have had a minimum.
        let ttl = self.expiration.as_second() - self.lookup.as_second();
        let ttl = u32::try_from(ttl.max(self.ttl)).unwrap_or_default();
        cache.update(&name.into(), self.ips.iter().copied(), ttl, self.lookup);
    }
}

fn expiration(lookup: Timestamp, ttl: u32) -> Timestamp {
    let ttl = std::time::Duration::from_secs(ttl.into());
    lookup.checked_add(ttl).unwrap_or(Timestamp::MAX)
}
