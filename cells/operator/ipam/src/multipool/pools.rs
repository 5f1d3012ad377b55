// SPDX-License-Identifier: Apache-2.0

//! Which networks each node has of which pool.
//!
//! The operator adds networks, the agent removes them: one that the spec of a node listed and lists no more is released.
//! One that was assigned and never listed waits to be written, and stays reserved. Networks of a pool that was removed, or
//! that are no longer in it, stay with their nodes until the agents remove them.
//!
//! Networks of nodes never overlap, of whatever pools they are: an allocator has its own, and those of other pools that reach
//! into its networks.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::pool::{PoolSpec, PoolSpecError, usable};
use crate::allocator::{Family, OccupyError, PrefixAllocator};
use crate::recorder::PoolUsage;

/// Most networks that a node gets of one pool and family.
const MOST_NETWORKS: usize = 4096;

/// Networks that a node has of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocation {
    pub pool: String,
    /// The networks, as in the spec of the node.
    pub cidrs: Vec<String>,
    /// Pods can have the first address of each network.
    pub allow_first_ip: bool,
    /// Pods can have the last address of each network.
    pub allow_last_ip: bool,
}

/// How many addresses a node asks a pool for, those in use included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub pool: String,
    pub needed: [(Family, u128); 2],
}

/// Why a node does not have what it asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A network in the spec is malformed: correct the spec.
    #[error("invalid CIDR address: {text}")]
    Malformed { text: String },
    /// Create the pool, or configure the agent to ask another one.
    #[error("cannot allocate from non-existing pool: {pool}")]
    NoPool { pool: String },
    /// Add networks of the family to the pool.
    #[error("pool {pool} has no networks of family {}", .family.as_str())]
    NoFamily { pool: String, family: Family },
    /// Every prefix of the pool is in use: add a network to it.
    #[error("unable to allocate from pool {pool} (family {}): pool empty", .family.as_str())]
    Full { pool: String, family: Family },
    /// More networks than a node can have: check what the agent asks for, or create a pool with a shorter mask size.
    #[error("pool {pool} (family {}): more than {MOST_NETWORKS} networks requested", .family.as_str())]
    TooMany { pool: String, family: Family },
}

/// What a node is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultiPoolAssignment {
    /// Networks, sorted by pool; within a pool by family and address.
    pub allocated: Vec<Allocation>,
    /// Networks of the spec that another node holds. They are not in `allocated`.
    pub duplicates: Vec<OccupyError>,
    pub errors: Vec<RequestError>,
}

#[derive(Debug, Default)]
struct Pool {
    /// None for a pool that does not exist and of which nodes have networks.
    spec: Option<PoolSpec>,
    allocators: BTreeMap<Family, PrefixAllocator>,
}

/// Networks that a node holds of a pool.
#[derive(Debug, Default)]
struct Holding {
    /// The networks, and whether the spec of the node has listed them.
    networks: BTreeMap<IpNet, bool>,
    /// As in the spec of the node, for a pool that does not exist.
    allow_first_ip: bool,
    allow_last_ip: bool,
}

/// All pools, and what each node holds.
#[derive(Debug, Default)]
pub struct MultiPool {
    pools: BTreeMap<String, Pool>,
    nodes: BTreeMap<String, BTreeMap<String, Holding>>,
    has_released: bool,
    has_removed: bool,
}

impl Pool {
    fn allocator(&mut self, family: Family) -> &mut PrefixAllocator {
        self.allocators.entry(family).or_insert_with(|| {
            PrefixAllocator::new(family, Vec::new(), 0).expect("no network means no fault")
        })
    }

    /// Replaces the networks; what nodes hold stays.
    fn set(&mut self, spec: Option<PoolSpec>) -> Result<(), PoolSpecError> {
        let mut allocators = BTreeMap::new();
        for family in [Family::V4, Family::V6] {
            let new = spec.as_ref().and_then(|spec| spec.families.get(&family));
            let (networks, mask_size) =
                new.map_or((Vec::new(), 0), |new| (new.networks.clone(), new.mask_size));
            let mut allocator = PrefixAllocator::new(family, networks, mask_size)?;
            let old = self.allocators.get(&family).into_iter();
            for (prefix, node) in old.flat_map(PrefixAllocator::held) {
                // Those in use do not overlap.
                let _ = allocator.adopt(*prefix, node);
            }
            allocators.insert(family, allocator);
        }
        self.allocators = allocators;
        self.spec = spec;
        Ok(())
    }
}

