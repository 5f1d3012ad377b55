// SPDX-License-Identifier: Apache-2.0

//! A program of its own, made of the load balancer's cells: lists the frontends of a state file, then ends.
//!
//! `cargo run -p skep-loadbalancer-reconciler --example frontends -- --lb-state-file docs/examples/services.yaml`

use std::process::ExitCode;

use hive::{Cell, Job, JobCtx, Jobs, Program, Shutdown, SpawnError};
use skep_loadbalancer_model::Frontend;
use skep_loadbalancer_reconciler::InitWait;
use statedb::{Db, Table};

fn main() -> ExitCode {
    let cells = [
        statedb::cell(),
        skep_loadbalancer_maglev::cell(),
        skep_base_settings::cell(),
        skep_loadbalancer_model::cell(),
        skep_loadbalancer_sources::cell(),
        skep_datapath_maps::in_memory_cell(),
        skep_loadbalancer_reconciler::cell(),
        frontend_list(),
    ];
    Program::new("frontends", cells)
        .about("Lists the frontends of a state file and their backends.")
        .main()
}

/// Prints every frontend once all of them are in the maps, then stops the program.
fn frontend_list() -> Cell {
    Cell::module("frontend-list", "Prints frontends").run(list)
}

fn list(
    db: Db,
    frontends: Table<Frontend>,
    reconciled: InitWait,
    shutdown: Shutdown,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    jobs.spawn(Job::once("list", move |_: JobCtx| {
        let (db, frontends) = (db.clone(), frontends.clone());
        let (reconciled, shutdown) = (reconciled.clone(), shutdown.clone());
        async move {
            reconciled.wait().await;
            for frontend in frontends.all(&db.read()) {
                let backends: Vec<String> = frontend
                    .selectable_backends()
                    .map(|row| row.params.address.to_string())
                    .collect();
                println!(
                    "{} {} -> {} ({})",
                    frontend.service_name(),
                    frontend.address(),
                    backends.join(", "),
                    frontend.status.kind
                );
            }
            shutdown.request("all frontends are listed");
        }
    }))
}
