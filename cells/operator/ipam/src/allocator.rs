// SPDX-License-Identifier: Apache-2.0

//! Cuts networks of one address family into prefixes of one length.
//!
//! Every prefix in use has an owner. Prefixes in use never overlap, whatever their length: those restored may be longer or
//! shorter than the ones that are allocated, and may lie outside the networks once these have changed.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    #[must_use]
    pub fn of(network: &IpNet) -> Self {
        match network {
            IpNet::V4(_) => Self::V4,
            IpNet::V6(_) => Self::V6,
        }
    }

    /// `v4` or `v6`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
        }
    }

    fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    fn address(self, number: u128) -> IpAddr {
        match self {
            // The number is that of an address of this family.
            Self::V4 => Ipv4Addr::from_bits(number as u32).into(),
            Self::V6 => Ipv6Addr::from_bits(number).into(),
        }
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn bounds(network: &IpNet) -> (u128, u128) {
    (number(network.network()), number(network.broadcast()))
}

/// Why networks cannot be cut into prefixes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The network is of the other family: list it there.
    #[error("network {network} is not of family {}", .family.as_str())]
    Family { network: IpNet, family: Family },
    /// No prefix fits: choose a mask size of at least the length of the network's prefix.
    #[error("mask size {mask_size} does not fit network {network}")]
    MaskSize { network: IpNet, mask_size: u8 },
    /// Two networks have addresses in common: remove one of them.
    #[error("network {network} overlaps {other}")]
    Overlap {
        network: IpNet,
        /// The network before it in the list.
        other: IpNet,
    },
}

/// Why a prefix cannot be occupied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OccupyError {
    /// It lies in no network of the allocator.
    #[error("{prefix} is in no network of the pool")]
    Outside { prefix: IpNet },
    /// It has addresses in common with a prefix in use.
    #[error("{prefix} overlaps {other}, which `{owner}` holds")]
    InUse {
        prefix: IpNet,
        other: IpNet,
        owner: Arc<str>,
    },
}

impl OccupyError {
    /// The prefix that cannot be occupied.
    pub(crate) fn prefix(&self) -> IpNet {
        match self {
            Self::Outside { prefix } | Self::InUse { prefix, .. } => *prefix,
        }
    }
}

#[derive(Debug, Clone)]
struct Network {
    network: IpNet,
    /// All prefixes before this one are in use; `None` if all of the network are.
    first_free: Option<u128>,
}

#[derive(Debug, Clone)]
struct Held {
    prefix: IpNet,
    owner: Arc<str>,
    /// It is of another allocator, whose networks overlap those of this one.
    is_blocked: bool,
}

/// Allocates prefixes of one length from a list of networks.
///
/// ```
/// use skep_operator_ipam::{Family, PrefixAllocator};
///
/// let mut pool = PrefixAllocator::new(Family::V4, vec!["10.9.0.0/16".parse()?], 24)?;
/// pool.occupy("10.9.0.0/24".parse()?, "n1")?;
/// assert_eq!(pool.allocate("n2"), Some("10.9.1.0/24".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct PrefixAllocator {
    family: Family,
    mask_size: u8,
    networks: Vec<Network>,
    /// Prefixes in use by their first address; they do not overlap.
    held: BTreeMap<u128, Held>,
    /// Whether networks or prefixes in use have changed since that was asked for.
    has_changed: bool,
}

impl PrefixAllocator {
    /// An allocator of prefixes of length `mask_size`. Host bits of the networks are ignored.
    ///
    /// # Errors
    /// [`NetworkError`] for the first network that does not suit.
    pub fn new(family: Family, networks: Vec<IpNet>, mask_size: u8) -> Result<Self, NetworkError> {
        let mut allocator = Self {
            family,
            mask_size,
            networks: Vec::new(),
            held: BTreeMap::new(),
            has_changed: true,
        };
        allocator.set_networks(networks)?;
        Ok(allocator)
    }

