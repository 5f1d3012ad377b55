// SPDX-License-Identifier: Apache-2.0

//! Cell: the objects that are published, as tables, and [`ExportSettings`].
//! Requires: a client of Kubernetes, settings of the cluster and of custom resources.
//! Each is watched only if a cell requires its table.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params};
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_types::ServiceSettings;
use skep_k8s_client::{Api, Client};
use skep_k8s_crds::Config as CrdConfig;
use skep_k8s_reflectors::{ReflectError, Reflector};
use skep_k8s_types::Resource;
use skep_k8s_types::selector::SelectorError;
use skep_k8s_types::slim::{CiliumEndpoint, CiliumEndpointSlice, CiliumIdentity, CiliumNode, Namespace};
use statedb::{Db, Row, RwTable, Table};

use crate::endpoints::EndpointRow;
use crate::identities::IdentityRow;
use crate::namespaces::NamespaceRow;
use crate::nodes::NodeRow;
use crate::objects::{EndpointSlice, Service, ServiceExport};
use crate::service_exports::ServiceExportRow;
use crate::services::{ServiceRow, SliceRow};
use crate::settings::ExportSettings;

hive::catalogue!(cell);

pub fn cell() -> Cell {
    Cell::module("mesh-tables", "Kubernetes objects that are published")
        .config::<ExportSettings>()
        .config::<ServiceSettings>()
        .provide(namespaces)
        .provide(services)
        .provide(slices)
        .provide(nodes)
        .provide(identities)
        .provide(endpoints)
        .provide(service_exports)
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
    /// A setting selects nothing.
    #[error("k8s-service-proxy-name")]
    Selector(#[from] SelectorError),
}

/// Name of the reflectors.
const REFLECTOR: &str = "mesh";

#[derive(Params)]
struct TableParams {
    db: Db,
    jobs: Jobs,
    client: Arc<dyn Client>,
}

impl TableParams {
    fn all<T: Resource>(&self) -> Api<T> {
        Api::all(self.client.clone())
    }

    /// The table, kept in step by a reflector.
    fn follow<T: Resource, R: Row>(
        &self,
        table: &RwTable<R>,
        reflector: Reflector<T, R>,
    ) -> Result<Table<R>, TableError> {
        if self.client.is_enabled() {
            reflector.register(&self.jobs, &self.db)?;
        }
        Ok(table.reader())
    }
}

fn namespaces(params: TableParams) -> Result<Table<NamespaceRow>, TableError> {
    let table = RwTable::builder("mesh-namespaces")
        .primary(NamespaceRow::BY_NAME)
        .build(&params.db)?;
    let source = Arc::new(params.all::<Namespace>());
    let reflector = Reflector::new(REFLECTOR, table.clone(), source, |namespace: &Arc<Namespace>| {
        Some(NamespaceRow::new(namespace))
    })
    .skip_same(NamespaceRow::eq);
    params.follow(&table, reflector)
}

fn services(
    params: TableParams,
    cluster: Cfg<ClusterSettings>,
    settings: Cfg<ExportSettings>,
    crds: Cfg<CrdConfig>,
) -> Result<Table<ServiceRow>, TableError> {
    let table = RwTable::builder("mesh-services")
        .primary(ServiceRow::BY_NAME)
        .index(ServiceRow::BY_NAMESPACE)
        .build(&params.db)?;
    let (cluster, has_exports) = (cluster.info(), crds.clustermesh_enable_mcs_api);
    let source = Arc::new(params.all::<Service>().labels(settings.services()?));
    let reflector = Reflector::new(REFLECTOR, table.clone(), source, move |service: &Arc<Service>| {
        Some(ServiceRow::new(&cluster, has_exports, service))
    });
    params.follow(&table, reflector)
}

fn slices(params: TableParams, settings: Cfg<ExportSettings>) -> Result<Table<SliceRow>, TableError> {
    let table = RwTable::builder("mesh-endpoint-slices")
        .primary(SliceRow::BY_NAME)
        .index(SliceRow::BY_SERVICE)
        .build(&params.db)?;
    let source = Arc::new(params.all::<EndpointSlice>().labels(settings.slices()?));
    let reflector = Reflector::new(REFLECTOR, table.clone(), source, SliceRow::new);
    params.follow(&table, reflector)
}

fn nodes(params: TableParams, cluster: Cfg<ClusterSettings>) -> Result<Table<NodeRow>, TableError> {
    let table = RwTable::builder("mesh-nodes")
        .primary(NodeRow::BY_NAME)
        .build(&params.db)?;
    let cluster = cluster.info();
    let source = Arc::new(params.all::<CiliumNode>());
    let reflector = Reflector::new(REFLECTOR, table.clone(), source, move |node: &Arc<CiliumNode>| {
        Some(NodeRow::new(&cluster, node))
    })
    .skip_same(NodeRow::same);
    params.follow(&table, reflector)
}

fn identities(params: TableParams) -> Result<Table<IdentityRow>, TableError> {
    let table = RwTable::builder("mesh-identities")
        .primary(IdentityRow::BY_NAME)
        .index(IdentityRow::BY_NAMESPACE)
        .build(&params.db)?;
    let source = Arc::new(params.all::<CiliumIdentity>());
    let reflector = Reflector::fallible(
        REFLECTOR,
        table.clone(),
        source,
        |identity: &Arc<CiliumIdentity>| IdentityRow::new(identity).map(Some),
    )
    .skip_same(IdentityRow::eq);
    params.follow(&table, reflector)
}

/// Of CiliumEndpoints or of CiliumEndpointSlices, never both.
fn endpoints(params: TableParams, crds: Cfg<CrdConfig>) -> Result<Table<EndpointRow>, TableError> {
    let table = RwTable::builder("mesh-endpoints")
        .primary(EndpointRow::BY_NAME)
        .index(EndpointRow::BY_NAMESPACE)
        .index(EndpointRow::BY_ADDRESS)
        .build(&params.db)?;
    if crds.enable_cilium_endpoint_slice {
        let source = Arc::new(params.all::<CiliumEndpointSlice>());
        let reflector = Reflector::many(
            REFLECTOR,
            table.clone(),
            source,
            |slice: &Arc<CiliumEndpointSlice>, is_deleted, rows| {
                if !is_deleted {
                    rows.extend(EndpointRow::of_slice(slice));
                }
                Ok(())
            },
        )
        .merge(EndpointRow::merge);
        return params.follow(&table, reflector);
    }
    let source = Arc::new(params.all::<CiliumEndpoint>());
    let reflector = Reflector::fallible(
        REFLECTOR,
        table.clone(),
        source,
        |endpoint: &Arc<CiliumEndpoint>| EndpointRow::of_endpoint(endpoint),
    )
    .merge(EndpointRow::merge);
    params.follow(&table, reflector)
}

/// None without the MCS-API: the kind may not exist.
fn service_exports(params: TableParams, crds: Cfg<CrdConfig>) -> Result<Table<ServiceExportRow>, TableError> {
    let table = RwTable::builder("mesh-service-exports")
        .primary(ServiceExportRow::BY_NAME)
        .index(ServiceExportRow::BY_NAMESPACE)
        .build(&params.db)?;
    if !crds.clustermesh_enable_mcs_api {
        return Ok(table.reader());
    }
    let source = Arc::new(params.all::<ServiceExport>());
    let reflector = Reflector::new(REFLECTOR, table.clone(), source, |export: &Arc<ServiceExport>| {
        Some(ServiceExportRow::new(export))
    })
    .skip_same(ServiceExportRow::eq);
    params.follow(&table, reflector)
}
