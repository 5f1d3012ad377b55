// SPDX-License-Identifier: Apache-2.0

//! Which slice has which backends: what it takes to find the backends that no slice has any more.
//!
//! Keeps addresses in 24 bytes each; the objects themselves are not kept.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::Str;
use skep_loadbalancer_model::types::{L3n4Addr, ServiceName};

/// A slice as it was last seen.
#[derive(Debug)]
struct Slice {
    name: Str,
    /// The name of the service begins with the namespace of both.
    service: ServiceName,
    namespace_len: u32,
    /// Stands for the slice in its claims to addresses; no other slice had it before.
    claimant: u32,
    // Sorted.
    addresses: Box<[L3n4Addr]>,
    /// Next slice of the service.
    next: Option<Slot>,
}

impl Slice {
    fn namespace(&self) -> &str {
        let text = self.service.as_str();
        text.get(..self.namespace_len as usize).unwrap_or(text)
    }

    fn is(&self, key: &ObjectKey) -> bool {
        self.name == key.name && self.namespace() == key.namespace
    }
}

/// Index of an entry of [`Slices::slices`], from 1.
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

/// All slices of a source. Tables hold indexes only: there are as many slices as services, and more.
#[derive(Debug, Default)]
pub(super) struct Slices {
    slices: Vec<Option<Slice>>,
    free: Vec<Slot>,
    by_name: HashTable<Hashed>,
    /// First slice of each service.
    by_service: HashTable<Hashed>,
    hasher: RandomState,
    last_claimant: u32,
}

/// What a slice has no more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dropped {
    pub(super) service: ServiceName,
    /// The slice that had it.
    pub(super) claimant: u32,
    pub(super) addresses: Vec<L3n4Addr>,
}

fn at(slices: &[Option<Slice>], slot: Slot) -> Option<&Slice> {
    slices.get(slot.get() as usize - 1)?.as_ref()
}

fn at_mut(slices: &mut [Option<Slice>], slot: Slot) -> Option<&mut Slice> {
    slices.get_mut(slot.get() as usize - 1)?.as_mut()
}

impl Slices {
    fn first_of(&self, service: &ServiceName) -> Option<Slot> {
        let hash = self.hash_of_service(service);
        let is_same = |other: &Hashed| is_slice_of(&self.slices, *other, hash, service);
        self.by_service.find(spread(hash), is_same).map(|(_, slot)| *slot)
    }

    /// Stores the backends of a slice; returns what stands for it, and what it has no more.
    pub(super) fn put(
        &mut self,
        key: ObjectKey,
        service: &ServiceName,
        addresses: Box<[L3n4Addr]>,
    ) -> (u32, Option<Dropped>) {
        let hash = self.hash_of_key(&key);
        let slot = self.find(hash, &key);
        let dropped = match slot.and_then(|slot| at_mut(&mut self.slices, slot)) {
            Some(slice) if slice.service == *service => {
                let old = std::mem::replace(&mut slice.addresses, addresses);
                let mut new = slice.addresses.iter().peekable();
                let is_gone = |address: &L3n4Addr| {
                    while new.next_if(|new| *new < address).is_some() {}
                    new.peek() != Some(&address)
                };
                let gone: Vec<L3n4Addr> = old.into_iter().filter(is_gone).collect();
                let claimant = slice.claimant;
                let dropped = (!gone.is_empty()).then(|| Dropped {
                    service: service.clone(),
                    claimant,
                    addresses: gone,
                });
                return (claimant, dropped);
            }
            // It moved to another service.
            Some(_) => self.remove(&key),
            None => None,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slices.push(None);
            u32::try_from(self.slices.len())
                .ok()
                .and_then(Slot::new)
                .expect("fewer than four billion slices fit into memory")
        });
        let next = self.link(service, slot);
        // 0 stands for sources with one object.
        let claimant = self.last_claimant.checked_add(1).unwrap_or(1);
        self.last_claimant = claimant;
        if let Some(place) = self.slices.get_mut(slot.get() as usize - 1) {
            *place = Some(Slice {
                namespace_len: key.namespace.len() as u32,
                name: key.name,
                service: service.clone(),
                claimant,
                addresses,
                next,
            });
        }
        self.by_name.insert_unique(spread(hash), (hash, slot), hash_of);
        (claimant, dropped)
    }

    /// Makes a slice the first one of its service; returns the one that was.
    fn link(&mut self, service: &ServiceName, slot: Slot) -> Option<Slot> {
        let hash = self.hash_of_service(service);
        let Self {
            slices, by_service, ..
        } = self;
        let is_same = |other: &Hashed| is_slice_of(slices, *other, hash, service);
        match by_service.find_mut(spread(hash), is_same) {
            Some((_, first)) => Some(std::mem::replace(first, slot)),
            None => {
                by_service.insert_unique(spread(hash), (hash, slot), hash_of);
                None
            }
        }
    }

    /// Takes a slice out of those of its service.
    fn unlink(&mut self, service: &ServiceName, slot: Slot, next: Option<Slot>) {
        let hash = self.hash_of_service(service);
        let slices = &self.slices;
        let is_same = |other: &Hashed| other.1 == slot || is_slice_of(slices, *other, hash, service);
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
        while let Some(slice) = before.and_then(|slot| at_mut(&mut self.slices, slot)) {
            if slice.next == Some(slot) {
                slice.next = next;
                return;
            }
            before = slice.next;
        }
    }

    /// Removes a slice; returns what it had.
    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Dropped> {
        let hash = self.hash_of_key(key);
        let slices = &self.slices;
        let is_it = |other: &Hashed| is_slice(slices, *other, hash, key);
        let found = self.by_name.find_entry(spread(hash), is_it).ok()?;
        let ((_, slot), _) = found.remove();
        let slice = self.slices.get_mut(slot.get() as usize - 1)?.take()?;
        self.unlink(&slice.service, slot, slice.next);
        self.free.push(slot);
        Some(Dropped {
            service: slice.service,
            claimant: slice.claimant,
            addresses: slice.addresses.into_vec(),
        })
    }

    /// Whether any slice has this backend of the service.
    pub(super) fn has(&self, service: &ServiceName, address: &L3n4Addr) -> bool {
        let mut next = self.first_of(service);
        while let Some(slice) = next.and_then(|slot| at(&self.slices, slot)) {
            if slice.addresses.binary_search(address).is_ok() {
                return true;
            }
            next = slice.next;
        }
        false
    }

    /// Keys of all slices.
    pub(super) fn keys(&self) -> impl Iterator<Item = ObjectKey> {
        self.slices.iter().flatten().map(|slice| ObjectKey {
            namespace: slice.namespace().into(),
            name: slice.name.clone(),
        })
    }

    fn find(&self, hash: u32, key: &ObjectKey) -> Option<Slot> {
        let is_it = |other: &Hashed| is_slice(&self.slices, *other, hash, key);
        self.by_name.find(spread(hash), is_it).map(|(_, slot)| *slot)
    }

    fn hash_of_key(&self, key: &ObjectKey) -> u32 {
        self.hasher.hash_one((key.namespace.as_str(), key.name.as_str())) as u32
    }

    fn hash_of_service(&self, service: &ServiceName) -> u32 {
        self.hasher.hash_one(service) as u32
    }
}

