// SPDX-License-Identifier: Apache-2.0

//! CiliumEndpoints or CiliumEndpointSlices → endpoints.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::sync::Arc;

use futures::StreamExt;
use hive::{Cfg, Job, JobCtx, Jobs, SpawnError};
use skep_base_settings::AddressFamilies;
use skep_ipcache::{SourceGuard, Writer};
use skep_k8s_client::{Api, ApiError, Backoff, Client, ObjectEvent, WatcherEvent, watcher};
use skep_k8s_types::{DecodeError, ObjectKey};
use skep_node_local::LocalNodeStore;
use statedb::WriteTxn;

use crate::convert::{self, EndpointError};
use crate::endpoints::{Endpoints, View};
use crate::objects::EndpointObject;

/// Events that share a transaction at most.
const BATCH: usize = 512;

pub(crate) struct Watch {
    pub(crate) client: Arc<dyn Client>,
    pub(crate) ipcache: Writer,
    pub(crate) guard: SourceGuard,
    pub(crate) local: LocalNodeStore,
    pub(crate) families: Cfg<AddressFamilies>,
}

impl Watch {
    pub(crate) fn spawn<T: EndpointObject>(self, jobs: &Jobs) -> Result<(), SpawnError> {
        let watch = Arc::new(self);
        let name = format!("watch-{}", T::kind().plural);
        jobs.spawn(Job::once(name, move |cx: JobCtx| {
            let watch = watch.clone();
            async move {
                match cx.until_cancelled(watch.run::<T>(&cx)).await {
                    Some(result) => result,
                    None => Ok(()),
                }
            }
        }))
    }

    async fn run<T: EndpointObject>(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        let db = self.ipcache.db();
        let local = self.local.table();
        // Which endpoints are on this node is known before the first claim.
        local.wait_initialized(db).await;
        let api = Api::<T>::all(self.client.clone());
        let mut batches = watcher(Arc::new(api), Backoff::default()).ready_chunks(BATCH);
        let mut endpoints = Endpoints::new(self.ipcache.clone());
        let mut faults = Faults::default();
        loop {
            let changed = local.table_watch(&db.read());
            endpoints.set_view(self.view())?;
            let batch = tokio::select! {
                batch = batches.next() => batch,
                () = changed.closed() => continue,
            };
            {
                let mut txn = self.ipcache.write();
                // Watchers never end.
                for event in batch.into_iter().flatten() {
                    self.apply(&mut txn, event, &mut endpoints, &mut faults)?;
                }
                txn.commit();
            }
            faults.report(cx, endpoints.len());
        }
    }

    fn view(&self) -> View {
        let node = self.local.get();
        let addresses = node.iter().flat_map(|node| &node.addresses);
        View {
            local: addresses.map(|(_, address)| *address).collect(),
            ipv4: self.families.ipv4,
            ipv6: self.families.ipv6,
        }
    }

    fn apply<T: EndpointObject>(
        &self,
        txn: &mut WriteTxn,
        event: WatcherEvent<T>,
        endpoints: &mut Endpoints,
        faults: &mut Faults,
    ) -> Result<(), statedb::Error> {
        match event {
            WatcherEvent::Replaced { mut items, invalid } => {
                *faults = Faults::default();
                let mut kept: HashSet<ObjectKey> =
                    items.iter().map(|object| ObjectKey::of(&**object)).collect();
                for error in invalid {
                    kept.insert((*error.object).clone());
                    faults.undecoded(error);
                }
                // Of several endpoints with an address the one that changed last counts, as it does in a watch.
                items.sort_by_key(|object| {
                    object
                        .metadata()
                        .resource_version
                        .parse::<u64>()
                        .unwrap_or(u64::MAX)
                });
                for object in items {
                    applied(txn, &*object, endpoints, faults)?;
                }
                for gone in endpoints.objects_without(&kept) {
                    endpoints.set(txn, (*gone).clone(), Vec::new())?;
                }
                self.guard.done(txn)?;
            }
            WatcherEvent::Object(ObjectEvent::Applied(object)) => applied(txn, &*object, endpoints, faults)?,
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => {
                faults.objects.remove(&key);
                endpoints.set(txn, key, Vec::new())?;
            }
            WatcherEvent::Object(ObjectEvent::Invalid(error)) => faults.undecoded(error),
            WatcherEvent::Failing(error) => {
                // The kind is not registered: there are no objects of it until it is.
                if error.is_not_found() {
                    self.guard.done(txn)?;
                }
                faults.server = Some(error);
            }
            WatcherEvent::Working => faults.server = None,
            WatcherEvent::InitPage { .. } | WatcherEvent::InitDone => {}
        }
        Ok(())
    }
}

fn applied<T: EndpointObject>(
    txn: &mut WriteTxn,
    object: &T,
    endpoints: &mut Endpoints,
    faults: &mut Faults,
) -> Result<(), statedb::Error> {
    let key = ObjectKey::of(object);
    faults.objects.remove(&key);
    let mut now = Vec::new();
    for described in object.endpoints() {
        match convert::endpoint(&described) {
            Ok(Some(endpoint)) => now.push((described.key, Some(endpoint))),
            Ok(None) => {}
            Err(error) => {
                now.push((described.key, None));
                faults.objects.entry(key.clone()).or_insert(Fault::Part(error));
            }
        }
    }
    endpoints.set(txn, key, now)
}

/// What is wrong with objects and their server.
#[derive(Default)]
struct Faults {
    server: Option<Arc<ApiError>>,
    objects: BTreeMap<ObjectKey, Fault>,
}

enum Fault {
    /// The object cannot be read at all.
    Undecoded(DecodeError),
    /// One of its endpoints is invalid.
    Part(EndpointError),
}

impl Faults {
    fn undecoded(&mut self, error: DecodeError) {
        self.objects
            .insert((*error.object).clone(), Fault::Undecoded(error));
    }

    fn report(&self, cx: &JobCtx, endpoints: usize) {
        if let Some(error) = &self.server {
            match error.is_not_found() {
                true => cx.health.ok("The kind is not registered"),
                false => cx
                    .health
                    .degraded("Waiting for the Kubernetes API server", &**error),
            }
            return;
        }
        let Some(first) = self.objects.values().next() else {
            cx.health.ok(format!("{endpoints} endpoints"));
            return;
        };
        let cause: &(dyn Error + Send + Sync) = match first {
            Fault::Undecoded(error) => error,
            Fault::Part(error) => error,
        };
        let message = format!("{} invalid objects, {endpoints} endpoints", self.objects.len());
        cx.health.degraded(message, cause);
    }
}
