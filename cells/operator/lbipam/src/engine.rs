// SPDX-License-Identifier: Apache-2.0

//! The objects as far as they are known, and their pending writes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use skep_k8s_types::slim::Str;
use skep_k8s_types::{DecodeError, ObjectKey, Resource};

use crate::allocator::{Allocation, Allocations, Claim, allocate};
use crate::config::Families;
use crate::object::{PoolObject, ServiceObject};
use crate::pool::{Pool, Pools, Usage};
use crate::request::{self, Request};
use crate::status::{self, KnownPool, PoolReport};
use skep_base_settings::DefaultIpam;

/// Pools and services, and which service has which address.
#[derive(Debug)]
pub(crate) struct Engine {
    default: DefaultIpam,
    families: Families,
    pools: BTreeMap<Str, PoolEntry>,
    services: BTreeMap<ObjectKey, ServiceEntry>,
    /// Services that exist and were never decoded, with the addresses that are reserved for them: those of their status, which
    /// is to be read.
    undecoded: BTreeMap<ObjectKey, Option<Vec<IpAddr>>>,
}

#[derive(Debug, Default)]
struct PoolEntry {
    /// Its newest state that could be decoded.
    object: Option<Arc<PoolObject>>,
    /// Its last valid specification, and the generation that had it.
    valid: Option<(Pool, Option<i64>)>,
    /// Why the newest specification is not used.
    error: Option<String>,
    /// The newest state could not be decoded: nothing can be written.
    is_unreadable: bool,
}

#[derive(Debug)]
struct ServiceEntry {
    object: Arc<ServiceObject>,
    /// None if LB-IPAM is not responsible.
    request: Option<Request>,
    /// What it has; until the first pass, what its status shows.
    held: Vec<IpAddr>,
    /// Addresses that LB-IPAM has put into its status, or will. Others in the status are those of other controllers.
    owned: BTreeSet<IpAddr>,
    is_settled: bool,
    /// The newest state could not be decoded: `object` is older, nothing is written.
    is_unreadable: bool,
}

impl ServiceEntry {
    /// Addresses in its status that other controllers wrote.
    fn foreign(&self) -> impl Iterator<Item = IpAddr> {
        let shown = status::shown(&self.object.status).into_iter();
        shown.filter(|address| !self.owned.contains(address))
    }
}

/// An object whose status is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Pool(Str),
    Service(ObjectKey),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(name) => write!(f, "pool `{name}`"),
            Self::Service(key) => write!(f, "Service `{key}`"),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct StatusWrite {
    pub(crate) target: Target,
    pub(crate) patch: Value,
}

/// What is to be done, and where things stand.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    pub(crate) writes: Vec<StatusWrite>,
    /// Addresses wait until the status of another service does not show them any more.
    pub(crate) has_deferred: bool,
    pub(crate) pools: Vec<(Str, Usage)>,
    pub(crate) conflicting_pools: usize,
    pub(crate) matching: usize,
    pub(crate) unsatisfied: usize,
}

impl Engine {
    pub(crate) fn new(default: DefaultIpam, families: Families) -> Self {
        Self {
            default,
            families,
            pools: BTreeMap::new(),
            services: BTreeMap::new(),
            undecoded: BTreeMap::new(),
        }
    }

    pub(crate) fn has_pools(&self) -> bool {
        !self.pools.is_empty()
    }

    /// Names and faults of pools whose specification is not used, but for those that cannot be decoded.
    pub(crate) fn invalid_pools(&self) -> impl Iterator<Item = (&Str, &str)> {
        let faults = |(name, entry)| -> Option<(&Str, &str)> {
            let entry: &PoolEntry = entry;
            let error = entry.error.as_deref()?;
            (!entry.is_unreadable).then_some((name, error))
        };
        self.pools.iter().filter_map(faults)
    }

    /// Services whose addresses are not known: until they are, nothing may be allocated.
    pub(crate) fn unread_services(&self) -> impl Iterator<Item = &ObjectKey> {
        let unread = self.undecoded.iter().filter(|(_, addresses)| addresses.is_none());
        unread.map(|(key, _)| key)
    }

    /// Reserves what the status of a service that cannot be decoded shows.
    pub(crate) fn reserve(&mut self, service: &ObjectKey, addresses: Vec<IpAddr>) {
        if let Some(reserved) = self.undecoded.get_mut(service) {
            *reserved = Some(addresses);
        }
    }

    /// Forgets objects that were never decoded and are not invalid any more.
    pub(crate) fn retain_invalid(
        &mut self,
        is_invalid_pool: impl Fn(&Str) -> bool,
        is_invalid_service: impl Fn(&ObjectKey) -> bool,
    ) {
        self.pools
            .retain(|name, entry| entry.object.is_some() || is_invalid_pool(name));
        self.undecoded.retain(|key, _| is_invalid_service(key));
    }