fn is_slice(slices: &[Option<Slice>], other: Hashed, hash: u32, key: &ObjectKey) -> bool {
    other.0 == hash && at(slices, other.1).is_some_and(|slice| slice.is(key))
}

fn is_slice_of(slices: &[Option<Slice>], other: Hashed, hash: u32, service: &ServiceName) -> bool {
    other.0 == hash && at(slices, other.1).is_some_and(|slice| slice.service == *service)
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

    fn dropped(service: ServiceName, claimant: u32, numbers: &[u8]) -> Option<Dropped> {
        Some(Dropped {
            service,
            claimant,
            addresses: addresses(numbers).into_vec(),
        })
    }

    #[test]
    fn returns_what_a_slice_has_no_more() {
        let mut slices = Slices::default();
        let mut put = |numbers| slices.put(key("a"), &web(), addresses(numbers));
        assert_eq!(put(&[1, 2, 3]), (1, None));
        assert_eq!(put(&[2, 4]), (1, dropped(web(), 1, &[1, 3])));
        assert_eq!(put(&[2, 4, 5]), (1, None));
        assert_eq!(slices.remove(&key("a")), dropped(web(), 1, &[2, 4, 5]));
        assert_eq!(slices.remove(&key("a")), None);
    }

    #[test]
    fn knows_other_slices_of_the_service() {
        let mut slices = Slices::default();
        slices.put(key("a"), &web(), addresses(&[1, 2]));
        slices.put(key("b"), &web(), addresses(&[2]));
        slices.remove(&key("a"));

        assert!(slices.has(&web(), &addresses(&[2])[0]));
        assert!(!slices.has(&web(), &addresses(&[1])[0]));
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
                let had = slices.remove(&key(name)).unwrap().addresses;
                assert!(!slices.has(&web(), &had[0]), "{name} of {gone:?}");
                let left: usize = (1..=3)
                    .filter(|n| slices.has(&web(), &addresses(&[*n])[0]))
                    .count();
                assert_eq!(left, slices.keys().count());
            }
            slices.put(key("d"), &web(), addresses(&[4]));
            assert!(slices.has(&web(), &addresses(&[4])[0]));
        }
    }

    #[test]
    fn strange_names_of_services_do_not_confuse_slices() {
        let mut slices = Slices::default();
        let strange = ServiceName::new("shop", "a/b");
        slices.put(key("x"), &strange, addresses(&[1]));

        assert_eq!(slices.keys().collect::<Vec<_>>(), [key("x")]);
        assert_eq!(slices.remove(&key("x")), dropped(strange, 1, &[1]));
    }

    #[test]
    fn a_slice_may_move_to_another_service() {
        let mut slices = Slices::default();
        let other = ServiceName::new("shop", "other");
        slices.put(key("a"), &web(), addresses(&[1]));

        assert_eq!(
            slices.put(key("a"), &other, addresses(&[1])),
            (2, dropped(web(), 1, &[1]))
        );
        assert!(slices.has(&other, &addresses(&[1])[0]));
        assert!(!slices.has(&web(), &addresses(&[1])[0]));
    }
}
