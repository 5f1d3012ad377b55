// SPDX-License-Identifier: Apache-2.0

//! Cell: namespaces and the pods of this node.
//! Requires: client, node name, optionally a clock. Provides: read-only tables.

use std::sync::Arc;

use hive::{Cell, Jobs, Params};
use skep_base_settings::NodeName;
use skep_k8s_client::{Api, Client};
use skep_k8s_types::selector::FieldSelector;
use skep_k8s_types::slim::{Namespace, Pod};
use statedb::clock::{Clock, SystemClock};
use statedb::{Db, RwTable, Table};

use super::namespace::NamespaceRow;
use super::pod::LocalPod;
use crate::reflector::{ReflectError, Reflector};

/// Name of the reflectors.
const REFLECTOR: &str = "daemon-k8s";

/// Namespaces and the pods of this node; a table is built only if a cell requires it.
pub fn cell() -> Cell {
    Cell::module("k8s-tables", "Kubernetes objects as tables")
        .provide(new_namespaces)
        .provide(new_pods)
        .library()
}

#[derive(Params)]
struct TableParams {
    db: Db,
    jobs: Jobs,
    client: Arc<dyn Client>,
    clock: Option<Arc<dyn Clock>>,
}

#[derive(Debug, thiserror::Error)]
enum TableError {
    #[error("table")]
    Table(#[from] statedb::Error),
    #[error(transparent)]
    Reflect(#[from] ReflectError),
}

fn new_namespaces(params: TableParams) -> Result<Table<NamespaceRow>, TableError> {
    let table = RwTable::builder("k8s-namespaces")
        .primary(NamespaceRow::BY_NAME)
        .build(&params.db)?;
    if params.client.is_enabled() {
        let clock = params.clock.unwrap_or_else(|| Arc::new(SystemClock));
        let source = Arc::new(Api::<Namespace>::all(params.client));
        Reflector::new(
            REFLECTOR,
            table.clone(),
            source,
            move |namespace: &Arc<Namespace>| Some(NamespaceRow::new(namespace, &clock)),
        )
        .skip_same(NamespaceRow::same)
        .register(&params.jobs, &params.db)?;
    }
    Ok(table.reader())
}

fn new_pods(params: TableParams, node: NodeName) -> Result<Table<LocalPod>, TableError> {
    let table = RwTable::builder("k8s-pods")
        .primary(LocalPod::BY_NAME)
        .build(&params.db)?;
    if params.client.is_enabled() {
        let clock = params.clock.unwrap_or_else(|| Arc::new(SystemClock));
        let local = FieldSelector::equal("spec.nodeName", node.as_str());
        let source = Arc::new(Api::<Pod>::all(params.client).fields(local));
        Reflector::new(REFLECTOR, table.clone(), source, move |pod: &Arc<Pod>| {
            Some(LocalPod::new(pod, &clock))
        })
        .skip_same(LocalPod::same)
        .register(&params.jobs, &params.db)?;
    }
    Ok(table.reader())
}