    pub(crate) fn delete_pool(&mut self, name: &Str) {
        self.pools.remove(name);
    }

    pub(crate) fn upsert_pool(&mut self, object: Arc<PoolObject>) {
        let entry = self.pools.entry(object.metadata().name.clone()).or_default();
        let is_another = |known: &Arc<PoolObject>| known.metadata().uid != object.metadata().uid;
        if entry.object.as_ref().is_some_and(is_another) {
            *entry = PoolEntry::default();
        }
        match Pool::new(&object.spec, object.metadata.creation_timestamp) {
            Ok(pool) => {
                entry.valid = Some((pool, object.metadata.generation));
                entry.error = None;
            }
            Err(error) => {
                let error = error.to_string();
                if entry.error.as_ref() != Some(&error) {
                    tracing::error!(pool = %object.metadata().name, %error, "Invalid pool, keeping its last valid specification");
                }
                entry.error = Some(error);
            }
        }
        entry.is_unreadable = false;
        entry.object = Some(object);
    }

    pub(crate) fn unreadable_pool(&mut self, error: &DecodeError) {
        let entry = self.pools.entry(error.object.name.clone()).or_default();
        entry.error = Some(error.to_string());
        entry.is_unreadable = true;
    }

    pub(crate) fn delete_service(&mut self, key: &ObjectKey) {
        self.services.remove(key);
        self.undecoded.remove(key);
    }

    /// Forgets all services: they are not watched any more.
    pub(crate) fn forget_services(&mut self) {
        self.services.clear();
        self.undecoded.clear();
    }

    pub(crate) fn upsert_service(&mut self, object: Arc<ServiceObject>) {
        let key = ObjectKey::of(&*object);
        self.undecoded.remove(&key);
        let metadata = object.metadata();
        let known = self.services.get_mut(&key);
        let known = known.filter(|known| known.object.metadata().uid == metadata.uid);
        let request = request::is_responsible(&object.spec, self.default).then(|| {
            let created = object.metadata.creation_timestamp;
            let (request, invalid) = Request::new(metadata, created, &object.spec, self.families);
            let is_new = known
                .as_ref()
                .is_none_or(|known| known.request.as_ref() != Some(&request));
            if is_new && !invalid.is_empty() {
                tracing::warn!(service = %key, requested = ?invalid, "Ignoring invalid requested addresses");
            }
            request
        });
        match known {
            Some(known) => {
                known.is_settled &= known.request == request;
                let shown = status::shown(&object.status);
                known
                    .owned
                    .retain(|address| shown.contains(address) || known.held.contains(address));
                if known.request.is_none() && request.is_some() {
                    known.held = shown;
                }
                known.request = request;
                known.object = object;
                known.is_unreadable = false;
            }
            None => {
                let shown = status::shown(&object.status);
                let is_own = status::is_satisfied(&object.status);
                let entry = ServiceEntry {
                    owned: shown.iter().copied().filter(|_| is_own).collect(),
                    held: shown,
                    object,
                    request,
                    is_settled: false,
                    is_unreadable: false,
                };
                self.services.insert(key, entry);
            }
        }
    }

    pub(crate) fn unreadable_service(&mut self, key: &ObjectKey) {
        match self.services.get_mut(key) {
            Some(entry) => entry.is_unreadable = true,
            None => _ = self.undecoded.insert(key.clone(), None),
        }
    }

    /// Allocates, and compares the result with what the objects say.
    pub(crate) fn pass(&mut self, now: Timestamp) -> Pass {
        let valid = self
            .pools
            .iter()
            .filter_map(|(name, entry)| Some((name.clone(), entry.valid.as_ref()?.0.clone())));
        let has_unknown = self.pools.values().any(|entry| entry.valid.is_none());
        let pools = Pools::new(valid.collect(), has_unknown);
        let claims: Vec<Claim> = self
            .services
            .values()
            .filter_map(|entry| {
                Some(Claim {
                    request: entry.request.clone()?,
                    held: entry.held.iter().copied().chain(entry.foreign()).collect(),
                    is_settled: entry.is_settled,
                })
            })
            .collect();
        let undecoded = self.undecoded.values().flatten();
        let mut reserved: BTreeSet<IpAddr> = undecoded.flatten().copied().collect();
        for entry in self.services.values() {
            let Some(request) = &entry.request else { continue };
            reserved.extend(
                entry
                    .foreign()
                    .filter(|address| !pools.may_keep(*address, &request.labels)),
            );
        }
        let allocations = allocate(&pools, &claims, &reserved);
        let mut pass = Pass {
            conflicting_pools: pools.conflicts(),
            matching: claims.len(),
            unsatisfied: allocations
                .iter()
                .filter(|(_, got)| got.refusal.is_some())
                .count(),
            ..Pass::default()
        };
        self.compare_services(&pools, &allocations, now, &mut pass);
        self.compare_pools(&pools, &allocations, now, &mut pass);
        pass
    }

