// SPDX-License-Identifier: Apache-2.0

//! What the operator is made of.

use hive::{Cell, Cfg};
use skep_base_settings::AddressFamilies;
use skep_operator_lbipam::Families;

use crate::{kvstore, leader, mesh, unsupported};

#[must_use]
pub fn cells() -> Vec<Cell> {
    vec![infrastructure(), skep_operator_leader::scope(leader_cells())]
}

/// What only the leader runs. The definitions come first: the others watch objects of these kinds.
fn leader_cells() -> Vec<Cell> {
    vec![
        kvstore::context(),
        skep_k8s_crds::cell(),
        skep_operator_gc::tables::cell(),
        skep_operator_gc::agents::cell(),
        skep_operator_gc::nodes::cell(),
        skep_operator_gc::taints::cell(),
        skep_operator_gc::identities::cell(),
        skep_operator_gc::identities::objects_cell(),
        skep_operator_gc::endpoints::cell(),
        skep_operator_gc::slices::cell(),
        skep_operator_gc::pods::cell(),
        skep_operator_identity::cell(),
        skep_operator_ces::cell(),
        skep_operator_ipam::cell(),
        skep_operator_ipam::metrics::cell(),
        skep_operator_lbipam::cell(),
        kvstore::leader_cells(),
        mesh::leader_cells(),
        skep_operator_nodeipam::cell(),
        skep_operator_secrets::cell(),
    ]
}

fn infrastructure() -> Cell {
    Cell::group([
        skep_base_logging::cell(),
        skep_base_alloc::cell(),
        statedb::cell(),
        skep_base_health::cell(),
        skep_base_health::history_cell(),
        // `metrics` in the ConfigMap is about those of the agents.
        skep_base_metrics::operator_cell(),
        skep_base_metrics::endpoint::operator_cell(),
        skep_base_metrics::process::cell(),
        skep_base_metrics::workqueue::cell(),
        skep_shell::cell(),
        skep_k8s_client::remote::operator_cell(),
        skep_operator_api::cell(),
        skep_clustermesh_mesh::resolver::cell(),
        kvstore::cells(),
        leader::cell(),
        address_families(),
        unsupported::cell(),
        skep_operator_leader::cell(),
    ])
}

hive::catalogue!(address_families);

/// Which address families the cluster has.
fn address_families() -> Cell {
    Cell::module("address-families", "Address families of the cluster").provide(families)
}

/// The families of which Services get addresses.
fn families(enabled: Cfg<AddressFamilies>) -> Families {
    Families {
        ipv4: enabled.ipv4,
        ipv6: enabled.ipv6,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hive::{Hive, Settings, testing};
    use skep_base_metrics::Registry;

    use super::*;

    #[test]
    fn every_cell_is_in_the_catalogue() {
        let missing = testing::not_in_catalogue(&cells());

        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn the_operator_is_planned_without_findings() {
        let plan = testing::plan(Hive::new(cells()), Settings::new());

        let findings: Vec<_> = plan.report().findings().iter().map(ToString::to_string).collect();
        assert_eq!(findings, [""; 0]);
    }

    #[test]
    fn pages_that_only_the_start_needed_are_released() {
        let plan = testing::plan(Hive::new(cells()), Settings::new());

        assert!(plan.modules().iter().any(|(path, ..)| path == "program-memory"));
    }

    #[test]
    fn every_combination_of_conditions_is_planned() {
        for (name, hive) in Hive::new(cells()).variants() {
            let report = hive.plan(Settings::new()).err().map(|report| report.to_string());

            assert_eq!(report, None, "with {name}");
        }
    }

    #[test]
    fn metrics_are_in_the_namespace_of_the_operator() {
        let hive = Hive::new(cells()).root::<Arc<Registry>>();
        let settings = Settings::new().args([
            "--clustermesh-config=/var/lib/cilium/clustermesh",
            "--clustermesh-enable-mcs-api",
            "--kvstore=etcd",
            "--kvstore-opt=etcd.config=/var/lib/cilium/etcd-config.yaml",
        ]);
        let built = hive.plan(settings).expect("a plan").build().expect("a hive");
        let registry = built.get::<Arc<Registry>>().expect("it is provided");
        let names: Vec<&str> = registry.all().map(|(name, _)| name).collect();

        let all: Vec<String> = names.iter().map(|name| format!("+{name}")).collect();
        let enabled = Settings::new().flag("operator-metrics", all.join(","));
        let plan = testing::plan(Hive::new(cells()), enabled);
        assert!(plan.report().errors().next().is_none());
        for name in &names {
            let own = name.strip_prefix("cilium_operator_").unwrap_or_default();
            assert!(!own.is_empty() && !own.starts_with("operator_"), "{name}");
        }
        for name in [
            "ces_sync_total",
            "cid_controller_work_queue_event_count",
            "clustermesh_remote_cluster_services",
            "doublewrite_crd_identities",
            "endpoint_gc_objects",
            "hive_jobs_runs_total",
            "identity_gc_runs",
            "kvstore_operations_duration_seconds",
            "kvstore_sync_queue_size",
            "lbipam_services_matching",
            "mcsapi_serviceexport_info",
            "process_cpu_seconds_total",
            "unmanaged_pods",
            "version",
        ] {
            let name = format!("cilium_operator_{name}");
            assert!(names.contains(&name.as_str()), "{name} in {names:?}");
        }
        for name in ["nodes", "endpoints"] {
            let name = format!("cilium_operator_clustermesh_remote_cluster_{name}");
            assert!(!names.contains(&name.as_str()), "{name} is the agent's");
        }
    }
}