impl MultiPool {
    /// Creates or changes a pool. Returns whether anything changed.
    ///
    /// # Errors
    /// [`PoolSpecError`] for a change that is not supported; then the pool stays as it is.
    pub fn upsert_pool(&mut self, name: &str, spec: PoolSpec) -> Result<bool, PoolSpecError> {
        let pool = self.pools.entry(name.to_owned()).or_default();
        if let Some(old) = &pool.spec {
            if *old == spec {
                return Ok(false);
            }
            spec.check_change(old)?;
        }
        pool.set(Some(spec))?;
        let others: Vec<(IpNet, String)> = self.others_of(name).collect();
        for (prefix, node) in others {
            let pool = self.pools.entry(name.to_owned()).or_default();
            pool.allocator(Family::of(&prefix)).block(prefix, &node);
        }
        Ok(true)
    }

    /// What nodes hold of other pools.
    fn others_of(&self, name: &str) -> impl Iterator<Item = (IpNet, String)> {
        let others = self.pools.iter().filter(move |(other, _)| *other != name);
        let allocators = others.flat_map(|(_, pool)| pool.allocators.values());
        let held = allocators.flat_map(PrefixAllocator::held);
        held.map(|(prefix, node)| (*prefix, node.to_owned()))
    }

    fn other_allocators(&mut self, name: &str, family: Family) -> impl Iterator<Item = &mut PrefixAllocator> {
        let others = self.pools.iter_mut().filter(move |(other, _)| *other != name);
        others.filter_map(move |(_, pool)| pool.allocators.get_mut(&family))
    }

    /// A node holds a network of a pool from now on, also outside its networks.
    fn hold(&mut self, name: &str, prefix: IpNet, node: &str) -> Result<(), OccupyError> {
        let family = Family::of(&prefix);
        let own = self.pools.entry(name.to_owned()).or_default().allocator(family);
        if own.is_held(&prefix, node) {
            return Ok(());
        }
        let allocators = self
            .pools
            .values()
            .filter_map(|pool| pool.allocators.get(&family));
        let mut conflicts = allocators.filter_map(|allocator| allocator.conflict(&prefix));
        if let Some(conflict) = conflicts.next() {
            return Err(conflict);
        }
        let own = self.pools.entry(name.to_owned()).or_default().allocator(family);
        own.adopt(prefix, node)?;
        self.block(name, prefix, node);
        Ok(())
    }

    fn block(&mut self, name: &str, prefix: IpNet, node: &str) {
        let others = self.other_allocators(name, Family::of(&prefix));
        others.for_each(|other| other.block(prefix, node));
    }

    /// Removes a pool. What nodes hold stays with them.
    pub fn remove_pool(&mut self, name: &str) {
        if let Some(pool) = self.pools.get_mut(name) {
            pool.set(None).expect("no network means no fault");
            self.has_removed = true;
        }
        self.drop_unused(name);
    }

