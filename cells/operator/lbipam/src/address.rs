// SPDX-License-Identifier: Apache-2.0

//! Address families and ranges of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

/// `IPv4`, `IPv6`.
impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A range of addresses of one family; both ends belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    first: IpAddr,
    last: IpAddr,
    holds_back_ends: bool,
}

/// Why a block of a pool is no range. Fix the block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("`{0}` is not a CIDR")]
    Cidr(String),
    #[error("`{0}` is not an IP address")]
    Address(String),
    /// The last address is before the first one.
    #[error("start {0} is after stop {1}")]
    Reversed(IpAddr, IpAddr),
    /// The ends are of different families.
    #[error("start {0} and stop {1} are of different families")]
    Families(IpAddr, IpAddr),
    /// All IPv6 addresses: their number cannot be counted.
    #[error("the block contains all IPv6 addresses")]
    Everything,
    /// Neither a network nor a start.
    #[error("has neither cidr nor start")]
    Empty,
}

fn parse_address(text: &str) -> Result<IpAddr, RangeError> {
    let address: Result<IpAddr, _> = text.parse();
    address
        .map(|address| address.to_canonical())
        .map_err(|_| RangeError::Address(text.to_owned()))
}

impl Range {
    /// The addresses of a network. With `allow_ends` false, the first and last address of a network with more than two
    /// addresses are held back.
    pub fn network(text: &str, allow_ends: bool) -> Result<Self, RangeError> {
        let network: IpNet = text.parse().map_err(|_| RangeError::Cidr(text.to_owned()))?;
        let (first, last) = (network.network(), network.broadcast());
        let range = Self::between(first, last)?;
        Ok(Self {
            holds_back_ends: !allow_ends && range.distance() > 1,
            ..range
        })
    }

    /// The addresses from `start` to `stop`; without `stop`, a single address.
    pub fn from_to(start: &str, stop: Option<&str>) -> Result<Self, RangeError> {
        let first = parse_address(start)?;
        let last = stop.map_or(Ok(first), parse_address)?;
        Self::between(first, last)
    }

    fn between(first: IpAddr, last: IpAddr) -> Result<Self, RangeError> {
        if Family::of(first) != Family::of(last) {
            return Err(RangeError::Families(first, last));
        }
        if first > last {
            return Err(RangeError::Reversed(first, last));
        }
        let range = Self {
            first,
            last,
            holds_back_ends: false,
        };
        if range.distance() == u128::MAX {
            return Err(RangeError::Everything);
        }
        Ok(range)
    }

    fn distance(&self) -> u128 {
        number(self.last) - number(self.first)
    }

    pub fn family(&self) -> Family {
        Family::of(self.first)
    }

    /// Number of addresses, with those held back.
    pub fn len(&self) -> u128 {
        self.distance() + 1
    }

    /// Never: a range has at least one address.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether an address is in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.family() == Family::of(address) && (self.first..=self.last).contains(&address)
    }

    /// Whether an address is one of the ends that are held back.
    pub fn holds_back(&self, address: IpAddr) -> bool {
        self.holds_back_ends && (address == self.first || address == self.last)
    }

    /// The addresses that are held back.
    pub fn held_back(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let ends = self.holds_back_ends.then_some([self.first, self.last]);
        ends.into_iter().flatten()
    }

    /// Whether two ranges have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.family() == other.family() && self.first <= other.last && other.first <= self.last
    }

    /// First and last address that can be allocated.
    pub fn usable(&self) -> (IpAddr, IpAddr) {
        if self.holds_back_ends {
            let family = self.family();
            let first = address(family, number(self.first) + 1);
            (first, address(family, number(self.last) - 1))
        } else {
            (self.first, self.last)
        }
    }

    pub fn ends(&self) -> (IpAddr, IpAddr) {
        (self.first, self.last)
    }

    /// The first address of the smallest gap between `used` addresses, which are sorted and usable ones of the range:
    /// holes are filled before the rest is started. `None` if there is no gap.
    pub fn first_of_smallest_gap(&self, used: impl IntoIterator<Item = IpAddr>) -> Option<IpAddr> {
        let (first, last) = self.usable();
        let (mut next, last) = (number(first), number(last));
        let mut smallest: Option<(u128, u128)> = None;
        let mut consider = |start: u128, size: u128| {
            if size > 0 && smallest.is_none_or(|(least, _)| size < least) {
                smallest = Some((size, start));
            }
        };
        let mut is_open = true;
        for used in used {
            let used = number(used);
            consider(next, used - next);
            // The very last address has no successor.
            is_open = used < last;
            next = used.saturating_add(1);
        }
        if is_open {
            consider(next, last - next + 1);
        }
        smallest.map(|(_, start)| address(self.family(), start))
    }
}

/// `192.0.2.0 - 192.0.2.7`.
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} - {}", self.first, self.last)
    }
}

