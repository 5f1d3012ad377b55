// SPDX-License-Identifier: Apache-2.0

//! Cell: the configuration in the cluster as table `cilium-configs`.
//! Requires: a Kubernetes client, the name of the node. Provides: the table, read-only.

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_base_settings::NodeName;
use skep_k8s_client::Client;
use statedb::{Db, RwTable, Table};

use crate::config::Config;
use crate::row::ConfigEntry;
use crate::watch::Watch;

/// The configuration in the cluster, as a table.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("cilium-agent-dynamic-config", "Configuration in the cluster")
        .config::<Config>()
        .provide_private(new_table)
        .provide(read_only)
        .run(start)
        .library() // other cells read the table
}

fn new_table(db: Db) -> Result<RwTable<ConfigEntry>, statedb::Error> {
    RwTable::builder("cilium-configs")
        .primary(ConfigEntry::BY_KEY)
        .index(ConfigEntry::BY_NAME)
        .build(&db)
}

fn read_only(table: RwTable<ConfigEntry>) -> Table<ConfigEntry> {
    table.reader()
}

/// Why the table is not filled.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("table")]
    Table(#[from] statedb::Error),
    #[error(transparent)]
    Job(#[from] SpawnError),
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    client: Arc<dyn Client>,
    node: NodeName,
    db: Db,
    table: RwTable<ConfigEntry>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), StartError> {
    let StartParams {
        config,
        client,
        node,
        db,
        table,
        jobs,
    } = params;
    if !config.enable_dynamic_config || !client.is_enabled() {
        return Ok(());
    }
    let mut txn = db.write(&[&table]);
    let guard = table.register_initializer(&mut txn, "config-sources")?;
    txn.commit();
    Watch::spawn((db, table, guard), &client, &config, node.as_str(), &jobs)?;
    Ok(())
}
