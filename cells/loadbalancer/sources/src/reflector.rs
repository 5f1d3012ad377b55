// SPDX-License-Identifier: Apache-2.0

//! Kubernetes services and endpoint slices into the tables, a batch a transaction.
//!
//! What goes away is written first: an address that one service gave up can be taken by another in the same batch,
//! whatever the order of their events. A service that needs an address which another still has is kept aside and
//! tried again with the next batch that changes services.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use skep_k8s_client::ObjectEvent;
use skep_k8s_types::slim::{self, Labels};
use skep_k8s_types::{DecodeError, ObjectKey};
use skep_loadbalancer_model::hash::{HashMap, HashSet};
use skep_loadbalancer_model::types::{BackendParams, L3n4Addr, ServiceName, TrafficPolicy};
use skep_loadbalancer_model::{Writer, WriterError};
use statedb::{InitGuard, WriteTxn};

use super::batch::{Batch, Event};
use super::metrics::SourceMetrics;
use super::slices::{Dropped, Slices};
use crate::convert::{self, Interner, Rules, ServiceFrontends, SliceBackends};

/// Stands in names of pseudo-services, which no Kubernetes name can contain.
const PSEUDO: char = ':';

/// Objects that can't be used, by kind and name, with the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.values().map(String::as_str).collect::<Vec<_>>().join("\n"))]
pub struct InvalidObjects(BTreeMap<(&'static str, String), String>);

impl InvalidObjects {
    /// Whether every object can be used.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn set(&mut self, kind: &'static str, object: impl ToString, fault: String) {
        tracing::warn!(%fault, "Invalid Kubernetes object, keeping its previous version");
        self.0.insert((kind, object.to_string()), fault);
    }

    fn undecodable(&mut self, kind: &'static str, error: &DecodeError) {
        self.set(kind, &error.object, error.to_string());
    }

    fn clear(&mut self, kind: &'static str, object: impl ToString) {
        if !self.0.is_empty() {
            self.0.remove(&(kind, object.to_string()));
        }
    }
}

const SERVICE: &str = "service";
const SLICE: &str = "endpointslice";

/// Reflects services and endpoint slices of the API server.
///
/// Fed with watch events by the job `reflect-services-endpoints`, or directly by whoever has decoded objects.
pub struct ServiceReflector {
    writer: Writer,
    rules: Rules,
    node_labels: Labels,
    interner: Interner,
    slices: Slices,
    /// Services whose annotations name nodes, to be looked at again when the node's labels change.
    placed: BTreeMap<ObjectKey, Arc<slim::Service>>,
    /// Services that wait for an address.
    waiting: BTreeMap<ObjectKey, Arc<slim::Service>>,
    /// Services with internal traffic policy Local.
    internal: HashSet<ObjectKey>,
    invalid: InvalidObjects,
    metrics: Option<Arc<SourceMetrics>>,
}

impl ServiceReflector {
    /// Writes through `writer` what `rules` make of objects, for a node without labels.
    pub fn new(writer: Writer, rules: Rules) -> Self {
        Self {
            writer,
            rules,
            node_labels: Labels::default(),
            interner: Interner::default(),
            slices: Slices::default(),
            placed: BTreeMap::new(),
            waiting: BTreeMap::new(),
            internal: HashSet::default(),
            invalid: InvalidObjects::default(),
            metrics: None,
        }
    }

    /// Counts what arrives.
    #[must_use]
    pub fn measured(mut self, metrics: Arc<SourceMetrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Objects that can't be used.
    pub fn invalid_objects(&self) -> &InvalidObjects {
        &self.invalid
    }

    /// Writes a batch in one transaction and leaves it empty.
    pub fn write(&mut self, batch: &mut Batch) {
        self.commit(batch.drain(), None);
    }

    /// Writes a batch, possibly empty, in one transaction that also reports `done`.
    pub(super) fn write_last(&mut self, batch: &mut Batch, done: &InitGuard) {
        self.commit(batch.drain(), Some(done));
    }

    /// Makes the tables hold exactly these services (of Kubernetes; pseudo-services stay), in one transaction that also
    /// reports `done`. What can't be decoded is kept as it is.
    pub fn replace_services(
        &mut self,
        objects: Vec<Arc<slim::Service>>,
        undecodable: Vec<DecodeError>,
        done: Option<&InitGuard>,
    ) {
        let mut changes = listed(objects, undecodable, Event::Service);
        let listed: HashSet<ObjectKey> = changes.iter().map(Event::key).collect();
        let snapshot = self.writer.db().read();
        let is_ours = |service: &&statedb::Obj<skep_loadbalancer_model::Service>| {
            service.source == self.rules.source && !service.name.as_str().contains(PSEUDO)
        };
        let services = self.writer.services();
        let known = services
            .all(&snapshot)
            .filter(is_ours)
            .map(|service| object_key(&service.name));
        let noted = self.waiting.keys().chain(self.placed.keys()).cloned();
        let gone: BTreeSet<ObjectKey> = known.chain(noted).filter(|key| !listed.contains(key)).collect();
        let deleted = |key| Event::Service(ObjectEvent::Deleted(key, None));
        changes.extend(gone.into_iter().map(deleted));
        let named: HashSet<String> = listed.iter().map(ToString::to_string).collect();
        self.invalid
            .0
            .retain(|(kind, name), _| *kind != SERVICE || named.contains(name));
        self.commit(changes, done);
    }

    /// Makes the tables hold exactly the backends of these slices, in one transaction that also reports `done`.
    /// What can't be decoded is kept as it is.
    pub fn replace_slices(
        &mut self,
        objects: Vec<Arc<slim::EndpointSlice>>,
        undecodable: Vec<DecodeError>,
        done: Option<&InitGuard>,
    ) {
        let mut changes = listed(objects, undecodable, Event::Slice);
        let listed: HashSet<ObjectKey> = changes.iter().map(Event::key).collect();
        let gone = self.slices.keys().filter(|key| !listed.contains(key));
        changes.extend(gone.map(|key| Event::Slice(ObjectEvent::Deleted(key, None))));
        self.commit(changes, done);
    }

    /// Sets the labels of this node, for services that are written from now on. Returns whether they are others than
    /// before; then [`reevaluate_node_placement`](Self::reevaluate_node_placement) is due.
    pub fn set_node_labels(&mut self, labels: &Labels) -> bool {
        let are_others = self.node_labels != *labels;
        if are_others {
            self.node_labels = labels.clone();
        }
        are_others
    }

    /// Looks again at services whose annotations name nodes: they come or go with the labels of this one.
    pub fn reevaluate_node_placement(&mut self) {
        let applied = |object: &Arc<slim::Service>| Event::Service(ObjectEvent::Applied(object.clone()));
        let placed: Vec<Event> = self.placed.values().map(applied).collect();
        if !placed.is_empty() {
            self.commit(placed, None);
        }
    }

    /// Whether services wait for addresses that others have.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Tries once more to give services the addresses that others had.
    pub(super) fn try_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.waiting).into_values();
        let waiting: Vec<Event> = waiting
            .map(|object| Event::Service(ObjectEvent::Applied(object)))
            .collect();
        self.commit(waiting, None);
    }

    fn commit(
        &mut self,
        events: impl IntoIterator<Item = Event, IntoIter: ExactSizeIterator>,
        done: Option<&InitGuard>,
    ) {
        let events = events.into_iter();
        // Everything is converted before the tables are locked, and freed when they are free again: the reconciler
        // writes one of them too.
        let mut plan = Plan::with_capacity(events.len());
        let mut services_changed = false;
        for (place, event) in events.enumerate() {
            match event {
                Event::Service(ObjectEvent::Applied(object)) => {
                    services_changed = true;
                    self.prepare(&mut plan, place, object);
                }
                Event::Service(ObjectEvent::Deleted(key, _)) => {
                    services_changed = true;
                    self.forget_service(&key);
                    self.withdraw(&mut plan, &key);
                }
                Event::Service(ObjectEvent::Invalid(error)) => self.invalid.undecodable(SERVICE, &error),
                Event::Slice(ObjectEvent::Applied(slice)) => self.prepare_slice(&mut plan, place, &slice),
                Event::Slice(ObjectEvent::Deleted(key, _)) => {
                    self.invalid.clear(SLICE, &key);
                    plan.dropped.extend(self.slices.remove(&key));
                }
                Event::Slice(ObjectEvent::Invalid(error)) => self.invalid.undecodable(SLICE, &error),
            }
        }
        if services_changed {
            // Services that wait for an address may get it now.
            for object in std::mem::take(&mut self.waiting).into_values() {
                self.prepare(&mut plan, usize::MAX, object);
            }
        }
        let mut txn = self.writer.write();
        for key in &plan.withdrawn {
            self.remove_service(&mut txn, key);
        }
        // What another slice has as well stays until that has its claim: what is known of its health would be lost.
        let mut shared = Vec::new();
        for dropped in &mut plan.dropped {
            let Dropped {
                service, claimant, ..
            } = dropped;
            let has_other = |address: &mut L3n4Addr| self.slices.has(service, address);
            let addresses = dropped.addresses.extract_if(.., has_other).collect();
            shared.push(Dropped {
                service: service.clone(),
                claimant: *claimant,
                addresses,
            });
        }
        self.release(&mut txn, &plan.dropped);
        let spent = self.upsert(&mut txn, in_order(plan.updates));
        self.release(&mut txn, &shared);
        if let Some(guard) = done
            && let Err(error) = txn.initialized(guard)
        {
            tracing::error!(%error, "Cannot mark source as initialized");
        }
        txn.commit();
        drop(spent);
    }

    fn release(&mut self, txn: &mut WriteTxn, all: &[Dropped]) {
        for dropped in all.iter().filter(|dropped| !dropped.addresses.is_empty()) {
            let claimant = (self.rules.source, dropped.claimant);
            let released = self
                .writer
                .release_claims(txn, &dropped.service, claimant, &dropped.addresses);
            self.note(&dropped.service, released);
        }
    }

    fn note(&mut self, service: &ServiceName, result: Result<(), WriterError>) {
        if let Err(error) = result {
            self.invalid.set(SERVICE, object_key(service), error.to_string());
        }
    }

    /// Converts a service if it is for this node; withdraws it if not.
    fn prepare(&mut self, plan: &mut Plan, place: usize, object: Arc<slim::Service>) {
        let key = ObjectKey::of(&*object);
        self.waiting.remove(&key);
        self.invalid.clear(SERVICE, &key);
        if convert::names_a_node(&object) {
            self.placed.insert(key.clone(), object.clone());
            if !convert::is_exposed_on(&object, &self.node_labels) {
                return self.withdraw(plan, &key);
            }
        } else if !self.placed.is_empty() {
            self.placed.remove(&key);
        }
        match convert::service(&object, &self.rules) {
            Ok(converted) => {
                let is_local = converted.service.int_traffic_policy == TrafficPolicy::Local;
                self.set_internal_policy(&key, is_local);
                plan.add_service(Wanted {
                    place,
                    key,
                    object,
                    converted,
                });
            }
            Err(error) => self.invalid.set(SERVICE, key, error.to_string()),
        }
    }

    fn set_internal_policy(&mut self, key: &ObjectKey, is_local: bool) {
        let is_new = if is_local {
            self.internal.insert(key.clone())
        } else {
            !self.internal.is_empty() && self.internal.remove(key)
        };
        if let Some(metrics) = self.metrics.as_ref().filter(|_| is_new) {
            metrics.internal_policy(is_local);
        }
    }

    fn forget_service(&mut self, key: &ObjectKey) {
        self.placed.remove(key);
        self.waiting.remove(key);
        self.invalid.clear(SERVICE, key);
    }

    fn withdraw(&mut self, plan: &mut Plan, key: &ObjectKey) {
        self.set_internal_policy(key, false);
        plan.withdrawn.push(key.clone());
    }

    fn remove_service(&mut self, txn: &mut WriteTxn, key: &ObjectKey) {
        if let Err(error) = self.writer.delete_service_and_frontends(txn, &service_name(key)) {
            self.invalid.set(SERVICE, key, error.to_string());
        }
    }

    /// Upserts the services of a batch and their backends. Returns what is not needed any more.
    fn upsert(&mut self, txn: &mut WriteTxn, updates: Vec<Update>) -> Vec<Arc<slim::Service>> {
        let mut spent = Vec::with_capacity(updates.len());
        let mut refused = Vec::new();
        for update in updates {
            // Before the service, whose frontends are written with them then.
            if !update.backends.is_empty() {
                let upserted = self.writer.upsert_backends(txn, &update.name, update.backends);
                self.note(&update.name, upserted);
            }
            if let Some(Wanted {
                key,
                object,
                converted,
                ..
            }) = update.service
            {
                match self.upsert_service(txn, &key, converted) {
                    true => spent.push(object),
                    false => refused.push((key, object)),
                }
            }
        }
        if refused.is_empty() {
            return spent;
        }
        // Services of the batch that exchange addresses block each other: all release what they do not want any more,
        // then they are tried again, as long as that helps.
        let wanted = |rules: &Rules, object: &slim::Service| convert::service(object, rules).ok();
        for (key, object) in &refused {
            let frontends = wanted(&self.rules, object).map(|converted| converted.frontends);
            let keep: HashSet<L3n4Addr> = frontends.iter().flatten().map(|params| params.address).collect();
            let name = service_name(key);
            let released = self
                .writer
                .release_frontends(txn, &name, |address| keep.contains(address));
            self.note(&name, released);
        }
        loop {
            let before = refused.len();
            refused.retain(|(key, object)| {
                wanted(&self.rules, object).is_some_and(|converted| !self.upsert_service(txn, key, converted))
            });
            if refused.is_empty() || refused.len() == before {
                break;
            }
        }
        self.waiting.extend(refused);
        spent
    }

    /// Returns false if another service has an address of this one.
    fn upsert_service(&mut self, txn: &mut WriteTxn, key: &ObjectKey, converted: ServiceFrontends) -> bool {
        let ServiceFrontends { service, frontends } = converted;
        let result = self.writer.upsert_service_and_frontends(txn, service, frontends);
        let is_taken = matches!(result, Err(WriterError::Owned { .. }));
        match result {
            Ok(()) => self.invalid.clear(SERVICE, key),
            Err(error) => self.invalid.set(SERVICE, key, format!("service {key}: {error}")),
        }
        !is_taken
    }

    fn prepare_slice(&mut self, plan: &mut Plan, place: usize, slice: &slim::EndpointSlice) {
        let key = ObjectKey::of(slice);
        self.invalid.clear(SLICE, &key);
        if let Some(metrics) = &self.metrics {
            metrics.terminating(slice.endpoints.iter().filter(|each| is_terminating(each)).count());
        }
        let dropped = match convert::endpoint_slice(slice, &self.rules, &mut self.interner) {
            None => self.slices.remove(&key),
            Some(SliceBackends {
                service,
                mut backends,
            }) => {
                let addresses = backends.iter().map(|backend| backend.address).collect();
                let (claimant, dropped) = self.slices.put(key, &service, addresses);
                backends
                    .iter_mut()
                    .for_each(|backend| backend.claimant = claimant);
                plan.add_backends(place, &service, backends);
                dropped
            }
        };
        plan.dropped.extend(dropped);
    }
}

