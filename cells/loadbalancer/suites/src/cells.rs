// SPDX-License-Identifier: Apache-2.0

//! What the hives of the suites have in common.
//!
//! All cells are those of the agent, but for a Kubernetes client, maps and a table of node addresses that scripts fill,
//! and the tables of the local node without what keeps them in step with a real one.

use std::sync::Arc;
use std::time::Duration;

use hive::{Built, Cell, Hive};
use hive_script::hive_command::AfterStart;
use hive_script::testing::{Assembly, Choices, Setup};
use skep_base_health::testing::base_cells;
use skep_base_settings::NodeName;
use skep_base_settings::cilium::{AGENT, keys_without_effect};
use skep_loadbalancer_model::Writer;
use skep_loadbalancer_reconciler::InitWait;
use skep_node_local::{LocalNode, NodeAddress};
use statedb::Table;

use crate::maps;

/// All cells of the load balancer.
pub fn load_balancer(choices: &Choices) -> Hive {
    Hive::new(base_cells())
        .with(skep_shell::cell())
        .with(kubernetes())
        .with(node())
        .with(skep_loadbalancer_maglev::cell())
        .with(skep_base_settings::cell())
        .with(maps::cell(choices))
        .with(skep_loadbalancer_model::cell())
        .with(skep_loadbalancer_sources::cell())
        .with(skep_loadbalancer_reconciler::cell())
        .with(skep_loadbalancer_reconciler::testing::testing_cell())
        .with(skep_loadbalancer_redirectpolicy::cell())
        .with(skep_loadbalancer_healthserver::cell())
        .with(skep_loadbalancer_healthserver::kube_proxy_healthz())
        // Scripts read and write these tables, also those that no cell of the hive needs.
        .root::<Table<NodeAddress>>()
        .root::<Table<LocalNode>>()
        .root::<Writer>()
}

fn kubernetes() -> Cell {
    Cell::group([
        skep_k8s_memory::fake_client_cell(),
        skep_k8s_reflectors::tables::cell(),
    ])
}

/// A node of a fixed name, whose addresses are those that scripts insert.
fn node() -> Cell {
    Cell::group([
        Cell::module("test-node", "Name of the node").provide(node_name),
        skep_node_local::cells::local_node(),
        skep_node_local::cells::empty_addresses(),
    ])
}

fn node_name() -> NodeName {
    NodeName::new("testnode")
}

/// The hive with the script's flags, in the place of kube-proxy. Flags of Cilium's programs that have no effect here
/// are ignored, as in its ConfigMap.
pub fn assemble(setup: &Setup, hive: impl Fn(&Choices) -> Hive + Send + Sync + 'static) -> Assembly {
    let choices = setup.choices.clone();
    let assembly = Assembly::new(move || hive(&choices))
        .after_start(first_lists)
        .preset("shell-sock-path", "")
        .preset("kube-proxy-replacement", "true")
        .flags(setup)
        .without_flags(keys_without_effect(AGENT))
        .ignore_arguments();
    if !maps::are_real(&setup.choices) {
        return assembly;
    }
    let mount = maps::Mount::of(setup);
    assembly
        .preset("bpf-root", mount.path().to_string_lossy())
        .keep(mount)
}

pub fn quick(assembly: Assembly) -> Assembly {
    assembly
        .preset("lb-retry-backoff-min", "10ms")
        .preset("lb-retry-backoff-max", "10ms")
        .preset("bpf-lb-maglev-table-size", "1021")
}

/// Longest wait for the first lists: long for a busy machine, and short for scripts that go on without.
const LISTS: Duration = Duration::from_secs(2);

/// Waits until the sources have delivered and the maps are pruned for the first time. Objects that a script adds right
/// after the start arrive as changes then, in the script's order, which decides about ids; in a list they would be
/// sorted by name, and the first pruning releases the ids of frontends that a full map refused.
fn first_lists(built: &Built) -> AfterStart {
    let writer = built.get::<Writer>();
    let reconciled = built.get::<InitWait>();
    Arc::new(move || {
        let (writer, reconciled) = (writer.clone(), reconciled.clone());
        let first = async move {
            if let Some(writer) = writer {
                writer.frontends().wait_initialized(writer.db()).await;
            }
            if let Some(reconciled) = reconciled {
                // An error is in the health of the reconciler.
                let _ = reconciled.prune().await;
            }
        };
        Box::pin(async move {
            // A source that does not deliver is the script's business.
            let _ = tokio::time::timeout(LISTS, first).await;
        })
    })
}
