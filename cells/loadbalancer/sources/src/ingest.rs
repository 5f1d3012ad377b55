// SPDX-License-Identifier: Apache-2.0

//! Kubernetes services and endpoint slices into the tables, a batch a transaction.
//!
//! What goes away is written first: an address that one service gave up can be taken by another in the same batch,
//! whatever the order of their events. A service that needs an address which another still has is kept aside and
//! tried again with the next batch that changes services.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use skep_k8s::slim::{self, Labels};
use skep_k8s::{DecodeError, ObjectKey};
use skep_loadbalancer_model::Refused;
use skep_loadbalancer_model::Writer;
use skep_loadbalancer_model::hash::{HashMap, HashSet};
use skep_loadbalancer_model::types::{
    BackendParams, Frontend, FrontendParams, L3n4Addr, ServiceName, TrafficPolicy,
};
use statedb::{InitGuard, WriteTxn};

use super::batch::{Batch, Changed, Latest};
use super::metrics::SourceMetrics;
use super::slices::Slices;
use crate::convert::{self, Interner, Rules, ServiceFrontends};

/// Stands in names of pseudo-services, which no Kubernetes name can contain.
const PSEUDO: char = ':';

/// Objects that can't be used, by kind and name, with the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.values().map(String::as_str).collect::<Vec<_>>().join("\n"))]
pub struct Faults(BTreeMap<(&'static str, String), String>);

impl Faults {
    /// Whether every object can be used.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn set(&mut self, kind: &'static str, object: impl ToString, fault: String) {
        tracing::warn!(%fault, "Cannot use a Kubernetes object, what is known of it stays");
        self.0.insert((kind, object.to_string()), fault);
    }

    fn clear(&mut self, kind: &'static str, object: impl ToString) {
        if !self.0.is_empty() {
            self.0.remove(&(kind, object.to_string()));
        }
    }
}

const SERVICE: &str = "service";
const SLICE: &str = "endpointslice";

/// Writes what the API server says about services and endpoint slices.
///
/// Fed with watch events by the job `reflect-services-endpoints`, or directly by whoever has decoded objects.
pub struct Ingest {
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
    faults: Faults,
    metrics: Option<Arc<SourceMetrics>>,
}

impl Ingest {
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
            faults: Faults::default(),
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
    pub fn faults(&self) -> &Faults {
        &self.faults
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
        let mut changes = present(objects, undecodable, Changed::Service);
        let listed: HashSet<ObjectKey> = changes.iter().map(|changed| changed.key().clone()).collect();
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
        changes.extend(gone.into_iter().map(|key| Changed::Service(key, Latest::Gone)));
        let named: HashSet<String> = listed.iter().map(ToString::to_string).collect();
        self.faults
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
        let mut changes = present(objects, undecodable, Changed::Slice);
        let listed: HashSet<&ObjectKey> = changes.iter().map(Changed::key).collect();
        let gone: Vec<ObjectKey> = self.slices.keys().filter(|key| !listed.contains(key)).collect();
        changes.extend(gone.into_iter().map(|key| Changed::Slice(key, Latest::Gone)));
        self.commit(changes, done);
    }

    /// Notes the labels of this node, for services that are written from now on. Gives whether they are others than
    /// before; then [`place_again`](Self::place_again) is due.
    pub fn note_node_labels(&mut self, labels: &Labels) -> bool {
        let are_others = self.node_labels != *labels;
        if are_others {
            self.node_labels = labels.clone();
        }
        are_others
    }

    /// Looks again at services whose annotations name nodes: they come or go with the labels of this one.
    pub fn place_again(&mut self) {
        let placed = self.placed.iter();
        let placed =
            placed.map(|(key, object)| Changed::Service(key.clone(), Latest::Present(object.clone())));
        let placed: Vec<Changed> = placed.collect();
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
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let waiting: Vec<Changed> = waiting
            .map(|(key, object)| Changed::Service(key, Latest::Present(object)))
            .collect();
        self.commit(waiting, None);
    }

    fn commit(
        &mut self,
        changes: impl IntoIterator<Item = Changed, IntoIter: ExactSizeIterator>,
        done: Option<&InitGuard>,
    ) {
        let changes = changes.into_iter();
        // Everything is converted before the tables are locked, and freed when they are free again: the reconciler
        // writes one of them too.
        let mut plan = Plan::with_room(changes.len());
        let mut services_changed = false;
        for (place, changed) in changes.enumerate() {
            plan.place = place;
            match changed {
                Changed::Service(key, Latest::Gone) => {
                    services_changed = true;
                    self.forget_service(&key);
                    self.withdraw(&mut plan, &key);
                }
                Changed::Service(key, Latest::Present(object)) => {
                    services_changed = true;
                    self.prepare(&mut plan, key, object);
                }
                Changed::Service(key, Latest::Undecodable(error)) => {
                    self.faults.set(SERVICE, key, error.to_string())
                }
                Changed::Slice(key, latest) => self.note_slice(key, latest, place, &mut plan.slices),
            }
        }
        if services_changed {
            plan.place = usize::MAX;
            // Services that wait for an address may get it now.
            for (key, object) in std::mem::take(&mut self.waiting) {
                self.prepare(&mut plan, key, object);
            }
        }
        let mut txn = self.writer.write();
        for key in &plan.withdrawn {
            self.remove_service(&mut txn, key);
        }
        self.release_backends(&mut txn, &mut plan.slices);
        let mut spent = Vec::with_capacity(plan.wanted.len());
        let wanted = std::mem::take(&mut plan.wanted);
        let mut steps = self.add_unknown_services(&mut txn, wanted, &mut plan.slices, &mut spent);
        let given = plan.slices.given.into_iter();
        steps.extend(given.map(|given| (given.place, Step::Give(given))));
        steps.sort_by_key(|(place, _)| *place);
        self.take_steps(&mut txn, steps);
        if let Some(guard) = done
            && let Err(error) = txn.initialized(guard)
        {
            tracing::error!(%error, "Cannot report that a source is complete");
        }
        txn.commit();
    }

    /// Converts a service if it is for this node; withdraws it if not.
    fn prepare(&mut self, plan: &mut Plan, key: ObjectKey, object: Arc<slim::Service>) {
        self.waiting.remove(&key);
        self.faults.clear(SERVICE, &key);
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
                self.note_internal_policy(&key, is_local);
                plan.wanted.push((plan.place, (key, object, converted)));
            }
            Err(error) => self.faults.set(SERVICE, key, error.to_string()),
        }
    }

    fn note_internal_policy(&mut self, key: &ObjectKey, is_local: bool) {
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
        self.faults.clear(SERVICE, key);
    }

    fn withdraw(&mut self, plan: &mut Plan, key: &ObjectKey) {
        self.note_internal_policy(key, false);
        plan.withdrawn.push(key.clone());
    }

    fn remove_service(&mut self, txn: &mut WriteTxn, key: &ObjectKey) {
        if let Err(error) = self.writer.delete_service_and_frontends(txn, &service_name(key)) {
            self.faults.set(SERVICE, key, error.to_string());
        }
    }

    /// Adds services of which nothing is known yet together with their backends from the same batch, and gives the
    /// others back. Their frontends are written once, at the place where the backends would change them: that order
    /// decides about numbers. Objects that are not needed any more go to `spent`.
    fn add_unknown_services(
        &mut self,
        txn: &mut WriteTxn,
        wanted: Vec<(usize, Wanted)>,
        changes: &mut SliceChanges,
        spent: &mut Vec<Arc<slim::Service>>,
    ) -> Vec<(usize, Step)> {
        if changes.given.is_empty() || wanted.is_empty() {
            let upsert = |(place, wanted)| (place, Step::Upsert(wanted));
            return wanted.into_iter().map(upsert).collect();
        }
        // Addresses, and whether several services want them.
        let mut claims: HashMap<L3n4Addr, bool> =
            HashMap::with_capacity_and_hasher(wanted.len(), RandomState::default());
        for (_, (_, _, converted)) in &wanted {
            for frontend in &converted.frontends {
                let claim = claims.entry(frontend.address);
                claim.and_modify(|is_shared| *is_shared = true).or_insert(false);
            }
        }
        let losing: HashSet<ServiceName> = changes.dropped.iter().map(|(name, _)| name.clone()).collect();
        let mut steps = Vec::with_capacity(wanted.len() + changes.given.len());
        for (place, (key, object, converted)) in wanted {
            let ServiceFrontends { service, frontends } = &converted;
            let is_shared = |frontend: &FrontendParams| claims.get(&frontend.address) == Some(&true);
            let mut given = changes.given_to(&service.name);
            if let Some(given) = &mut given {
                given.place = given.place.max(place);
            }
            let given = given
                .filter(|_| !losing.contains(&service.name) && !frontends.iter().any(is_shared))
                .filter(|_| self.writer.is_unknown(txn, &service.name, frontends));
            let Some(given) = given else {
                steps.push((place, Step::Upsert((key, object, converted))));
                continue;
            };
            let ServiceFrontends { service, frontends } = converted;
            let backends = std::mem::take(&mut given.backends);
            match self.writer.add_unknown_service(txn, service, frontends, backends) {
                Ok(made) => {
                    self.faults.clear(SERVICE, &key);
                    spent.push(object);
                    given.is_written = true;
                    if made.iter().all(has_no_backends) {
                        steps.push((place, Step::Put(made)));
                    } else {
                        given.frontends = made;
                    }
                }
                Err(error) => self.faults.set(SERVICE, &key, format!("service {key}: {error}")),
            }
        }
        steps
    }

    fn put_new_frontends(&mut self, txn: &mut WriteTxn, frontends: Vec<Frontend>) {
        if let Err(error) = self.writer.put_new_frontends(txn, frontends) {
            tracing::error!(%error, "Cannot write frontends");
        }
    }

    fn take_steps(&mut self, txn: &mut WriteTxn, steps: Vec<(usize, Step)>) {
        let mut refused = Vec::new();
        for (_, step) in steps {
            match step {
                Step::Upsert(wanted) => refused.extend(self.upsert_one(txn, wanted)),
                Step::Put(frontends) => self.put_new_frontends(txn, frontends),
                Step::Give(given) if given.is_written => self.put_new_frontends(txn, given.frontends),
                Step::Give(given) => self.writer.upsert_backends(txn, &given.service, given.backends),
            }
        }
        if refused.is_empty() {
            return;
        }
        // Services of the batch that exchange addresses block each other: let all go, then try again, as long as
        // that helps.
        for (_, _, converted) in &refused {
            let keep: HashSet<L3n4Addr> = converted
                .frontends
                .iter()
                .map(|frontend| frontend.address)
                .collect();
            self.writer
                .release_frontends(txn, &converted.service.name, |address| keep.contains(address));
        }
        loop {
            let before = refused.len();
            refused = refused
                .into_iter()
                .filter_map(|wanted| self.upsert_one(txn, wanted))
                .collect();
            if refused.is_empty() || refused.len() == before {
                break;
            }
        }
        for (key, object, _) in refused {
            self.waiting.insert(key, object);
        }
    }

    /// Upserts a service; gives it back if others have its addresses.
    fn upsert_one(&mut self, txn: &mut WriteTxn, wanted: Wanted) -> Option<Wanted> {
        let (key, object, ServiceFrontends { service, frontends }) = wanted;
        match self.writer.upsert_or_refuse(txn, service, frontends) {
            Ok(Ok(())) => {
                self.faults.clear(SERVICE, &key);
                None
            }
            Ok(Err(back)) => {
                let Refused {
                    error,
                    service,
                    frontends,
                } = *back;
                self.faults.set(SERVICE, &key, format!("service {key}: {error}"));
                Some((key, object, ServiceFrontends { service, frontends }))
            }
            Err(error) => {
                self.faults.set(SERVICE, &key, format!("service {key}: {error}"));
                None
            }
        }
    }

    fn note_slice(
        &mut self,
        key: ObjectKey,
        latest: Latest<slim::EndpointSlice>,
        place: usize,
        changes: &mut SliceChanges,
    ) {
        if let Latest::Undecodable(error) = latest {
            return self.faults.set(SLICE, key, error.to_string());
        }
        self.faults.clear(SLICE, &key);
        let dropped = match latest {
            Latest::Undecodable(_) => None,
            Latest::Gone => self.slices.remove(&key),
            Latest::Present(slice) => {
                if let Some(metrics) = &self.metrics {
                    metrics.terminating(slice.endpoints.iter().filter(|each| is_terminating(each)).count());
                }
                self.note_part(&key, &slice, place, changes)
                    .unwrap_or_else(|| self.note_whole(key, &slice, place, changes))
            }
        };
        changes.dropped.extend(dropped);
    }

    /// Converts endpoints that changed since the slice was last seen. Gives what the slice dropped; `None` if it must be
    /// converted as a whole.
    fn note_part(
        &mut self,
        key: &ObjectKey,
        slice: &slim::EndpointSlice,
        place: usize,
        changes: &mut SliceChanges,
    ) -> Option<Option<Dropped>> {
        let part = self.slices.part(key, slice)?;
        let endpoints = slice.endpoints.get(part.endpoints())?;
        let mut backends = convert::in_order(slice, endpoints, &self.rules, &mut self.interner).backends;
        let (service, dropped) = self.slices.put_part(slice, part, &backends)?;
        convert::sort(&mut backends);
        changes.given(service.clone(), backends, place);
        Some((!dropped.is_empty()).then_some((service, dropped)))
    }

    fn note_whole(
        &mut self,
        key: ObjectKey,
        slice: &slim::EndpointSlice,
        place: usize,
        changes: &mut SliceChanges,
    ) -> Option<Dropped> {
        let Some(service) = slice.service_name() else {
            return self.slices.remove(&key);
        };
        let service = ServiceName::new(&slice.metadata.namespace, service);
        let converted = convert::in_order(slice, &slice.endpoints, &self.rules, &mut self.interner);
        let marks = self.slices.marks_of(&key, slice, &converted);
        let mut backends = converted.backends;
        convert::sort(&mut backends);
        let addresses = backends.iter().map(|backend| backend.address).collect();
        let dropped = self.slices.put(key, &service, addresses, marks);
        changes.given(service, backends, place);
        dropped
    }

    /// Takes away what no slice gives any more.
    fn release_backends(&mut self, txn: &mut WriteTxn, changes: &mut SliceChanges) {
        for (service, mut dropped) in changes.dropped.drain(..) {
            dropped.retain(|address| !self.slices.gives(&service, address));
            if !dropped.is_empty() {
                self.writer
                    .release_backends(txn, &service, self.rules.source, &dropped);
            }
        }
    }
}

