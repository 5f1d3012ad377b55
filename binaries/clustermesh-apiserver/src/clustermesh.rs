// SPDX-License-Identifier: Apache-2.0

//! `clustermesh`: a list of cells.

mod crds;
mod ready;
mod users;

use hive::{Cell, Program};
use skep_base_metrics::Namespace;
use skep_clustermesh_export as export;

use crate::server;

/// The server as a program.
pub(crate) fn program() -> Program {
    let about = "Publishes the state of this cluster in the key-value store, where other clusters read it.";
    server::program("skep-clustermesh-apiserver clustermesh", about, cells())
}

/// The sub-command; returns the exit code.
pub fn command(args: Vec<String>, env: Vec<(String, String)>) -> u8 {
    server::run(program(), args, env)
}

#[must_use]
pub fn cells() -> Vec<Cell> {
    vec![
        server::infrastructure(Namespace::CLUSTERMESH_APISERVER),
        skep_k8s_client::remote::cell(),
        skep_kvstore_client::cell::heartbeat_updater(),
        Cell::group([
            export::tables::cell(),
            export::cluster_config::cell_with_canaries(),
            export::services::cell(),
            export::slices::cell(),
            export::service_exports::cell(),
            export::nodes::cell(),
            export::identities::cell(),
            export::endpoints::cell(),
        ]),
        crds::cell(),
        ready::cell(),
        users::cell(),
    ]
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings, testing};

    use super::*;

    const CHART: &[&str] = &[
        "--cluster-name=birch",
        "--cluster-id=9",
        "--kvstore-opt=etcd.config=/var/lib/cilium/etcd-config.yaml",
        "--kvstore-opt=etcd.qps=50",
        "--kvstore-opt=etcd.bootstrapQps=10000",
        "--max-connected-clusters=255",
        "--health-port=9880",
        "--cluster-users-enabled",
        "--cluster-users-config-path=/var/lib/cilium/etcd-config/users.yaml",
        "--enable-cilium-endpoint-slice=false",
        "--clustermesh-enable-mcs-api=false",
        "--prometheus-serve-addr=:9962",
        "--controller-group-metrics=all",
        "--enable-gops=true",
        "--gops-port=9892",
        "--kvstore=etcd",
    ];

    #[test]
    fn every_cell_is_in_the_catalogue() {
        assert_eq!(testing::not_in_catalogue(&cells()), [""; 0]);
    }

    #[test]
    fn clustermesh_is_planned_with_the_arguments_of_the_chart() {
        let settings = Settings::new().args(CHART.iter().copied());

        let plan = testing::plan(Hive::new(cells()), settings);

        let findings: Vec<_> = plan.report().findings().iter().map(ToString::to_string).collect();
        assert_eq!(findings, [""; 0]);
        assert!(plan.modules().iter().any(|(path, ..)| path == "program-memory"));
    }

    #[test]
    fn every_combination_of_conditions_is_planned() {
        for (name, hive) in Hive::new(cells()).variants() {
            let settings = Settings::new().args(CHART.iter().copied());
            let report = hive.plan(settings).err().map(|report| report.to_string());

            assert_eq!(report, None, "with {name}");
        }
    }

    #[test]
    fn a_cluster_without_an_id_is_rejected() {
        let plan = Hive::new(cells()).plan(Settings::new());

        let report = plan.expect_err("it is no part of a mesh").to_string();
        assert!(report.contains("it must be from 1 to 255"), "{report}");
    }

    #[test]
    fn metrics_are_in_the_namespace_of_the_program() {
        let names = server::metric_names(cells, CHART);

        assert!(
            names
                .iter()
                .all(|name| name.starts_with("cilium_clustermesh_apiserver_")),
            "{names:?}"
        );
        for name in [
            "bootstrap_seconds",
            "hive_jobs_runs_total",
            "process_cpu_seconds_total",
            "version",
            "kvstore_operations_duration_seconds",
            "kvstore_initial_sync_completed",
        ] {
            let name = format!("cilium_clustermesh_apiserver_{name}");
            assert!(names.contains(&name), "{name} in {names:?}");
        }
    }
}
