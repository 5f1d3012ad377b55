// SPDX-License-Identifier: Apache-2.0

//! Settings of Cilium's operator that have no effect here.

use std::collections::BTreeMap;

use hive::{Cell, Cfg};

hive::catalogue!(cell);

/// Settings of Cilium that have no effect here.
pub(crate) fn cell() -> Cell {
    Cell::module("compatibility", "Settings of Cilium without effect")
        .config::<WithoutEffect>()
        .run(|_: Cfg<WithoutEffect>| ())
}

/// Settings that Cilium's operator has, with its defaults, and that have no effect here. Those that ask for something are
/// reported by `unsupported`.
#[derive(Debug, Clone, hive::Config)]
pub(crate) struct WithoutEffect {
    /// Has no effect: groups of controllers are not counted.
    #[config(hidden)]
    pub controller_group_metrics: Vec<String>,
    /// Has no effect: the API has no groups of endpoints that can be turned off.
    #[config(default = "*", hidden)]
    pub enable_cilium_operator_server_access: Vec<String>,
    /// Has no effect: there is no gops agent.
    #[config(default = true, hidden)]
    pub enable_gops: bool,
    /// Has no effect: there is no gops agent.
    #[config(default = 9891, hidden)]
    pub gops_port: u32,
    /// Has no effect: logs are written to the standard error.
    #[config(hidden)]
    pub log_driver: Vec<String>,
    /// Has no effect: see `log-format` and `log-filter`.
    #[config(hidden)]
    pub log_opt: BTreeMap<String, String>,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = "localhost", hidden)]
    pub operator_pprof_address: String,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = 0, hidden)]
    pub operator_pprof_block_profile_rate: u32,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = 0, hidden)]
    pub operator_pprof_mutex_profile_fraction: u32,
    /// Has no effect: there is no pprof endpoint.
    #[config(default = 6061, hidden)]
    pub operator_pprof_port: u32,
    /// Has no effect: metrics are served without TLS.
    #[config(default = "", hidden)]
    pub operator_prometheus_tls_cert_file: String,
    /// Has no effect: metrics are served without TLS.
    #[config(hidden)]
    pub operator_prometheus_tls_client_ca_files: Vec<String>,
    /// Has no effect: metrics are served without TLS.
    #[config(default = "", hidden)]
    pub operator_prometheus_tls_key_file: String,
    /// Has no effect: the resources that are used are known.
    #[config(default = false, hidden)]
    pub enable_k8s_api_discovery: bool,
    /// Has no effect: policies are not validated or derived here.
    #[config(default = true, hidden)]
    pub policy_default_local_cluster: bool,
    /// Has no effect: labels of nodes are not part of identities.
    #[config(default = false, hidden)]
    pub enable_node_selector_labels: bool,
    /// Has no effect: there is no IPAM of cloud providers.
    #[config(hidden)]
    pub instance_tags_filter: BTreeMap<String, String>,
    /// Has no effect: there is no IPAM of cloud providers.
    #[config(default = 20, hidden)]
    pub limit_ipam_api_burst: u32,
    /// Has no effect: there is no IPAM of cloud providers.
    #[config(default = 4, hidden)]
    pub limit_ipam_api_qps: u32,
    /// Has no effect: there is no IPAM of cloud providers.
    #[config(default = 50, hidden)]
    pub parallel_alloc_workers: u32,
    /// Has no effect: there is no proxy.
    #[config(default = "round_robin", hidden)]
    pub loadbalancer_l7_algorithm: String,
    /// Has no effect: there is no proxy.
    #[config(hidden)]
    pub loadbalancer_l7_ports: Vec<String>,
    /// Has no effect: Gateways are not served.
    #[config(default = false, hidden)]
    pub enable_gateway_api_alpn: bool,
    /// Has no effect: Gateways are not served.
    #[config(default = false, hidden)]
    pub enable_gateway_api_app_protocol: bool,
    /// Has no effect: Gateways are not served.
    #[config(default = false, hidden)]
    pub enable_gateway_api_proxy_protocol: bool,
    /// Has no effect: Gateways are not served.
    #[config(default = true, hidden)]
    pub enable_gateway_api_secrets_sync: bool,
    /// Has no effect: Ingresses are not served.
    #[config(default = false, hidden)]
    pub enable_ingress_proxy_protocol: bool,
    /// Has no effect: Ingresses are not served.
    #[config(default = true, hidden)]
    pub enable_ingress_secrets_sync: bool,
    /// Has no effect: Ingresses are not served.
    #[config(default = true, hidden)]
    pub enforce_ingress_https: bool,
    /// Has no effect: Gateways are not served.
    #[config(default = false, hidden)]
    pub gateway_api_hostnetwork_enabled: bool,
    /// Has no effect: Gateways are not served.
    #[config(default = "", hidden)]
    pub gateway_api_hostnetwork_nodelabelselector: String,
    /// Has no effect: Gateways are not served.
    #[config(default = "cilium-secrets", hidden)]
    pub gateway_api_secrets_namespace: String,
    /// Has no effect: Gateways are not served.
    #[config(default = "Cluster", hidden)]
    pub gateway_api_service_externaltrafficpolicy: String,
    /// Has no effect: Gateways are not served.
    #[config(default = true, hidden)]
    pub gateway_api_use_remote_address: bool,
    /// Has no effect: Gateways are not served.
    #[config(default = 0, hidden)]
    pub gateway_api_xff_num_trusted_hops: u32,
    /// Has no effect: Ingresses are not served.
    #[config(default = "dedicated", hidden)]
    pub ingress_default_lb_mode: String,
    /// Has no effect: Ingresses are not served.
    #[config(default = "0s", hidden)]
    pub ingress_default_request_timeout: String,
    /// Has no effect: Ingresses are not served.
    #[config(default = "", hidden)]
    pub ingress_default_secret_name: String,
    /// Has no effect: Ingresses are not served.
    #[config(default = "", hidden)]
    pub ingress_default_secret_namespace: String,
    /// Has no effect: Ingresses are not served.
    #[config(default = 0, hidden)]
    pub ingress_default_xff_num_trusted_hops: u32,
    /// Has no effect: Ingresses are not served.
    #[config(default = false, hidden)]
    pub ingress_hostnetwork_enabled: bool,
    /// Has no effect: Ingresses are not served.
    #[config(default = 0, hidden)]
    pub ingress_hostnetwork_http_listener_port: u32,
    /// Has no effect: Ingresses are not served.
    #[config(default = 0, hidden)]
    pub ingress_hostnetwork_https_listener_port: u32,
    /// Has no effect: Ingresses are not served.
    #[config(default = "", hidden)]
    pub ingress_hostnetwork_nodelabelselector: String,
    /// Has no effect: Ingresses are not served.
    #[config(default = 0, hidden)]
    pub ingress_hostnetwork_shared_listener_port: u32,
    /// Has no effect: Ingresses are not served.
    #[config(default = 0, hidden)]
    pub ingress_hostnetwork_tls_passthrough_listener_port: u32,
    /// Has no effect: Ingresses are not served.
    #[config(
        default = "lbipam.cilium.io,service.beta.kubernetes.io,service.kubernetes.io,cloud.google.com",
        hidden
    )]
    pub ingress_lb_annotation_prefixes: Vec<String>,
    /// Has no effect: Ingresses are not served.
    #[config(default = "cilium-secrets", hidden)]
    pub ingress_secrets_namespace: String,
    /// Has no effect: Ingresses are not served.
    #[config(default = "cilium-ingress", hidden)]
    pub ingress_shared_lb_service_name: String,
    /// Has no effect: Ingresses are not served.
    #[config(default = true, hidden)]
    pub ingress_use_remote_address: bool,
    /// Has no effect: there is no proxy.
    #[config(default = 60, hidden)]
    pub proxy_idle_timeout_seconds: u32,
    /// Has no effect: there is no proxy.
    #[config(default = 300, hidden)]
    pub proxy_stream_idle_timeout_seconds: u32,
    /// Has no effect: encryption is up to the agents.
    #[config(default = false, hidden)]
    pub enable_ipsec: bool,
    /// Has no effect: there is no proxy.
    #[config(default = true, hidden)]
    pub enable_l7_proxy: bool,
    /// Has no effect: policies are not validated or derived here.
    #[config(default = "default", hidden)]
    pub enable_policy: String,
    /// Has no effect: encryption is up to the agents.
    #[config(default = false, hidden)]
    pub enable_wireguard: bool,
    /// Has no effect: there is no mutual authentication.
    #[config(default = false, hidden)]
    pub mesh_auth_enabled: bool,
    /// Has no effect: there is no mutual authentication.
    #[config(default = "spiffe.cilium", hidden)]
    pub mesh_auth_spiffe_trust_domain: String,
    /// Has no effect: there is no mutual authentication.
    #[config(default = "/run/spire/sockets/agent/agent.sock", hidden)]
    pub mesh_auth_spire_agent_socket: String,
    /// Has no effect: there is no mutual authentication.
    #[config(default = "spire-server.spire.svc:8081", hidden)]
    pub mesh_auth_spire_server_address: String,
    /// Has no effect: there is no mutual authentication.
    #[config(default = "10s", hidden)]
    pub mesh_auth_spire_server_connection_timeout: String,
    /// Has no effect: policies are not validated or derived here.
    #[config(default = "10m0s", hidden)]
    pub policy_external_group_sync_interval: String,
    /// Has no effect: policies are not validated or derived here.
    #[config(default = true, hidden)]
    pub validate_network_policy: bool,
    /// Has no effect: there is no encryption by ztunnel.
    #[config(default = "internal", hidden)]
    pub ztunnel_ca_type: String,
}
