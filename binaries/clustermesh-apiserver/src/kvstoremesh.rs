// SPDX-License-Identifier: Apache-2.0

//! `kvstoremesh`: a list of cells.

use hive::{Cell, Program};

/// The key-value store is etcd, unless a flag or the environment says otherwise.
const KVSTORE: (&str, &str) = ("CILIUM_KVSTORE", "etcd");

/// The sub-command; returns the exit code.
pub fn command(args: Vec<String>, mut env: Vec<(String, String)>) -> u8 {
    if env.iter().all(|(name, _)| name != KVSTORE.0) {
        env.push((KVSTORE.0.to_owned(), KVSTORE.1.to_owned()));
    }
    Program::new("skep-clustermesh-apiserver kvstoremesh", cells())
        .about("Copies the state of remote clusters into the key-value store of this one.")
        .version(env!("CARGO_PKG_VERSION"))
        .env_prefix("CILIUM")
        // Sockets are where Cilium has them.
        .path_name("cilium")
        .setup(skep_logging::start_logging)
        .run_with(args, env)
}

/// All cells of kvstoremesh.
#[must_use]
pub fn cells() -> Vec<Cell> {
    vec![
        Cell::group([
            skep_logging::cell(),
            skep_health::cell(),
            skep_health::history_cell(),
            skep_metrics::cell(),
            skep_metrics::endpoint::cell(),
            skep_shell::cell(),
            statedb::cell(),
            skep_kvstore::cell::metrics(),
            skep_kvstore_store::metrics(),
            skep_kvstore_etcd::cell(),
            skep_clustermesh_types::cell(),
            without_effect(),
        ]),
        skep_kvstoremesh::cell(),
        skep_kvstoremesh::election(),
        skep_kvstoremesh::leader(),
        skep_kvstoremesh::api(),
        skep_kvstoremesh::health(),
    ]
}

hive::catalogue!(without_effect);

/// Settings that Cilium's chart writes, and that have no effect here.
fn without_effect() -> Cell {
    Cell::module("kvstoremesh-compatibility", "Settings of Cilium without effect")
        .config::<WithoutEffect>()
        .run(|_: hive::Cfg<WithoutEffect>| ())
}

/// Settings that Cilium's chart writes, and that have no effect here.
#[derive(Debug, Clone, hive::Config)]
pub struct WithoutEffect {
    /// Has no effect: there is no gops agent.
    #[config(default = true, hidden)]
    pub enable_gops: bool,
    /// Has no effect: there is no gops agent.
    #[config(default = 9894, hidden)]
    pub gops_port: u16,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = false, hidden)]
    pub pprof: bool,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = "localhost", hidden)]
    pub pprof_address: String,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = 6064, hidden)]
    pub pprof_port: u16,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = 0, hidden)]
    pub pprof_mutex_profile_fraction: u32,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = 0, hidden)]
    pub pprof_block_profile_rate: u32,
    /// Has no effect: there are no metrics of controllers.
    #[config(hidden)]
    pub controller_group_metrics: Vec<String>,
    /// Has no effect: logs are written to the standard error.
    #[config(hidden)]
    pub log_driver: Vec<String>,
    /// Has no effect: see `log-format` and `log-filter`.
    #[config(hidden)]
    pub log_opt: std::collections::BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use hive::{Hive, Settings, testing};

    use super::*;

    /// The arguments of Cilium's chart.
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
    }

    #[test]
    fn every_combination_of_conditions_is_planned() {
        for (name, hive) in Hive::new(cells()).variants() {
            let settings = Settings::new().args(CHART[..3].iter().copied());
            let report = hive.plan(settings).err().map(|report| report.to_string());

            assert_eq!(report, None, "with {name}");
        }
    }
}
