// SPDX-License-Identifier: Apache-2.0

//! A program of its own, made of the load balancer's cells: lists the frontends of a state file, then ends.
//!
//! `cargo run -p skep-loadbalancer-reconciler --example frontends -- --lb-state-file docs/examples/services.yaml`

use std::process::ExitCode;

use hive::{Cell, JobCtx, Jobs, Params, Program, Shutdown, SpawnError};
use skep_loadbalancer_model::Frontend;
use skep_loadbalancer_reconciler::InitWait;
use statedb::{Db, Table};

fn main() -> ExitCode {
    let cells = [
        skep_loadbalancer_reconciler::in_memory(),
        skep_loadbalancer_sources::cell(),
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

#[derive(Params)]
struct List {
    db: Db,
    frontends: Table<Frontend>,
    reconciled: InitWait,
    shutdown: Shutdown,
}

fn list(list: List, jobs: Jobs) -> Result<(), SpawnError> {
    jobs.keep("list", list, List::print)
}

impl List {
    async fn print(&self, _: &JobCtx) {
        self.reconciled.wait().await;
        for frontend in self.frontends.all(&self.db.read()) {
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
        self.shutdown.request("all frontends are listed");
    }
}
