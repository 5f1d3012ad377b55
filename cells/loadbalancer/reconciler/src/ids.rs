// SPDX-License-Identifier: Apache-2.0

//! Ids of services and backends, and those that earlier runs allocated.
//!
//! An id outlives its object: flows that programs remember bear it, and would be led to whatever it means next. Ids are
//! allocated in laps. In a lap the counter only goes up, over all restarts ([`IdMark`]), and what is released ahead of it
//! waits for the next lap. A lap begins with a look at the maps: ids that any entry bears are left out
//! ([`LoadBalancerMaps::borne_ids`](crate::maps::LoadBalancerMaps::borne_ids)).

use roaring::RoaringBitmap;
use skep_bpf_maps::lb::IdMark;
use skep_loadbalancer_model::hash::HashMap;
use skep_loadbalancer_model::types::{L3n4Addr, L4Proto};

/// Reads the ids that entries of maps bear; `None`: they cannot be read.
type Bearers = Box<dyn Fn() -> Option<RoaringBitmap> + Send>;

/// Allocates ids from 1, next fit.
pub(super) struct Ids {
    next: u32,
    // Never allocated.
    max: u32,
    used: RoaringBitmap,
    // Not allocated in this lap: entries may bear them, or they wait for their address.
    retired: RoaringBitmap,
    // Ids from the counter on may have been allocated before.
    has_wrapped: bool,
    // Which of them entries bear is still to be read.
    is_unread: bool,
    // A lap of this round has begun already: another look at the maps would find the same.
    is_exhausted: bool,
    // Ids of an earlier run by address, not claimed yet.
    restored: HashMap<L3n4Addr, u32>,
    bearers: Bearers,
}

impl std::fmt::Debug for Ids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ids")
            .field("next", &self.next)
            .field("used", &self.used)
            .field("retired", &self.retired)
            .finish_non_exhaustive()
    }
}

impl Ids {
    /// Ids below `max`, of which those that `bearers` returns are in use by entries of maps.
    pub(super) fn new(max: u32, bearers: Bearers) -> Self {
        Self {
            next: 1,
            max,
            used: RoaringBitmap::new(),
            retired: RoaringBitmap::new(),
            has_wrapped: false,
            is_unread: false,
            is_exhausted: false,
            restored: HashMap::default(),
            bearers,
        }
    }

    /// Makes do with fewer ids.
    #[cfg(test)]
    pub(super) fn limit(&mut self, max: u32) {
        self.max = max;
    }

    /// Ids in use.
    pub(super) fn len(&self) -> usize {
        self.used.len() as usize
    }

    /// Ids of an earlier run that wait for their address.
    pub(super) fn restored_len(&self) -> usize {
        self.restored.len()
    }

    /// How far ids were allocated.
    pub(super) fn mark(&self) -> IdMark {
        IdMark {
            next: self.next,
            has_wrapped: self.has_wrapped.into(),
        }
    }

