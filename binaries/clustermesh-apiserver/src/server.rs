// SPDX-License-Identifier: Apache-2.0

//! What both servers have: how they run, and the cells that every feature stands on.

use hive::{Cell, Program};
use skep_base_metrics::Namespace;

use crate::unsupported;

/// The key-value store is etcd, unless a flag or the environment says otherwise.
const KVSTORE: (&str, &str) = ("CILIUM_KVSTORE", "etcd");

pub(crate) fn program(name: &'static str, about: &'static str, cells: Vec<Cell>) -> Program {
    Program::new(name, cells)
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .env_prefix("CILIUM")
        // Sockets are where Cilium has them.
        .path_name("cilium")
        .setup(skep_base_logging::start_logging)
}

/// Runs a server; returns the exit code.
pub(crate) fn run(program: Program, args: Vec<String>, mut env: Vec<(String, String)>) -> u8 {
    if env.iter().all(|(name, _)| name != KVSTORE.0) {
        env.push((KVSTORE.0.to_owned(), KVSTORE.1.to_owned()));
    }
    program.run_with(args, env)
}

/// Logs, tables, health, metrics of `namespace`, the shell and the key-value store.
pub(crate) fn infrastructure(namespace: Namespace) -> Cell {
    Cell::group([
        skep_base_logging::cell(),
        skep_base_alloc::cell(),
        skep_base_health::cell(),
        skep_base_health::history_cell(),
        skep_base_metrics::cell_in(namespace),
        skep_base_metrics::endpoint::cell(),
        skep_base_metrics::process::cell(),
        skep_shell::cell(),
        statedb::cell(),
        skep_base_limiter::cell(),
        skep_kvstore_client::cell::metrics(),
        skep_kvstore_client::command::cell(),
        skep_kvstore_store::metrics(),
        skep_kvstore_etcd::cell(),
        skep_base_settings::cluster::cell(),
        skep_clustermesh_types::command::cell(),
        skep_clustermesh_kvstoremesh::health(),
        unsupported::cell(),
    ])
}

/// Full names of the metrics of a program, which is built and not started. Each of them can be enabled.
#[cfg(test)]
pub(crate) fn metric_names(cells: fn() -> Vec<Cell>, args: &[&str]) -> Vec<String> {
    use std::sync::Arc;

    use hive::{Hive, Settings};
    use skep_base_metrics::Registry;

    let hive = Hive::new(cells()).root::<Arc<Registry>>();
    let settings = Settings::new().args(args.iter().copied());
    let built = hive
        .plan(settings.clone())
        .expect("a plan")
        .build()
        .expect("a hive");
    let registry = built.get::<Arc<Registry>>().expect("it is provided");
    let names: Vec<String> = registry.all().map(|(name, _)| name.to_owned()).collect();
    let all: Vec<String> = names.iter().map(|name| format!("+{name}")).collect();
    let plan = hive::testing::plan(Hive::new(cells()), settings.flag("metrics", all.join(",")));
    assert!(plan.report().errors().next().is_none());
    names
}
