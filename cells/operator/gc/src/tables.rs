// SPDX-License-Identifier: Apache-2.0

//! Tables of the objects that the cells of this crate judge by. Only the reflectors of [`cell`] write to them.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params};
use jiff::Timestamp;
use skep_k8s_client::{Api, Client};
use skep_k8s_crds::Config as CrdConfig;
use skep_k8s_reflectors::{ReflectError, Reflector};
use skep_k8s_types::Resource;
use skep_k8s_types::slim::{
    CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, Metadata, Node, Pod, PodPhase, Str, Taint,
};
use statedb::{Db, Index, Row, RwTable, Table};

use crate::objects::{CiliumNode, HEARTBEAT, REASON};

hive::catalogue!(cell);

/// Objects as tables. Each is watched only if a cell requires its table.
pub fn cell() -> Cell {
    Cell::module("operator-tables", "Kubernetes objects as tables")
        .provide(endpoints)
        .provide(slices)
        .provide(pods)
        .provide(cilium_nodes)
        .provide(nodes)
        .provide(identities)
        .library()
}

/// Why a table cannot be made.
#[derive(Debug, thiserror::Error)]
enum TableError {
    /// Another cell has a table of this name.
    #[error("table")]
    Table(#[from] statedb::Error),
    /// The reflector cannot be registered.
    #[error(transparent)]
    Reflect(#[from] ReflectError),
}

#[derive(Params)]
struct TableParams {
    db: Db,
    jobs: Jobs,
    client: Arc<dyn Client>,
}

impl TableParams {
    fn empty<R: Row + Clone>(&self, name: &str, key: Index<R, str>) -> Result<RwTable<R>, statedb::Error> {
        RwTable::builder(name).primary(key).build(&self.db)
    }

    fn table<T: Resource, R: Row + Clone>(
        self,
        name: &str,
        key: Index<R, str>,
        row: impl Fn(&Arc<T>) -> R + Send + Sync + 'static,
    ) -> Result<Table<R>, TableError> {
        let table = self.empty(name, key)?;
        if self.client.is_enabled() {
            let source = Arc::new(Api::<T>::all(self.client));
            Reflector::new("operator", table.clone(), source, move |object: &Arc<T>| {
                Some(row(object))
            })
            .register(&self.jobs, &self.db)?;
        }
        Ok(table.reader())
    }
}

pub(crate) fn full_name(metadata: &Metadata) -> Str {
    if metadata.namespace.is_empty() {
        return metadata.name.clone();
    }
    Str::new(format!("{}/{}", metadata.namespace, metadata.name))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A pod of this name in the same namespace.
    Pod(Str),
    /// Something else, which removes it itself.
    Other,
}

/// Row of `cilium-endpoints`.
#[derive(Debug, Clone)]
pub(crate) struct EndpointRow {
    pub(crate) name: Str,
    pub(crate) metadata: Reference,
    pub(crate) created: Option<Timestamp>,
    pub(crate) owner: Owner,
    pub(crate) identity: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) namespace: Str,
    pub(crate) name: Str,
    pub(crate) uid: Str,
    pub(crate) resource_version: Str,
}

impl Reference {
    fn of(metadata: &Metadata) -> Self {
        Self {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
        }
    }
}

impl EndpointRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));

    fn new(endpoint: &CiliumEndpoint) -> Self {
        let metadata = &endpoint.metadata;
        let owner = match &*metadata.owner_references {
            [] => Owner::Pod(metadata.name.clone()),
            owners => owners
                .iter()
                .find(|owner| owner.kind == "Pod")
                .map_or(Owner::Other, |pod| Owner::Pod(pod.name.clone())),
        };
        Self {
            name: full_name(metadata),
            metadata: Reference::of(metadata),
            created: endpoint.created,
            owner,
            identity: endpoint.described().and_then(|endpoint| endpoint.identity),
        }
    }
}

impl Row for EndpointRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Identity", "Owner"]
    }

    fn cells(&self) -> Vec<String> {
        let owner = match &self.owner {
            Owner::Pod(name) => format!("Pod/{name}"),
            Owner::Other => "other".to_owned(),
        };
        let identity = self.identity.map(|id| id.to_string()).unwrap_or_default();
        vec![self.name.to_string(), identity, owner]
    }
}

/// Row of `cilium-endpoint-slices`.
#[derive(Debug, Clone)]
pub(crate) struct SliceRow {
    pub(crate) name: Str,
    pub(crate) identities: Box<[i64]>,
}

impl SliceRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));

    fn new(slice: &CiliumEndpointSlice) -> Self {
        let entries = slice.endpoints.iter();
        Self {
            name: full_name(&slice.metadata),
            identities: entries.filter_map(|entry| entry.id).collect(),
        }
    }
}

impl Row for SliceRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Endpoints"]
    }

    fn cells(&self) -> Vec<String> {
        vec![self.name.to_string(), self.identities.len().to_string()]
    }
}

