// SPDX-License-Identifier: Apache-2.0

//! Changes of tables → policies.

use std::{sync::Arc, time::Instant};

use hive::{JobCtx, error_chain};
use parking_lot::Mutex;
use skep_identity_cache::SecurityIdentity;
use skep_identity_labels::{LabelFilter, host_labels};
use skep_ipcache::{IpcacheEntry, Writer as IpcacheWriter};
use skep_node_local::LocalNode;
use skep_policy_maps::EndpointPolicy;
use skep_policy_model::{
    Content, Context, IdentityLabels, PolicyObject, ResourceId, object::Service, rule::PolicyKind,
};
use skep_policy_sources::{Origin, PolicyRow};
use statedb::{Change, ChangeIterator, Db, Obj, Revision, Snapshot, Table, Watch};
use tokio::sync::Notify;

use crate::{
    features::FeatureMetrics,
    metrics::PolicyMetrics,
    networks::{Claims, Networks, networks},
    services::{OfServices, Services, names_services},
    state::Repository,
};

/// The tables that are followed.
pub(crate) struct Follow {
    pub(crate) repository: Repository,
    pub(crate) ipcache: IpcacheWriter,
    pub(crate) objects: Table<PolicyRow>,
    pub(crate) endpoints: Table<EndpointPolicy>,
    /// Its labels are those of the host endpoint.
    pub(crate) node: Option<Table<LocalNode>>,
    pub(crate) node_labels: LabelFilter,
    pub(crate) services: Option<Services>,
    pub(crate) metrics: Arc<PolicyMetrics>,
    pub(crate) features: Arc<FeatureMetrics>,
    pub(crate) arrivals: Arc<Arrivals>,
}

/// Changes of objects that are not realized yet.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    objects: Mutex<Vec<Arrived>>,
    changed: Notify,
}

/// A changed object, and the revision that has it.
#[derive(Debug)]
struct Arrived {
    at: Instant,
    origin: Origin,
    revision: Revision,
}