    /// Goes on where an earlier run was. Without a mark, another agent may have allocated any id.
    pub(super) fn resume(&mut self, mark: IdMark) {
        self.has_wrapped = mark.has_wrapped != 0;
        self.is_unread = self.has_wrapped || mark.next == 0;
        self.next = mark.next.clamp(1, self.max);
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

    /// Leaves out an id found in the maps.
    pub(super) fn skip(&mut self, id: u32) {
        if id < self.max {
            self.retired.insert(id);
            if !self.has_wrapped {
                self.next = self.next.max(id + 1);
            }
        }
    }

    /// Forgets ids that were not claimed.
    pub(super) fn drop_restored(&mut self) {
        self.restored = HashMap::default();
    }

    /// Forgets ids that were not claimed, but for these.
    pub(super) fn retain_restored(&mut self, is_kept: impl Fn(u32) -> bool) {
        self.restored.retain(|_, id| is_kept(*id));
    }

    /// Allocates an id for an address: the one of an earlier run, else the next free one. `None`: all are in use.
    pub(super) fn allocate(&mut self, address: &L3n4Addr) -> Option<u32> {
        if !self.restored.is_empty()
            && let Some(id) = self.restored.remove(address)
            && self.used.insert(id)
        {
            return Some(id);
        }
        if self.is_unread {
            let borne = (self.bearers)()?;
            self.has_wrapped |= !borne.is_empty();
            self.retired |= borne;
            self.is_unread = false;
        }
        let id = match self.free() {
            Some(id) => id,
            None => {
                self.start_lap()?;
                self.free()?
            }
        };
        self.used.insert(id);
        self.next = id + 1;
        Some(id)
    }

    fn free(&self) -> Option<u32> {
        (self.next..self.max).find(|id| !self.used.contains(*id) && !self.retired.contains(*id))
    }

    fn start_lap(&mut self) -> Option<()> {
        if self.is_exhausted {
            return None;
        }
        self.retired = (self.bearers)()?;
        self.retired.extend(self.restored.values());
        self.is_exhausted = true;
        self.has_wrapped = true;
        self.next = 1;
        Some(())
    }

    /// Begins a round: flows may have ended.
    pub(super) fn start_round(&mut self) {
        self.is_exhausted = false;
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

    /// Releases an id. Entries may bear it: it is not allocated again in this lap.
    pub(super) fn release(&mut self, id: u32) {
        self.used.remove(id);
        if id >= self.next {
            self.retired.insert(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    fn address(text: &str) -> L3n4Addr {
        text.parse().unwrap()
    }

    /// Ids below `max`, and those that entries bear.
    fn ids(max: u32) -> (Ids, Arc<Mutex<RoaringBitmap>>) {
        let borne = Arc::new(Mutex::new(RoaringBitmap::new()));
        let read = borne.clone();
        let ids = Ids::new(max, Box::new(move || Some(read.lock().clone())));
        (ids, borne)
    }

    #[test]
    fn released_ids_are_allocated_again_after_the_wrap() {
        let (mut ids, _) = ids(4);
        let a = address("10.0.0.1:80/TCP");

        assert_eq!([ids.allocate(&a), ids.allocate(&a)], [Some(1), Some(2)]);
        ids.release(1);
        assert_eq!(ids.allocate(&a), Some(3));
        assert_eq!(ids.allocate(&a), Some(1));
        assert_eq!(ids.allocate(&a), None);
        ids.release(2);
        assert_eq!(ids.allocate(&a), None, "the same round");
        ids.start_round();
        assert_eq!(ids.allocate(&a), Some(2));
    }

    #[test]
    fn ids_that_entries_bear_are_left_out_after_the_wrap() {
        let (mut ids, borne) = ids(5);
        let a = address("10.0.0.1:80/TCP");
        let all = [(); 4].map(|()| ids.allocate(&a));
        assert_eq!(all, [1, 2, 3, 4].map(Some));

        borne.lock().extend([1, 3]);
        [1, 2, 3].into_iter().for_each(|id| ids.release(id));

        assert_eq!([(); 2].map(|()| ids.allocate(&a)), [Some(2), None]);
        // In this lap, entries may bear it since the maps were read.
        ids.start_round();
        ids.release(4);
        borne.lock().insert(4);
        borne.lock().remove(1);
        assert_eq!([(); 2].map(|()| ids.allocate(&a)), [Some(1), None]);
    }

    #[test]
    fn a_mark_carries_the_counter_over_a_restart() {
        let (mut before, _) = ids(5);
        let a = address("10.0.0.1:80/TCP");
        let first = [(); 3].map(|()| before.allocate(&a));
        assert_eq!(first, [1, 2, 3].map(Some));
        before.release(3);

        let (mut after, borne) = ids(5);
        after.resume(before.mark());
        assert_eq!(after.allocate(&a), Some(4), "not the one that was released");

        // Once around, what was allocated is to be read from the maps.
        after.release(4);
        assert_eq!(after.allocate(&a), Some(1));
        let mark = after.mark();
        let (mut last, borne_last) = ids(5);
        borne_last.lock().extend([2, 3]);
        last.resume(mark);
        assert_eq!(last.allocate(&a), Some(4));
        assert!(borne.lock().is_empty());
    }

    #[test]
    fn without_a_mark_ids_of_another_agent_are_read_from_the_maps() {
        let (mut ids, borne) = ids(100);
        borne.lock().extend([2, 9]);
        ids.resume(IdMark::default());
        ids.restore(address("10.0.0.1:80/TCP"), 1);

        let a = address("10.0.0.2:80/TCP");
        assert_eq!([(); 2].map(|()| ids.allocate(&a)), [Some(3), Some(4)]);
        assert_eq!(ids.mark().has_wrapped, 1, "the next start reads them again");
    }

    #[test]
    fn restored_ids_go_to_their_address_once() {
        let (mut ids, _) = ids(100);
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
        let (mut ids, _) = ids(4);
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
        let (mut ids, _) = ids(4);
        ids.skip(2);

        ids.skip(4);

        assert_eq!(ids.allocate(&address("10.0.0.1:80/TCP")), Some(3));
    }

    #[test]
    fn restored_ids_wait_for_their_address_when_all_others_are_in_use() {
        let (mut ids, _) = ids(4);
        let (own, other) = (address("10.0.0.1:80/TCP"), address("10.0.0.2:80/TCP"));
        ids.restore(own, 2);

        assert_eq!([1, 2, 3].map(|_| ids.allocate(&other)), [Some(3), Some(1), None]);
        assert_eq!(ids.allocate(&own), Some(2));
    }
}