/// What a batch comes to, before the tables are locked.
struct Plan {
    /// Services that go.
    withdrawn: Vec<ObjectKey>,
    /// Services with their places in the batch.
    wanted: Vec<(usize, Wanted)>,
    slices: SliceChanges,
    /// Place of the change that is looked at.
    place: usize,
}

impl Plan {
    /// A plan of a batch, of whose changes about half are slices.
    fn with_room(changes: usize) -> Self {
        let half = changes.div_ceil(2);
        Self {
            withdrawn: Vec::new(),
            place: 0,
            wanted: Vec::with_capacity(half),
            slices: SliceChanges {
                dropped: Vec::new(),
                given: Vec::with_capacity(half),
                places: HashMap::with_capacity_and_hasher(half, RandomState::default()),
            },
        }
    }
}

/// A service to be written: where it comes from, and what it becomes.
type Wanted = (ObjectKey, Arc<slim::Service>, ServiceFrontends);

/// What is to be done for a service of a batch, in the order of the batch: numbers are given out in it.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are large, and live for one batch"
)]
enum Step {
    Upsert(Wanted),
    /// Frontends of a service that is written otherwise.
    Put(Vec<Frontend>),
    /// What slices give.
    Give(Given),
}

/// Addresses that a slice does not give to a service any more.
type Dropped = (ServiceName, Vec<L3n4Addr>);

