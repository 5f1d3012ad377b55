// SPDX-License-Identifier: Apache-2.0

//! Mode `multi-pool`: the networks of pools of one family, and how many addresses each pool needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use ipnet::IpNet;
use tokio::time::Instant;

use crate::{
    Family, IpamError,
    range::{Ends, Range},
};

/// How long a failed allocation counts as demand.
const PENDING: Duration = Duration::from_secs(300);

/// Networks of a pool that the operator has allocated to the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PoolNetworks {
    pub(crate) networks: Vec<IpNet>,
    pub(crate) ends: Ends,
}

#[derive(Debug, Default)]
struct Pool {
    ends: Ends,
    /// In the order of allocation.
    ranges: Vec<Range>,
    /// Not allocated to the node any more, but with addresses in use.
    withdrawn: Vec<Range>,
    /// Released by the node, still allocated to it by the operator.
    released: BTreeSet<IpNet>,
}

impl Pool {
    fn all(&self) -> impl Iterator<Item = &Range> {
        self.ranges.iter().chain(&self.withdrawn)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Range> {
        self.ranges.iter_mut().chain(&mut self.withdrawn)
    }

    fn used(&self) -> u64 {
        self.all().map(Range::used).sum()
    }

    fn free(&self) -> u64 {
        self.ranges.iter().map(Range::free).sum()
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.withdrawn.is_empty() && self.released.is_empty()
    }

    fn update(&mut self, name: &str, networks: &PoolNetworks, needed: u64) {
        if self.ends != networks.ends {
            match self.used() {
                0 => {
                    self.ends = networks.ends;
                    self.ranges.clear();
                }
                _ => tracing::warn!(pool = name, "Ignored change of the ends of networks in use"),
            }
        }
        let (kept, gone) = std::mem::take(&mut self.ranges)
            .into_iter()
            .partition(|range| networks.networks.contains(&range.network()));
        self.ranges = kept;
        let gone: Vec<Range> = gone;
        for range in gone.into_iter().filter(|range| range.used() > 0) {
            tracing::error!(pool = name, cidr = %range.network(), "in-use CIDR was removed from spec");
            self.withdrawn.push(range);
        }
        self.withdrawn.retain(|range| range.used() > 0);
        self.released
            .retain(|network| networks.networks.contains(network));
        for network in &networks.networks {
            if self.ranges.iter().any(|range| range.network() == *network) {
                continue;
            }
            if self.released.contains(network) && self.free() >= needed {
                continue;
            }
            self.released.remove(network);
            let withdrawn = self
                .withdrawn
                .iter()
                .position(|range| range.network() == *network);
            let range = withdrawn.map(|index| self.withdrawn.remove(index));
            self.ranges
                .push(range.unwrap_or_else(|| Range::new(*network, self.ends)));
        }
    }

    /// Releases networks without addresses in use, the last one first, as long as enough addresses are free.
    fn release_surplus(&mut self, needed: u64) {
        for index in (0..self.ranges.len()).rev() {
            let range = &self.ranges[index];
            if range.used() == 0 && self.free() - range.free() >= needed {
                self.released.insert(range.network());
                self.ranges.remove(index);
            }
        }
        self.withdrawn.retain(|range| range.used() > 0);
    }
}

/// Pools of one family.
#[derive(Debug)]
pub(crate) struct Pools {
    family: Family,
    pools: BTreeMap<String, Pool>,
    /// Addresses to keep free, by pool.
    pre_allocate: BTreeMap<String, u64>,
    /// Owners whose allocation failed, by pool, and when.
    pending: BTreeMap<String, BTreeMap<String, Instant>>,
}

/// Number of addresses that a pool needs with so many in use or asked for: whole multiples of what is kept free.
pub(crate) fn needed(used: u64, pre_allocate: u64) -> u64 {
    match pre_allocate {
        0 => used,
        step => (used + step).div_ceil(step) * step,
    }
}

impl Pools {
    pub(crate) fn new(family: Family, pre_allocate: BTreeMap<String, u64>) -> Self {
        Self {
            family,
            pools: BTreeMap::new(),
            pre_allocate,
            pending: BTreeMap::new(),
        }
    }

    pub(crate) fn set_pre_allocate(&mut self, pool: &str, addresses: u64) {
        self.pre_allocate.insert(pool.to_owned(), addresses);
    }

