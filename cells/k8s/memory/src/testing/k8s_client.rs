// SPDX-License-Identifier: Apache-2.0

//! Suite `k8s-client`: the fake Kubernetes client, with one object that exists before the script: the CiliumNode `test`.

use std::sync::Arc;

use hive::{Cell, Hive, Member};
use hive_script::CommandHandle;
use hive_script::testing::{Assembling, Assembly, Setup, Suite};
use skep_base_health::testing::base_cells;

use crate::{FakeClient, FakeError, fake_client_cell, update_status_command};

hive_script::suite!(Suite::new(
    "k8s-client",
    "Commands on Kubernetes objects",
    "testdata/k8s-client",
    assemble
));

const NODE: &str = "apiVersion: cilium.io/v2\nkind: CiliumNode\nmetadata:\n  name: test\n";

fn assemble(_: Setup) -> Assembling {
    Assembly::new(hive).build()
}

fn hive() -> Hive {
    let node = Cell::module("test-node", "A node from the start")
        .provide(update_status)
        .run(add_node);
    Hive::new(base_cells()).with(fake_client_cell()).with(node)
}

fn add_node(client: Arc<FakeClient>) -> Result<(), FakeError> {
    client.add(NODE)
}

/// The command that only this suite has.
fn update_status(client: Arc<FakeClient>) -> Member<CommandHandle> {
    Member(update_status_command(&client))
}
