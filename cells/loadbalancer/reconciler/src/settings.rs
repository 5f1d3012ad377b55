// SPDX-License-Identifier: Apache-2.0

//! What the reconciler must know of the configuration and of the node.

use std::collections::HashMap;

use compact_str::CompactString;
use skep_base_settings::{
    AddressFamilies, Algorithm, BalancingConfig, DefaultIpam, ForwardingConfig, NodeMode, ServiceIpamConfig,
};
use skep_loadbalancer_model::Config;
use skep_loadbalancer_model::types::{
    ForwardingMode, Frontend, FrontendKind, L3n4Addr, L4Proto, LbAlgorithm, Scope,
};

use super::families::Embedding;

/// Configuration of the reconciler, resolved.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether IPv4 frontends are written.
    pub ipv4: bool,
    /// Whether IPv6 frontends are written.
    pub ipv6: bool,
    /// Algorithm for services that say nothing.
    pub algorithm: LbAlgorithm,
    /// Whether services may pick their algorithm by annotation.
    pub algorithm_annotation: bool,
    /// Whether cluster IPs are reachable from outside.
    pub external_cluster_ip: bool,
    /// Whether source ranges are checked on frontends of all kinds.
    pub source_range_all_types: bool,
    /// Forwarding mode for services that say nothing.
    pub mode: NodeMode,
    /// Whether services may pick their forwarding mode by annotation.
    pub mode_annotation: bool,
    /// Whether services without class get their addresses from LB-IPAM.
    pub default_class_is_lbipam: bool,
    /// Number of each zone.
    pub zones: HashMap<CompactString, u8>,
    /// How IPv4 addresses are embedded for frontends with backends of the other family; `None`: there are none.
    pub embedding: Option<Embedding>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ipv4: true,
            ipv6: true,
            algorithm: LbAlgorithm::Random,
            algorithm_annotation: false,
            external_cluster_ip: false,
            source_range_all_types: false,
            mode: NodeMode::Snat,
            mode_annotation: false,
            default_class_is_lbipam: true,
            zones: HashMap::new(),
            embedding: None,
        }
    }
}

impl Settings {
    /// The configuration of the reconciler in the settings of the load balancer.
    pub fn new(
        config: &Config,
        balancing: &BalancingConfig,
        ipam: &ServiceIpamConfig,
        families: &AddressFamilies,
        forwarding: &ForwardingConfig,
    ) -> Self {
        Self {
            ipv4: families.ipv4,
            ipv6: families.ipv6,
            algorithm: match balancing.algorithm {
                Algorithm::Random => LbAlgorithm::Random,
                Algorithm::Maglev => LbAlgorithm::Maglev,
            },
            algorithm_annotation: balancing.algorithm_annotation,
            external_cluster_ip: config.external_cluster_ip,
            source_range_all_types: config.source_range_all_types,
            mode: forwarding.mode,
            mode_annotation: forwarding.mode_annotation,
            default_class_is_lbipam: ipam.default_lb_service_ipam == DefaultIpam::LbIpam,
            zones: config
                .zones
                .iter()
                .map(|(zone, number)| (zone.as_str().into(), *number))
                .collect(),
            embedding: forwarding
                .nat46x64_of_services(families)
                .map(|network| Embedding::new(network.network())),
        }
    }

    /// Whether frontends of an address's family are written.
    pub fn handles(&self, address: &L3n4Addr) -> bool {
        if address.is_ipv4() { self.ipv4 } else { self.ipv6 }
    }

    /// Whether a lookup table is written for a frontend at an address.
    pub fn uses_maglev(&self, frontend: &Frontend, address: &L3n4Addr) -> bool {
        if address.is_unspecified() {
            return false;
        }
        if self.algorithm_annotation {
            match frontend.service.explicit_algorithm() {
                LbAlgorithm::Maglev => return true,
                LbAlgorithm::Random => return false,
                LbAlgorithm::Unset => {}
            }
        }
        self.algorithm == LbAlgorithm::Maglev
            && match frontend.effective_kind() {
                FrontendKind::ClusterIp => self.external_cluster_ip,
                FrontendKind::LocalRedirect => false,
                _ => true,
            }
    }

    /// Whether packets to a frontend are forwarded by direct server return.
    pub fn forwards_dsr(&self, frontend: &Frontend) -> bool {
        if self.mode_annotation {
            match frontend.service.forwarding_mode {
                ForwardingMode::Dsr => return true,
                ForwardingMode::Snat => return false,
                ForwardingMode::Unset => {}
            }
        }
        match self.mode {
            NodeMode::Snat => false,
            NodeMode::Dsr => true,
            NodeMode::Hybrid => frontend.address().proto() == L4Proto::Tcp,
        }
    }

    /// Whether a frontend's address gets a wildcard entry.
    pub fn uses_wildcard(&self, frontend: &Frontend) -> bool {
        !frontend.is_node_address
            && matches!(
                frontend.params.kind,
                FrontendKind::ClusterIp | FrontendKind::LoadBalancer
            )
            && frontend.address().scope() == Scope::External
            && match frontend.service.load_balancer_class.as_deref() {
                None => self.default_class_is_lbipam,
                Some(class) => matches!(class, "io.cilium/bgp-control-plane" | "io.cilium/l2-announcer"),
            }
    }
}
