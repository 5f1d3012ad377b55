// SPDX-License-Identifier: Apache-2.0

//! Which slice gave which backends: what it takes to tell the backends that nobody gives any more.
//!
//! Keeps addresses only, in 24 bytes each; the objects themselves are not kept.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use skep_k8s::ObjectKey;
use skep_k8s::slim::Str;

use crate::types::{L3n4Addr, ServiceName};

/// What a slice gave when it was last seen.
#[derive(Debug)]
struct Given {
    name: Str,
    /// The name of the service begins with the namespace of both.
    service: ServiceName,
    namespace_len: u32,
    // Sorted.
    addresses: Box<[L3n4Addr]>,
    /// Next slice of the service.
    next: Option<Slot>,
}

impl Given {
    fn namespace(&self) -> &str {
        let text = self.service.as_str();
        text.get(..self.namespace_len as usize).unwrap_or(text)
    }

    fn is(&self, key: &ObjectKey) -> bool {
        self.name == key.name && self.namespace() == key.namespace
    }
}

/// Number of an entry of [`Slices::given`], from 1.
type Slot = std::num::NonZeroU32;

/// An entry of a table by name: the hash, so that a table grows without a look at what it holds, and the slot.
type Hashed = (u32, Slot);

fn hash_of((hash, _): &Hashed) -> u64 {
    spread(*hash)
}

/// A hash of 32 bits as tables want it: its upper bits tell entries of one place apart.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// All slices of a source. Tables hold numbers only: there are as many slices as services, and more.
#[derive(Debug, Default)]
pub(super) struct Slices {
    given: Vec<Option<Given>>,
    free: Vec<Slot>,
    by_name: HashTable<Hashed>,
    /// First slice of each service.
    by_service: HashTable<Hashed>,
    hasher: RandomState,
}

fn at(given: &[Option<Given>], slot: Slot) -> Option<&Given> {
    given.get(slot.get() as usize - 1)?.as_ref()
}

fn at_mut(given: &mut [Option<Given>], slot: Slot) -> Option<&mut Given> {
    given.get_mut(slot.get() as usize - 1)?.as_mut()
}

impl Slices {
    /// Notes what a slice gives now; gives back what it gave before and does not give any more.
    pub(super) fn put(
        &mut self,
        key: ObjectKey,
        service: &ServiceName,
        addresses: Box<[L3n4Addr]>,
    ) -> Option<(ServiceName, Vec<L3n4Addr>)> {
        let hash = self.hash_of_key(&key);
        let known = self
            .find(hash, &key)
            .and_then(|slot| at_mut(&mut self.given, slot));
        let before = match known {
            Some(given) if given.service == *service => {
                let old = std::mem::replace(&mut given.addresses, addresses);
                let mut new = given.addresses.iter().peekable();
                let dropped = |address: &L3n4Addr| {
                    while new.next_if(|new| *new < address).is_some() {}
                    new.peek() != Some(&address)
                };
                let dropped: Vec<L3n4Addr> = old.into_iter().filter(dropped).collect();
                return (!dropped.is_empty()).then(|| (service.clone(), dropped));
            }
            // It moved to another service.
            Some(_) => self.remove(&key),
            None => None,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.given.push(None);
            u32::try_from(self.given.len())
                .ok()
                .and_then(Slot::new)
                .expect("fewer than four billion slices fit into memory")
        });
        let next = self.link(service, slot);
        if let Some(place) = self.given.get_mut(slot.get() as usize - 1) {
            *place = Some(Given {
                namespace_len: key.namespace.len() as u32,
                name: key.name,
                service: service.clone(),
                addresses,
                next,
            });
        }
        self.by_name.insert_unique(spread(hash), (hash, slot), hash_of);
        before
    }

    /// Makes a slice the first one of its service; gives the one that was.
    fn link(&mut self, service: &ServiceName, slot: Slot) -> Option<Slot> {
        let hash = self.hash_of_service(service);
        let Self {
            given, by_service, ..
        } = self;
        let is_same = |other: &Hashed| is_slice_of(given, *other, hash, service);
        match by_service.find_mut(spread(hash), is_same) {
            Some((_, first)) => Some(std::mem::replace(first, slot)),
            None => {
                by_service.insert_unique(spread(hash), (hash, slot), hash_of);
                None
            }
        }
    }

    /// Takes a slice out of the row of its service's.
    fn unlink(&mut self, service: &ServiceName, slot: Slot, next: Option<Slot>) {
        let hash = self.hash_of_service(service);
        let given = &self.given;
        let is_same = |other: &Hashed| other.1 == slot || is_slice_of(given, *other, hash, service);
        let Ok(mut first) = self.by_service.find_entry(spread(hash), is_same) else {
            return;
        };
        if first.get().1 == slot {
            match next {
                Some(next) => first.get_mut().1 = next,
                None => drop(first.remove()),
            }
            return;
        }
        let mut before = Some(first.get().1);
        while let Some(given) = before.and_then(|slot| at_mut(&mut self.given, slot)) {
            if given.next == Some(slot) {
                given.next = next;
                return;
            }
            before = given.next;
        }
    }

    /// Forgets a slice; gives back what it gave.
    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<(ServiceName, Vec<L3n4Addr>)> {
        let hash = self.hash_of_key(key);
        let given = &self.given;
        let is_it = |other: &Hashed| is_slice(given, *other, hash, key);
        let found = self.by_name.find_entry(spread(hash), is_it).ok()?;
        let ((_, slot), _) = found.remove();
        let given = self.given.get_mut(slot.get() as usize - 1)?.take()?;
        self.unlink(&given.service, slot, given.next);
        self.free.push(slot);
        Some((given.service, given.addresses.into_vec()))
    }

    /// Whether any slice gives this backend to the service.
    pub(super) fn gives(&self, service: &ServiceName, address: &L3n4Addr) -> bool {
        let hash = self.hash_of_service(service);
        let is_same = |other: &Hashed| is_slice_of(&self.given, *other, hash, service);
        let first = self.by_service.find(spread(hash), is_same);
        let mut next = first.map(|(_, slot)| *slot);
        while let Some(given) = next.and_then(|slot| at(&self.given, slot)) {
            if given.addresses.binary_search(address).is_ok() {
                return true;
            }
            next = given.next;
        }
        false
    }

    /// Keys of all slices.
    pub(super) fn keys(&self) -> impl Iterator<Item = ObjectKey> {
        self.given.iter().flatten().map(|given| ObjectKey {
            namespace: given.namespace().into(),
            name: given.name.clone(),
        })
    }

    fn find(&self, hash: u32, key: &ObjectKey) -> Option<Slot> {
        let is_it = |other: &Hashed| is_slice(&self.given, *other, hash, key);
        self.by_name.find(spread(hash), is_it).map(|(_, slot)| *slot)
    }

    fn hash_of_key(&self, key: &ObjectKey) -> u32 {
        self.hasher.hash_one((key.namespace.as_str(), key.name.as_str())) as u32
    }

    fn hash_of_service(&self, service: &ServiceName) -> u32 {
        self.hasher.hash_one(service) as u32
    }
}

