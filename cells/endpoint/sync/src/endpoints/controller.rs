// SPDX-License-Identifier: Apache-2.0

//! The controller: endpoints, pods and identities in, CiliumEndpoints out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, future, stream};
use serde_json::Value;
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_endpoint::Endpoint;
use skep_endpoint_watcher::{key_of_owner, owner};
use skep_identity_cache::SecurityIdentity;
use skep_ipcache::{IpcacheEntry, Prefix};
use skep_k8s_client::{Client, DeleteOptions, Patch, Preconditions, Subresource, WriteOptions};
use skep_k8s_controller::{Controller, Reconciler, RequestError, Work, request};
use skep_k8s_reflectors::tables::LocalPod;
use skep_k8s_types::slim::{CiliumEndpoint, Str};
use skep_k8s_types::{ObjectKey, Resource as _};
use skep_node_local::LocalNodeStore;
use statedb::{Change, Db, Snapshot, Table};
use tokio::time::Instant;

use super::object::{Desired, key};

/// Time between two looks for the addresses of the node.
const LOOK_FOR_NODE: Duration = Duration::from_millis(100);
/// How often it is looked whether objects still exist.
const LOOK: Duration = Duration::from_secs(2);
/// The watch may report an object so much later than it was written.
const WATCH_DELAY: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Sources {
    pub(super) db: Db,
    pub(super) endpoints: Table<Endpoint>,
    pub(super) pods: Table<LocalPod>,
    pub(super) identities: Table<SecurityIdentity>,
    pub(super) ipcache: Table<IpcacheEntry>,
    pub(super) node: LocalNodeStore,
    pub(super) ipv4: bool,
    pub(super) deletes_stale: bool,
}

pub(super) struct ObjectSync {
    client: Arc<dyn Client>,
    sources: Sources,
    /// Objects as they were written or read last.
    objects: BTreeMap<ObjectKey, Object>,
}

#[derive(Clone, Debug)]
pub(super) struct Object {
    uid: Str,
    state: Desired,
    /// When it was written or read.
    at: Instant,
    /// The watch has reported it.
    is_reported: bool,
}

impl Object {
    /// Whether it exists, as far as the watch tells.
    fn is_there(&self, is_reported: bool) -> bool {
        is_reported || !self.is_reported && self.at.elapsed() < WATCH_DELAY
    }
}

/// What is wanted of the object of a name.
enum Wanted {
    Object(Box<Desired>, Vec<IpAddr>),
    /// Its endpoint lacks an identity, or its pod is not known.
    Unknown,
    /// No endpoint has this name.
    None,
}

pub(super) fn controller(
    client: &Arc<dyn Client>,
    sources: Sources,
    queue: WorkqueueRecorder,
) -> Controller<ObjectSync> {
    let db = sources.db.clone();
    let endpoints = sources
        .endpoints
        .follow(&db)
        .stream(db.clone(), 1000, Duration::ZERO);
    let pods = sources.pods.follow(&db).stream(db.clone(), 1000, Duration::ZERO);
    let restored = {
        let (db, endpoints) = (db.clone(), sources.endpoints.clone());
        async move { _ = endpoints.wait_initialized(&db).await }
    };
    let listed = {
        let (ipcache, pods) = (sources.ipcache.clone(), sources.pods.clone());
        async move {
            ipcache.wait_initialized(&db).await;
            pods.wait_initialized(&db).await;
        }
    };
    let sync = ObjectSync {
        client: client.clone(),
        sources,
        objects: BTreeMap::new(),
    };
    Controller::new(sync, queue)
        .source(endpoints, |_, changes: Vec<Change<Endpoint>>| {
            let rows = changes.iter().filter_map(Change::object);
            rows.filter_map(|endpoint| key(&endpoint.spec)).collect()
        })
        .source(pods, |sync, changes: Vec<Change<LocalPod>>| {
            let rows = changes.iter().filter_map(Change::object);
            rows.flat_map(|pod| sync.keys_of(&pod.full_name())).collect()
        })
        .source(stream::once(listed), |sync, ()| sync.stale())
        .wait_for(restored)
        .resync(LOOK, |sync| sync.objects.keys().cloned().collect())
}

