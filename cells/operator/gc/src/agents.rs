// SPDX-License-Identifier: Apache-2.0

//! Cell: the pods of the agents as the table `cilium-pods`.
//! Requires: a Kubernetes client. The pods are watched only if a cell requires the table.

use std::sync::Arc;

use hive::config::Faults;
use hive::{Cell, Cfg, Jobs};
use skep_k8s_client::{Api, Client};
use skep_k8s_reflectors::{ReflectError, Reflector};
use skep_k8s_types::selector::Selector;
use skep_k8s_types::slim::{Pod, PodPhase, Str};
use skep_operator_leader::Config as LeaderConfig;
use statedb::{Db, Index, Row, RwTable, Table};

use crate::tables::full_name;

/// Which pods are those of the agents.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Labels of agent pods.
    #[config(default = "k8s-app=cilium")]
    pub cilium_pod_labels: String,
    /// Namespace of agent pods. Default: that of the operator, or all if unknown.
    pub cilium_pod_namespace: String,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if let Err(error) = self.cilium_pod_labels.parse::<Selector>() {
            faults.add("cilium-pod-labels", error.to_string());
        }
    }
}

hive::catalogue!(cell);

pub fn cell() -> Cell {
    Cell::module("cilium-pods", "Pods of agents")
        .config::<Config>()
        .provide(agents)
        .library()
}

/// Row of `cilium-pods`: the pod of an agent.
#[derive(Debug, Clone)]
pub struct AgentRow {
    /// Namespace and name of the pod.
    pub name: Str,
    /// Its node; empty if it has none yet.
    pub node: Str,
    pub is_ready: bool,
    /// Whether the pod has not ended.
    pub is_running: bool,
}

impl AgentRow {
    /// By namespace and name of the pod.
    pub const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));

    fn new(pod: &Pod) -> Self {
        let conditions = &pod.status.conditions;
        Self {
            name: full_name(&pod.metadata),
            node: pod.spec.node_name.clone(),
            is_ready: conditions
                .iter()
                .any(|condition| condition.kind == "Ready" && condition.status == "True"),
            is_running: !matches!(pod.status.phase, PodPhase::Succeeded | PodPhase::Failed),
        }
    }
}

impl Row for AgentRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Node", "Ready", "Running"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.to_string(),
            self.node.to_string(),
            self.is_ready.to_string(),
            self.is_running.to_string(),
        ]
    }
}

/// Why the table of agents cannot be made.
#[derive(Debug, thiserror::Error)]
enum AgentsError {
    /// Another cell has a table of this name.
    #[error("table")]
    Table(#[from] statedb::Error),
    #[error(transparent)]
    Reflect(#[from] ReflectError),
}

fn agents(
    config: Cfg<Config>,
    own: Cfg<LeaderConfig>,
    client: Arc<dyn Client>,
    jobs: Jobs,
    db: Db,
) -> Result<Table<AgentRow>, AgentsError> {
    let table = RwTable::builder("cilium-pods")
        .primary(AgentRow::BY_NAME)
        .build(&db)?;
    if client.is_enabled() {
        let namespaces = [&config.cilium_pod_namespace, &own.k8s_namespace];
        let pods = match namespaces.into_iter().find(|namespace| !namespace.is_empty()) {
            Some(namespace) => Api::<Pod>::namespaced(client, namespace),
            None => Api::all(client),
        };
        // A plan has no selector that its check refused.
        let labels: Selector = config.cilium_pod_labels.parse().unwrap_or_default();
        let source = Arc::new(pods.labels(labels.clone()));
        Reflector::new("operator", table.clone(), source, move |pod: &Arc<Pod>| {
            // A server may go on to deliver a pod whose labels have changed.
            labels.matches(&pod.metadata.labels).then(|| AgentRow::new(pod))
        })
        .register(&jobs, &db)?;
    }
    Ok(table.reader())
}
