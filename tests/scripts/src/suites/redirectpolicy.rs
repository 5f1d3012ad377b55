// SPDX-License-Identifier: Apache-2.0

//! Local redirect policies: services and addresses to pods of the node.

use std::time::Duration;

use futures::future::BoxFuture;
use hive_script::Retry;

use super::loadbalancer::{cells, on_a_node};
use crate::{Assembly, AssemblyError, Parts, Setup, Suite};

pub(super) const SUITE: Suite = Suite {
    name: "redirectpolicy",
    summary: "Local redirect policies",
    retry: Retry {
        interval: Duration::from_millis(10),
        max_interval: Duration::from_millis(500),
        limit: None,
    },
    timeout: Duration::from_secs(10),
    assemble,
};

fn assemble(setup: Setup) -> BoxFuture<'static, Result<Parts, AssemblyError>> {
    let maps = setup.maps;
    on_a_node(Assembly::new(move || {
        let mut cells = cells(maps);
        cells.extend([
            skep_loadbalancer_reconciler::testing::testing_cell(),
            skep_healthserver::cell(),
        ]);
        cells
    }))
    .preset("enable-local-redirect-policy", "true")
    .preset("lb-test-fault-probability", "0")
    .preset("bpf-root", setup.bpf_root().to_string_lossy())
    .flags(&setup)
    .build()
}