    /// Applies what the operator has allocated. Networks of the other family do not count.
    pub(crate) fn update(&mut self, allocated: &BTreeMap<String, PoolNetworks>) {
        let needed = self.needed();
        let names: BTreeSet<String> = allocated.keys().chain(self.pools.keys()).cloned().collect();
        for name in names {
            let mut networks = allocated.get(&name).cloned().unwrap_or_default();
            networks
                .networks
                .retain(|network| Family::of(network.addr()) == self.family);
            let pool = self.pools.entry(name.clone()).or_default();
            if !allocated.contains_key(&name) {
                networks.ends = pool.ends;
            }
            pool.update(&name, &networks, needed.get(&name).copied().unwrap_or_default());
        }
        self.pools.retain(|_, pool| !pool.is_empty());
    }

    pub(crate) fn release_surplus(&mut self) {
        let needed = self.needed();
        for (name, pool) in &mut self.pools {
            pool.release_surplus(needed.get(name).copied().unwrap_or_default());
        }
    }

    /// Networks that the node keeps, by pool.
    pub(crate) fn networks(&self) -> BTreeMap<String, BTreeSet<IpNet>> {
        let pools = self.pools.iter().map(|(name, pool)| {
            let networks = pool.all().map(Range::network).collect();
            (name.clone(), networks)
        });
        pools
            .filter(|(_, networks): &(_, BTreeSet<IpNet>)| !networks.is_empty())
            .collect()
    }

    /// Number of addresses that each pool needs; pools without demand are absent.
    pub(crate) fn needed(&self) -> BTreeMap<String, u64> {
        let now = Instant::now();
        let names: BTreeSet<&String> = self
            .pools
            .keys()
            .chain(self.pending.keys())
            .chain(self.pre_allocate.keys())
            .collect();
        let needs = names.into_iter().map(|name| {
            let pending = self.pending.get(name).into_iter().flatten();
            let pending = pending.filter(|(_, since)| now - **since < PENDING).count();
            let used = self.pools.get(name).map(Pool::used).unwrap_or_default();
            let step = self.pre_allocate.get(name).copied().unwrap_or_default();
            (name.clone(), needed(used + pending as u64, step))
        });
        needs.filter(|(_, needed)| *needed > 0).collect()
    }

    /// Counts the demand of an owner for [`PENDING`].
    pub(crate) fn demand(&mut self, pool: &str, owner: &str) {
        let now = Instant::now();
        let owners = self.pending.entry(pool.to_owned()).or_default();
        owners.retain(|_, since| now - *since < PENDING);
        owners.insert(owner.to_owned(), now);
    }

    fn satisfied(&mut self, pool: &str, owner: &str) {
        let Some(owners) = self.pending.get_mut(pool) else {
            return;
        };
        owners.remove(owner);
        if owners.is_empty() {
            self.pending.remove(pool);
        }
    }

    fn pool(&mut self, pool: &str) -> Result<&mut Pool, IpamError> {
        let family = self.family;
        let found = self.pools.get_mut(pool);
        found
            .filter(|found| !found.ranges.is_empty())
            .ok_or(IpamError::PoolUnavailable {
                pool: pool.to_owned(),
                family,
            })
    }

    fn allocated<T>(
        &mut self,
        result: Result<T, IpamError>,
        owner: &str,
        pool: &str,
    ) -> Result<T, IpamError> {
        match &result {
            Ok(_) => self.satisfied(pool, owner),
            Err(IpamError::Allocated) => {}
            Err(_) => self.demand(pool, owner),
        }
        result
    }

    pub(crate) fn allocate(&mut self, ip: IpAddr, owner: &str, pool: &str) -> Result<(), IpamError> {
        let result = self.pool(pool).and_then(|found| {
            let range = found.ranges.iter_mut().find(|range| range.contains(ip));
            range.ok_or(IpamError::NotInPool(ip))?.allocate(ip)
        });
        self.allocated(result, owner, pool)
    }

    pub(crate) fn allocate_next(&mut self, owner: &str, pool: &str) -> Result<IpAddr, IpamError> {
        let result = self.pool(pool).and_then(|found| {
            let mut ranges = found.ranges.iter_mut();
            ranges.find_map(Range::allocate_next).ok_or(IpamError::Exhausted)
        });
        self.allocated(result, owner, pool)
    }

    pub(crate) fn release(&mut self, ip: IpAddr, pool: &str) {
        for range in self.pools.get_mut(pool).into_iter().flat_map(Pool::all_mut) {
            range.release(ip);
        }
    }

