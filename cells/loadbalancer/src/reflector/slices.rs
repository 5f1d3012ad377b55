// SPDX-License-Identifier: Apache-2.0

//! Which slice gave which backends: what it takes to tell the backends that nobody gives any more.
//!
//! Keeps addresses only, in 24 bytes each; the objects themselves are not kept.

use skep_k8s::ObjectKey;
use smallvec::SmallVec;

use crate::hash::HashMap;
use crate::types::{L3n4Addr, ServiceName};

/// What a slice gave when it was last seen.
#[derive(Debug)]
struct Given {
    service: ServiceName,
    // Sorted.
    addresses: Box<[L3n4Addr]>,
}

/// Number of an entry of [`Slices::given`].
type Slot = u32;

/// All slices of a source.
#[derive(Debug, Default)]
pub(super) struct Slices {
    slots: HashMap<ObjectKey, Slot>,
    given: Vec<Option<Given>>,
    free: Vec<Slot>,
    by_service: HashMap<ServiceName, SmallVec<[Slot; 4]>>,
}

impl Slices {
    /// Notes what a slice gives now; gives back what it gave before and does not give any more.
    pub(super) fn put(
        &mut self,
        key: ObjectKey,
        service: &ServiceName,
        addresses: Box<[L3n4Addr]>,
    ) -> Option<(ServiceName, Vec<L3n4Addr>)> {
        let before = match self.slots.get(&key) {
            Some(&slot) if self.service_of(slot) == Some(service) => {
                let given = self.given[slot as usize].as_mut()?;
                let old = std::mem::replace(&mut given.addresses, addresses);
                let dropped = |address: &L3n4Addr| given.addresses.binary_search(address).is_err();
                let dropped: Vec<L3n4Addr> = old.into_iter().filter(dropped).collect();
                return (!dropped.is_empty()).then(|| (service.clone(), dropped));
            }
            // It moved to another service.
            Some(_) => self.remove(&key),
            None => None,
        };
        let given = Some(Given {
            service: service.clone(),
            addresses,
        });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.given[slot as usize] = given;
                slot
            }
            None => {
                self.given.push(given);
                Slot::try_from(self.given.len() - 1).expect("fewer than four billion slices fit into memory")
            }
        };
        self.slots.insert(key, slot);
        self.by_service.entry(service.clone()).or_default().push(slot);
        before
    }

    /// Forgets a slice; gives back what it gave.
    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<(ServiceName, Vec<L3n4Addr>)> {
        let slot = self.slots.remove(key)?;
        let given = self.given[slot as usize].take()?;
        self.free.push(slot);
        if let Some(slots) = self.by_service.get_mut(&given.service) {
            slots.retain(|other| *other != slot);
            if slots.is_empty() {
                self.by_service.remove(&given.service);
            }
        }
        Some((given.service, given.addresses.into_vec()))
    }

    /// Whether any slice gives this backend to the service.
    pub(super) fn gives(&self, service: &ServiceName, address: &L3n4Addr) -> bool {
        let slots = self
            .by_service
            .get(service)
            .map(|slots| &slots[..])
            .unwrap_or_default();
        let given = slots
            .iter()
            .filter_map(|&slot| self.given[slot as usize].as_ref());
        given
            .into_iter()
            .any(|given| given.addresses.binary_search(address).is_ok())
    }

    /// Keys of all slices.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.slots.keys()
    }

    fn service_of(&self, slot: Slot) -> Option<&ServiceName> {
        self.given[slot as usize].as_ref().map(|given| &given.service)
    }
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
