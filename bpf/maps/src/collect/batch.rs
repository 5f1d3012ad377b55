// SPDX-License-Identifier: Apache-2.0

//! A collector that reads maps and deletes entries by batch operations.

use std::{fmt, io, net::IpAddr};

use skep_bpf_sys::{Map, MapError, MapStore, map::Plain};

use super::{
    CollectError, Collected, FlowCollector, FlowKey, FlowMap, NatCount, Purged, Removal, nat_family,
};
use crate::{
    MapFamily,
    conntrack::{CT_ANY4, CT_ANY6, CT_TCP4, CT_TCP6, CtEntry, CtKey4, CtKey6, entry_flags},
    nat::{NAT4, NAT6, NatEntry4, NatEntry6, NatKey4, NatKey6},
};

/// Entries that are deleted with one call: few, so that little time passes since they were read.
const BATCH: usize = 256;

/// Reads the clock of the maps: seconds of the monotonic clock, or ticks / 256.
pub type Clock = Box<dyn Fn() -> io::Result<u64> + Send + Sync>;

/// Collects by reading all entries and deleting those that go.
pub struct BatchCollector {
    v4: FlowMaps<CtKey4, NatKey4, NatEntry4>,
    v6: FlowMaps<CtKey6, NatKey6, NatEntry6>,
    clock: Clock,
}

/// The maps of an address family; none if it is off.
struct FlowMaps<K, N, E> {
    tcp: Option<Map<K, CtEntry>>,
    any: Option<Map<K, CtEntry>>,
    nat: Option<Map<N, E>>,
}

