// SPDX-License-Identifier: Apache-2.0

//! Ids of services and backends, and those that earlier runs allocated.

use roaring::RoaringBitmap;
use skep_loadbalancer_model::hash::{HashMap, HashSet};
use skep_loadbalancer_model::types::{L3n4Addr, L4Proto};

/// Allocates ids from 1, next fit: released ones are allocated again only after the counter wrapped around.
#[derive(Debug)]
pub(super) struct Ids {
    next: u32,
    // Never allocated.
    max: u32,
    used: RoaringBitmap,
    // Ids above the counter may have been allocated before, or wait for their address.
    has_wrapped: bool,
    // Ids of an earlier run by address, not claimed yet.
    restored: HashMap<L3n4Addr, u32>,
}

impl Ids {
    pub(super) fn new(max: u32) -> Self {
        Self {
            next: 1,
            max,
            used: RoaringBitmap::new(),
            has_wrapped: false,
            restored: HashMap::default(),
        }
    }

    /// Ids in use.
    pub(super) fn len(&self) -> usize {
        self.used.len() as usize
    }

    /// Ids of an earlier run that wait for their address.
    pub(super) fn restored_len(&self) -> usize {
        self.restored.len()
    }

    /// Restores an id found in the maps. One of protocol `ANY` is kept for whichever protocol asks first.
    pub(super) fn restore(&mut self, address: L3n4Addr, id: u32) {
        if id == 0 || id >= self.max {
            return;
        }
        self.skip(id);
        if address.proto() == L4Proto::Any {
            for proto in [L4Proto::Tcp, L4Proto::Udp, L4Proto::Sctp] {
                self.restored.entry(address.with_proto(proto)).or_insert(id);
            }
        } else {
            self.restored.insert(address, id);
        }
    }

    /// Makes the counter go on above an id.
    pub(super) fn skip(&mut self, id: u32) {
        if id < self.max {
            self.next = self.next.max(id + 1);
        }
    }

    /// Forgets ids that were not claimed.
    pub(super) fn drop_restored(&mut self) {
        self.restored = HashMap::default();
    }

    /// Allocates an id for an address: the one of an earlier run, else the next free one. `None`: all are in use.
    pub(super) fn allocate(&mut self, address: &L3n4Addr) -> Option<u32> {
        if !self.restored.is_empty()
            && let Some(id) = self.restored.remove(address)
            && self.used.insert(id)
        {
            return Some(id);
        }
        let (first, max) = (self.next, self.max);
        let is_fresh = !self.has_wrapped || self.restored.is_empty();
        // Nearly always.
        if is_fresh && first < max && self.used.insert(first) {
            self.next = first + 1;
            return Some(first);
        }
        let waiting: HashSet<u32> = self.restored.values().copied().collect();
        let id = (first..max)
            .chain(1..first.min(max))
            .find(|id| !self.used.contains(*id) && !waiting.contains(id))?;
        self.has_wrapped |= id < first;
        self.used.insert(id);
        self.next = id + 1;
        Some(id)
    }

    /// Frees an id, but keeps it for its address until [`drop_restored`](Self::drop_restored).
    pub(super) fn park(&mut self, address: L3n4Addr, id: u32) {
        self.release(id);
        self.restore(address, id);
    }

    /// Drops the id kept for an address.
    pub(super) fn forget(&mut self, address: &L3n4Addr) {
        self.restored.remove(address);
    }

    /// Releases an id.
    pub(super) fn release(&mut self, id: u32) {
        self.used.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> L3n4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn released_ids_are_allocated_again_after_the_wrap() {
        let mut ids = Ids::new(4);
        let a = address("10.0.0.1:80/TCP");

        assert_eq!([ids.allocate(&a), ids.allocate(&a)], [Some(1), Some(2)]);
        ids.release(1);
        assert_eq!(ids.allocate(&a), Some(3));
        assert_eq!(ids.allocate(&a), Some(1));
        assert_eq!(ids.allocate(&a), None);
        ids.release(2);
        assert_eq!(ids.allocate(&a), Some(2));
    }

    #[test]
    fn restored_ids_go_to_their_address_once() {
        let mut ids = Ids::new(100);
        ids.restore(address("10.0.0.1:80/TCP"), 7);
        ids.restore(address("10.0.0.2:53/ANY"), 9);

        assert_eq!(ids.allocate(&address("10.0.0.3:80/TCP")), Some(10));
        assert_eq!(ids.allocate(&address("10.0.0.1:80/TCP")), Some(7));
        assert_eq!(ids.allocate(&address("10.0.0.2:53/UDP")), Some(9));
        assert_eq!(ids.allocate(&address("10.0.0.2:53/TCP")), Some(11));
        assert_eq!((ids.len(), ids.restored_len()), (4, 1));
    }

    #[test]
    fn ids_out_of_range_are_not_restored() {
        let mut ids = Ids::new(4);
        let other = address("10.0.0.9:80/TCP");
        for (at, id) in [0, 4, 7].into_iter().enumerate() {
            ids.restore(address(&format!("10.0.0.{at}:80/TCP")), id);
            ids.skip(id);
        }

        assert_eq!(ids.restored_len(), 0);
        assert_eq!(
            [1, 2, 3].map(|_| ids.allocate(&other)),
            [Some(1), Some(2), Some(3)]
        );
    }

    #[test]
    fn ids_beyond_the_range_do_not_turn_the_counter_back() {
        let mut ids = Ids::new(4);
        ids.skip(2);

        ids.skip(4);

        assert_eq!(ids.allocate(&address("10.0.0.1:80/TCP")), Some(3));
    }

    #[test]
    fn restored_ids_wait_for_their_address_when_all_others_are_in_use() {
        let mut ids = Ids::new(4);
        let (own, other) = (address("10.0.0.1:80/TCP"), address("10.0.0.2:80/TCP"));
        ids.restore(own, 2);

        assert_eq!([1, 2, 3].map(|_| ids.allocate(&other)), [Some(3), Some(1), None]);
        assert_eq!(ids.allocate(&own), Some(2));
    }
}
