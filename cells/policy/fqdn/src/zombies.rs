// SPDX-License-Identifier: Apache-2.0

//! Addresses that left the cache of an endpoint, and that connections may still use.
//!
//! Garbage collection of conntrack looks which of them have connections. One without is removed after two complete passes: one
//! that was under way when it left the cache says nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use jiff::Timestamp;

use crate::cache::{DnsName, Expired};

/// Passes of conntrack's garbage collection that a zombie survives in any case.
const PASSES: u64 = 2;

/// An address with the names that had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zombie {
    pub names: BTreeSet<DnsName>,
    /// Last time that a connection was seen.
    pub alive_at: Timestamp,
    pub delete_pending_at: Timestamp,
    /// Pass of conntrack's garbage collection that it left the cache in.
    pass: u64,
}

impl Zombie {
    pub(crate) fn restored(
        names: BTreeSet<DnsName>,
        alive_at: Timestamp,
        delete_pending_at: Timestamp,
    ) -> Self {
        Self {
            names,
            alive_at,
            delete_pending_at,
            pass: 0,
        }
    }

    /// What makes it worth to be kept, least first.
    fn weight(&self) -> (Timestamp, Timestamp, usize) {
        (self.alive_at, self.delete_pending_at, self.names.len())
    }
}

/// The last pass of conntrack's garbage collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    pub number: u64,
    pub start: Timestamp,
}

/// Limits of zombies.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of addresses of an endpoint; 0: no limit.
    pub total: usize,
    /// Maximum number of addresses of a name; 0: no limit.
    pub per_name: usize,
    /// Time that idle connections keep addresses.
    pub grace: std::time::Duration,
}

/// What garbage collection removes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dead {
    pub removed: Vec<(DnsName, IpAddr)>,
    /// Removed by a limit though connections may use them.
    pub evicted: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zombies(pub(crate) BTreeMap<IpAddr, Zombie>);