/// Row of `operator-pods`.
#[derive(Debug, Clone)]
pub(crate) struct PodRow {
    pub(crate) name: Str,
    pub(crate) phase: PodPhase,
}

impl PodRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));

    fn new(pod: &Pod) -> Self {
        Self {
            name: full_name(&pod.metadata),
            phase: pod.status.phase.clone(),
        }
    }

    /// Whether the pod has ended: its endpoint is stale.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }
}

impl Row for PodRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Phase"]
    }

    fn cells(&self) -> Vec<String> {
        vec![self.name.to_string(), self.phase.to_string()]
    }
}

/// Row of `cilium-nodes`.
#[derive(Debug, Clone)]
pub struct CiliumNodeRow {
    pub(crate) metadata: Reference,
    pub(crate) has_owner: bool,
    /// The annotation `cilium.io/do-not-gc: "true"`.
    pub(crate) is_kept: bool,
}

impl CiliumNodeRow {
    /// By the name of the node.
    pub const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.metadata.name));

    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    fn new(node: &CiliumNode) -> Self {
        let metadata = &node.metadata;
        Self {
            metadata: Reference::of(metadata),
            has_owner: !metadata.owner_references.is_empty(),
            is_kept: metadata.annotations.get("cilium.io/do-not-gc") == Some("true"),
        }
    }
}

impl Row for CiliumNodeRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Owner", "Kept"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.metadata.name.to_string(),
            self.has_owner.to_string(),
            self.is_kept.to_string(),
        ]
    }
}

/// Row of `operator-nodes`.
#[derive(Debug, Clone)]
pub(crate) struct NodeRow {
    pub(crate) name: Str,
    pub(crate) resource_version: Str,
    pub(crate) taints: Box<[Taint]>,
    /// The condition `NetworkUnavailable` says that Cilium runs.
    pub(crate) is_up: bool,
}

impl NodeRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));

    fn new(node: &Node) -> Self {
        let is_up = node.status.conditions.iter().any(|condition| {
            condition.kind == "NetworkUnavailable"
                && condition.status == "False"
                && condition.reason == REASON
        });
        Self {
            name: node.metadata.name.clone(),
            resource_version: node.metadata.resource_version.clone(),
            taints: node.spec.taints.clone(),
            is_up,
        }
    }
}

impl Row for NodeRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Taints", "Up"]
    }

    fn cells(&self) -> Vec<String> {
        let taints: Vec<&str> = self.taints.iter().map(|taint| taint.key.as_str()).collect();
        vec![self.name.to_string(), taints.join(", "), self.is_up.to_string()]
    }
}

/// Row of `cilium-identities`.
#[derive(Debug, Clone)]
pub(crate) struct IdentityRow {
    pub(crate) metadata: Reference,
    /// It has the annotation of an identity that was found unused.
    pub(crate) is_marked: bool,
}

impl IdentityRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.metadata.name));

    pub(crate) fn new(identity: &CiliumIdentity) -> Self {
        Self {
            metadata: Reference::of(&identity.metadata),
            is_marked: identity.metadata.annotations.contains_key(HEARTBEAT),
        }
    }
}

impl Row for IdentityRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Marked"]
    }

    fn cells(&self) -> Vec<String> {
        vec![self.metadata.name.to_string(), self.is_marked.to_string()]
    }
}

fn endpoints(params: TableParams) -> Result<Table<EndpointRow>, TableError> {
    params.table("cilium-endpoints", EndpointRow::BY_NAME, |object| {
        EndpointRow::new(object)
    })
}

/// Where CiliumEndpointSlices are off, the API server does not know them.
fn slices(params: TableParams, crds: Cfg<CrdConfig>) -> Result<Table<SliceRow>, TableError> {
    let (name, key) = ("cilium-endpoint-slices", SliceRow::BY_NAME);
    if crds.enable_cilium_endpoint_slice {
        params.table(name, key, |object| SliceRow::new(object))
    } else {
        Ok(params.empty(name, key)?.reader())
    }
}

fn pods(params: TableParams) -> Result<Table<PodRow>, TableError> {
    params.table("operator-pods", PodRow::BY_NAME, |object| PodRow::new(object))
}

fn cilium_nodes(params: TableParams) -> Result<Table<CiliumNodeRow>, TableError> {
    params.table("cilium-nodes", CiliumNodeRow::BY_NAME, |object| {
        CiliumNodeRow::new(object)
    })
}

fn nodes(params: TableParams) -> Result<Table<NodeRow>, TableError> {
    params.table("operator-nodes", NodeRow::BY_NAME, |object| NodeRow::new(object))
}

fn identities(params: TableParams) -> Result<Table<IdentityRow>, TableError> {
    params.table("cilium-identities", IdentityRow::BY_NAME, |object| {
        IdentityRow::new(object)
    })
}