    /// Replaces the networks. Prefixes in use stay in use, also those that are in none of the networks any more.
    ///
    /// # Errors
    /// [`NetworkError`] for the first network that does not suit; then nothing has changed.
    pub fn set_networks(&mut self, networks: Vec<IpNet>) -> Result<(), NetworkError> {
        let mut new: Vec<Network> = Vec::with_capacity(networks.len());
        for network in networks {
            let network = network.trunc();
            if Family::of(&network) != self.family {
                return Err(NetworkError::Family {
                    network,
                    family: self.family,
                });
            }
            if self.mask_size < network.prefix_len() || self.mask_size > self.family.bits() {
                return Err(NetworkError::MaskSize {
                    network,
                    mask_size: self.mask_size,
                });
            }
            let other = new.iter().find(|other| overlaps(&other.network, &network));
            if let Some(other) = other {
                return Err(NetworkError::Overlap {
                    network,
                    other: other.network,
                });
            }
            new.push(Network {
                network,
                first_free: Some(bounds(&network).0),
            });
        }
        self.networks = new;
        self.has_changed = true;
        Ok(())
    }

    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The networks, in the order in which they are used.
    pub fn networks(&self) -> impl Iterator<Item = &IpNet> {
        self.networks.iter().map(|network| &network.network)
    }

    #[must_use]
    pub fn mask_size(&self) -> u8 {
        self.mask_size
    }

    /// Whether a prefix lies in one of the networks.
    #[must_use]
    pub fn contains(&self, prefix: &IpNet) -> bool {
        self.networks().any(|network| network.contains(prefix))
    }

    /// Prefixes in use, by address, with their owners.
    pub fn held(&self) -> impl Iterator<Item = (&IpNet, &str)> {
        let own = self.held.values().filter(|held| !held.is_blocked);
        own.map(|held| (&held.prefix, &*held.owner))
    }

    /// Whether networks or prefixes in use have changed since the last call; true for a new allocator.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// How many prefixes can be allocated.
    #[must_use]
    pub fn free(&self) -> u128 {
        let networks = self.networks.iter();
        let free = networks.map(|network| self.free_in(&network.network));
        free.fold(0, u128::saturating_add)
    }

    fn free_in(&self, network: &IpNet) -> u128 {
        let host_bits = u32::from(self.family.bits() - self.mask_size);
        // The position of an address, in prefixes.
        let position = |address: u128| address.checked_shr(host_bits).unwrap_or_default();
        let (first, last) = bounds(network);
        let before = self.held.range(..first).next_back();
        let mut used = 0_u128;
        let mut next = position(first);
        for (start, held) in before.into_iter().chain(self.held.range(first..=last)) {
            let (_, end) = bounds(&held.prefix);
            if end < first {
                continue;
            }
            // Several that are longer than what is allocated share one.
            let from = position(*start.max(&first)).max(next);
            let to = position(end.min(last));
            if from <= to {
                used = used.saturating_add((to - from).saturating_add(1));
                next = to.saturating_add(1);
            }
        }
        // One less than there are: all of a network can be more than a number holds.
        let all_but_one = position(last) - position(first);
        all_but_one
            .checked_sub(used)
            .map_or(0, |free| free.saturating_add(1))
    }

    /// Restores a prefix: it is in use by `owner` from now on. One that the owner holds already is fine.
    ///
    /// # Errors
    /// [`OccupyError`] if it lies outside the networks, or overlaps another prefix in use.
    pub fn occupy(&mut self, prefix: IpNet, owner: &str) -> Result<(), OccupyError> {
        let prefix = prefix.trunc();
        if self.is_held(&prefix, owner) {
            return Ok(());
        }
        if let Some(conflict) = self.conflict(&prefix) {
            return Err(conflict);
        }
        if !self.contains(&prefix) {
            return Err(OccupyError::Outside { prefix });
        }
        self.hold(prefix, owner, false);
        Ok(())
    }

    /// Why a prefix cannot be in use by anybody else.
    pub(crate) fn conflict(&self, prefix: &IpNet) -> Option<OccupyError> {
        let held = self.overlapping(prefix)?;
        Some(OccupyError::InUse {
            prefix: *prefix,
            other: held.prefix,
            owner: held.owner.clone(),
        })
    }

    /// Whether a prefix is in use by `owner`.
    pub(crate) fn is_held(&self, prefix: &IpNet, owner: &str) -> bool {
        let held = self.held.get(&bounds(prefix).0);
        held.is_some_and(|held| !held.is_blocked && held.prefix == *prefix && *held.owner == *owner)
    }