/// What a batch comes to, before the tables are locked.
struct Plan {
    /// Services that go.
    withdrawn: Vec<ObjectKey>,
    /// Addresses that a slice of a service has no more.
    dropped: Vec<Dropped>,
    updates: Vec<Update>,
    /// Indexes of the updates.
    by_name: HashMap<ServiceName, usize>,
    /// Addresses that services of the batch want, with the index of the last update that does.
    claims: HashMap<L3n4Addr, usize>,
}

/// What a batch says of one service.
struct Update {
    name: ServiceName,
    /// Place in the batch of the service, or of its first slice with backends, whichever comes later: ids are allocated in
    /// the order of the events that change frontends last.
    place: usize,
    /// Another service of the batch wants an address of this one: the first of them gets it, whenever slices come.
    is_contested: bool,
    service: Option<Wanted>,
    /// Of its slices.
    backends: Vec<BackendParams>,
}

/// A service to be written: where it comes from, and what it becomes.
struct Wanted {
    place: usize,
    key: ObjectKey,
    object: Arc<slim::Service>,
    converted: ServiceFrontends,
}

impl Plan {
    fn with_capacity(changes: usize) -> Self {
        let with_hasher = || HashMap::with_capacity_and_hasher(changes, RandomState::default());
        Self {
            withdrawn: Vec::new(),
            dropped: Vec::new(),
            updates: Vec::with_capacity(changes),
            by_name: with_hasher(),
            claims: HashMap::default(),
        }
    }

