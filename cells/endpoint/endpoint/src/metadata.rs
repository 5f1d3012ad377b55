// SPDX-License-Identifier: Apache-2.0

//! Tables `k8s-pods` and `k8s-namespaces` → labels of endpoints.

use std::{sync::Arc, time::Duration};

use hive::{Cfg, Params};
use skep_base_settings::cluster::ClusterSettings;
use skep_identity::Labels;
use skep_identity_labels::{FilterError, LabelConfig, LabelFilter, PodLabels, named_port_labels};
use skep_k8s_client::Client;
use skep_k8s_reflectors::tables::{LocalPod, NamespaceRow};
use statedb::{Db, ReadTxn, Snapshot, Table};
use tokio::time::{Instant, timeout_at};

use crate::{Endpoint, EndpointLabels, EndpointPod, EndpointSpec, Phase};

/// How long the creation of an endpoint waits for its pod.
const MISSING: Duration = Duration::from_millis(300);
/// How long it waits if there is a former pod of the name.
const OTHER_UID: Duration = Duration::from_secs(2);

/// Resolves what Kubernetes knows of endpoints. Cheap to clone.
#[derive(Clone, hive::Value)]
pub struct MetadataResolver(Arc<Inner>);

struct Inner {
    db: Db,
    kubernetes: Option<Tables>,
    filter: LabelFilter,
    cluster: String,
}

pub(crate) struct Tables {
    pub(crate) pods: Table<LocalPod>,
    pub(crate) namespaces: Table<NamespaceRow>,
}

/// A pod of an endpoint and its labels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Metadata {
    pub(crate) pod: Option<Arc<EndpointPod>>,
    pub(crate) labels: Arc<EndpointLabels>,
}

#[derive(Params)]
pub(crate) struct ResolverParams {
    db: Db,
    config: Cfg<LabelConfig>,
    cluster: Cfg<ClusterSettings>,
    client: Option<Arc<dyn Client>>,
    pods: Option<Table<LocalPod>>,
    namespaces: Option<Table<NamespaceRow>>,
}

pub(crate) fn resolver(params: ResolverParams) -> Result<MetadataResolver, FilterError> {
    let is_enabled = params.client.is_some_and(|client| client.is_enabled());
    let tables = params.pods.zip(params.namespaces).filter(|_| is_enabled);
    Ok(MetadataResolver(Arc::new(Inner {
        db: params.db,
        kubernetes: tables.map(|(pods, namespaces)| Tables { pods, namespaces }),
        filter: params.config.filter()?,
        cluster: params.cluster.info().name.to_string(),
    })))
}

/// Why the pod of an endpoint is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unknown {
    Pod,
    Uid,
    /// The namespace of the pod; its labels are part of the identity.
    Namespace,
}

impl MetadataResolver {
    pub(crate) fn tables(&self) -> Option<&Tables> {
        self.0.kubernetes.as_ref()
    }

    /// Whether there is a pod `<namespace>/<name>` on this node.
    pub(crate) fn has_pod(tables: &Tables, txn: &impl ReadTxn, name: &str) -> bool {
        tables.pods.get(txn, LocalPod::BY_NAME.key(name)).is_some()
    }

    /// Labels of a request, by the filter.
    pub(crate) fn requested(&self, labels: &Labels) -> EndpointLabels {
        let (identity, info) = self.0.filter.split(labels.iter().cloned());
        EndpointLabels {
            identity: Arc::new(identity),
            info,
            ..EndpointLabels::default()
        }
    }

    /// The pod of a new endpoint, and its labels; those of the request alone without a pod.
    pub(crate) async fn wait(&self, spec: &EndpointSpec) -> Metadata {
        let row = Endpoint {
            spec: Arc::new(spec.clone()),
            labels: Arc::new(self.requested(&spec.labels)),
            ..Endpoint::default()
        };
        let begun = Instant::now();
        loop {
            let snapshot = self.0.db.read();
            let missing = match self.find(&snapshot, &row) {
                Ok(found) => return found,
                Err(None) => break,
                Err(Some(missing)) => missing,
            };
            let wait = match missing {
                Unknown::Uid => OTHER_UID,
                Unknown::Pod | Unknown::Namespace => MISSING,
            };
            let Some(changed) = self.tables().map(|tables| match missing {
                Unknown::Namespace => tables.namespaces.table_watch(&snapshot),
                _ => tables.pods.table_watch(&snapshot),
            }) else {
                break;
            };
            drop(snapshot);
            if timeout_at(begun + wait, changed.closed()).await.is_err() {
                let pod = spec.pod_name().unwrap_or_default();
                tracing::warn!(
                    pod,
                    ?missing,
                    "Pod of endpoint is unknown: its identity is reserved:init"
                );
                break;
            }
        }
        Metadata {
            pod: None,
            labels: row.labels,
        }
    }

    /// The pod of an endpoint, and its labels; none while the pod is unknown.
    pub(crate) fn resolve(&self, txn: &Snapshot, row: &Endpoint) -> Option<Metadata> {
        self.find(txn, row).ok()
    }

    /// `Err(None)`: it has no pod, or there is no Kubernetes.
    fn find(&self, txn: &impl ReadTxn, row: &Endpoint) -> Result<Metadata, Option<Unknown>> {
        let spec = &*row.spec;
        let tables = self.tables().ok_or(None)?;
        let name = spec.pod_name().ok_or(None)?;
        let pod = tables.pods.get(txn, LocalPod::BY_NAME.key(name.as_str()));
        let pod = pod.ok_or(Some(Unknown::Pod))?;
        if !spec.pod_uid.is_empty() && spec.pod_uid != pod.metadata.uid.as_str() {
            return Err(Some(Unknown::Uid));
        }
        let namespace = NamespaceRow::BY_NAME.key(spec.namespace.as_str());
        let namespace = tables.namespaces.get(txn, namespace);
        let namespace = namespace.ok_or(Some(Unknown::Namespace))?;
        let known = EndpointPod::from(&*pod.pod);
        let pairs: Vec<(&str, &str)> = pod.metadata.labels.iter().collect();
        let of_namespace: Vec<(&str, &str)> = namespace.labels.iter().collect();
        let labels = PodLabels {
            namespace: &spec.namespace,
            namespace_labels: &of_namespace,
            cluster: &self.0.cluster,
            service_account: &pod.spec.service_account_name,
            labels: &pairs,
        };
        let (identity, info) = labels.split(&self.0.filter);
        // Identities of former agents have none of these.
        let generated = match row.phase {
            Phase::Restored => row.labels.generated().collect(),
            _ => {
                let ports = known.named_ports.iter();
                named_port_labels(
                    ports.map(|port| (port.name.as_str(), port.protocol.as_str(), port.port.into())),
                )
            }
        };
        let requested = self.requested(&spec.labels);
        let of_request = requested.identity.iter().chain(identity.iter()).cloned();
        Ok(Metadata {
            pod: Some(Arc::new(known)),
            labels: Arc::new(EndpointLabels {
                identity: Arc::new(of_request.chain(generated).collect()),
                info: requested.info.iter().chain(info.iter()).cloned().collect(),
                custom: row.labels.custom.clone(),
                disabled: row.labels.disabled.clone(),
            }),
        })
    }
}
