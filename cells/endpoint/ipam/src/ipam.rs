// SPDX-License-Identifier: Apache-2.0

//! The one owner of addresses of the node.

use std::{collections::BTreeMap, convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

use hive::JobCtx;
use parking_lot::Mutex;
use skep_base_settings::AddressFamilies;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use uuid::Uuid;

use crate::{Family, IpamError, PoolSelector, allocator::Allocator, metrics::Recorder};

/// How long an address stays allocated for an endpoint that is not created.
pub const EXPIRATION: Duration = Duration::from_secs(600);

/// An allocated address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    pub ip: IpAddr,
    pub pool: String,
    /// Packets to destinations outside of the cluster keep this source address.
    pub skip_masquerade: bool,
}

/// Allocations for a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocations {
    pub ipv4: Option<Allocation>,
    pub ipv6: Option<Allocation>,
}

/// An address and its owner: `namespace/pod`, `router`, `health`, `ingress`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedAddress {
    pub pool: String,
    pub ip: IpAddr,
    pub owner: String,
}

type Key = (String, IpAddr);

#[derive(Debug)]
struct Timer {
    uuid: Uuid,
    deadline: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) ipv4: Option<Allocator>,
    pub(crate) ipv6: Option<Allocator>,
    owners: BTreeMap<Key, String>,
    excluded: BTreeMap<Key, String>,
    timers: BTreeMap<Key, Timer>,
}

impl State {
    pub(crate) fn allocator(&mut self, family: Family) -> &mut Option<Allocator> {
        match family {
            Family::V4 => &mut self.ipv4,
            Family::V6 => &mut self.ipv6,
        }
    }
}

struct Shared {
    state: Mutex<State>,
    families: AddressFamilies,
    default_pool: String,
    selector: Option<Arc<dyn PoolSelector>>,
    metrics: Recorder,
    is_ready: watch::Sender<bool>,
    is_restored: watch::Sender<bool>,
    /// The node has its own addresses.
    has_node: watch::Sender<bool>,
    /// Number of changes of what is allocated, or asked for.
    changes: watch::Sender<u64>,
    timers_changed: Notify,
}

/// Allocates and releases addresses. Cheap to clone.
#[derive(Clone, hive::Value)]
pub struct Ipam(Arc<Shared>);

impl std::fmt::Debug for Ipam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Ipam").field(&*self.0.state.lock()).finish()
    }
}