/// What slices of a batch change, by service, in order of the events.
struct SliceChanges {
    dropped: Vec<Dropped>,
    given: Vec<Given>,
    places: HashMap<ServiceName, usize>,
}

/// What slices give to a service.
struct Given {
    service: ServiceName,
    backends: Vec<BackendParams>,
    /// Place of the first slice in the batch, or of the service if that comes later.
    place: usize,
    /// Whether the backends were written with the service.
    is_written: bool,
    /// Frontends of the service, if they are still to be written.
    frontends: Vec<Frontend>,
}

fn has_no_backends(frontend: &Frontend) -> bool {
    frontend.backends.is_empty() && frontend.health_check_backends.is_empty()
}

impl SliceChanges {
    /// What a service is given.
    fn given_to(&mut self, service: &ServiceName) -> Option<&mut Given> {
        let place = *self.places.get(service)?;
        self.given.get_mut(place)
    }

    fn given(&mut self, service: ServiceName, backends: Vec<BackendParams>, place: usize) {
        match self.places.get(&service) {
            Some(&place) => self.given[place].backends.extend(backends),
            None => {
                self.places.insert(service.clone(), self.given.len());
                self.given.push(Given {
                    service,
                    backends,
                    place,
                    is_written: false,
                    frontends: Vec::new(),
                });
            }
        }
    }
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

/// The changes that bring a list's objects.
pub(super) fn present<T: skep_k8s::Resource>(
    objects: Vec<Arc<T>>,
    undecodable: Vec<DecodeError>,
    changed: fn(ObjectKey, Latest<T>) -> Changed,
) -> Vec<Changed> {
    let objects = objects
        .into_iter()
        .map(|object| changed(ObjectKey::of(&*object), Latest::Present(object)));
    let undecodable = undecodable
        .into_iter()
        .map(|error| changed((*error.object).clone(), Latest::Undecodable(error)));
    objects.chain(undecodable).collect()
}
