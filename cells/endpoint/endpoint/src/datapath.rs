// SPDX-License-Identifier: Apache-2.0

//! What the datapath does for an endpoint beyond delivery: a route of its own, a program for what the kernel sends there.

use std::{collections::BTreeSet, fmt::Debug, net::IpAddr};

use serde::{Deserialize, Serialize};
use skep_base_net::{NetError, host_route};
use skep_base_settings::AttachConfig;

/// Cilium's `EndpointDatapathConfiguration`, as far as it is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct DatapathConfiguration {
    /// The agent does not release its addresses: another IPAM allocated them.
    #[serde(skip_serializing_if = "is_false")]
    pub external_ipam: bool,
    /// The kernel has a route of its own to it.
    #[serde(skip_serializing_if = "is_false")]
    pub install_endpoint_route: bool,
    /// The kernel answers its ARP requests, not `cil_from_container`.
    #[serde(skip_serializing_if = "is_false")]
    pub require_arp_passthrough: bool,
    /// `cil_to_container` is at its interface.
    #[serde(skip_serializing_if = "is_false")]
    pub require_egress_prog: bool,
    /// The datapath routes its packets. `None`: as the node's settings say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_routing: Option<bool>,
}

fn is_false(value: &bool) -> bool {
    !*value
}

/// The settings of the node that decide for all endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointRouting {
    /// Each endpoint has a route and a program of its own (`enable-endpoint-routes`).
    pub endpoint_routes: bool,
    /// The routes are another CNI plugin's (`cni-external-routing`, `cni-chaining-mode=aws-cni`).
    pub external: bool,
    /// Addresses of deleted endpoints get unreachable routes (`enable-unreachable-routes`).
    pub unreachable: bool,
}

impl EndpointRouting {
    pub fn new(config: &AttachConfig) -> Self {
        Self {
            endpoint_routes: config.enable_endpoint_routes,
            external: config.has_external_routing(),
            unreachable: config.enable_unreachable_routes,
        }
    }

    /// What an endpoint gets that requested this.
    pub fn effective(self, requested: DatapathConfiguration) -> DatapathConfiguration {
        if !self.endpoint_routes {
            // What takes the route would pass no policy without the program.
            let require_egress_prog = requested.require_egress_prog || requested.install_endpoint_route;
            return DatapathConfiguration {
                require_egress_prog,
                ..requested
            };
        }
        DatapathConfiguration {
            install_endpoint_route: !self.external,
            require_egress_prog: true,
            require_routing: Some(false),
            ..requested
        }
    }

    /// Whether routes to an endpoint that requested this are installed and removed by another CNI plugin.
    pub(crate) fn leaves_routes(self, requested: DatapathConfiguration) -> bool {
        let is_external = self.external || requested.require_routing == Some(false);
        is_external && !self.effective(requested).install_endpoint_route
    }
}

/// Routes of the node to endpoints.
pub trait EndpointRoutes: Send + Sync + Debug {
    /// Routes these addresses to the interface of this index, and no others.
    fn set(&self, ifindex: u32, addresses: &[IpAddr]) -> Result<(), NetError>;

    /// Adds an unreachable route to an address, unless there is a route to this address alone.
    fn add_unreachable(&self, address: IpAddr) -> Result<(), NetError>;

    /// Removes the unreachable route to an address; fine if there is none.
    fn remove_unreachable(&self, address: IpAddr) -> Result<(), NetError>;

    /// Addresses with an unreachable route.
    fn unreachable(&self) -> Result<BTreeSet<IpAddr>, NetError>;
}

/// The routes of the network namespace of this process.
#[derive(Debug, Default)]
pub struct KernelRoutes;

impl EndpointRoutes for KernelRoutes {
    fn set(&self, ifindex: u32, addresses: &[IpAddr]) -> Result<(), NetError> {
        host_route::set(ifindex, addresses).map(drop)
    }

    fn add_unreachable(&self, address: IpAddr) -> Result<(), NetError> {
        host_route::add_unreachable(address).map(drop)
    }

    fn remove_unreachable(&self, address: IpAddr) -> Result<(), NetError> {
        host_route::remove_unreachable(address).map(drop)
    }

    fn unreachable(&self) -> Result<BTreeSet<IpAddr>, NetError> {
        host_route::unreachable_addresses()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    const NOTHING: DatapathConfiguration = DatapathConfiguration {
        external_ipam: false,
        install_endpoint_route: false,
        require_arp_passthrough: false,
        require_egress_prog: false,
        require_routing: None,
    };

    const ON: EndpointRouting = EndpointRouting {
        endpoint_routes: true,
        external: false,
        unreachable: false,
    };

    #[test]
    fn the_setting_of_the_node_decides_for_all_endpoints() {
        let effective = ON.effective(NOTHING);

        let expected =
            json!({"install-endpoint-route": true, "require-egress-prog": true, "require-routing": false});
        assert_eq!(to_value(effective).unwrap(), expected);
        assert!(!ON.leaves_routes(NOTHING));
    }

    #[test]
    fn routes_of_another_plugin_are_left_alone() {
        let external = EndpointRouting { external: true, ..ON };
        let effective = external.effective(DatapathConfiguration {
            external_ipam: true,
            ..NOTHING
        });

        assert!(effective.require_egress_prog && effective.external_ipam);
        assert!(!effective.install_endpoint_route);
        assert!(external.leaves_routes(NOTHING));
    }

    #[test]
    fn without_the_setting_an_endpoint_has_what_it_requested() {
        let off = EndpointRouting::default();
        let chained = DatapathConfiguration {
            external_ipam: true,
            install_endpoint_route: false,
            require_arp_passthrough: true,
            require_egress_prog: true,
            require_routing: Some(false),
        };

        assert_eq!(off.effective(chained), chained);
        assert!(off.leaves_routes(chained));
        assert_eq!(off.effective(NOTHING), NOTHING);
        assert!(!off.leaves_routes(NOTHING));
        assert_eq!(to_value(NOTHING).unwrap(), json!({}));
        let routed = off.effective(DatapathConfiguration {
            install_endpoint_route: true,
            ..NOTHING
        });
        assert!(routed.install_endpoint_route && routed.require_egress_prog);
    }
}
