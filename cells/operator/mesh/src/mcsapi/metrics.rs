// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use skep_base_metrics::{GaugeVec, Metrics};
use skep_k8s_crds::shared::{Condition, ConditionStatus};
use skep_k8s_types::ObjectKey;

use super::state::State;

/// ServiceExports and ServiceImports of the cluster.
#[derive(Debug, Metrics)]
#[metrics(prefix = "mcsapi")]
pub(crate) struct McsApiMetrics {
    /// Information about a ServiceExport.
    #[metric(labels = ["namespace", "serviceexport"])]
    serviceexport_info: GaugeVec,
    /// Conditions of a ServiceExport: 1 for the current status.
    #[metric(labels = ["namespace", "serviceexport", "condition", "status"])]
    serviceexport_status_condition: GaugeVec,
    /// Information about a ServiceImport.
    #[metric(labels = ["namespace", "serviceimport"])]
    serviceimport_info: GaugeVec,
    /// Conditions of a ServiceImport: 1 for the current status.
    #[metric(labels = ["namespace", "serviceimport", "condition", "status"])]
    serviceimport_status_condition: GaugeVec,
    /// Exporting clusters of a ServiceImport.
    #[metric(labels = ["namespace", "serviceimport"])]
    serviceimport_status_clusters: GaugeVec,
}

const CONDITIONS: [&str; 3] = ["Valid", "Ready", "Conflict"];

fn status_text(status: ConditionStatus) -> &'static str {
    match status {
        ConditionStatus::True => "True",
        ConditionStatus::False => "False",
        ConditionStatus::Unknown => "Unknown",
    }
}

fn update_conditions(gauge: &GaugeVec, key: &ObjectKey, conditions: Option<&Vec<Condition>>) {
    let (namespace, name) = (key.namespace.as_str(), key.name.as_str());
    for kind in CONDITIONS {
        let condition = conditions
            .into_iter()
            .flatten()
            .find(|condition| condition.kind == kind);
        for status in [
            ConditionStatus::True,
            ConditionStatus::False,
            ConditionStatus::Unknown,
        ] {
            let labels = [namespace, name, kind, status_text(status)];
            if condition.is_some_and(|condition| condition.status == status) {
                gauge.with(labels).set(1.0);
            } else {
                gauge.remove(labels);
            }
        }
    }
}

#[cfg(test)]
impl McsApiMetrics {
    /// All series, as Prometheus reads them.
    pub(crate) fn text(&self) -> String {
        let metrics = skep_base_metrics::MetricSet::metrics(self);
        let registry =
            skep_base_metrics::Registry::in_namespace(skep_base_metrics::Namespace::OPERATOR, metrics, &[]);
        skep_base_metrics::exposition(&registry.expect("names are unique"))
    }
}

impl McsApiMetrics {
    /// Takes over what is known of a service.
    pub(crate) fn update(&self, key: &ObjectKey, state: &State) {
        let labels = [key.namespace.as_str(), key.name.as_str()];
        let export = state.exports.get(key);
        if export.is_some() {
            self.serviceexport_info.with(labels).set(1.0);
        } else {
            self.serviceexport_info.remove(labels);
        }
        let conditions = export.and_then(|export| export.status.as_ref()?.conditions.as_ref());
        update_conditions(&self.serviceexport_status_condition, key, conditions);
        let import = state.imports.get(key);
        let status = import.and_then(|import| import.status.as_ref());
        if import.is_some() {
            let clusters = status.and_then(|status| status.clusters.as_ref());
            let clusters = clusters.map_or(0, Vec::len);
            self.serviceimport_info.with(labels).set(1.0);
            self.serviceimport_status_clusters
                .with(labels)
                .set(clusters as f64);
        } else {
            self.serviceimport_info.remove(labels);
            self.serviceimport_status_clusters.remove(labels);
        }
        let conditions = status.and_then(|status| status.conditions.as_ref());
        update_conditions(&self.serviceimport_status_condition, key, conditions);
    }
}