    fn index(&mut self, name: &ServiceName) -> usize {
        match self.by_name.get(name) {
            Some(at) => *at,
            None => {
                self.by_name.insert(name.clone(), self.updates.len());
                self.updates.push(Update {
                    name: name.clone(),
                    place: 0,
                    is_contested: false,
                    service: None,
                    backends: Vec::new(),
                });
                self.updates.len() - 1
            }
        }
    }

    fn add_service(&mut self, wanted: Wanted) {
        let at = self.index(&wanted.converted.service.name);
        for frontend in &wanted.converted.frontends {
            if let Some(other) = self.claims.insert(frontend.address, at)
                && other != at
            {
                self.updates[other].is_contested = true;
                self.updates[at].is_contested = true;
            }
        }
        let update = &mut self.updates[at];
        update.place = update.place.max(wanted.place);
        update.service = Some(wanted);
    }

    fn add_backends(&mut self, place: usize, service: &ServiceName, backends: Vec<BackendParams>) {
        let at = self.index(service);
        let update = &mut self.updates[at];
        if update.backends.is_empty() && !backends.is_empty() {
            update.place = update.place.max(place);
        }
        match update.backends.is_empty() {
            true => update.backends = backends,
            false => update.backends.extend(backends),
        }
    }
}

/// Updates in the order in which they are written.
fn in_order(mut updates: Vec<Update>) -> Vec<Update> {
    let place = |update: &Update| match &update.service {
        Some(wanted) if update.is_contested => wanted.place,
        _ => update.place,
    };
    updates.sort_by_key(place);
    updates
}

fn is_terminating(endpoint: &slim::Endpoint) -> bool {
    endpoint.conditions.terminating == Some(true)
}

fn service_name(key: &ObjectKey) -> ServiceName {
    ServiceName::new(&key.namespace, &key.name)
}

fn object_key(name: &ServiceName) -> ObjectKey {
    ObjectKey {
        namespace: name.namespace().into(),
        name: name.name().into(),
    }
}

/// The events of a list's objects.
pub(super) fn listed<T: skep_k8s_types::Resource>(
    objects: Vec<Arc<T>>,
    invalid: Vec<DecodeError>,
    event: fn(ObjectEvent<T>) -> Event,
) -> Vec<Event> {
    let objects = objects.into_iter().map(ObjectEvent::Applied);
    let invalid = invalid.into_iter().map(ObjectEvent::Invalid);
    objects.chain(invalid).map(event).collect()
}