impl Ipam {
    pub(crate) fn new(
        families: AddressFamilies,
        default_pool: &str,
        selector: Option<Arc<dyn PoolSelector>>,
        metrics: Recorder,
    ) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::default(),
            families,
            default_pool: default_pool.to_owned(),
            selector,
            metrics,
            is_ready: watch::Sender::new(false),
            is_restored: watch::Sender::new(false),
            has_node: watch::Sender::new(false),
            changes: watch::Sender::new(0),
            timers_changed: Notify::new(),
        }))
    }

    /// Changes the allocators.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.0.state.lock());
        self.changed();
        changed
    }

    /// Reads the allocators.
    pub(crate) fn inspect<T>(&self, read: impl FnOnce(&mut State) -> T) -> T {
        read(&mut self.0.state.lock())
    }

    pub(crate) fn set_ready(&self) {
        self.0.is_ready.send_replace(true);
    }

    /// Waits until the node has its networks.
    pub async fn ready(&self) {
        // The sender is in `self`.
        _ = self.0.is_ready.subscribe().wait_for(|is| *is).await;
    }

    #[must_use]
    pub fn is_ready(&self) -> bool {
        *self.0.is_ready.borrow()
    }

    /// Reports that the addresses of all endpoints of the previous run are restored: from now on networks without addresses
    /// in use are released, and the node allocates its own addresses.
    pub fn restore_finished(&self) {
        self.0.is_restored.send_replace(true);
        self.changed();
    }

    /// Waits for [`restore_finished`](Self::restore_finished).
    pub async fn restored(&self) {
        _ = self.0.is_restored.subscribe().wait_for(|is| *is).await;
    }

    #[must_use]
    pub fn is_restored(&self) -> bool {
        *self.0.is_restored.borrow()
    }

    /// Reports that table `infrastructure-addresses` is complete.
    pub(crate) fn set_node_addressed(&self) {
        self.0.has_node.send_replace(true);
    }

    /// Wakes when table `infrastructure-addresses` is complete.
    #[must_use]
    pub fn node_addressed(&self) -> watch::Receiver<bool> {
        self.0.has_node.subscribe()
    }

    #[must_use]
    pub fn default_pool(&self) -> &str {
        &self.0.default_pool
    }

    #[must_use]
    pub fn families(&self) -> &AddressFamilies {
        &self.0.families
    }

    /// Wakes when anything is allocated, released or asked for.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn changed(&self) {
        for family in Family::enabled(&self.0.families) {
            let state = self.0.state.lock();
            let owned = state.owners.keys().filter(|(_, ip)| Family::of(*ip) == family);
            self.0.metrics.addresses(family, owned.count());
        }
        self.0.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// The pool of an allocation: that of the request, else that of the pod.
    fn pool(&self, has_pools: bool, family: Family, owner: &str, pool: &str) -> Result<String, IpamError> {
        match &self.0.selector {
            _ if !has_pools => Ok(self.0.default_pool.clone()),
            _ if !pool.is_empty() => Ok(pool.to_owned()),
            None => Ok(self.0.default_pool.clone()),
            Some(selector) => {
                let selected = selector
                    .pool(family, owner)
                    .map_err(|cause| IpamError::Selection {
                        owner: owner.to_owned(),
                        cause,
                    })?;
                Ok(selected.unwrap_or_else(|| self.0.default_pool.clone()))
            }
        }
    }

    fn allocation(&self, has_pools: bool, ip: IpAddr, pool: String) -> Result<Allocation, IpamError> {
        let skip_masquerade = match &self.0.selector {
            Some(selector) if has_pools => selector.skips_masquerade(&pool)?,
            _ => false,
        };
        Ok(Allocation {
            ip,
            pool,
            skip_masquerade,
        })
    }

    /// Whether the allocator of a family has pools.
    fn check(&self, family: Family) -> Result<bool, IpamError> {
        if !family.is_enabled(&self.0.families) {
            return Err(IpamError::Disabled(family));
        }
        match self.0.state.lock().allocator(family) {
            Some(allocator) => Ok(allocator.has_pools()),
            None => Err(IpamError::NotReady(format!("the node has no {family} pod CIDR"))),
        }
    }

    /// Allocates any address of a family. Without a pool, that of the pod `namespace/name` in `owner` counts.
    ///
    /// # Errors
    ///
    /// [`IpamError`].
    pub fn allocate(&self, family: Family, owner: &str, pool: &str) -> Result<Allocation, IpamError> {
        let has_pools = self.check(family)?;
        let pool = self.pool(has_pools, family, owner, pool)?;
        let ip = {
            let mut state = self.0.state.lock();
            let State {
                owners,
                excluded,
                ipv4,
                ipv6,
                ..
            } = &mut *state;
            let allocator = match family {
                Family::V4 => ipv4,
                Family::V6 => ipv6,
            };
            let allocator = allocator.as_mut().ok_or(IpamError::Disabled(family))?;
            loop {
                let ip = allocator.allocate_next(owner, &pool);
                self.count("allocate", family, allocator);
                let key = (pool.clone(), ip?);
                if excluded.contains_key(&key) {
                    owners.insert(key, format!("{owner} (excluded)"));
                    continue;
                }
                owners.insert(key.clone(), owner.to_owned());
                break key.1;
            }
        };
        self.changed();
        let allocation = self.allocation(has_pools, ip, pool.clone());
        if allocation.is_err() {
            self.release(ip, &pool)?;
        }
        allocation
    }

    /// Allocates an address of each enabled family, IPv6 first: all or none.
    ///
    /// # Errors
    ///
    /// [`IpamError`].
    pub fn allocate_all(&self, owner: &str, pool: &str) -> Result<Allocations, IpamError> {
        let mut all = Allocations::default();
        if self.0.families.ipv6 {
            all.ipv6 = Some(self.allocate(Family::V6, owner, pool)?);
        }
        if self.0.families.ipv4 {
            let ipv4 = self.allocate(Family::V4, owner, pool);
            if let (Err(_), Some(ipv6)) = (&ipv4, &all.ipv6) {
                self.release(ipv6.ip, &ipv6.pool)?;
                // It is asked for again, with the IPv4 address: its network is not released meanwhile.
                self.change(|state| {
                    if let Some(pools) = state.ipv6.as_mut().and_then(Allocator::pools) {
                        pools.demand(&ipv6.pool, owner);
                    }
                });
            }
            all.ipv4 = Some(ipv4?);
        }
        Ok(all)
    }

    /// Allocates an address: one of the previous run, or of a request.
    ///
    /// # Errors
    ///
    /// [`IpamError`]: no pool, the address is excluded, in use or of no network of the node.
    pub fn allocate_ip(&self, ip: IpAddr, owner: &str, pool: &str) -> Result<Allocation, IpamError> {
        if pool.is_empty() {
            return Err(IpamError::RestoreWithoutPool {
                ip,
                owner: owner.to_owned(),
            });
        }
        let family = Family::of(ip);
        let has_pools = self.check(family)?;
        let pool = self.pool(has_pools, family, owner, pool)?;
        let key = (pool.clone(), ip);
        {
            let mut state = self.0.state.lock();
            if let Some(owner) = state.excluded.get(&key) {
                return Err(IpamError::Excluded {
                    ip,
                    owner: owner.clone(),
                });
            }
            let allocator = state.allocator(family).as_mut();
            let allocator = allocator.ok_or(IpamError::Disabled(family))?;
            allocator.allocate(ip, owner, &pool)?;
            self.count("allocate", family, allocator);
            state.owners.insert(key, owner.to_owned());
        }
        self.changed();
        // The object of its pool may come later.
        let restored = self.allocation(has_pools, ip, pool.clone());
        Ok(restored.unwrap_or(Allocation {
            ip,
            pool,
            skip_masquerade: false,
        }))
    }

    /// Releases an address, and stops its timer. Without effect if it is not allocated.
    ///
    /// # Errors
    ///
    /// If there is no pool, or the family is disabled.
    pub fn release(&self, ip: IpAddr, pool: &str) -> Result<(), IpamError> {
        if pool.is_empty() {
            return Err(IpamError::ReleaseWithoutPool(ip));
        }
        let has_pools = self.check(Family::of(ip))?;
        let key = (self.pool(has_pools, Family::of(ip), "", pool)?, ip);
        self.release_key(&key);
        Ok(())
    }

    fn release_key(&self, key: &Key) {
        let family = Family::of(key.1);
        {
            let mut state = self.0.state.lock();
            state.timers.remove(key);
            state.owners.remove(key);
            if let Some(allocator) = state.allocator(family) {
                allocator.release(key.1, &key.0);
                self.count("release", family, allocator);
            }
        }
        self.changed();
    }

    /// Keeps an address from being allocated to others.
    pub fn exclude(&self, ip: IpAddr, owner: &str, pool: &str) {
        let key = (pool.to_owned(), ip);
        self.0.state.lock().excluded.insert(key, owner.to_owned());
    }

    fn count(&self, action: &str, family: Family, allocator: &Allocator) {
        self.0.metrics.count(action, family, allocator);
    }

    /// Releases an address after [`EXPIRATION`], unless its timer is stopped with the UUID.
    ///
    /// # Errors
    ///
    /// If it has a timer.
    pub fn start_expiration(&self, allocation: &Allocation) -> Result<Uuid, IpamError> {
        let key = (allocation.pool.clone(), allocation.ip);
        let mut state = self.0.state.lock();
        if state.timers.contains_key(&key) {
            return Err(IpamError::TimerExists);
        }
        let uuid = Uuid::new_v4();
        let deadline = Instant::now() + EXPIRATION;
        state.timers.insert(key, Timer { uuid, deadline });
        self.0.timers_changed.notify_one();
        Ok(uuid)
    }

    /// Stops the timer of an address, as its endpoint is created.
    ///
    /// # Errors
    ///
    /// If it has no timer, or one of another UUID.
    pub fn stop_expiration(&self, ip: IpAddr, pool: &str, uuid: &str) -> Result<(), IpamError> {
        let key = (pool.to_owned(), ip);
        let mut state = self.0.state.lock();
        let timer = state.timers.get(&key).ok_or(IpamError::NoTimer)?;
        if timer.uuid.to_string() != uuid {
            return Err(IpamError::OtherTimer);
        }
        state.timers.remove(&key);
        Ok(())
    }

    /// Releases expired addresses; returns when the next one expires.
    fn expire(&self) -> Option<Instant> {
        let now = Instant::now();
        let expired: Vec<Key> = {
            let state = self.0.state.lock();
            let due = state.timers.iter().filter(|(_, timer)| timer.deadline <= now);
            due.map(|(key, _)| key.clone()).collect()
        };
        for key in &expired {
            self.release_key(key);
            tracing::warn!(ip = %key.1, pool = key.0, "Released IP after expiration");
        }
        let state = self.0.state.lock();
        state.timers.values().map(|timer| timer.deadline).min()
    }

    /// Releases addresses as they expire. Runs without end.
    pub(crate) async fn expire_all(&self) {
        loop {
            let next = self.expire();
            tokio::select! {
                () = self.0.timers_changed.notified() => {}
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    pub(crate) async fn run_expiration(&self, cx: &JobCtx) -> Result<(), Infallible> {
        cx.health
            .ok("Releasing addresses of endpoints that are not created");
        self.expire_all().await;
        Ok(())
    }

    /// Returns the addresses of a family with their owners.
    #[must_use]
    pub fn addresses(&self, family: Family) -> Vec<OwnedAddress> {
        let state = self.0.state.lock();
        let owned = state.owners.iter();
        let owned = owned.filter(|((_, ip), _)| Family::of(*ip) == family);
        let owned = owned.map(|((pool, ip), owner)| OwnedAddress {
            pool: pool.clone(),
            ip: *ip,
            owner: owner.clone(),
        });
        owned.collect()
    }

    /// The state for people: `IPv4: 7/254 allocated from 10.1.0.0/24, IPv6: …`.
    #[must_use]
    pub fn status(&self) -> String {
        let mut state = self.0.state.lock();
        let half = |family: Family, state: &mut State| match state.allocator(family) {
            Some(allocator) => format!("{family}: {}", allocator.status()),
            None => String::new(),
        };
        let ipv4 = half(Family::V4, &mut state);
        let ipv6 = half(Family::V6, &mut state);
        format!("{ipv4}, {ipv6}")
    }

    /// Network of a family, of the default pool: `alloc-range` of answers; empty: none.
    #[must_use]
    pub fn network(&self, family: Family) -> String {
        let mut state = self.0.state.lock();
        let allocator = state.allocator(family).as_ref();
        allocator.map_or_else(String::new, |allocator| allocator.network(&self.0.default_pool))
    }
}