fn is_slice(given: &[Option<Given>], other: Hashed, hash: u32, key: &ObjectKey) -> bool {
    other.0 == hash && at(given, other.1).is_some_and(|given| given.is(key))
}

fn is_slice_of(given: &[Option<Given>], other: Hashed, hash: u32, service: &ServiceName) -> bool {
    other.0 == hash && at(given, other.1).is_some_and(|given| given.service == *service)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey {
            namespace: "shop".into(),
            name: name.into(),
        }
    }

    fn addresses(numbers: &[u8]) -> Box<[L3n4Addr]> {
        numbers
            .iter()
            .map(|n| format!("10.0.0.{n}:80/TCP").parse().unwrap())
            .collect()
    }

    fn web() -> ServiceName {
        ServiceName::new("shop", "web")
    }

    #[test]
    fn tells_what_a_slice_dropped() {
        let mut slices = Slices::default();
        assert_eq!(slices.put(key("a"), &web(), addresses(&[1, 2, 3])), None);
        assert_eq!(
            slices.put(key("a"), &web(), addresses(&[2, 4])),
            Some((web(), addresses(&[1, 3]).into_vec()))
        );
        assert_eq!(slices.put(key("a"), &web(), addresses(&[2, 4, 5])), None);
        assert_eq!(
            slices.remove(&key("a")),
            Some((web(), addresses(&[2, 4, 5]).into_vec()))
        );
        assert_eq!(slices.remove(&key("a")), None);
    }

    #[test]
    fn knows_other_slices_of_the_service() {
        let mut slices = Slices::default();
        slices.put(key("a"), &web(), addresses(&[1, 2]));
        slices.put(key("b"), &web(), addresses(&[2]));
        slices.remove(&key("a"));

        assert!(slices.gives(&web(), &addresses(&[2])[0]));
        assert!(!slices.gives(&web(), &addresses(&[1])[0]));
        assert_eq!(slices.keys().count(), 1);
    }

    #[test]
    fn slices_of_a_service_come_and_go_in_any_order() {
        for gone in [["a", "b", "c"], ["b", "a", "c"], ["c", "b", "a"]] {
            let mut slices = Slices::default();
            for (number, name) in [(1, "a"), (2, "b"), (3, "c")] {
                slices.put(key(name), &web(), addresses(&[number]));
            }
            for name in gone {
                let (_, given) = slices.remove(&key(name)).unwrap();
                assert!(!slices.gives(&web(), &given[0]), "{name} of {gone:?}");
                let left: usize = (1..=3)
                    .filter(|n| slices.gives(&web(), &addresses(&[*n])[0]))
                    .count();
                assert_eq!(left, slices.keys().count());
            }
            slices.put(key("d"), &web(), addresses(&[4]));
            assert!(slices.gives(&web(), &addresses(&[4])[0]));
        }
    }

    #[test]
    fn strange_names_of_services_do_not_confuse_slices() {
        let mut slices = Slices::default();
        let strange = ServiceName::new("shop", "a/b");
        slices.put(key("x"), &strange, addresses(&[1]));

        assert_eq!(slices.keys().collect::<Vec<_>>(), [key("x")]);
        assert_eq!(
            slices.remove(&key("x")),
            Some((strange, addresses(&[1]).into_vec()))
        );
    }

    #[test]
    fn a_slice_may_move_to_another_service() {
        let mut slices = Slices::default();
        let other = ServiceName::new("shop", "other");
        slices.put(key("a"), &web(), addresses(&[1]));

        assert_eq!(
            slices.put(key("a"), &other, addresses(&[1])),
            Some((web(), addresses(&[1]).into_vec()))
        );
        assert!(slices.gives(&other, &addresses(&[1])[0]));
        assert!(!slices.gives(&web(), &addresses(&[1])[0]));
    }
}
