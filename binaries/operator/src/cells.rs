// SPDX-License-Identifier: Apache-2.0

//! What the operator is made of.

use hive::{Cell, Cfg};
use skep_datapath_config::AddressFamilies;
use skep_operator_lbipam::Families;

use crate::{compatibility, kvstore, leader, mesh, unsupported};

/// All cells of the operator.
#[must_use]
pub fn cells() -> Vec<Cell> {
    vec![infrastructure(), skep_operator_leader::scope(leader_cells())]
}

/// What only the leader runs. The definitions come first: the others watch objects of these kinds.
fn leader_cells() -> Vec<Cell> {
    vec![
        kvstore::surroundings(),
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
        skep_operator_lbipam::cell(),
        kvstore::leader_cells(),
        mesh::leader_cells(),
        skep_operator_nodeipam::cell(),
        skep_operator_secrets::cell(),
    ]
}

/// What runs on all replicas.
fn infrastructure() -> Cell {
    Cell::group([
        skep_logging::cell(),
        skep_alloc::cell(),
        statedb::cell(),
        skep_health::cell(),
        skep_health::history_cell(),
        // `metrics` in the ConfigMap is about those of the agents.
        skep_metrics::operator_cell(),
        skep_metrics::endpoint::operator_cell(),
        skep_shell::cell(),
        skep_k8s_client::remote::operator_cell(),
        skep_operator_api::cell(),
        kvstore::cells(),
        leader::cell(),
        address_families(),
        unsupported::cell(),
        compatibility::cell(),
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
    use std::sync::{Arc, OnceLock};

    use hive::{Hive, Settings, testing};
    use skep_metrics::Registry;

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

    #[tokio::test]
    async fn metrics_of_the_leader_are_served() {
        let found = Arc::new(OnceLock::new());
        let told = found.clone();
        let test = Cell::module("test", "Test").run(move |registry: Arc<Registry>| {
            let names = registry.metrics().map(|metric| metric.opts().name().to_owned());
            told.set(names.collect::<Vec<_>>()).unwrap();
        });
        let settings = Settings::new().args(["--enable-k8s=false"]);

        let built = testing::plan(Hive::new(cells()).with(test), settings).build();

        built.map(drop).unwrap_or_else(|error| panic!("{error}"));
        let names = found.get().unwrap();
        for of in ["lbipam_conflicting_pools", "ces_sync_total", "unmanaged_pods"] {
            assert!(names.iter().any(|name| name.ends_with(of)), "{of}: {names:?}");
        }
    }

    #[test]
    fn every_combination_of_conditions_is_planned() {
        for (name, hive) in Hive::new(cells()).variants() {
            let report = hive.plan(Settings::new()).err().map(|report| report.to_string());

            assert_eq!(report, None, "with {name}");
        }
    }
}
