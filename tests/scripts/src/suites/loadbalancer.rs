// SPDX-License-Identifier: Apache-2.0

//! The load balancer: services of a fake Kubernetes client into maps.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use hive::{Built, Cell};
use hive_script::{Condition, Conditions, Retry};
use skep_k8s::node_name::NodeName;
use skep_k8s_apiserver::fake_client_cell;
use skep_loadbalancer_model::Writer;
use skep_node::{LocalNode, NodeAddress};
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

/// Settings which scripts give and nobody here obeys: in these hives nobody gives addresses to services, scripts
/// themselves say which addresses the node has, and there are no programs.
#[derive(Debug, Clone, hive::Config)]
struct OutsideConfig {
    /// Give addresses of pools to load balancer services.
    #[config(default = true, flag = "enable-lb-ipam")]
    _lb_ipam: bool,
    /// Give addresses of nodes to load balancer services.
    #[config(default = false, flag = "enable-node-ipam")]
    _node_ipam: bool,
    /// Networks of the addresses that node ports are served on.
    #[config(flag = "nodeport-addresses")]
    _node_port_networks: Vec<String>,
    /// Services at sockets.
    #[config(default = false, flag = "bpf-lb-sock")]
    _bpf_lb_sock: bool,
    /// Services at sockets of the host only.
    #[config(default = false, flag = "bpf-lb-sock-hostns-only")]
    _bpf_lb_sock_hostns_only: bool,
    /// End sockets of pods, too, whose backends are gone.
    #[config(default = true, flag = "bpf-lb-sock-terminate-pod-connections")]
    _bpf_lb_sock_terminate_pod_connections: bool,
    /// End TCP sockets, too, whose backends are gone.
    #[config(default = false, flag = "lb-sock-terminate-all-protos")]
    _lb_sock_terminate_all_protos: bool,
    /// Events of services at sockets.
    #[config(default = true, flag = "trace-sock")]
    _trace_sock: bool,
    /// Refuse sockets on node ports.
    #[config(default = true, flag = "node-port-bind-protection")]
    _node_port_bind_protection: bool,
    /// Reserve node ports in the kernel.
    #[config(default = true, flag = "enable-auto-protect-node-port-range")]
    _enable_auto_protect_node_port_range: bool,
    /// Backends of the other family.
    #[config(default = false, flag = "bpf-lb-nat46x64")]
    _bpf_lb_nat46x64: bool,
    /// Translate between families.
    #[config(default = false, flag = "enable-nat46x64-gateway")]
    _enable_nat46x64_gateway: bool,
    /// Mark sockets of health probes.
    #[config(default = false, flag = "bpf-lb-ipip-sock-mark")]
    _bpf_lb_ipip_sock_mark: bool,
    /// Take source addresses from the routing table.
    #[config(default = false, flag = "enable-dynamic-source-lookup-nodeport")]
    _enable_dynamic_source_lookup_nodeport: bool,
    /// Route addresses of services without endpoints.
    #[config(default = true, flag = "enable-no-service-endpoints-routable")]
    _enable_no_service_endpoints_routable: bool,
    /// Count connections by zone.
    #[config(default = false, flag = "enable-active-connection-tracking")]
    _enable_active_connection_tracking: bool,
    /// How addresses travel in packets that are answered directly.
    #[config(default = "opt", flag = "bpf-lb-dsr-dispatch")]
    _bpf_lb_dsr_dispatch: String,
    /// Source addresses of packets in IPIP.
    #[config(default = "", flag = "bpf-lb-rss-ipv4-src-cidr")]
    _bpf_lb_rss_ipv4_src_cidr: String,
    /// The same for IPv6.
    #[config(default = "", flag = "bpf-lb-rss-ipv6-src-cidr")]
    _bpf_lb_rss_ipv6_src_cidr: String,
    /// Services at drivers.
    #[config(default = "disabled", flag = "bpf-lb-acceleration")]
    _bpf_lb_acceleration: String,
    /// The old name of the same.
    #[config(default = "disabled", flag = "node-port-acceleration")]
    _node_port_acceleration: String,
    /// What clients of services without backends get.
    #[config(default = "reject", flag = "service-no-backend-response")]
    _service_no_backend_response: String,
    /// Where kube-proxy's health is told.
    #[config(default = "", flag = "kube-proxy-replacement-healthz-bind-address")]
    _kube_proxy_replacement_healthz_bind_address: String,
}

/// What the suites of the load balancer have in common.
pub(super) fn cells(maps: Maps) -> Vec<Cell> {
    let mut cells = base_cells();
    cells.extend([
        hive_script::cell::cell(),
        fake_client_cell(),
        skep_k8s::tables::cell(),
        skep_maglev::cell(),
        skep_loadbalancer_model::cell(),
        skep_loadbalancer_sources::cell(),
        skep_node::cells::local_node(),
        skep_node::cells::empty_addresses(),
        Cell::module("test-node", "Name of the node").provide(new_name),
        Cell::module("outside-config", "Settings of others that scripts may give").config::<OutsideConfig>(),
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