/// Number of the addresses of ranges; those that several have count once.
pub(crate) fn count_distinct(ranges: &[Range]) -> u128 {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable_by_key(|range| range.first);
    let (mut total, mut counted) = (0_u128, None::<IpAddr>);
    for range in ranges {
        let before = counted.filter(|last| Family::of(*last) == range.family());
        if before.is_some_and(|last| last >= range.last) {
            continue;
        }
        let next = before.map_or(0, |last| number(last) + 1);
        let first = number(range.first).max(next);
        total = total.saturating_add(number(range.last) - first).saturating_add(1);
        counted = Some(range.last);
    }
    total
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn address(family: Family, number: u128) -> IpAddr {
    match family {
        // Numbers of IPv4 addresses are made by `number`, plus or minus one within a range.
        Family::V4 => Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX)).into(),
        Family::V6 => Ipv6Addr::from_bits(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(range: &Range, used: &[&str]) -> Option<String> {
        let used = used.iter().map(|text| text.parse().unwrap());
        range
            .first_of_smallest_gap(used)
            .map(|address| address.to_string())
    }

    #[test]
    fn fills_the_smallest_hole_first() {
        let range = Range::network("192.0.2.0/29", true).unwrap();

        assert_eq!(gap(&range, &[]).unwrap(), "192.0.2.0");
        assert_eq!(gap(&range, &["192.0.2.0", "192.0.2.5"]).unwrap(), "192.0.2.6");
        assert_eq!(
            gap(&range, &["192.0.2.0", "192.0.2.2", "192.0.2.7"]).unwrap(),
            "192.0.2.1"
        );
        let all: Vec<String> = (0..8).map(|last| format!("192.0.2.{last}")).collect();
        assert_eq!(
            gap(&range, &all.iter().map(String::as_str).collect::<Vec<_>>()),
            None
        );
    }

    #[test]
    fn fills_ranges_up_to_the_last_address_of_the_family() {
        let range = Range::from_to("255.255.255.254", Some("255.255.255.255")).unwrap();
        assert_eq!(gap(&range, &["255.255.255.254"]).unwrap(), "255.255.255.255");
        assert_eq!(gap(&range, &["255.255.255.254", "255.255.255.255"]), None);

        let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let range = Range::from_to(last, None).unwrap();
        assert_eq!(gap(&range, &[]).unwrap(), last);
        assert_eq!(gap(&range, &[last]), None);
    }

    #[test]
    fn holds_back_the_ends_of_networks_of_more_than_two_addresses() {
        let network = |text| Range::network(text, false).unwrap();

        assert_eq!(gap(&network("192.0.2.0/29"), &[]).unwrap(), "192.0.2.1");
        assert_eq!(gap(&network("192.0.2.0/30"), &["192.0.2.1", "192.0.2.2"]), None);
        assert!(network("192.0.2.0/29").holds_back("192.0.2.7".parse().unwrap()));
        assert_eq!(network("192.0.2.0/31").held_back().count(), 0);
        assert_eq!(network("2001:db8::/127").held_back().count(), 0);
        assert_eq!(network("2001:db8::/126").held_back().count(), 2);
    }

    #[test]
    fn networks_begin_at_their_first_address() {
        let range = Range::network("192.0.2.13/29", true).unwrap();

        assert_eq!(range.to_string(), "192.0.2.8 - 192.0.2.15");
        assert_eq!(range.len(), 8);
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let error = |range: Result<Range, RangeError>| range.unwrap_err().to_string();

        assert_eq!(
            error(Range::network("192.0.2.0", true)),
            "`192.0.2.0` is not a CIDR"
        );
        assert_eq!(error(Range::from_to("x", None)), "`x` is not an IP address");
        assert_eq!(
            error(Range::from_to("192.0.2.2", Some("192.0.2.1"))),
            "start 192.0.2.2 is after stop 192.0.2.1"
        );
        assert_eq!(
            error(Range::from_to("192.0.2.2", Some("2001:db8::"))),
            "start 192.0.2.2 and stop 2001:db8:: are of different families"
        );
        assert_eq!(
            error(Range::network("::/0", true)),
            "the block contains all IPv6 addresses"
        );
    }

    #[test]
    fn addresses_of_several_ranges_count_once() {
        let count = |texts: &[&str]| {
            let ranges = texts.iter().map(|text| Range::network(text, true).unwrap());
            count_distinct(&ranges.collect::<Vec<_>>())
        };

        assert_eq!(count(&["192.0.4.8/29", "192.0.4.0/28"]), 16);
        assert_eq!(count(&["192.0.2.0/30", "192.0.2.8/30", "::/126", "::2/127"]), 12);
        assert_eq!(count(&["255.255.255.0/24", "255.255.255.255/32"]), 256);
        assert_eq!(count(&[]), 0);
    }

    #[test]
    fn ranges_overlap_if_they_have_an_address_in_common() {
        let range = |text| Range::network(text, true).unwrap();

        assert!(range("192.0.2.0/24").overlaps(&range("192.0.2.255/32")));
        assert!(range("192.0.2.255/32").overlaps(&range("192.0.2.0/24")));
        assert!(!range("192.0.2.0/25").overlaps(&range("192.0.2.128/25")));
        assert!(!range("0.0.0.0/0").overlaps(&range("::/1")));
    }
}
