// SPDX-License-Identifier: Apache-2.0

//! Which service has which addresses: a function of the pools, the services and what they have now.
//!
//! What a service has and may keep is settled for all services before anything is allocated, so nothing is taken away by
//! an allocation. Then services that request specific addresses are served, then the others, the oldest first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::Str;

use crate::address::Family;
use crate::pool::Pools;
use crate::request::{Request, Wanted};

/// A service and the addresses that it has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub request: Request,
    pub held: Vec<IpAddr>,
    /// The request is the one that got what it has. If two services cannot share an address any more, the one that
    /// changed loses it.
    pub is_settled: bool,
}

/// Why a service does not have all addresses that it wants. The text is the reason of the condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No open pool has the address, or addresses for the service.
    NoPool,
    /// The pool of the address does not select the service.
    PoolSelectorMismatch,
    AlreadyAllocated,
    /// A service that shares its addresses, but not with this one, has the address.
    AlreadyAllocatedIncompatibleService,
    /// The pools have no free address.
    OutOfIps,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPool => "no_pool",
            Self::PoolSelectorMismatch => "pool_selector_mismatch",
            Self::AlreadyAllocated => "already_allocated",
            Self::AlreadyAllocatedIncompatibleService => "already_allocated_incompatible_service",
            Self::OutOfIps => "out_of_ips",
        })
    }
}

/// A request that cannot be satisfied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocation {
    /// Its addresses, in the order in which it wants them.
    pub addresses: Vec<IpAddr>,
    /// Why it does not have all that it wants; about the last one that is missing.
    pub refusal: Option<Refusal>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocations {
    services: BTreeMap<ObjectKey, Allocation>,
    used: BTreeMap<IpAddr, usize>,
}

impl Allocations {
    pub fn get(&self, service: &ObjectKey) -> Option<&Allocation> {
        self.services.get(service)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Allocation)> {
        self.services.iter()
    }

    pub fn used(&self) -> impl Iterator<Item = IpAddr> {
        self.used.keys().copied()
    }
}

/// Allocates addresses to services, each of which is there once. `reserved` addresses are in use by others: a service keeps
/// one that it has, which may be shared, and none is allocated.
pub fn allocate(pools: &Pools, claims: &[Claim], reserved: &BTreeSet<IpAddr>) -> Allocations {
    let mut book = Book {
        pools,
        claims,
        reserved,
        used: reserved.iter().map(|address| (*address, Vec::new())).collect(),
        by_key: BTreeMap::new(),
        kept: vec![Vec::new(); claims.len()],
    };
    let mut order: Vec<usize> = (0..claims.len()).collect();
    let age = |index: usize| {
        let request = &claims[index].request;
        (request.created, &request.service)
    };
    order.sort_by_key(|index| (!claims[*index].is_settled, age(*index)));
    for index in &order {
        book.keep(*index);
    }
    let asks = |index: usize| matches!(claims[index].request.wanted, Wanted::Addresses(_));
    order.sort_by_key(|index| (!asks(*index), age(*index)));
    let mut services = BTreeMap::new();
    for index in order {
        services.insert(claims[index].request.service.clone(), book.serve(index));
    }
    // Refusals are computed after all services are served, so that the next pass gives the same reasons.
    for (index, claim) in claims.iter().enumerate() {
        let (Wanted::Addresses(addresses), Some(allocation)) =
            (&claim.request.wanted, services.get_mut(&claim.request.service))
        else {
            continue;
        };
        let own = &allocation.addresses;
        let missing = addresses.iter().rev().find(|address| !own.contains(address));
        if let (Some(_), Some(address)) = (&allocation.refusal, missing) {
            allocation.refusal = book.requested(index, *address).err();
        }
    }
    let used = book
        .used
        .iter()
        .map(|(address, holders)| (*address, holders.len()));
    Allocations {
        services,
        used: used.collect(),
    }
}

struct Book<'a> {
    pools: &'a Pools,
    claims: &'a [Claim],
    reserved: &'a BTreeSet<IpAddr>,
    /// Holders of each address, by index; those of a reserved one are not all known.
    used: BTreeMap<IpAddr, Vec<usize>>,
    /// Addresses whose holders have a sharing key.
    by_key: BTreeMap<&'a Str, Vec<IpAddr>>,
    kept: Vec<Vec<IpAddr>>,
}