impl ObjectSync {
    /// The names of objects of a pod.
    fn keys_of(&self, pod: &str) -> Vec<ObjectKey> {
        let snapshot = self.sources.db.read();
        let rows = self.sources.endpoints.list(&snapshot, Endpoint::BY_POD.key(pod));
        rows.filter_map(|endpoint| key(&endpoint.spec)).collect()
    }

    /// Objects of this node without an endpoint.
    fn stale(&self) -> Vec<ObjectKey> {
        if !self.sources.deletes_stale {
            return Vec::new();
        }
        let snapshot = self.sources.db.read();
        let rows = self.sources.ipcache.all(&snapshot);
        // Only claims for endpoints of other nodes name one.
        let claims = rows.flat_map(|row| row.claims.iter());
        let own = claims.filter(|claim| claim.tunnel_peer.is_none());
        let mut keys: Vec<ObjectKey> = own.filter_map(|claim| key_of_owner(&claim.owner)).collect();
        keys.retain(|key| matches!(self.wanted(&snapshot, key), Wanted::None));
        keys
    }

    fn wanted(&self, snapshot: &Snapshot, wanted: &ObjectKey) -> Wanted {
        let sources = &self.sources;
        let pod = format!("{}/{}", wanted.namespace, wanted.name);
        let rows = sources.endpoints.list(snapshot, Endpoint::BY_POD.key(&pod));
        let mut endpoints = rows.filter(|endpoint| endpoint.is_live()).peekable();
        if endpoints.peek().is_none() {
            return Wanted::None;
        }
        let Some(pod) = sources.pods.get(snapshot, LocalPod::BY_NAME.key(&pod)) else {
            return Wanted::Unknown;
        };
        // A pod that was replaced has an endpoint until its sandbox is removed.
        let uid = &pod.metadata.uid;
        let is_of_pod = |endpoint: &&statedb::Obj<Endpoint>| {
            endpoint.spec.pod_uid.is_empty() || endpoint.spec.pod_uid == **uid
        };
        let Some(endpoint) = endpoints.find(is_of_pod) else {
            return Wanted::Unknown;
        };
        let Some(identity) = endpoint.identity else {
            return Wanted::Unknown;
        };
        let Some(identity) = sources
            .identities
            .get(snapshot, SecurityIdentity::BY_ID.key(&identity.get()))
        else {
            return Wanted::Unknown;
        };
        let desired = Desired::new(endpoint, pod, &identity.label_texts(), self.node_ip());
        Wanted::Object(Box::new(desired), endpoint.spec.addresses().collect())
    }

    fn node_ip(&self) -> Option<IpAddr> {
        node_ip(&self.sources.node, self.sources.ipv4)
    }

    /// Whether the watch reports the object of an endpoint with these addresses.
    fn is_reported(&self, snapshot: &Snapshot, key: &ObjectKey, addresses: &[IpAddr]) -> bool {
        let owner = owner(key);
        addresses.iter().any(|address| {
            let row = IpcacheEntry::BY_PREFIX.key(&Prefix::address(*address));
            let row = self.sources.ipcache.get(snapshot, row);
            row.is_some_and(|row| row.claims.of(&owner).is_some())
        })
    }
}

fn node_ip(node: &LocalNodeStore, ipv4: bool) -> Option<IpAddr> {
    let node = node.get()?;
    node.node_ip(ipv4).or_else(|| node.node_ip(!ipv4))
}

impl Reconciler for ObjectSync {
    type Key = ObjectKey;
    type Output = Option<Object>;
    type Error = RequestError;
    const KEYS: &'static str = "CiliumEndpoints";
    const FAILED: &'static str = "are not written";

    fn reconcile(&mut self, key: &ObjectKey) -> Work<Self> {
        let snapshot = self.sources.db.read();
        let before = self.objects.get(key).cloned();
        let api = Objects {
            client: self.client.clone(),
            key: key.clone(),
        };
        match self.wanted(&snapshot, key) {
            Wanted::Unknown => future::ready(Ok(before)).boxed(),
            Wanted::None => {
                let (node, ipv4) = (self.sources.node.clone(), self.sources.ipv4);
                async move {
                    // Which objects are of this node is known once it has an address.
                    while before.is_none() && node_ip(&node, ipv4).is_none() {
                        tokio::time::sleep(LOOK_FOR_NODE).await;
                    }
                    let node = node.get();
                    let own = node.iter().flat_map(|node| &node.addresses);
                    let own = own.map(|(_, address)| *address).collect();
                    api.remove(before, own).await
                }
                .boxed()
            }
            Wanted::Object(desired, addresses) => {
                let is_reported = self.is_reported(&snapshot, key, &addresses);
                let mut before = before.filter(|object| object.is_there(is_reported));
                if let Some(object) = &mut before {
                    object.is_reported |= is_reported;
                }
                async move { api.write(*desired, before).await }.boxed()
            }
        }
    }