    /// An address is shown by a service after no other service shows it that does not have it any more.
    fn compare_services(
        &mut self,
        pools: &Pools,
        allocations: &Allocations,
        now: Timestamp,
        pass: &mut Pass,
    ) {
        let mut leaving: HashMap<IpAddr, BTreeSet<ObjectKey>> = HashMap::new();
        for (key, entry) in &mut self.services {
            let has = allocations.get(key).map(|got| got.addresses.as_slice());
            let has = has.unwrap_or_default();
            if let Some(request) = &entry.request {
                let is_of_pool = |address: &&IpAddr| pools.has_for(**address, &request.labels);
                entry.owned.extend(has.iter().filter(is_of_pool));
            }
            for address in status::without(&status::shown(&entry.object.status), has) {
                if entry.owned.contains(&address) {
                    leaving.entry(address).or_default().insert(key.clone());
                }
            }
        }
        for (key, entry) in &mut self.services {
            let status = &entry.object.status;
            let desired = match allocations.get(key) {
                Some(got) => {
                    entry.held.clone_from(&got.addresses);
                    entry.is_settled = true;
                    let is_shown_elsewhere =
                        |address: &IpAddr| leaving.get(address).is_some_and(|by| !by.contains(key));
                    let ready: Vec<IpAddr> = got
                        .addresses
                        .iter()
                        .filter(|address| !is_shown_elsewhere(address))
                        .copied()
                        .collect();
                    let is_deferred = ready.len() < got.addresses.len();
                    pass.has_deferred |= is_deferred;
                    desired_status(entry, got, &ready, is_deferred, now)
                }
                None if status::is_marked(status) => status::cleared(status, |address| {
                    address.is_none_or(|address| !entry.owned.contains(&address) || !pools.may_have(address))
                }),
                None => continue,
            };
            if desired != *status && !entry.is_unreadable {
                pass.writes.push(StatusWrite {
                    target: Target::Service(key.clone()),
                    patch: status_patch(&*entry.object, &json!(desired)),
                });
            }
        }
    }

    fn compare_pools(&self, pools: &Pools, allocations: &Allocations, now: Timestamp, pass: &mut Pass) {
        for (name, entry) in &self.pools {
            let known = entry.valid.as_ref().map(|(_, generation)| {
                let usage = pools.usage(name, allocations.used());
                pass.pools.push((name.clone(), usage));
                KnownPool {
                    conflict: pools.conflict(name),
                    usage,
                    generation: *generation,
                }
            });
            let Some(object) = entry.object.as_ref().filter(|_| !entry.is_unreadable) else {
                continue;
            };
            let report = PoolReport {
                error: entry.error.clone(),
                generation: object.metadata.generation,
                known,
            };
            let desired = status::pool_status(object.status.as_ref(), &report, now);
            if Some(&desired) != object.status.as_ref() {
                pass.writes.push(StatusWrite {
                    target: Target::Pool(name.clone()),
                    patch: status_patch(&**object, &json!(desired)),
                });
            }
        }
    }
}

fn desired_status(
    entry: &ServiceEntry,
    got: &Allocation,
    ready: &[IpAddr],
    is_deferred: bool,
    now: Timestamp,
) -> skep_k8s_types::slim::ServiceStatus {
    let owned = &entry.owned;
    // What others wrote stays until there is something in its place.
    let is_served = ready.iter().any(|address| owned.contains(address));
    let is_kept =
        |address: Option<IpAddr>| !is_served && address.is_none_or(|address| !owned.contains(&address));
    let mut desired = status::with_addresses(&entry.object.status, ready, is_kept);
    let is_ending = entry.request.as_ref().is_some_and(|request| request.is_ending);
    if !is_deferred && !is_ending {
        let generation = entry.object.metadata.generation;
        status::set_satisfied(&mut desired, got.refusal.as_ref(), generation, now);
    }
    desired
}

/// Replaces the status of the version of the object that was read: what others write meanwhile is a conflict.
fn status_patch(object: &impl Resource, status: &Value) -> Value {
    let version = object.metadata().resource_version.as_str();
    json!([
        { "op": "replace", "path": "/metadata/resourceVersion", "value": version },
        { "op": "replace", "path": "/status", "value": status },
    ])
}