impl<'a> Book<'a> {
    fn take(&mut self, index: usize, address: IpAddr) {
        self.used.entry(address).or_default().push(index);
        if let Some(sharing) = &self.claims[index].request.sharing {
            let addresses = self.by_key.entry(&sharing.key).or_default();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }

    /// Whether a service may have an address besides those that have it; else why not, and whether they share at all.
    fn may_join(&self, index: usize, address: IpAddr) -> Result<(), Refusal> {
        if self.reserved.contains(&address) {
            return Err(Refusal {
                reason: Reason::AlreadyAllocated,
                message: format!("The IP '{address}' is in the status of another service"),
            });
        }
        self.may_share(index, address)
    }

    /// Whether a service may have an address besides the known services that have it.
    fn may_share(&self, index: usize, address: IpAddr) -> Result<(), Refusal> {
        let Some(holders) = self.used.get(&address) else {
            return Ok(());
        };
        let request = &self.claims[index].request;
        // Of several holders the first by name is reported, in whatever order they got the address.
        let refusing = holders.iter().filter_map(|holder| {
            let holder = &self.claims[*holder].request;
            Some((holder, request.may_share(holder).err()?))
        });
        if let Some((holder, cause)) = refusing.min_by_key(|(holder, _)| &holder.service) {
            let shares = request.sharing.is_some() && holder.sharing.is_some();
            let (reason, what) = if shares {
                (
                    Reason::AlreadyAllocatedIncompatibleService,
                    "an incompatible service",
                )
            } else {
                (Reason::AlreadyAllocated, "another service")
            };
            let message = format!("The IP '{address}' is already allocated to {what}. Reason: {cause}");
            return Err(Refusal { reason, message });
        }
        Ok(())
    }

    fn try_keep(&mut self, index: usize, address: IpAddr) -> bool {
        let claim = &self.claims[index];
        let keeps = claim.held.contains(&address)
            && self.pools.may_keep(address, &claim.request.labels)
            && self.may_share(index, address).is_ok();
        if keeps {
            self.take(index, address);
            self.kept[index].push(address);
        }
        keeps
    }

    /// Settles what a service keeps of what it has.
    fn keep(&mut self, index: usize) {
        let claim = &self.claims[index];
        match &claim.request.wanted {
            Wanted::Addresses(addresses) => {
                for address in addresses {
                    self.try_keep(index, *address);
                }
            }
            Wanted::Families(families) => {
                for family in families {
                    for address in claim.held.iter().filter(|held| Family::of(**held) == *family) {
                        if self.try_keep(index, *address) {
                            break;
                        }
                    }
                }
            }
        }
    }

    fn serve(&mut self, index: usize) -> Allocation {
        let request = &self.claims[index].request;
        let mut allocation = Allocation::default();
        let mut add = |book: &mut Self, found: Result<IpAddr, Refusal>, is_kept: bool| match found {
            Ok(address) => {
                if !is_kept {
                    book.take(index, address);
                }
                allocation.addresses.push(address);
            }
            Err(refusal) => allocation.refusal = Some(refusal),
        };
        match &request.wanted {
            Wanted::Addresses(addresses) => {
                for address in addresses {
                    let is_kept = self.kept[index].contains(address);
                    if is_kept || !request.is_ending {
                        let found = if is_kept {
                            Ok(*address)
                        } else {
                            self.requested(index, *address)
                        };
                        add(self, found, is_kept);
                    }
                }
            }
            Wanted::Families(families) => {
                for family in families {
                    let kept = self.kept[index]
                        .iter()
                        .copied()
                        .find(|address| Family::of(*address) == *family);
                    if kept.is_some() || !request.is_ending {
                        let found = kept.map_or_else(|| self.any(index, *family), Ok);
                        add(self, found, kept.is_some());
                    }
                }
            }
        }
        allocation
    }

    /// Whether a service can get a certain address.
    fn requested(&self, index: usize, address: IpAddr) -> Result<IpAddr, Refusal> {
        let request = &self.claims[index].request;
        let refuse = |reason, message| Err(Refusal { reason, message });
        let containing: Vec<_> = self.pools.containing(address).collect();
        let Some((closed, _)) = containing.first() else {
            let message = format!("No pool exists with a CIDR containing '{address}'");
            return refuse(Reason::NoPool, message);
        };
        let Some((name, pool)) = containing.iter().find(|(name, _)| self.pools.is_open(name)) else {
            let state = if self.pools.conflict(closed).is_some() {
                "in conflict with another pool"
            } else {
                "disabled"
            };
            let message = format!("The pool '{closed}' with a CIDR containing '{address}' is {state}");
            return refuse(Reason::NoPool, message);
        };
        if !pool.selector.matches(&request.labels) {
            let message =
                format!("The pool '{name}' with a CIDR containing '{address}' does not select this service");
            return refuse(Reason::PoolSelectorMismatch, message);
        }
        if pool
            .range_of(address)
            .is_some_and(|range| range.holds_back(address))
        {
            let message =
                format!("The IP '{address}' is an end of a CIDR of pool '{name}', which holds it back");
            return refuse(Reason::AlreadyAllocated, message);
        }
        self.may_join(index, address).map(|()| address)
    }

    /// An address of a family: a shared one if possible, else a free one.
    fn any(&self, index: usize, family: Family) -> Result<IpAddr, Refusal> {
        let request = &self.claims[index].request;
        let shared = request
            .sharing
            .iter()
            .filter_map(|sharing| self.by_key.get(&sharing.key));
        let mut candidates: Vec<IpAddr> = shared
            .flatten()
            .copied()
            .filter(|address| Family::of(*address) == family)
            .collect();
        candidates.sort_unstable();
        let shared = candidates.into_iter().find(|address| {
            let mut pools = self.pools.containing(*address);
            let is_open =
                pools.any(|(name, pool)| self.pools.is_open(name) && pool.selector.matches(&request.labels));
            is_open && self.may_join(index, *address).is_ok()
        });
        if let Some(address) = shared {
            return Ok(address);
        }
        let mut is_any = false;
        for (name, pool) in self.pools.iter() {
            if !self.pools.is_open(name) || !pool.selector.matches(&request.labels) {
                continue;
            }
            for range in pool.ranges.iter().filter(|range| range.family() == family) {
                is_any = true;
                let (first, last) = range.usable();
                let used = self.used.range(first..=last).map(|(address, _)| *address);
                if let Some(address) = range.first_of_smallest_gap(used) {
                    return Ok(address);
                }
            }
        }
        let (reason, message) = if is_any {
            let message = format!("All enabled pools that match this service ran out of {family} addresses");
            (Reason::OutOfIps, message)
        } else {
            let message =
                format!("There are no enabled pools with {family} addresses that match this service");
            (Reason::NoPool, message)
        };
        Err(Refusal { reason, message })
    }
}
