// SPDX-License-Identifier: Apache-2.0

//! The load balancer: services of a fake Kubernetes client into maps.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hive::{Built, Cell};
use hive_script::{Condition, Conditions, Retry};
use skep_healthserver::HealthzConfig;
use skep_k8s_apiserver::fake_client_cell;
use skep_loadbalancer_model::Writer;
use skep_node::{AddressConfig, LocalNode, NodeAddress, NodeName};
use statedb::Table;

use crate::{Assembly, AssemblyError, Maps, Parts, Setup, Suite, Wait, base_cells};

pub(super) const SUITE: Suite = Suite {
    name: "loadbalancer",
    summary: "Services into load-balancing maps",
    retry: Retry {
        interval: Duration::from_millis(20),
        max_interval: Duration::from_millis(500),
        limit: None,
    },
    timeout: Duration::from_secs(10),
    assemble,
};

fn assemble(setup: Setup) -> BoxFuture<'static, Result<Parts, AssemblyError>> {
    let maps = setup.maps;
    let privileged = Condition::fixed("the maps are those of the kernel", maps == Maps::Bpf);
    with_presets(Assembly::new(move || {
        let mut cells = cells(maps);
        cells.extend([
            skep_loadbalancer_reconciler::testing::testing_cell(),
            skep_healthserver::cell(),
        ]);
        cells
    }))
    .preset("bpf-root", setup.bpf_root().to_string_lossy())
    .flags(&setup)
    .conditions(Conditions::from([("privileged".to_owned(), privileged)]))
    .build()
}

/// What the suites of the load balancer have in common.
pub(super) fn cells(maps: Maps) -> Vec<Cell> {
    let mut cells = base_cells();
    cells.extend([
        skep_shell::cell(),
        fake_client_cell(),
        skep_k8s_reflectors::tables::cell(),
        skep_maglev::cell(),
        skep_datapath_config::cell(),
        skep_loadbalancer_model::cell(),
        skep_loadbalancer_sources::cell(),
        skep_node::cells::local_node(),
        skep_node::cells::empty_addresses(),
        Cell::module("test-node", "Name of the node").provide(new_name),
        Cell::module("test-config", "Settings of cells that these hives lack")
            .config::<AddressConfig>()
            .config::<HealthzConfig>(),
    ]);
    cells.extend([
        match maps {
            Maps::Fake => skep_datapath_maps::in_memory_cell(),
            Maps::Bpf => skep_datapath_maps::cell(),
        },
        skep_loadbalancer_reconciler::cell(),
        skep_redirectpolicy::cell(),
    ]);
    cells
}

/// Short pauses and small tables.
pub(super) fn with_presets(assembly: Assembly) -> Assembly {
    on_a_node(assembly)
        .preset("lb-retry-backoff-min", "10ms")
        .preset("lb-retry-backoff-max", "10ms")
        .preset("bpf-lb-maglev-table-size", "1021")
}

/// Tables of the node, which scripts write; both families; in the place of kube-proxy.
pub(super) fn on_a_node(assembly: Assembly) -> Assembly {
    assembly
        .root::<Table<NodeAddress>>()
        .root::<Table<LocalNode>>()
        .root::<Writer>()
        .after_start(first_lists)
        .preset("shell-sock-path", "")
        .preset("enable-ipv4", "true")
        .preset("enable-ipv6", "true")
        .preset("kube-proxy-replacement", "true")
}

/// Longest wait for the first lists: long for a busy machine, and short for scripts that go on without.
const LISTS: Duration = Duration::from_secs(2);

/// Waits until the sources have delivered. What a script adds right after the start is to arrive as changes, in the
/// script's order, which decides about numbers; in a list it would be sorted by name.
fn first_lists(built: &Built) -> Wait {
    let writer = built.get::<Writer>();
    Arc::new(move || {
        let writer = writer.clone();
        Box::pin(async move {
            if let Some(writer) = writer {
                let frontends = writer.frontends();
                // A source that does not deliver is the script's business.
                let _ = tokio::time::timeout(LISTS, frontends.wait_initialized(writer.db())).await;
            }
        })
    })
}

fn new_name() -> NodeName {
    NodeName::new("testnode")
}