    /// Number of pools with networks.
    pub(crate) fn count(&self) -> usize {
        self.pools.len()
    }

    pub(crate) fn free(&self) -> u64 {
        self.pools.values().map(Pool::free).sum()
    }

    /// Whether every pool with addresses to keep free has one.
    pub(crate) fn has_initial(&self) -> bool {
        let mut wanted = self.pre_allocate.iter().filter(|(_, addresses)| **addresses > 0);
        wanted.all(|(pool, _)| self.pools.get(pool).is_some_and(|pool| pool.free() > 0))
    }

    /// First network of a pool.
    pub(crate) fn first_network(&self, pool: &str) -> Option<IpNet> {
        Some(self.pools.get(pool)?.ranges.first()?.network())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocated(networks: &[&str]) -> BTreeMap<String, PoolNetworks> {
        let networks = networks.iter().map(|network| network.parse().unwrap()).collect();
        BTreeMap::from([(
            "red".to_owned(),
            PoolNetworks {
                networks,
                ends: Ends::default(),
            },
        )])
    }

    fn pools(pre_allocate: u64, networks: &[&str]) -> Pools {
        let mut pools = Pools::new(Family::V4, BTreeMap::from([("red".to_owned(), pre_allocate)]));
        pools.update(&allocated(networks));
        pools
    }

    fn networks(pools: &Pools) -> Vec<String> {
        let networks = pools.networks();
        let red = networks.get("red").into_iter().flatten();
        red.map(ToString::to_string).collect()
    }

    #[test]
    fn demand_is_rounded_to_multiples_of_the_buffer() {
        let demand = [(0, 8), (3, 8), (8, 8), (9, 8), (17, 8), (3, 0)];
        assert_eq!(
            demand.map(|(used, step)| needed(used, step)),
            [8, 16, 16, 24, 32, 3]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn failed_allocations_count_as_demand_for_a_while() {
        let mut pools = pools(0, &["10.0.0.0/30", "fd00::/120"]);
        for owner in ["a", "b"] {
            pools.allocate_next(owner, "red").unwrap();
        }

        let full = pools.allocate_next("c", "red").unwrap_err();
        let missing = pools.allocate_next("c", "blue").unwrap_err();

        assert_eq!(full.to_string(), "all CIDR ranges are exhausted");
        assert_eq!(
            missing.to_string(),
            "unable to allocate from pool \"blue\" (family ipv4): pool not (yet) available"
        );
        let demand = BTreeMap::from([("blue".to_owned(), 1), ("red".to_owned(), 3)]);
        assert_eq!(pools.needed(), demand);
        pools.update(&allocated(&["10.0.0.0/30", "10.0.1.0/30"]));
        pools.allocate_next("c", "red").unwrap();
        tokio::time::advance(PENDING).await;
        assert_eq!(pools.needed(), BTreeMap::from([("red".to_owned(), 3)]));
    }

    #[test]
    fn surplus_networks_without_addresses_in_use_are_released_from_the_last_on() {
        let all = ["10.0.0.0/28", "10.0.1.0/28", "10.0.2.0/28"];
        let mut pools = pools(8, &all);
        pools.allocate("10.0.2.1".parse().unwrap(), "a", "red").unwrap();

        pools.release_surplus();

        assert_eq!(networks(&pools), ["10.0.0.0/28", "10.0.2.0/28"]);
        pools.update(&allocated(&all));
        assert_eq!(
            networks(&pools),
            ["10.0.0.0/28", "10.0.2.0/28"],
            "not taken back without need"
        );
        for owner in 0..26 {
            pools.allocate_next(&owner.to_string(), "red").unwrap();
        }
        pools.update(&allocated(&all));
        assert_eq!(networks(&pools), all, "taken back as addresses are missing");
    }

    #[test]
    fn a_withdrawn_network_is_kept_while_it_is_in_use_and_allocates_nothing() {
        let mut pools = pools(0, &["10.0.0.0/28"]);
        let ip = "10.0.0.3".parse().unwrap();
        pools.allocate(ip, "a", "red").unwrap();

        pools.update(&BTreeMap::new());

        assert_eq!(networks(&pools), ["10.0.0.0/28"]);
        assert!(pools.allocate_next("b", "red").is_err());
        pools.release(ip, "red");
        pools.update(&BTreeMap::new());
        assert_eq!((networks(&pools), pools.count()), (vec![], 0));
    }
}