    fn finished(
        &mut self,
        key: &ObjectKey,
        result: Result<Self::Output, Self::Error>,
    ) -> Result<Option<Duration>, Self::Error> {
        match result {
            Ok(Some(object)) => _ = self.objects.insert(key.clone(), object),
            // After an error the object is read first.
            Ok(None) => _ = self.objects.remove(key),
            Err(error) => {
                self.objects.remove(key);
                return Err(error);
            }
        }
        Ok(None)
    }

    fn total(&self) -> usize {
        self.objects.len()
    }
}

/// Requests about one object.
struct Objects {
    client: Arc<dyn Client>,
    key: ObjectKey,
}

impl Objects {
    /// Makes the object what is desired; without `before` it is read or created.
    async fn write(&self, desired: Desired, before: Option<Object>) -> Result<Option<Object>, RequestError> {
        let before = match before {
            Some(before) => Some(before),
            None => self.read().await?,
        };
        let Some(before) = before else {
            return self.create(desired).await.map(Some);
        };
        if before.state == desired {
            return Ok(Some(before));
        }
        let patch = Patch::Json(desired.patch(&before.uid, &before.state));
        let (kind, ObjectKey { namespace, name }) = (CiliumEndpoint::kind(), &self.key);
        let options = WriteOptions::default();
        let patched = self
            .client
            .patch(&kind, namespace, name, Subresource::None, &patch, &options);
        request(patched).await?;
        Ok(Some(Object {
            uid: before.uid,
            state: desired,
            at: Instant::now(),
            is_reported: before.is_reported,
        }))
    }

    async fn create(&self, state: Desired) -> Result<Object, RequestError> {
        let (kind, options) = (CiliumEndpoint::kind(), WriteOptions::default());
        let object = state.object(&self.key);
        let created = self.client.create(&kind, &self.key.namespace, object, &options);
        let created = request(created).await?.decode::<CiliumEndpoint>()?;
        Ok(Object {
            uid: created.metadata.uid.clone(),
            state,
            at: Instant::now(),
            is_reported: false,
        })
    }

    async fn read(&self) -> Result<Option<Object>, RequestError> {
        let (kind, ObjectKey { namespace, name }) = (CiliumEndpoint::kind(), &self.key);
        let object = match request(self.client.get(&kind, namespace, name)).await {
            Err(error) if error.is_not_found() => return Ok(None),
            object => object?.to_value()?,
        };
        Ok(Some(Object {
            uid: object["metadata"]["uid"].as_str().unwrap_or_default().into(),
            state: Desired::of(&object),
            at: Instant::now(),
            is_reported: false,
        }))
    }

    /// Deletes the object, unless it is of another node: a pod of that name may run there.
    async fn remove(&self, before: Option<Object>, own: Vec<IpAddr>) -> Result<Option<Object>, RequestError> {
        let is_own = |object: &Object| {
            let node: Option<IpAddr> = node(&object.state.status).and_then(|node| node.parse().ok());
            node.is_some_and(|node| own.contains(&node))
        };
        let object = match before {
            Some(object) => Some(object),
            None => self.read().await?.filter(is_own),
        };
        let Some(object) = object else { return Ok(None) };
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: object.uid,
                ..Preconditions::default()
            },
            ..DeleteOptions::default()
        };
        let (kind, ObjectKey { namespace, name }) = (CiliumEndpoint::kind(), &self.key);
        match request(self.client.delete(&kind, namespace, name, &options)).await {
            // It is gone, or another one has its name.
            Err(RequestError::Api(error)) if error.is_not_found() || error.is_conflict() => Ok(None),
            deleted => deleted.map(|()| None),
        }
    }
}

fn node(status: &Value) -> Option<&str> {
    status["networking"]["node"].as_str()
}
