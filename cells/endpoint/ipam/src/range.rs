// SPDX-License-Identifier: Apache-2.0

//! Allocates the addresses of one network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use roaring::RoaringBitmap;

use crate::IpamError;

/// Host bits of the longest IPv6 range: further addresses are not used.
const LONGEST_IPV6: u8 = 16;

/// Whether the ends of a network can be allocated. Networks of one or two addresses have no ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ends {
    pub first: bool,
    pub last: bool,
}

/// Addresses of a network, and those in use.
#[derive(Debug, Clone)]
pub struct Range {
    network: IpNet,
    /// First address that can be allocated.
    base: u128,
    size: u32,
    used: RoaringBitmap,
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// Addresses of a network without its ends, whatever of them can be allocated.
#[must_use]
pub(crate) fn host_count(network: &IpNet) -> u128 {
    let host_bits = u32::from(network.max_prefix_len() - network.prefix_len());
    let all = 1_u128.checked_shl(host_bits).unwrap_or(u128::MAX);
    all.saturating_sub(2)
}

impl Range {
    #[must_use]
    pub fn new(network: IpNet, ends: Ends) -> Self {
        let network = network.trunc();
        let host_bits = network.max_prefix_len() - network.prefix_len();
        let (limit, longest) = match network {
            IpNet::V4(_) => (31, 30),
            IpNet::V6(_) => (127, LONGEST_IPV6),
        };
        let mut size = match host_bits >= limit {
            true => 0,
            false => 1_u32 << host_bits.min(longest),
        };
        let mut base = bits(network.network());
        if size > 2 {
            let (first, last) = (u32::from(!ends.first), u32::from(!ends.last));
            base += u128::from(first);
            size -= first + last;
        }
        Self {
            network,
            base,
            size,
            used: RoaringBitmap::new(),
        }
    }

    #[must_use]
    pub fn network(&self) -> IpNet {
        self.network
    }

    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.len()
    }

    #[must_use]
    pub fn free(&self) -> u64 {
        u64::from(self.size) - self.used()
    }

    /// Position of an address that can be allocated.
    fn position(&self, ip: IpAddr) -> Option<u32> {
        if !self.network.contains(&ip) {
            return None;
        }
        let position = bits(ip).checked_sub(self.base)?;
        u32::try_from(position)
            .ok()
            .filter(|position| *position < self.size)
    }

    fn ip(&self, position: u32) -> IpAddr {
        let number = self.base + u128::from(position);
        match self.network {
            // The number is that of an address of this family.
            IpNet::V4(_) => Ipv4Addr::from_bits(number as u32).into(),
            IpNet::V6(_) => Ipv6Addr::from_bits(number).into(),
        }
    }

    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.position(ip).is_some()
    }

    /// Allocates an address.
    ///
    /// # Errors
    ///
    /// If the range does not have it, or it is in use.
    pub fn allocate(&mut self, ip: IpAddr) -> Result<(), IpamError> {
        let position = self.position(ip).ok_or(IpamError::OutOfRange(self.network))?;
        match self.used.insert(position) {
            true => Ok(()),
            false => Err(IpamError::Allocated),
        }
    }

    /// Allocates the first free address from a random one on: an address that was released is not in use again at once.
    pub fn allocate_next(&mut self) -> Option<IpAddr> {
        if self.free() == 0 {
            return None;
        }
        let start = fastrand::u32(0..self.size);
        let mut positions = (start..self.size).chain(0..start);
        let position = positions.find(|position| !self.used.contains(*position))?;
        self.used.insert(position);
        Some(self.ip(position))
    }

    /// Releases an address. Without effect on others than those in use.
    pub fn release(&mut self, ip: IpAddr) {
        if let Some(position) = self.position(ip) {
            self.used.remove(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn range(network: &str, first: bool, last: bool) -> Range {
        Range::new(network.parse().unwrap(), Ends { first, last })
    }

    #[test]
    fn ends_are_kept_free_in_networks_that_have_ends() {
        for (network, first, last, size) in [
            ("10.0.0.0/24", false, false, 254),
            ("10.0.0.0/24", true, false, 255),
            ("10.0.0.0/24", true, true, 256),
            ("10.0.0.0/31", false, false, 2),
            ("10.0.0.0/32", false, false, 1),
            ("fd00::/124", false, false, 14),
            ("fd00::/127", false, false, 2),
            ("fd00::/64", false, false, 65534),
            ("0.0.0.0/1", false, false, 0),
            ("::/0", false, false, 0),
        ] {
            assert_eq!(range(network, first, last).free(), size, "{network}");
        }
    }

    #[test]
    fn every_address_is_allocated_once() {
        let mut range = range("10.0.0.0/29", false, false);
        let all: BTreeSet<IpAddr> = std::iter::from_fn(|| range.allocate_next()).collect();

        assert_eq!(all.len(), 6);
        assert!(all.iter().all(|ip| range.contains(*ip)));
        assert!(!range.contains("10.0.0.0".parse().unwrap()) && !range.contains("10.0.0.7".parse().unwrap()));

        let released = "10.0.0.3".parse().unwrap();
        range.release(released);
        assert_eq!(range.allocate_next(), Some(released));
    }

    #[test]
    fn hosts_are_counted_without_the_ends() {
        let counts = ["10.0.0.0/24", "10.0.0.0/32", "fd00::/64", "::/0"]
            .map(|network| host_count(&network.parse().unwrap()));
        assert_eq!(counts, [254, 0, 18_446_744_073_709_551_614, u128::MAX - 2]);
    }
}
