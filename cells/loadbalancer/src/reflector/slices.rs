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

/// All slices of a source. Tables hold numbers only: there are as many slices as services, and more.
#[derive(Debug, Default)]
pub(super) struct Slices {
    given: Vec<Option<Given>>,
    free: Vec<Slot>,
    by_name: HashTable<Slot>,
    /// First slice of each service.
    by_service: HashTable<Slot>,
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
        let known = self.find(&key).and_then(|slot| at_mut(&mut self.given, slot));
        let before = match known {
            Some(given) if given.service == *service => {
                let old = std::mem::replace(&mut given.addresses, addresses);
                let dropped = |address: &L3n4Addr| given.addresses.binary_search(address).is_err();
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
        let Self {
            given,
            by_name,
            hasher,
            ..
        } = self;
        let hash = |slot: &Slot| at(given, *slot).map_or(0, |given| hash_of_slice(hasher, given));
        by_name.insert_unique(hash(&slot), slot, hash);
        before
    }

    /// Makes a slice the first one of its service; gives the one that was.
    fn link(&mut self, service: &ServiceName, slot: Slot) -> Option<Slot> {
        let Self {
            given,
            by_service,
            hasher,
            ..
        } = self;
        let is_same = |slot: &Slot| at(given, *slot).is_some_and(|given| given.service == *service);
        let hash = hasher.hash_one(service);
        match by_service.find_mut(hash, is_same) {
            Some(first) => Some(std::mem::replace(first, slot)),
            None => {
                by_service.insert_unique(hash, slot, |slot| {
                    at(given, *slot).map_or(hash, |given| hasher.hash_one(&given.service))
                });
                None
            }
        }
    }

    /// Takes a slice out of the row of its service's.
    fn unlink(&mut self, service: &ServiceName, slot: Slot, next: Option<Slot>) {
        let given = &self.given;
        let is_same =
            |other: &Slot| *other == slot || at(given, *other).is_some_and(|given| given.service == *service);
        let Ok(mut first) = self.by_service.find_entry(self.hasher.hash_one(service), is_same) else {
            return;
        };
        if *first.get() == slot {
            match next {
                Some(next) => *first.get_mut() = next,
                None => drop(first.remove()),
            }
            return;
        }
        let mut before = Some(*first.get());
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
        let Self {
            given,
            by_name,
            hasher,
            ..
        } = self;
        let is_it = |slot: &Slot| at(given, *slot).is_some_and(|given| given.is(key));
        let found = by_name.find_entry(hash_of_key(hasher, key), is_it).ok()?;
        let (slot, _) = found.remove();
        let given = self.given.get_mut(slot.get() as usize - 1)?.take()?;
        self.unlink(&given.service, slot, given.next);
        self.free.push(slot);
        Some((given.service, given.addresses.into_vec()))
    }

    /// Whether any slice gives this backend to the service.
    pub(super) fn gives(&self, service: &ServiceName, address: &L3n4Addr) -> bool {
        let is_same = |slot: &Slot| at(&self.given, *slot).is_some_and(|given| given.service == *service);
        let first = self.by_service.find(self.hasher.hash_one(service), is_same);
        let mut next = first.copied();
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

    fn find(&self, key: &ObjectKey) -> Option<Slot> {
        let is_it = |slot: &Slot| at(&self.given, *slot).is_some_and(|given| given.is(key));
        self.by_name.find(hash_of_key(&self.hasher, key), is_it).copied()
    }
}

fn hash_of_key(hasher: &RandomState, key: &ObjectKey) -> u64 {
    hasher.hash_one((key.namespace.as_str(), key.name.as_str()))
}

fn hash_of_slice(hasher: &RandomState, given: &Given) -> u64 {
    hasher.hash_one((given.namespace(), given.name.as_str()))
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
