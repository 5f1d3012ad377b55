// SPDX-License-Identifier: Apache-2.0

//! Which slice gave which backends: what it takes to tell the backends that nobody gives any more.
//!
//! Keeps addresses in 24 bytes each, and of slices that changed before what tells the endpoints that change again; the
//! objects themselves are not kept.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use skep_k8s::ObjectKey;
use skep_k8s::slim::{EndpointSlice, Str};
use skep_loadbalancer_model::types::{BackendParams, L3n4Addr, ServiceName};

use super::marks::{self, Marks};
use crate::convert::InOrder;

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
    /// Only of a slice that shares no address with another one of its service: then what it said of an address is what
    /// counts.
    marks: Option<Box<Marks>>,
}

/// A slice that was put.
struct Put {
    slot: Slot,
    /// Whether it is known to be the only one of its service.
    is_only: bool,
    dropped: Option<(ServiceName, Vec<L3n4Addr>)>,
}

/// What changed of a slice.
#[derive(Debug)]
pub(super) struct Part {
    slot: Slot,
    changed: marks::Changed,
}

impl Part {
    /// The endpoints that changed.
    pub(super) fn endpoints(&self) -> std::ops::Range<usize> {
        self.changed.new.clone()
    }
}

impl Given {
    fn namespace(&self) -> &str {
        let text = self.service.as_str();
        text.get(..self.namespace_len as usize).unwrap_or(text)
    }

    fn is(&self, key: &ObjectKey) -> bool {
        self.name == key.name && self.namespace() == key.namespace
    }

