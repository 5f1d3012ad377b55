// SPDX-License-Identifier: Apache-2.0

//! Names that an endpoint looked up, with their addresses.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use jiff::Timestamp;
use smallvec::SmallVec;

/// A name in lower case with a final dot.
pub type DnsName = Arc<str>;

const SECOND: i64 = 1_000_000_000;

/// An address of a name, from the last answer with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub address: IpAddr,
    /// Time of the answer, in nanoseconds since 1970.
    lookup: i64,
    /// Seconds.
    pub ttl: u32,
}

impl Record {
    fn expires(&self) -> i64 {
        self.lookup
            .saturating_add(i64::from(self.ttl).saturating_mul(SECOND))
    }

    pub fn lookup(&self) -> Timestamp {
        timestamp(self.lookup)
    }

    pub fn expiration(&self) -> Timestamp {
        timestamp(self.expires())
    }
}

fn timestamp(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanoseconds.into()).unwrap_or(Timestamp::MAX)
}

pub(crate) fn nanoseconds(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanosecond()).unwrap_or(if time > Timestamp::UNIX_EPOCH {
        i64::MAX
    } else {
        i64::MIN
    })
}

/// An address that left a cache, with the time when it was due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    pub name: DnsName,
    pub address: IpAddr,
    pub expiration: Timestamp,
}

/// Names with their addresses. An address stays until [`expire`](Self::expire) removes it.
#[derive(Clone, Debug, Default)]
pub struct NameCache {
    names: HashMap<DnsName, SmallVec<[Record; 1]>>,
    /// Maximum number of addresses of a name; 0: no limit.
    limit: usize,
    over_limit: BTreeSet<DnsName>,
}

impl NameCache {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Number of addresses of all names.
    pub fn addresses(&self) -> usize {
        self.names.values().map(SmallVec::len).sum()
    }

    /// Adds an answer. Returns whether an address is new for the name. An answer that expires earlier than the known one does
    /// not replace it.
    pub fn update(
        &mut self,
        name: &DnsName,
        addresses: impl IntoIterator<Item = IpAddr>,
        ttl: u32,
        now: Timestamp,
    ) -> bool {
        let lookup = nanoseconds(now);
        if !self.names.contains_key(name) {
            self.names.insert(name.clone(), SmallVec::new());
        }
        let Some(records) = self.names.get_mut(name) else {
            return false;
        };
        let mut is_new = false;
        for address in addresses {
            let record = Record { address, lookup, ttl };
            match records.iter_mut().find(|known| known.address == address) {
                Some(known) if known.expires() < record.expires() => *known = record,
                Some(_) => {}
                None => {
                    records.push(record);
                    is_new = true;
                }
            }
        }
        if self.limit > 0 && records.len() > self.limit {
            self.over_limit.insert(name.clone());
        }
        if records.is_empty() {
            self.names.remove(name);
        }
        is_new
    }

    pub fn get(&self, name: &str) -> &[Record] {
        self.names.get(name).map_or(&[], |records| records)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&DnsName, &[Record])> {
        self.names.iter().map(|(name, records)| (name, &**records))
    }

    /// Removes what is due, and of names with too many addresses those that are due first.
    pub fn expire(&mut self, now: Timestamp) -> Vec<Expired> {
        let now = nanoseconds(now);
        let mut expired = Vec::new();
        let mut remove = |name: &DnsName, record: &Record| {
            expired.push(Expired {
                name: name.clone(),
                address: record.address,
                expiration: record.expiration(),
            });
        };
        self.names.retain(|name, records| {
            records.retain(|record| {
                let is_due = record.expires() < now;
                if is_due {
                    remove(name, record);
                }
                !is_due
            });
            !records.is_empty()
        });
        for name in std::mem::take(&mut self.over_limit) {
            if let Some(records) = self.names.get_mut(&name)
                && records.len() > self.limit
            {
                records.sort_by_key(|record| (record.expires(), record.address));
                let over = records.len() - self.limit;
                records.drain(..over).for_each(|record| remove(&name, &record));
            }
        }
        expired
    }

    /// Removes what was looked up before now, of names that are selected.
    pub fn clear(&mut self, now: Timestamp, is_selected: impl Fn(&str) -> bool) -> Vec<DnsName> {
        let now = nanoseconds(now);
        let mut cleared = Vec::new();
        self.names.retain(|name, records| {
            if is_selected(name) {
                records.retain(|record| record.lookup >= now);
                cleared.push(name.clone());
            }
            !records.is_empty()
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

    fn ip(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn an_address_stays_until_its_last_answer_is_due() {
        let mut cache = NameCache::new(0);
        let name: DnsName = "a.example.".into();

        assert!(cache.update(&name, [ip(1)], 10, at(0)));
        assert!(cache.update(&name, [ip(2)], 10, at(5)));
        assert!(!cache.update(&name, [ip(1)], 20, at(5)));
        assert!(!cache.update(&name, [ip(1)], 1, at(6)), "due earlier");
        assert_eq!(cache.expire(at(15)), []);

        let expired = cache.expire(at(16));
        assert_eq!((expired.len(), expired[0].address), (1, ip(2)));
        assert_eq!(expired[0].expiration, at(15));
        assert_eq!(cache.expire(at(26)).len(), 1);
        assert!(cache.is_empty());
    }

    #[test]
    fn of_too_many_addresses_those_that_are_due_first_leave() {
        let mut cache = NameCache::new(2);
        let name: DnsName = "a.example.".into();
        for last in 1..=4 {
            cache.update(&name, [ip(last)], 100 - u32::from(last), at(0));
        }

        let mut left: Vec<IpAddr> = cache
            .expire(at(1))
            .iter()
            .map(|expired| expired.address)
            .collect();
        left.sort_unstable();

        assert_eq!(left, [ip(3), ip(4)]);
        assert_eq!((cache.len(), cache.addresses()), (1, 2));
    }
}