impl Arrivals {
    fn add(&self, at: Instant, origins: Vec<Origin>, revision: Revision) {
        if origins.is_empty() {
            return;
        }
        let arrived = origins.into_iter().map(|origin| Arrived { at, origin, revision });
        self.objects.lock().extend(arrived);
        self.changed.notify_one();
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Faults(String);

/// Where the tables were read up to.
struct Readers {
    objects: ChangeIterator<PolicyRow>,
    identities: ChangeIterator<SecurityIdentity>,
    endpoints: ChangeIterator<EndpointPolicy>,
    addresses: ChangeIterator<IpcacheEntry>,
    claims: Claims,
    of_services: OfServices,
    services: (Revision, Revision),
}

impl Follow {
    /// A job.
    pub(crate) async fn run(self: &Arc<Self>, cx: &JobCtx) -> Result<(), statedb::Error> {
        let inner = &self.repository.0;
        let db = &inner.db;
        let readers = Arc::new(Mutex::new(Readers {
            objects: self.objects.follow(db),
            identities: inner.identities.follow(db),
            endpoints: self.endpoints.follow(db),
            addresses: self.ipcache.table().follow(db),
            claims: Claims::default(),
            of_services: OfServices::new(),
            services: (0, 0),
        }));
        cx.health.starting("Waiting for policies and identities");
        self.objects.wait_initialized(db).await;
        inner.identities.wait_initialized(db).await;
        loop {
            let (follow, shared) = (self.clone(), readers.clone());
            let round = move || follow.round(&mut shared.lock());
            // A panic of the round is the job's.
            let watches = match tokio::task::spawn_blocking(round).await {
                Ok(watches) => watches?,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            };
            self.report(cx);
            futures::future::select_all(watches.iter().map(|watch| Box::pin(watch.closed()))).await;
        }
    }

    fn report(&self, cx: &JobCtx) {
        let state = self.repository.0.state.lock();
        let rules = state.policies.rules().count();
        let text = format!("Revision {}, {rules} rules", state.policies.revision());
        let faults = state.faults();
        match faults.is_empty() {
            true => cx.health.ok(text),
            false => cx.health.degraded(text, &Faults(faults.join("; "))),
        }
    }

    /// Takes in what has changed. Returns watches for what changes next.
    fn round(&self, readers: &mut Readers) -> Result<Vec<Watch>, statedb::Error> {
        let inner = &self.repository.0;
        let start = Instant::now();
        let snapshot = inner.db.read();
        let (rows, watch) = changes(&mut readers.objects, &snapshot);
        let origins: Vec<Origin> = rows.iter().map(|(row, _)| row.origin).collect();
        let mut watches = vec![watch];
        let objects = self.objects(readers, rows, &snapshot, &mut watches);
        // Identities of networks and names are there before the rules that name them.
        for object in &objects {
            if let Parsed::Object(key, _, _, networks) = object {
                readers.claims.add(&self.ipcache, key, networks)?;
            }
        }
        inner
            .names
            .announce(objects.iter().filter_map(|object| match object {
                Parsed::Object(_, _, content, _) => content.as_ref(),
                _ => None,
            }));
        drop(snapshot);
        let snapshot = inner.db.read();
        let known = inner.identities.revision(&snapshot);
        let (identities, of_identities) = changes(&mut readers.identities, &snapshot);
        let (endpoints, of_endpoints) = changes(&mut readers.endpoints, &snapshot);
        let (addresses, of_addresses) = changes(&mut readers.addresses, &snapshot);
        watches.extend([of_identities, of_endpoints, of_addresses]);
        let mut host = None;
        if let Some(node) = &self.node {
            watches.push(node.table_watch(&snapshot));
            let row = node.all(&snapshot).next();
            host = row.map(|row| IdentityLabels::from(&host_labels(row.labels.iter(), &self.node_labels)));
        }
        drop(snapshot);
        {
            let asked = Instant::now();
            let mut state = inner.state.lock();
            let locked = Instant::now();
            let mut is_changed = !objects.is_empty() || !state.is_ready;
            let (mut added, mut deleted) = (Vec::new(), Vec::new());
            for (row, is_gone) in identities {
                match is_gone {
                    true => deleted.push(row.id),
                    false => added.push((row.id, Arc::new(IdentityLabels::from(&*row.labels)))),
                }
            }
            let has_identities = !added.is_empty() || !deleted.is_empty();
            is_changed |= state.update_identities(added, deleted);
            if has_identities {
                self.metrics.identities_updated(locked - asked, locked.elapsed());
            }
            for (row, is_gone) in addresses {
                let entry = (!is_gone).then_some(&*row);
                let state = &mut *state;
                is_changed |= state.ports.set(row.prefix, entry, &mut state.policies);
            }
            is_changed |= state.set_host(host);
            for (row, is_gone) in endpoints {
                match is_gone {
                    true => state.remove_endpoint(row.endpoint),
                    // Requests are answered at once, unless the identity was not known.
                    false if row.desired.is_none() => {
                        is_changed |= inner.set_endpoint(&mut state, row.endpoint, row.identity);
                    }
                    false => {}
                }
            }
            for object in &objects {
                match object {
                    Parsed::Object(_, resource, ..) => {
                        self.features.rules(&state.policies, resource, true);
                        state.apply(object);
                        self.features.rules(&state.policies, resource, false);
                    }
                    _ => state.apply(object),
                }
            }
            state.refresh();
            state.is_ready = true;
            self.metrics.count(&state.policies, state.missing_redirects());
            let revision = state.policies.revision();
            drop(state);
            self.arrivals.add(start, origins, revision);
            if has_identities {
                self.metrics.updated(start.elapsed());
            }
            inner.names.changed(!objects.is_empty());
            inner.write_computations()?;
            if is_changed {
                inner.publish();
            }
            inner.known.send_replace(known);
        }
        for object in &objects {
            if let Parsed::Object(key, _, _, networks) = object {
                readers.claims.retain(&self.ipcache, key, networks)?;
            }
        }
        Ok(watches)
    }

    /// The objects of rows that have changed, and those whose services have.
    fn objects(
        &self,
        readers: &mut Readers,
        rows: Vec<(Obj<PolicyRow>, bool)>,
        snapshot: &Snapshot,
        watches: &mut Vec<Watch>,
    ) -> Vec<Parsed> {
        for (row, is_gone) in &rows {
            readers.of_services.remove(&row.key());
            if !is_gone && names_services(row) {
                readers.of_services.insert(row.key(), row.clone());
            }
        }
        let tables = self.services.as_ref().filter(|_| !readers.of_services.is_empty());
        let mut services = Vec::new();
        let mut again = Vec::new();
        if let Some(tables) = tables {
            watches.extend(tables.watches(snapshot));
            services = tables.list(snapshot);
            let revision = tables.revision(snapshot);
            if readers.services != revision {
                readers.services = revision;
                let is_new = |key: &str| rows.iter().any(|(row, _)| row.key() == key);
                let others = readers.of_services.iter().filter(|(key, _)| !is_new(key));
                again = others.map(|(_, row)| row.clone()).collect();
            }
        }
        let new = rows.iter().map(|(row, is_gone)| {
            let parsed = self.parse(row, *is_gone, &services);
            let is_valid = !matches!(parsed, Parsed::Invalid(..));
            self.metrics.changed(row.origin, *is_gone, is_valid);
            self.features.object(row, *is_gone);
            parsed
        });
        let again = again.iter().map(|row| self.parse(row, false, &services));
        new.chain(again).collect()
    }

    fn parse(&self, row: &PolicyRow, is_gone: bool, services: &[Service]) -> Parsed {
        let key = row.key();
        let resource = resource_of(row);
        let Some(resource) = resource else {
            return Parsed::Other;
        };
        if is_gone {
            return Parsed::Object(key, resource, None, Networks::new());
        }
        let state = self.repository.0.state.lock();
        let context = Context {
            settings: state.policies.settings(),
            services,
        };
        let parsed = match row.origin {
            Origin::Directory => PolicyObject::parse_file(&row.namespace, &row.name, &row.object, &context),
            _ => PolicyObject::parse(&row.object, &context),
        };
        match parsed {
            Ok(object) => {
                let networks = networks(&object.content);
                Parsed::Object(key, resource, Some(object.content), networks)
            }
            Err(error) => {
                tracing::warn!(policy = key, error = %error_chain(&error), "Policy is not applied");
                Parsed::Invalid(key, error)
            }
        }
    }
}

/// Measures how long changes of objects take to the maps of all endpoints. A job.
pub(crate) struct Measure {
    pub(crate) db: Db,
    pub(crate) endpoints: Table<EndpointPolicy>,
    pub(crate) metrics: Arc<PolicyMetrics>,
    pub(crate) arrivals: Arc<Arrivals>,
}

impl Measure {
    pub(crate) async fn run(self: &Arc<Self>, cx: &JobCtx) -> Result<(), statedb::Error> {
        cx.health.ok("Running");
        loop {
            let arrived = std::mem::take(&mut *self.arrivals.objects.lock());
            for object in &arrived {
                self.wait_realized(object.revision).await;
                self.metrics.implemented(object.origin, object.at.elapsed());
            }
            if arrived.is_empty() {
                self.arrivals.changed.notified().await;
            }
        }
    }

    async fn wait_realized(&self, revision: Revision) {
        loop {
            let snapshot = self.db.read();
            let changed = self.endpoints.table_watch(&snapshot);
            let is_realized = |row: &EndpointPolicy| {
                let current = row.current();
                current.is_some_and(|realized| realized.revision >= revision)
            };
            if self.endpoints.all(&snapshot).all(|row| is_realized(row)) {
                return;
            }
            drop(snapshot);
            changed.closed().await;
        }
    }
}

/// The resource of the rules of a row; `None` for one of no kind that has rules.
pub(crate) fn resource_of(row: &PolicyRow) -> Option<ResourceId> {
    match row.origin {
        Origin::Directory => Some(ResourceId::new(PolicyKind::File, &row.namespace, &row.name)),
        _ => PolicyObject::resource_of(&row.object),
    }
}

/// An object of a row.
pub(crate) enum Parsed {
    /// Key, resource, content (`None` for one that is gone) and networks.
    Object(String, ResourceId, Option<Content>, Networks),
    Invalid(String, skep_policy_model::ObjectError),
    /// A row of no kind that has rules.
    Other,
}

impl crate::state::State {
    fn apply(&mut self, object: &Parsed) {
        match object {
            Parsed::Object(key, resource, content, _) => {
                self.invalid.remove(key);
                match content {
                    Some(Content::Rules(set)) => _ = self.policies.replace(resource, Some(set)),
                    // Its networks say all that it says.
                    Some(Content::CidrGroup(_)) => {}
                    None => _ = self.policies.replace(resource, None),
                }
            }
            Parsed::Invalid(key, error) => _ = self.invalid.insert(key.clone(), error.clone()),
            Parsed::Other => {}
        }
    }
}

/// The rows that have changed, and whether they are gone; of a table that was not read for long all.
fn changes<T: Send + Sync + 'static>(
    reader: &mut ChangeIterator<T>,
    snapshot: &Snapshot,
) -> (Vec<(Obj<T>, bool)>, Watch) {
    let (round, watch) = reader.next_watch(snapshot);
    let rows = round.filter_map(|change| match change {
        Change::Upsert(row) => Some((row, false)),
        Change::Delete { object, .. } => Some((object, true)),
        Change::Relist => None,
    });
    (rows.collect(), watch)
}