/// The pinned map of a family, if there is one.
fn pinned<K: Plain, V: Plain>(
    store: &MapStore,
    family: &MapFamily<K, V>,
) -> Result<Option<Map<K, V>>, MapError> {
    match store.open(family.family.name) {
        Ok(map) => Ok(Some(map)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

impl BatchCollector {
    /// A collector of the pinned maps of a store.
    ///
    /// # Errors
    ///
    /// [`MapError`] if a map is pinned that cannot be opened, or has other keys or values.
    pub fn open(store: &MapStore, clock: Clock) -> Result<Self, MapError> {
        Ok(Self {
            v4: FlowMaps {
                tcp: pinned(store, &CT_TCP4)?,
                any: pinned(store, &CT_ANY4)?,
                nat: pinned(store, &NAT4)?,
            },
            v6: FlowMaps {
                tcp: pinned(store, &CT_TCP6)?,
                any: pinned(store, &CT_ANY6)?,
                nat: pinned(store, &NAT6)?,
            },
            clock,
        })
    }
}

impl fmt::Debug for BatchCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchCollector").finish_non_exhaustive()
    }
}

impl FlowCollector for BatchCollector {
    fn max_entries(&self, map: FlowMap) -> Option<u32> {
        if map.is_ipv6() {
            self.v6.tracked(map.is_tcp()).map(Map::max_entries)
        } else {
            self.v4.tracked(map.is_tcp()).map(Map::max_entries)
        }
    }

    fn count(&self, _: FlowMap) -> Option<u64> {
        None
    }

    fn collect(&self, map: FlowMap, removal: &Removal) -> Result<Collected, CollectError> {
        let now = match removal {
            Removal::All => u64::MAX,
            Removal::Ended | Removal::Addresses(_) => {
                (self.clock)().map_err(|source| CollectError::Clock {
                    map: map.family().name,
                    source,
                })?
            }
        };
        match map {
            FlowMap::Tcp4 | FlowMap::Any4 => self.v4.collect(map.is_tcp(), removal, now),
            FlowMap::Tcp6 | FlowMap::Any6 => self.v6.collect(map.is_tcp(), removal, now),
        }
    }

    fn max_nat_entries(&self, is_ipv6: bool) -> Option<u32> {
        if is_ipv6 {
            self.v6.nat.as_ref().map(Map::max_entries)
        } else {
            self.v4.nat.as_ref().map(Map::max_entries)
        }
    }

    fn count_nat(&self, _: bool) -> Option<u64> {
        None
    }

    fn walk_nat(&self, is_ipv6: bool) -> Result<u64, CollectError> {
        let mut entries = 0;
        if is_ipv6 {
            let nat = self.v6.nat.as_ref();
            nat.map_or(Ok(()), |nat| nat.for_each(|_, _| entries += 1))?;
        } else {
            let nat = self.v4.nat.as_ref();
            nat.map_or(Ok(()), |nat| nat.for_each(|_, _| entries += 1))?;
        }
        Ok(entries)
    }

    fn purge(&self, is_ipv6: bool) -> Result<Purged, CollectError> {
        let map = nat_family(is_ipv6).name;
        let now = (self.clock)().map_err(|source| CollectError::Clock { map, source })?;
        if is_ipv6 {
            self.v6.purge(now)
        } else {
            self.v4.purge(now)
        }
    }
}

impl<K: FlowKey> FlowMaps<K, K::NatKey, K::NatEntry> {
    fn tracked(&self, is_tcp: bool) -> Option<&Map<K, CtEntry>> {
        if is_tcp {
            self.tcp.as_ref()
        } else {
            self.any.as_ref()
        }
    }

    fn collect(&self, is_tcp: bool, removal: &Removal, now: u64) -> Result<Collected, CollectError> {
        let mut done = Collected::default();
        let Some(map) = self.tracked(is_tcp) else {
            return Ok(done);
        };
        let is_listed = |address: IpAddr| match removal {
            Removal::Addresses(addresses) => addresses.contains(&address),
            Removal::Ended | Removal::All => false,
        };
        let mut dead = Vec::with_capacity(BATCH);
        let mut result = Ok(());
        map.for_each(|key, entry| {
            if u64::from(entry.lifetime) >= now && !key.addresses().into_iter().any(is_listed) {
                done.alive += 1;
                return;
            }
            dead.push((key, entry.flags));
            if dead.len() >= BATCH && result.is_ok() {
                result = self.delete(map, &mut dead, &mut done);
            }
        })?;
        result?;
        self.delete(map, &mut dead, &mut done)?;
        Ok(done)
    }

    fn delete(
        &self,
        map: &Map<K, CtEntry>,
        dead: &mut Vec<(K, u8)>,
        done: &mut Collected,
    ) -> Result<(), CollectError> {
        let keys: Vec<K> = dead.iter().map(|(key, _)| *key).collect();
        done.deleted += map.delete_batch(&keys).all()? as u64;
        let Some(nat) = &self.nat else {
            dead.clear();
            return Ok(());
        };
        for (key, flags) in dead.drain(..).filter(|(key, _)| key.is_egress()) {
            let deleted = delete_nat(nat, &key, flags & entry_flags::DSR != 0)?;
            done.nat_deleted.add(deleted);
        }
        Ok(())
    }

    fn purge(&self, now: u64) -> Result<Purged, CollectError> {
        let mut done = Purged::default();
        let Some(nat) = &self.nat else {
            return Ok(done);
        };
        let mut orphans = Vec::with_capacity(BATCH);
        let mut result = Ok(());
        nat.for_each(|key, entry| {
            if result.is_err() {
                return;
            }
            match self.is_orphan(&key, &entry, now) {
                Ok(true) => orphans.push(key),
                Ok(false) => count::<K>(&mut done.alive, &key),
                Err(error) => result = Err(error),
            }
            if orphans.len() >= BATCH {
                result = delete_orphans::<K>(nat, &mut orphans, &mut done.deleted);
            }
        })?;
        result?;
        delete_orphans::<K>(nat, &mut orphans, &mut done.deleted)?;
        Ok(done)
    }

    /// Nothing tracks the flow of a NAT entry, and it was not made just now.
    fn is_orphan(&self, key: &K::NatKey, entry: &K::NatEntry, now: u64) -> Result<bool, MapError> {
        if K::nat_created(entry).saturating_add(1) >= now {
            return Ok(false);
        }
        let find = |flow: K| match self.tracked(flow.is_tcp()) {
            Some(map) => map.lookup(&flow),
            None => Ok(None),
        };
        if find(K::of_nat(key, entry))?.is_some() {
            return Ok(false);
        }
        if K::is_nat_reverse(key) {
            return Ok(true);
        }
        let tracked = find(K::of_nat_dsr(key))?;
        Ok(tracked.is_none_or(|entry| entry.flags & entry_flags::DSR == 0))
    }
}

fn count<K: FlowKey>(counts: &mut NatCount, key: &K::NatKey) {
    if K::is_nat_reverse(key) {
        counts.reverse += 1;
    } else {
        counts.forward += 1;
    }
}

/// Deletes how packets of a flow are translated; both halves.
fn delete_nat<K: FlowKey>(
    nat: &Map<K::NatKey, K::NatEntry>,
    flow: &K,
    is_dsr: bool,
) -> Result<NatCount, MapError> {
    let mut deleted = NatCount::default();
    if is_dsr {
        deleted.forward = nat.delete(&flow.nat_dsr())?.into();
        return Ok(deleted);
    }
    let forward = flow.nat_forward();
    let Some(entry) = nat.lookup(&forward)? else {
        return Ok(deleted);
    };
    deleted.forward = nat.delete(&forward)?.into();
    let answers = K::nat_answers(&forward, &entry);
    // Unless another flow has the port by now.
    if nat
        .lookup(&answers)?
        .is_some_and(|entry| K::is_answer_to(&entry, &forward))
    {
        deleted.reverse = nat.delete(&answers)?.into();
    }
    Ok(deleted)
}

fn delete_orphans<K: FlowKey>(
    nat: &Map<K::NatKey, K::NatEntry>,
    orphans: &mut Vec<K::NatKey>,
    deleted: &mut NatCount,
) -> Result<(), MapError> {
    nat.delete_batch(orphans).all()?;
    for key in orphans.drain(..) {
        count::<K>(deleted, &key);
    }
    Ok(())
}