    /// Names of the pools that exist.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        let exist = self.pools.iter().filter(|(_, pool)| pool.spec.is_some());
        exist.map(|(name, _)| name.as_str())
    }

    /// How much of each pool is in use, of those that exist.
    #[must_use]
    pub fn usage(&self) -> Vec<PoolUsage> {
        let mut usage = Vec::new();
        for (name, pool) in &self.pools {
            let families = pool.spec.iter().flat_map(|spec| spec.families.keys());
            for allocator in families.filter_map(|family| pool.allocators.get(family)) {
                usage.push(PoolUsage {
                    pool: name.clone(),
                    family: allocator.family(),
                    free: allocator.free(),
                    held: allocator.held().count(),
                });
            }
        }
        usage
    }

    /// The specification of a pool that exists.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<&PoolSpec> {
        self.pools.get(name)?.spec.as_ref()
    }

    /// What a node holds, whether or not its spec lists it already; none for an unknown node.
    #[must_use]
    pub fn allocated(&self, node: &str) -> Option<Vec<Allocation>> {
        let holdings = self.nodes.get(node)?;
        let allocation = |(name, holding): (&String, &Holding)| {
            let (allow_first_ip, allow_last_ip) = ends(self.pool(name), Some(holding));
            Allocation {
                pool: name.clone(),
                cidrs: holding.networks.keys().map(ToString::to_string).collect(),
                allow_first_ip,
                allow_last_ip,
            }
        };
        Some(holdings.iter().map(allocation).collect())
    }

    /// Restores the networks of a node's spec. Allocates nothing.
    pub fn restore(&mut self, node: &str, spec: &[Allocation]) {
        self.claim(node, spec);
    }

    /// Restores the networks of a node's spec, and allocates what is missing of its requests. If the spec contains a
    /// malformed network, it stays as it is.
    pub fn assign(&mut self, node: &str, spec: &[Allocation], requests: &[Request]) -> MultiPoolAssignment {
        let (duplicates, mut errors) = self.claim(node, spec);
        if !errors.is_empty() {
            return MultiPoolAssignment {
                allocated: spec.to_vec(),
                duplicates,
                errors,
            };
        }
        for request in requests {
            for (family, needed) in request.needed {
                if let Err(error) = self.allocate(node, &request.pool, family, needed) {
                    errors.push(error);
                }
            }
        }
        MultiPoolAssignment {
            allocated: self.allocated(node).unwrap_or_default(),
            duplicates,
            errors,
        }
    }

    fn allocate(&mut self, node: &str, name: &str, family: Family, needed: u128) -> Result<(), RequestError> {
        if needed == 0 {
            return Ok(());
        }
        let holding = self.nodes.get(node).and_then(|holdings| holdings.get(name));
        let spec = self.pools.get(name).and_then(|pool| pool.spec.as_ref());
        let (first, last) = ends(spec, holding);
        let held = holding.into_iter().flat_map(|holding| holding.networks.keys());
        let held = held.filter(|prefix| Family::of(prefix) == family);
        let (mut count, mut has) = (0, 0_u128);
        for prefix in held {
            count += 1;
            has = has.saturating_add(usable(prefix, first, last));
        }
        if has >= needed {
            return Ok(());
        }
        let pool = name.to_owned();
        let Some(Pool {
            spec: Some(spec),
            allocators,
        }) = self.pools.get_mut(name)
        else {
            return Err(RequestError::NoPool { pool });
        };
        let Some(allocator) = allocators
            .get_mut(&family)
            .filter(|_| spec.families.contains_key(&family))
        else {
            return Err(RequestError::NoFamily { pool, family });
        };
        let mut added = Vec::new();
        let result = loop {
            if has >= needed {
                break Ok(());
            }
            if count >= MOST_NETWORKS {
                break Err(RequestError::TooMany { pool, family });
            }
            let Some(prefix) = allocator.allocate(node) else {
                break Err(RequestError::Full { pool, family });
            };
            count += 1;
            has = has.saturating_add(usable(&prefix, first, last));
            added.push(prefix);
        };
        for prefix in added {
            self.block(name, prefix, node);
            let holdings = self.nodes.entry(node.to_owned()).or_default();
            let holding = holdings.entry(name.to_owned()).or_default();
            holding.networks.insert(prefix, false);
        }
        result
    }

    /// Releases everything that a node holds.
    pub fn remove(&mut self, node: &str) {
        for (pool, holding) in self.nodes.remove(node).unwrap_or_default() {
            for prefix in holding.networks.keys() {
                self.release(&pool, prefix, node);
            }
        }
    }

    /// Whether a network was released since the last call.
    pub(crate) fn take_released(&mut self) -> bool {
        std::mem::take(&mut self.has_released)
    }

    /// Whether the pools have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        let pools = self.pools.values_mut();
        let allocators = pools.flat_map(|pool| pool.allocators.values_mut());
        allocators.fold(std::mem::take(&mut self.has_removed), |changed, allocator| {
            allocator.take_changed() | changed
        })
    }

    fn release(&mut self, name: &str, prefix: &IpNet, node: &str) {
        let family = Family::of(prefix);
        let pool = self.pools.get_mut(name);
        if pool.is_some_and(|pool| pool.allocator(family).release(prefix, node)) {
            self.has_released = true;
            let others = self.other_allocators(name, family);
            others.for_each(|other| other.unblock(prefix));
        }
        self.drop_unused(name);
    }

    /// Forgets a pool that does not exist and of which no node has a network.
    fn drop_unused(&mut self, name: &str) {
        let is_unused = self.pools.get(name).is_some_and(|pool| {
            let is_held = pool
                .allocators
                .values()
                .any(|allocator| allocator.held().next().is_some());
            pool.spec.is_none() && !is_held
        });
        if is_unused {
            self.pools.remove(name);
        }
    }

    fn claim(&mut self, node: &str, spec: &[Allocation]) -> (Vec<OccupyError>, Vec<RequestError>) {
        let (mut duplicates, mut errors) = (Vec::new(), Vec::new());
        let mut wanted: BTreeMap<&str, BTreeSet<IpNet>> = BTreeMap::new();
        for allocation in spec {
            let networks = wanted.entry(&allocation.pool).or_default();
            for text in &allocation.cidrs {
                match text.parse::<IpNet>() {
                    Ok(network) => _ = networks.insert(network.trunc()),
                    Err(_) => errors.push(RequestError::Malformed { text: text.clone() }),
                }
            }
        }
        if errors.is_empty() {
            self.release_removed(node, &wanted);
        }
        for (pool, networks) in wanted {
            let (mut held, mut flags) = (Vec::new(), (false, false));
            if let Some(first) = spec.iter().find(|allocation| allocation.pool == pool) {
                flags = (first.allow_first_ip, first.allow_last_ip);
            }
            for network in networks {
                match self.hold(pool, network, node) {
                    Ok(()) => held.push((network, true)),
                    Err(duplicate) => duplicates.push(duplicate),
                }
            }
            let holdings = self.nodes.entry(node.to_owned()).or_default();
            let holding = holdings.entry(pool.to_owned()).or_default();
            (holding.allow_first_ip, holding.allow_last_ip) = flags;
            holding.networks.extend(held);
        }
        self.drop_empty(node);
        (duplicates, errors)
    }

    /// Releases what the spec of a node listed and lists no more, and what waits to be written and overlaps the spec.
    fn release_removed(&mut self, node: &str, wanted: &BTreeMap<&str, BTreeSet<IpNet>>) {
        let mut removed = Vec::new();
        for (pool, holding) in self.nodes.get_mut(node).into_iter().flatten() {
            let wanted = wanted.get(pool.as_str());
            holding.networks.retain(|network, is_listed| {
                if wanted.is_some_and(|wanted| wanted.contains(network)) {
                    return true;
                }
                let overlaps = |other: &IpNet| other.contains(network) || network.contains(other);
                let is_gone = *is_listed || wanted.is_some_and(|wanted| wanted.iter().any(overlaps));
                if is_gone {
                    removed.push((pool.clone(), *network));
                }
                !is_gone
            });
        }
        for (pool, network) in removed {
            self.release(&pool, &network, node);
        }
    }

    fn drop_empty(&mut self, node: &str) {
        let Some(holdings) = self.nodes.get_mut(node) else {
            return;
        };
        let empty: Vec<String> = holdings
            .iter()
            .filter(|(_, holding)| holding.networks.is_empty())
            .map(|(pool, _)| pool.clone())
            .collect();
        holdings.retain(|_, holding| !holding.networks.is_empty());
        if holdings.is_empty() {
            self.nodes.remove(node);
        }
        for pool in empty {
            self.drop_unused(&pool);
        }
    }
}

/// Whether pods can have the first and the last address: as the pool says, or the node if the pool does not exist.
fn ends(spec: Option<&PoolSpec>, holding: Option<&Holding>) -> (bool, bool) {
    match (spec, holding) {
        (Some(spec), _) => (spec.allow_first_ip, spec.allow_last_ip),
        (None, Some(holding)) => (holding.allow_first_ip, holding.allow_last_ip),
        (None, None) => (false, false),
    }
}

#[cfg(test)]
mod tests;