impl Zombies {
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, &Zombie)> {
        self.0.iter().map(|(address, zombie)| (*address, zombie))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn insert(&mut self, expired: &Expired, pass: &Pass) {
        let zombie = self.0.entry(expired.address).or_insert_with(|| Zombie {
            names: BTreeSet::new(),
            alive_at: pass.start,
            delete_pending_at: expired.expiration,
            pass: pass.number,
        });
        zombie.names.insert(expired.name.clone());
        if zombie.delete_pending_at < expired.expiration {
            zombie.delete_pending_at = expired.expiration;
            zombie.pass = pass.number;
        }
    }

    /// Connections to the address were seen.
    pub fn mark_alive(&mut self, address: IpAddr, at: Timestamp) {
        if let Some(zombie) = self.0.get_mut(&address) {
            zombie.alive_at = zombie.alive_at.max(at);
        }
    }

    /// The name has these addresses again.
    pub fn remove(&mut self, name: &str, addresses: impl IntoIterator<Item = IpAddr>) {
        for address in addresses {
            if let Some(zombie) = self.0.get_mut(&address) {
                zombie.names.remove(name);
                if zombie.names.is_empty() {
                    self.0.remove(&address);
                }
            }
        }
    }

    fn is_dead(zombie: &Zombie, pass: &Pass, limits: &Limits) -> bool {
        let due = zombie
            .delete_pending_at
            .checked_add(limits.grace)
            .unwrap_or(Timestamp::MAX);
        pass.start > due && pass.start > zombie.alive_at && pass.number >= zombie.pass + PASSES
    }

    /// Removes what no connection uses, and what is over the limits. An address without connections stays while another one
    /// of its names has some.
    pub fn collect(&mut self, pass: &Pass, limits: &Limits) -> Dead {
        let is_alive = |zombie: &&Zombie| !Self::is_dead(zombie, pass, limits);
        let alive: BTreeSet<DnsName> = self
            .0
            .values()
            .filter(is_alive)
            .flat_map(|zombie| zombie.names.iter().cloned())
            .collect();
        let mut dead = Dead::default();
        self.0.retain(|address, zombie| {
            let stays =
                !Self::is_dead(zombie, pass, limits) || zombie.names.iter().any(|name| alive.contains(name));
            if !stays {
                let names = std::mem::take(&mut zombie.names);
                dead.removed
                    .extend(names.into_iter().map(|name| (name, *address)));
            }
            stays
        });
        if limits.per_name > 0 {
            self.limit_names(limits.per_name, &mut dead);
        }
        if limits.total > 0 && self.0.len() > limits.total {
            let mut all: Vec<_> = self
                .0
                .iter()
                .map(|(address, zombie)| (zombie.weight(), *address))
                .collect();
            all.sort();
            for (_, address) in all.iter().take(self.0.len() - limits.total) {
                if let Some(zombie) = self.0.remove(address) {
                    dead.evicted += 1;
                    dead.removed
                        .extend(zombie.names.into_iter().map(|name| (name, *address)));
                }
            }
        }
        dead
    }

    fn limit_names(&mut self, limit: usize, dead: &mut Dead) {
        let mut of_name: BTreeMap<DnsName, Vec<(_, IpAddr)>> = BTreeMap::new();
        for (address, zombie) in &self.0 {
            for name in &zombie.names {
                of_name
                    .entry(name.clone())
                    .or_default()
                    .push((zombie.weight(), *address));
            }
        }
        for (name, mut addresses) in of_name {
            if addresses.len() <= limit {
                continue;
            }
            addresses.sort();
            let over = addresses.len() - limit;
            for (_, address) in addresses.into_iter().take(over) {
                self.remove(&name, [address]);
                dead.evicted += 1;
                dead.removed.push((name.clone(), address));
            }
        }
    }

    /// Removes those of names that are selected.
    pub fn clear(&mut self, is_selected: impl Fn(&str) -> bool) -> Vec<DnsName> {
        let mut cleared = Vec::new();
        self.0.retain(|_, zombie| {
            zombie.names.retain(|name| {
                let is_gone = is_selected(name);
                if is_gone {
                    cleared.push(name.clone());
                }
                !is_gone
            });
            !zombie.names.is_empty()
        });
        cleared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn expired(name: &str, last: u8, due: i64) -> Expired {
        Expired {
            name: name.into(),
            address: [192, 0, 2, last].into(),
            expiration: at(due),
        }
    }

    fn limits(total: usize, per_name: usize) -> Limits {
        Limits {
            total,
            per_name,
            grace: std::time::Duration::ZERO,
        }
    }

    fn pass(number: u64, start: i64) -> Pass {
        Pass {
            number,
            start: at(start),
        }
    }

    #[test]
    fn the_least_used_are_evicted_over_the_limits() {
        let mut zombies = Zombies::default();
        for last in 1..=5 {
            zombies.insert(&expired("a.", last, i64::from(last)), &Pass::default());
        }
        zombies.mark_alive([192, 0, 2, 1].into(), at(50));

        let dead = zombies.collect(&pass(1, 60), &limits(10, 3));
        let gone: Vec<IpAddr> = dead.removed.iter().map(|(_, address)| *address).collect();
        assert_eq!(gone, [IpAddr::from([192, 0, 2, 2]), [192, 0, 2, 3].into()]);

        let dead = zombies.collect(&pass(1, 60), &limits(1, 3));
        assert_eq!((dead.evicted, zombies.iter().count()), (2, 1));
        assert_eq!(zombies.iter().next().unwrap().0, IpAddr::from([192, 0, 2, 1]));
    }

    #[test]
    fn a_grace_period_and_a_new_answer_keep_addresses() {
        let mut zombies = Zombies::default();
        zombies.insert(&expired("a.", 1, 10), &Pass::default());
        let grace = Limits {
            grace: std::time::Duration::from_secs(30),
            ..limits(0, 0)
        };
        assert_eq!(zombies.collect(&pass(2, 40), &grace), Dead::default());
        assert_eq!(zombies.clone().collect(&pass(2, 41), &grace).removed.len(), 1);

        zombies.remove("a.", [[192, 0, 2, 1].into()]);
        assert!(zombies.is_empty());
    }
}