    /// Name of the service, in the namespace.
    fn service_name(&self) -> &str {
        let begin = self.namespace_len as usize + 1;
        self.service.as_str().get(begin..).unwrap_or_default()
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
    /// What changed of a slice that was put before; `None` if it is to be put as a whole.
    pub(super) fn part(&self, key: &ObjectKey, slice: &EndpointSlice) -> Option<Part> {
        if !marks::are_worth_it(slice) {
            return None;
        }
        let slot = self.find(self.hash_of_key(key), key)?;
        let given = at(&self.given, slot)?;
        let marks = given.marks.as_ref()?;
        if slice.service_name() != Some(given.service_name()) {
            return None;
        }
        let changed = marks.compare(slice, &self.hasher)?;
        Some(Part { slot, changed })
    }

    /// Notes what the changed endpoints of a slice became; gives its service, and what it gave before and does not give
    /// any more. `None` if it is to be put as a whole.
    pub(super) fn put_part(
        &mut self,
        slice: &EndpointSlice,
        part: Part,
        converted: &[BackendParams],
    ) -> Option<(ServiceName, Vec<L3n4Addr>)> {
        let given = at_mut(&mut self.given, part.slot)?;
        let now = given
            .marks
            .as_ref()?
            .put(&given.addresses, slice, part.changed, converted)?;
        given.addresses = now.addresses;
        given.marks = Some(Box::new(now.marks));
        let service = given.service.clone();
        self.note_shared(&service, part.slot, &now.added);
        Some((service, now.dropped))
    }

    /// Marks of a slice that was converted as a whole, if it is worth it: most slices never change after they came.
    pub(super) fn marks_of(
        &self,
        key: &ObjectKey,
        slice: &EndpointSlice,
        converted: &InOrder,
    ) -> Option<Box<Marks>> {
        self.find(self.hash_of_key(key), key)?;
        Marks::new(slice, converted, &self.hasher).map(Box::new)
    }

    /// Notes what a slice gives now; gives back what it gave before and does not give any more.
    pub(super) fn put(
        &mut self,
        key: ObjectKey,
        service: &ServiceName,
        addresses: Box<[L3n4Addr]>,
        marks: Option<Box<Marks>>,
    ) -> Option<(ServiceName, Vec<L3n4Addr>)> {
        let Put {
            slot,
            is_only,
            dropped,
        } = self.put_whole(key, service, addresses, marks);
        if !is_only {
            let addresses = at_mut(&mut self.given, slot).map(|given| std::mem::take(&mut given.addresses));
            let addresses = addresses.unwrap_or_default();
            self.note_shared(service, slot, &addresses);
            if let Some(given) = at_mut(&mut self.given, slot) {
                given.addresses = addresses;
            }
        }
        dropped
    }

    /// Drops the marks of slices that give one of these addresses, and of `slot` if there are such slices.
    fn note_shared(&mut self, service: &ServiceName, slot: Slot, addresses: &[L3n4Addr]) {
        let mut is_shared = false;
        let mut next = self.first_of(service);
        while let Some((other, given)) = next.and_then(|slot| Some((slot, at_mut(&mut self.given, slot)?))) {
            if other != slot && have_common(&given.addresses, addresses) {
                given.marks = None;
                is_shared = true;
            }
            next = given.next;
        }
        if is_shared && let Some(given) = at_mut(&mut self.given, slot) {
            given.marks = None;
        }
    }

    fn first_of(&self, service: &ServiceName) -> Option<Slot> {
        let hash = self.hash_of_service(service);
        let is_same = |other: &Hashed| is_slice_of(&self.given, *other, hash, service);
        self.by_service.find(spread(hash), is_same).map(|(_, slot)| *slot)
    }

    fn put_whole(
        &mut self,
        key: ObjectKey,
        service: &ServiceName,
        addresses: Box<[L3n4Addr]>,
        marks: Option<Box<Marks>>,
    ) -> Put {
        let hash = self.hash_of_key(&key);
        let known = self
            .find(hash, &key)
            .and_then(|slot| Some((slot, at_mut(&mut self.given, slot)?)));
        let before = match known {
            Some((slot, given)) if given.service == *service => {
                given.marks = marks;
                let old = std::mem::replace(&mut given.addresses, addresses);
                let mut new = given.addresses.iter().peekable();
                let dropped = |address: &L3n4Addr| {
                    while new.next_if(|new| *new < address).is_some() {}
                    new.peek() != Some(&address)
                };
                let dropped: Vec<L3n4Addr> = old.into_iter().filter(dropped).collect();
                return Put {
                    slot,
                    is_only: false,
                    dropped: (!dropped.is_empty()).then(|| (service.clone(), dropped)),
                };
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
                marks,
            });
        }
        self.by_name.insert_unique(spread(hash), (hash, slot), hash_of);
        Put {
            slot,
            is_only: next.is_none(),
            dropped: before,
        }
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
        let mut next = self.first_of(service);
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

/// Whether an address is in both; all are sorted.
fn have_common(many: &[L3n4Addr], few: &[L3n4Addr]) -> bool {
    if few.len() * 8 < many.len() {
        return few.iter().any(|address| many.binary_search(address).is_ok());
    }
    let mut many = many.iter().peekable();
    few.iter().any(|address| {
        while many.next_if(|other| *other < address).is_some() {}
        many.peek() == Some(&address)
    })
}

fn is_slice(given: &[Option<Given>], other: Hashed, hash: u32, key: &ObjectKey) -> bool {
    other.0 == hash && at(given, other.1).is_some_and(|given| given.is(key))
}

fn is_slice_of(given: &[Option<Given>], other: Hashed, hash: u32, service: &ServiceName) -> bool {
    other.0 == hash && at(given, other.1).is_some_and(|given| given.service == *service)
}

#[cfg(test)]
mod tests {
    use skep_k8s::slim::{Endpoint, EndpointPort};

    use super::super::tests::web_slice;
    use super::*;
    use crate::convert::{self, Interner, Rules};

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
        assert_eq!(slices.put(key("a"), &web(), addresses(&[1, 2, 3]), None), None);
        assert_eq!(
            slices.put(key("a"), &web(), addresses(&[2, 4]), None),
            Some((web(), addresses(&[1, 3]).into_vec()))
        );
        assert_eq!(slices.put(key("a"), &web(), addresses(&[2, 4, 5]), None), None);
        assert_eq!(
            slices.remove(&key("a")),
            Some((web(), addresses(&[2, 4, 5]).into_vec()))
        );
        assert_eq!(slices.remove(&key("a")), None);
    }

    #[test]
    fn knows_other_slices_of_the_service() {
        let mut slices = Slices::default();
        slices.put(key("a"), &web(), addresses(&[1, 2]), None);
        slices.put(key("b"), &web(), addresses(&[2]), None);
        slices.remove(&key("a"));

        assert!(slices.gives(&web(), &addresses(&[2])[0]));
        assert!(!slices.gives(&web(), &addresses(&[1])[0]));
        assert_eq!(slices.keys().count(), 1);
    }

    fn of_pods(name: &str, numbers: impl IntoIterator<Item = u8>) -> EndpointSlice {
        let endpoint = |number: u8| Endpoint {
            addresses: [format!("10.0.0.{number}").into()].into(),
            ..Endpoint::default()
        };
        let port = EndpointPort {
            port: Some(80),
            ..EndpointPort::default()
        };
        web_slice(name, numbers.into_iter().map(endpoint), port)
    }

    fn put(slices: &mut Slices, slice: &EndpointSlice) {
        let (key, rules) = (ObjectKey::of(slice), Rules::default());
        let converted = convert::in_order(slice, &slice.endpoints, &rules, &mut Interner::default());
        let marks = slices.marks_of(&key, slice, &converted);
        let mut addresses: Vec<L3n4Addr> = converted.backends.iter().map(|backend| backend.address).collect();
        addresses.sort();
        slices.put(key, &web(), addresses.into(), marks);
    }

    #[test]
    fn of_a_slice_that_changes_only_what_changed_is_to_be_converted() {
        let mut slices = Slices::default();
        let part = |slices: &Slices, slice: &EndpointSlice| {
            slices.part(&key("a"), slice).map(|part| part.endpoints())
        };
        put(&mut slices, &of_pods("a", 0..51));
        assert_eq!(part(&slices, &of_pods("a", 0..50)), None, "it may never change");
        put(&mut slices, &of_pods("a", 0..50));
        let without = of_pods("a", (0..50).filter(|number| *number != 20));
        let mut other = of_pods("a", 0..50);
        other.endpoints[30].conditions.ready = Some(false);

        assert_eq!(part(&slices, &of_pods("a", 0..50)), Some(50..50));
        assert_eq!(part(&slices, &without), Some(20..20));
        assert_eq!(part(&slices, &other), Some(30..31));
        other.ports[0].port = Some(81);
        assert_eq!(part(&slices, &other), None, "another port");
        assert_eq!(part(&slices, &of_pods("a", 0..10)), Some(10..10));
        assert_eq!(part(&slices, &of_pods("a", 0..3)), None, "not worth it any more");

        let of_part = slices.part(&key("a"), &without).unwrap();
        let put_part = slices.put_part(&without, of_part, &[]);
        assert_eq!(put_part, Some((web(), addresses(&[20]).into_vec())));
        assert_eq!(part(&slices, &of_pods("a", 0..50)), Some(20..21));
    }

    #[test]
    fn a_slice_that_shares_an_address_is_converted_as_a_whole() {
        let mut slices = Slices::default();
        let (a, b) = (of_pods("a", 0..50), of_pods("b", 50..100));
        for slice in [&a, &b, &a, &b] {
            put(&mut slices, slice);
        }
        let is_in_parts =
            |slices: &Slices| [&a, &b].map(|slice| slices.part(&ObjectKey::of(slice), slice).is_some());
        assert_eq!(is_in_parts(&slices), [true, true]);

        slices.put(key("c"), &web(), addresses(&[3]), None);
        assert_eq!(is_in_parts(&slices), [false, true]);

        // What another one said of the address may still count.
        slices.remove(&key("c"));
        assert_eq!(is_in_parts(&slices), [false, true]);
        put(&mut slices, &a);
        assert_eq!(is_in_parts(&slices), [true, true]);
    }

    #[test]
    fn slices_of_a_service_come_and_go_in_any_order() {
        for gone in [["a", "b", "c"], ["b", "a", "c"], ["c", "b", "a"]] {
            let mut slices = Slices::default();
            for (number, name) in [(1, "a"), (2, "b"), (3, "c")] {
                slices.put(key(name), &web(), addresses(&[number]), None);
            }
            for name in gone {
                let (_, given) = slices.remove(&key(name)).unwrap();
                assert!(!slices.gives(&web(), &given[0]), "{name} of {gone:?}");
                let left: usize = (1..=3)
                    .filter(|n| slices.gives(&web(), &addresses(&[*n])[0]))
                    .count();
                assert_eq!(left, slices.keys().count());
            }
            slices.put(key("d"), &web(), addresses(&[4]), None);
            assert!(slices.gives(&web(), &addresses(&[4])[0]));
        }
    }

    #[test]
    fn strange_names_of_services_do_not_confuse_slices() {
        let mut slices = Slices::default();
        let strange = ServiceName::new("shop", "a/b");
        slices.put(key("x"), &strange, addresses(&[1]), None);

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
        slices.put(key("a"), &web(), addresses(&[1]), None);

        assert_eq!(
            slices.put(key("a"), &other, addresses(&[1]), None),
            Some((web(), addresses(&[1]).into_vec()))
        );
        assert!(slices.gives(&other, &addresses(&[1])[0]));
        assert!(!slices.gives(&web(), &addresses(&[1])[0]));
    }
}
