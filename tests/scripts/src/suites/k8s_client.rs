// SPDX-License-Identifier: Apache-2.0

//! The fake Kubernetes client alone, with one object that exists before the script: the CiliumNode `test`.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hive::{Cell, Member};
use hive_script::{CommandHandle, Retry};
use skep_k8s_apiserver::{FakeClient, FakeError, fake_client_cell, update_status_command};

use crate::{Assembly, AssemblyError, Parts, Setup, Suite, base_cells};

pub(super) const SUITE: Suite = Suite {
    name: "k8s-client",
    summary: "Commands on Kubernetes objects",
    retry: Retry {
        interval: Duration::from_millis(100),
        max_interval: Duration::from_millis(500),
        limit: None,
    },
    timeout: Duration::from_secs(10),
    assemble,
};

const NODE: &str = "apiVersion: cilium.io/v2\nkind: CiliumNode\nmetadata:\n  name: test\n";

fn assemble(_: Setup) -> BoxFuture<'static, Result<Parts, AssemblyError>> {
    Assembly::new(|| {
        let mut cells = base_cells();
        cells.push(fake_client_cell());
        cells.push(
            Cell::module("test-node", "A node from the start")
                .provide(update_status)
                .run(add_node),
        );
        cells
    })
    .build()
}

fn add_node(client: Arc<FakeClient>) -> Result<(), FakeError> {
    client.add(NODE)
}

/// The command that only this suite has.
fn update_status(client: Arc<FakeClient>) -> Member<CommandHandle> {
    Member(update_status_command(&client))
}
