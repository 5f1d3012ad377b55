// SPDX-License-Identifier: Apache-2.0

//! The controller: Services, mirrored slices and backends of remote clusters in, slices out. A key is that of a Service.
//!
//! Slices of a cluster whose services are not known stay.

use std::sync::Arc;
use std::time::Duration;

use skep_clustermesh_mesh::ClusterMesh;
use skep_k8s_client::{Client, Subresource};
use skep_k8s_controller::{Change, Reconciler, RequestError, Store, Watches, Work, request};
use skep_k8s_types::slim::Metadata;
use skep_k8s_types::{ObjectKey, Resource};

use super::object::MirroredSlice;
use super::plan::{Action, Plan, View, plan};
use super::remote::RemoteBackends;
use crate::object::ServiceObject;
use crate::remote::Incomplete;
use crate::slices::SliceIndex;
use crate::write::{CREATE, SyncError, Writes, deletion, options, replaced};

const FIELD_MANAGER: &str = "cilium-operator-endpoint-sync";

/// A slice as it is after a write.
#[derive(Debug)]
pub(crate) enum Written {
    Slice(Arc<MirroredSlice>),
    Deleted(Metadata),
}

pub(crate) struct Mirror {
    pub(crate) services: Store<ServiceObject>,
    pub(crate) slices: Store<MirroredSlice>,
    pub(crate) slices_of: SliceIndex,
    pub(crate) remote: Arc<RemoteBackends>,
    pub(crate) mesh: Arc<ClusterMesh>,
    pub(crate) client: Arc<dyn Client>,
    pub(crate) incomplete: Incomplete,
    pub(crate) most: usize,
    pub(crate) delay: Duration,
}

impl Mirror {
    fn plan(&self, key: &ObjectKey) -> Result<Plan, String> {
        if let Some(error) = self.services.watch().invalid().get(key) {
            return Err(error.to_string());
        }
        Ok(plan(&View {
            key,
            service: self.services.get(key).map(|service| &**service),
            slices: self.slices_of.of(key, &self.slices),
            remotes: &self.remote.of(key),
            is_unknown: &|cluster| self.remote.is_unknown(cluster, &self.mesh),
            most: self.most,
        }))
    }
}

impl Reconciler for Mirror {
    type Key = ObjectKey;
    type Output = Writes<Written>;
    type Error = SyncError;
    const KEYS: &'static str = "mirrored EndpointSlices";
    const FAILED: &'static str = "cannot be mirrored";

    fn reconcile(&mut self, key: &ObjectKey) -> Work<Self> {
        let plan = self.plan(key);
        self.incomplete
            .set(key, plan.as_ref().is_ok_and(|plan| plan.is_incomplete));
        let (client, key) = (self.client.clone(), key.clone());
        Box::pin(async move {
            let actions = plan.map_err(SyncError::Blocked)?.actions;
            Ok(Writes::run(actions, |action| act(&*client, &key, action)).await)
        })
    }

    fn finished(
        &mut self,
        key: &ObjectKey,
        writes: Result<Writes<Written>, SyncError>,
    ) -> Result<Option<Duration>, SyncError> {
        let writes = writes?;
        let again = writes.again(self.incomplete.contains(key));
        for written in writes.written {
            let change = match written {
                Written::Slice(slice) => self.slices.written(slice),
                Written::Deleted(metadata) => self.slices.removed(&metadata),
            };
            change.map(|change| self.slices_of.apply(&change));
        }
        writes.result.map(|()| again)
    }

    /// The changes before are those of an earlier run.
    fn synced(&mut self) -> Vec<ObjectKey> {
        self.remote.keys()
    }

    fn delay(&self, _: &ObjectKey) -> Duration {
        self.delay
    }

    fn total(&self) -> usize {
        self.slices.keys().len()
    }

    fn summary(&self, failed: usize) -> String {
        let total = format!("{} {}", self.total(), Self::KEYS);
        match failed {
            0 => total,
            _ => format!("{total}, {failed} services {}", Self::FAILED),
        }
    }
}

impl Watches<ServiceObject> for Mirror {
    fn store(&mut self) -> &mut Store<ServiceObject> {
        &mut self.services
    }

    fn affected(&mut self, change: &Change<ServiceObject>) -> Vec<ObjectKey> {
        Watches::<ServiceObject>::invalid(self, &change.key)
    }

    fn invalid(&mut self, key: &ObjectKey) -> Vec<ObjectKey> {
        let is_mirrored = self.remote.contains(key) || self.slices_of.contains(key);
        is_mirrored.then(|| key.clone()).into_iter().collect()
    }
}

impl Watches<MirroredSlice> for Mirror {
    fn store(&mut self) -> &mut Store<MirroredSlice> {
        &mut self.slices
    }

    fn affected(&mut self, change: &Change<MirroredSlice>) -> Vec<ObjectKey> {
        self.slices_of.apply(change)
    }
}

async fn act(client: &dyn Client, service: &ObjectKey, action: Action) -> Result<Vec<Written>, SyncError> {
    let (kind, namespace) = (MirroredSlice::kind(), &service.namespace);
    let (verb, name) = match &action {
        // It has no name yet.
        Action::Create(_) => (CREATE, service.name.clone()),
        Action::Update(name, _) => ("update", name.clone()),
        Action::Delete(metadata) => ("delete", metadata.name.clone()),
    };
    let object = ObjectKey {
        namespace: namespace.clone(),
        name,
    };
    let write = async {
        let (options, part) = (options(FIELD_MANAGER), Subresource::None);
        let written = match action {
            Action::Create(object) => request(client.create(&kind, namespace, object, &options)).await?,
            Action::Update(name, desired) => {
                let read = request(client.get(&kind, namespace, &name)).await?;
                let current = read.to_value()?;
                // If not, another writer was first.
                if current["metadata"]["resourceVersion"] == desired["metadata"]["resourceVersion"] {
                    let desired = replaced(&current, &desired);
                    request(client.update(&kind, namespace, part, desired, &options)).await?
                } else {
                    read
                }
            }
            Action::Delete(metadata) => {
                let options = deletion(&metadata);
                request(client.delete(&kind, namespace, &metadata.name, &options)).await?;
                return Ok(vec![Written::Deleted(metadata)]);
            }
        };
        let slice = written.decode()?;
        Ok(vec![Written::Slice(slice)])
    };
    let written: Result<_, RequestError> = write.await;
    written.map_err(|cause| SyncError::Write {
        verb,
        kind: MirroredSlice::kind().kind,
        object,
        cause,
    })
}
