// SPDX-License-Identifier: Apache-2.0

//! `kvstoremesh`: a list of cells.

use hive::{Cell, Program};
use skep_base_metrics::Namespace;

use crate::server;

/// The server as a program.
pub(crate) fn program() -> Program {
    let about = "Copies the state of remote clusters into the key-value store of this one.";
    server::program("skep-clustermesh-apiserver kvstoremesh", about, cells())
}

/// The sub-command; returns the exit code.
pub fn command(args: Vec<String>, env: Vec<(String, String)>) -> u8 {
    server::run(program(), args, env)
}

#[must_use]
pub fn cells() -> Vec<Cell> {
    vec![
        server::infrastructure(Namespace::KVSTOREMESH),
        skep_clustermesh_kvstoremesh::cell(),
        skep_clustermesh_kvstoremesh::election(),
        skep_clustermesh_kvstoremesh::leader(),
        skep_clustermesh_kvstoremesh::api(),
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
        "--kvstore-opt=etcd.qps=100",
        "--kvstore-opt=etcd.bootstrapQps=10000",
        "--kvstore-opt=etcd.maxInflight=10",
        "--clustermesh-config=/var/lib/cilium/clustermesh",
        "--prometheus-serve-addr=:9964",
        "--controller-group-metrics=all",
        "--enable-gops=true",
        "--gops-port=9894",
        "--enable-heartbeat=false",
        "--health-port=9881",
        "--kvstore=etcd",
    ];

    #[test]
    fn every_cell_is_in_the_catalogue() {
        assert_eq!(testing::not_in_catalogue(&cells()), [""; 0]);
    }

    #[test]
    fn kvstoremesh_is_planned_with_the_arguments_of_the_chart() {
        let settings = Settings::new().args(CHART.iter().copied());

        let plan = testing::plan(Hive::new(cells()), settings);

        let findings: Vec<_> = plan.report().findings().iter().map(ToString::to_string).collect();
        assert_eq!(findings, [""; 0]);
        assert!(plan.modules().iter().any(|(path, ..)| path == "program-memory"));
    }

    #[test]
    fn every_combination_of_conditions_is_planned() {
        for (name, hive) in Hive::new(cells()).variants() {
            let settings = Settings::new().args(CHART[..3].iter().copied());
            let report = hive.plan(settings).err().map(|report| report.to_string());

            assert_eq!(report, None, "with {name}");
        }
    }

    #[test]
    fn metrics_are_in_the_namespace_of_the_program() {
        let names = server::metric_names(cells, CHART);

        assert!(
            names.iter().all(|name| name.starts_with("cilium_kvstoremesh_")),
            "{names:?}"
        );
        for name in [
            "bootstrap_seconds",
            "remote_clusters",
            "leader_election_master_status",
            "remote_cluster_readiness_status",
            "hive_jobs_runs_total",
            "process_cpu_seconds_total",
            "version",
            "kvstore_operations_duration_seconds",
            "kvstore_initial_sync_completed",
        ] {
            let name = format!("cilium_kvstoremesh_{name}");
            assert!(names.contains(&name), "{name} in {names:?}");
        }
    }
}
