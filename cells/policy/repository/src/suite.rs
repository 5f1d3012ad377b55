// SPDX-License-Identifier: Apache-2.0

//! Script suite `policy`: rules, identities and endpoints into computed policies. The hive is started before the script.

mod commands;

use std::time::Duration;

use hive::{Cell, Hive};
use hive_script::testing::{Assembling, Assembly, AssemblyError, Setup, Suite};
use skep_base_health::testing::base_cells;
use skep_base_settings::NodeName;
use skep_policy_sources::PolicyRow;
use statedb::{Db, RwTable};

hive_script::suite!(
    Suite::new(
        "policy",
        "Rules, identities and endpoints into computed policies",
        "testdata/scripts",
        assemble
    )
    .retry_interval(Duration::from_millis(10))
);

fn assemble(_: Setup) -> Assembling {
    Box::pin(async {
        let parts = Assembly::new(hive).build().await?;
        if let Some(hive) = &parts.hive {
            let started = hive.controller().start().await;
            started.map_err(|cause| AssemblyError::Prepare {
                what: "the started hive",
                cause: cause.into(),
            })?;
        }
        Ok(parts)
    })
}

fn hive() -> Hive {
    Hive::new(base_cells())
        .with(skep_k8s_memory::fake_client_cell())
        .with(skep_base_settings::cell())
        .with(skep_base_settings::cluster::cell())
        .with(skep_datapath_maps::in_memory_cell())
        .with(skep_node_local::cells::local_node())
        .with(skep_identity_cache::cell())
        .with(skep_ipcache::cell())
        .with(skep_policy_maps::cell())
        .with(crate::cell())
        .with(commands::cell())
        .with(objects())
}

/// The table of objects, which commands write.
fn objects() -> Cell {
    Cell::module("test-objects", "Objects of scripts")
        .provide(|| NodeName::new("testnode"))
        .provide(new_table)
        .provide(statedb::read_only::<PolicyRow>)
}

fn new_table(db: Db) -> Result<RwTable<PolicyRow>, statedb::Error> {
    RwTable::builder("network-policies")
        .primary(PolicyRow::BY_KEY)
        .build(&db)
}
