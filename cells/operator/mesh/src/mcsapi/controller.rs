// SPDX-License-Identifier: Apache-2.0

//! The controller: exports, imports, Services, slices and namespaces in, what follows of them out. A key is that of an
//! exported service.
//!
//! A cluster whose exports are not known keeps what it had in imports: nothing of it is deleted.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use skep_clustermesh_mesh::ClusterMesh;
use skep_clustermesh_types::ServiceExport;
use skep_k8s_client::Client;
use skep_k8s_controller::{Change, Reconciler, Store, Watches, Work};
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::Namespace;

use super::exports::RemoteExports;
use super::metrics::McsApiMetrics;
use super::state::{State, origin};
use super::write::{Writer, Written};
use crate::object::{ExportObject, ImportObject, ServiceObject, SliceObject};
use crate::remote::Incomplete;
use crate::write::{SyncError, Writes};

pub(crate) struct Merger {
    pub(crate) state: State,
    pub(crate) remote: Arc<RemoteExports>,
    pub(crate) mesh: Arc<ClusterMesh>,
    pub(crate) client: Arc<dyn Client>,
    pub(crate) metrics: Arc<McsApiMetrics>,
    pub(crate) incomplete: Incomplete,
}

impl Reconciler for Merger {
    type Key = ObjectKey;
    type Output = Writes<Written>;
    type Error = SyncError;
    const KEYS: &'static str = "ServiceImports";
    const FAILED: &'static str = "cannot be reconciled";

    fn reconcile(&mut self, key: &ObjectKey) -> Work<Self> {
        let remotes: Vec<Arc<ServiceExport>> = self.remote.of(key, Arc::clone).into_values().collect();
        let is_unknown = |cluster: &str| self.remote.is_unknown(cluster, &self.mesh);
        let plan = self.state.plan(key, &remotes, &is_unknown, Timestamp::now());
        self.metrics.update(key, &self.state);
        self.incomplete.set(key, plan.is_incomplete);
        let writer = Writer {
            client: self.client.clone(),
            namespace: key.namespace.clone(),
        };
        Box::pin(async move {
            let mut writes = writer.run(plan.actions).await;
            if let Some(fault) = plan.fault {
                writes.result = writes.result.and(Err(SyncError::Blocked(fault)));
            }
            Ok(writes)
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
            self.state.written(written);
        }
        self.metrics.update(key, &self.state);
        writes.result.map(|()| again)
    }

    /// The changes before are those of an earlier run.
    fn synced(&mut self) -> Vec<ObjectKey> {
        self.remote.keys()
    }

    fn total(&self) -> usize {
        self.state.imports.keys().len()
    }

    fn summary(&self, failed: usize) -> String {
        let (total, waiting) = (self.total(), self.incomplete.len());
        let failed = match failed {
            0 => String::new(),
            _ => format!(", {failed} {}", Self::FAILED),
        };
        match waiting {
            0 => format!("{total} {}{failed}", Self::KEYS),
            _ => format!("{total} {}{failed}, {waiting} wait for clusters", Self::KEYS),
        }
    }
}

impl Watches<ExportObject> for Merger {
    fn store(&mut self) -> &mut Store<ExportObject> {
        &mut self.state.exports
    }

    fn affected(&mut self, change: &Change<ExportObject>) -> Vec<ObjectKey> {
        vec![change.key.clone()]
    }

    fn invalid(&mut self, key: &ObjectKey) -> Vec<ObjectKey> {
        vec![key.clone()]
    }
}

impl Watches<ImportObject> for Merger {
    fn store(&mut self) -> &mut Store<ImportObject> {
        &mut self.state.imports
    }

    fn affected(&mut self, change: &Change<ImportObject>) -> Vec<ObjectKey> {
        vec![change.key.clone()]
    }

    fn invalid(&mut self, key: &ObjectKey) -> Vec<ObjectKey> {
        vec![key.clone()]
    }
}

/// The service of an export, and that of which a Service was derived.
impl Watches<ServiceObject> for Merger {
    fn store(&mut self) -> &mut Store<ServiceObject> {
        &mut self.state.services
    }

    fn affected(&mut self, change: &Change<ServiceObject>) -> Vec<ObjectKey> {
        let services = change.old.iter().chain(&change.new);
        let origins = services.filter_map(|service| origin(&service.metadata));
        origins.chain([change.key.clone()]).collect()
    }

    fn invalid(&mut self, key: &ObjectKey) -> Vec<ObjectKey> {
        let origin = self
            .state
            .services
            .get(key)
            .and_then(|service| origin(&service.metadata));
        origin.into_iter().chain([key.clone()]).collect()
    }
}

impl Watches<SliceObject> for Merger {
    fn store(&mut self) -> &mut Store<SliceObject> {
        &mut self.state.slices
    }

    fn affected(&mut self, change: &Change<SliceObject>) -> Vec<ObjectKey> {
        let slices = change.old.iter().chain(&change.new);
        let origins = slices.filter_map(|slice| origin(&slice.metadata));
        let services = self.state.slices_of.apply(change);
        services.into_iter().chain(origins).collect()
    }
}

impl Watches<Namespace> for Merger {
    fn store(&mut self) -> &mut Store<Namespace> {
        &mut self.state.namespaces
    }

    fn affected(&mut self, change: &Change<Namespace>) -> Vec<ObjectKey> {
        let shared = |namespace: &Option<Arc<Namespace>>| {
            let metadata = &namespace.as_ref()?.metadata;
            Some((
                metadata.annotations.clone(),
                metadata.deletion_timestamp.is_some(),
            ))
        };
        if shared(&change.old) == shared(&change.new) {
            return Vec::new();
        }
        let namespace = &change.key.name;
        let remote = self.remote.keys().into_iter();
        let remote = remote.filter(|key| key.namespace == *namespace);
        self.state
            .in_namespace(namespace)
            .cloned()
            .chain(remote)
            .collect()
    }
}
