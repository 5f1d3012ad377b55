// SPDX-License-Identifier: Apache-2.0

//! Cell: the fake client of scripts.

use std::sync::Arc;

use hive::{Cell, Members};
use hive_script::CommandHandle;
use skep_k8s_client::Client;
use statedb::Table;

use crate::client::InProcessClient;
use crate::command;
use crate::fake::FakeClient;
use crate::server::ApiServer;
use crate::table::TrackedObject;

/// A client over objects that scripts add.
/// Requires: [`statedb::Db`]. Provides: `Arc<dyn Client>`, [`FakeClient`], the table `k8s-object-tracker`, the `k8s/`
/// commands.
pub fn fake_client_cell() -> Cell {
    Cell::module("k8s-fake-client", "Fake Kubernetes client")
        .provide(FakeClient::new)
        .provide(fake_client)
        .provide(fake_table)
        .provide(fake_commands)
}

fn fake_client(fake: Arc<FakeClient>) -> Arc<dyn Client> {
    Arc::new(fake.client())
}

fn fake_table(fake: Arc<FakeClient>) -> Table<TrackedObject> {
    fake.table()
}

fn fake_commands(fake: Arc<FakeClient>) -> Members<CommandHandle> {
    Members(command::commands(&fake))
}

/// A client of the API server in the same hive, for controllers.
pub fn in_process_client(api: &ApiServer) -> InProcessClient {
    InProcessClient::new(
        api.clone(),
        skep_k8s_client::ServerVersion {
            major: 1,
            minor: 33,
            git_version: crate::VERSION.to_owned(),
            platform: crate::platform(),
        },
    )
}

#[cfg(test)]
mod tests;