    /// A prefix is in use that another allocator has, so it is not allocated here.
    pub(crate) fn block(&mut self, prefix: IpNet, owner: &str) {
        let is_reached = self.networks().any(|network| overlaps(network, &prefix));
        if is_reached && self.overlapping(&prefix).is_none() {
            self.hold(prefix, owner, true);
        }
    }

    /// A prefix that was blocked is not in use any more.
    pub(crate) fn unblock(&mut self, prefix: &IpNet) {
        let held = self.held.get(&bounds(prefix).0);
        if held.is_some_and(|held| held.is_blocked && held.prefix == *prefix) {
            self.free_up(prefix);
        }
    }

    /// Restores a prefix as [`occupy`](Self::occupy) does, but also outside the networks: an orphan of a network that was
    /// removed.
    ///
    /// # Errors
    /// [`OccupyError::InUse`] if it overlaps another prefix in use.
    pub fn adopt(&mut self, prefix: IpNet, owner: &str) -> Result<(), OccupyError> {
        match self.occupy(prefix, owner) {
            Err(OccupyError::Outside { prefix }) => {
                self.hold(prefix, owner, false);
                Ok(())
            }
            result => result,
        }
    }

    /// Allocates the first free prefix of the first network that has one.
    pub fn allocate(&mut self, owner: &str) -> Option<IpNet> {
        for index in 0..self.networks.len() {
            let Network { network, first_free } = self.networks[index];
            let free = first_free.and_then(|first| self.first_free(&network, first));
            self.networks[index].first_free = free;
            let Some(free) = free else { continue };
            let prefix = IpNet::new(self.family.address(free), self.mask_size).ok()?;
            self.hold(prefix, owner, false);
            return Some(prefix);
        }
        None
    }

    /// Releases a prefix that `owner` holds. Returns whether it did.
    pub fn release(&mut self, prefix: &IpNet, owner: &str) -> bool {
        let prefix = prefix.trunc();
        let is_held = self.is_held(&prefix, owner);
        if is_held {
            self.free_up(&prefix);
        }
        is_held
    }

    fn free_up(&mut self, prefix: &IpNet) {
        let (start, _) = bounds(prefix);
        self.held.remove(&start);
        self.has_changed = true;
        let host = host_mask(self.family.bits(), self.mask_size);
        for Network { network, first_free } in &mut self.networks {
            if overlaps(network, prefix) {
                // It may have begun before the network.
                let free = start.max(bounds(network).0) & !host;
                *first_free = Some(first_free.map_or(free, |now| now.min(free)));
            }
        }
    }

    fn hold(&mut self, prefix: IpNet, owner: &str, is_blocked: bool) {
        let held = Held {
            prefix,
            owner: owner.into(),
            is_blocked,
        };
        self.held.insert(bounds(&prefix).0, held);
        self.has_changed = true;
    }

    fn overlapping(&self, prefix: &IpNet) -> Option<&Held> {
        let (_, last) = bounds(prefix);
        // Held prefixes do not overlap, so that only the last one that starts before the end can reach into it.
        let (_, held) = self.held.range(..=last).next_back()?;
        overlaps(&held.prefix, prefix).then_some(held)
    }

    /// First free prefix of a network, at `from` or after it.
    fn first_free(&self, network: &IpNet, from: u128) -> Option<u128> {
        let (_, last) = bounds(network);
        let host = host_mask(self.family.bits(), self.mask_size);
        let mut candidate = from;
        loop {
            let end = candidate | host;
            let Some((_, held)) = self.held.range(..=end).next_back() else {
                return Some(candidate);
            };
            let (_, held_last) = bounds(&held.prefix);
            if held_last < candidate {
                return Some(candidate);
            }
            candidate = (held_last | host).checked_add(1).filter(|next| *next <= last)?;
        }
    }
}

fn host_mask(bits: u8, prefix: u8) -> u128 {
    match bits.saturating_sub(prefix) {
        128 => u128::MAX,
        length => (1 << length) - 1,
    }
}

fn overlaps(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

#[cfg(test)]
mod tests;
