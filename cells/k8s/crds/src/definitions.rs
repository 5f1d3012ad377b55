// SPDX-License-Identifier: Apache-2.0

//! The definitions of all kinds.

use schemars::JsonSchema;
use serde_json::{Value, json};
use skep_k8s_types::Resource;

use crate::announcement::CiliumL2AnnouncementPolicy;
use crate::bgp::{
    CiliumBGPAdvertisement, CiliumBGPClusterConfig, CiliumBGPNodeConfig, CiliumBGPNodeConfigOverride,
    CiliumBGPPeerConfig,
};
use crate::cidrgroup::CiliumCIDRGroup;
use crate::definition::{Column, ColumnType, Definition, Revision, Subresources};
use crate::egress::CiliumEgressGatewayPolicy;
use crate::endpoint::{CiliumEndpoint, CiliumEndpointSlice};
use crate::envoy::{CiliumClusterwideEnvoyConfig, CiliumEnvoyConfig};
use crate::gatewayclass::CiliumGatewayClassConfig;
use crate::identity::CiliumIdentity;
use crate::mcs::{ServiceExport, ServiceImport};
use crate::node::{CiliumNode, CiliumNodeConfig};
use crate::plugin::CiliumDatapathPlugin;
use crate::policy::{CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy};
use crate::pools::{CiliumLoadBalancerIPPool, CiliumPodIPPool};
use crate::redirectpolicy::CiliumLocalRedirectPolicy;
use crate::schema::at;

const AGE: Column = Column::new("Age", ColumnType::Date, ".metadata.creationTimestamp");

const VALID: Column = Column::new(
    "Valid",
    ColumnType::Text,
    ".status.conditions[?(@.type=='Valid')].status",
);

/// All definitions of group `cilium.io`, in the order in which they are registered.
pub fn cilium() -> Vec<Definition> {
    vec![
        cilium_identity(),
        cilium_pod_ip_pool(),
        cilium_endpoint(),
        cilium_endpoint_slice(),
        cilium_node(),
        cilium_network_policy(),
        cilium_clusterwide_network_policy(),
        cilium_cidr_group(),
        cilium_egress_gateway_policy(),
        cilium_local_redirect_policy(),
        cilium_clusterwide_envoy_config(),
        cilium_envoy_config(),
        cilium_bgp_cluster_config(),
        cilium_bgp_advertisement(),
        cilium_bgp_peer_config(),
        cilium_bgp_node_config(),
        cilium_bgp_node_config_override(),
        cilium_datapath_plugin(),
        cilium_load_balancer_ip_pool(),
        cilium_l2_announcement_policy(),
        cilium_gateway_class_config(),
        cilium_node_config(),
    ]
}

/// All definitions of the Multi-Cluster Services API.
pub fn multi_cluster() -> Vec<Definition> {
    vec![service_import(), service_export()]
}

fn of<T: Resource + JsonSchema>(short_names: &[&'static str]) -> Definition {
    Definition::of::<T>(Revision::Cilium, true)
        .short(short_names)
        .categories(&["cilium"])
}

/// Kinds whose schema does not require `metadata`.
fn without_metadata<T: Resource + JsonSchema>(short_names: &[&'static str]) -> Definition {
    Definition::of::<T>(Revision::Cilium, false)
        .short(short_names)
        .categories(&["cilium"])
}

fn unchanged(_: &mut Value) {}

pub fn cilium_identity() -> Definition {
    of::<CiliumIdentity>(&["ciliumid"])
        .subresources(Subresources::Status)
        .columns(&[
            Column::new(
                "Namespace",
                ColumnType::Text,
                r".metadata.labels.io\.kubernetes\.pod\.namespace",
            )
            .described("Namespace of the pods"),
            AGE,
        ])
}

/// CiliumPodIPPool. Version `v2` is defined but not served.
pub fn cilium_pod_ip_pool() -> Definition {
    let mut definition = without_metadata::<CiliumPodIPPool>(&["cpip"]).also("v2", false, |schema| {
        for family in ["spec.ipv4", "spec.ipv6"] {
            let pool = at(schema, family);
            pool.insert(
                "x-kubernetes-validations".to_owned(),
                json!([{
                    "rule": "!has(self.pool) || self.pool.all(p, p.cidr in self.cidrs)",
                    "message": "If pool is set, each pool entry must reference a CIDR from cidrs",
                }]),
            );
            let entries = json!({
                "description": "Details of networks; each is one of `cidrs`.",
                "type": "array",
                "maxItems": 32,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["cidr"],
                "items": {
                    "type": "object",
                    "required": ["cidr"],
                    "properties": {
                        "cidr": { "description": "The network.", "type": "string", "format": "cidr" },
                        "reservedRanges": {
                            "description": "Addresses that are not allocated.",
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["end", "start"],
                                "properties": {
                                    "end": { "description": "Last address.", "type": "string" },
                                    "start": { "description": "First address.", "type": "string" },
                                },
                            },
                        },
                    },
                },
            });
            pool["properties"]["pool"] = entries;
            pool["properties"]["cidrs"]["maxItems"] = 32.into();
        }
    });
    definition.versions[1].served = false;
    definition.versions.reverse();
    definition
}

pub fn cilium_endpoint() -> Definition {
    of::<CiliumEndpoint>(&["cep", "ciliumep"])
        .subresources(Subresources::Empty)
        .columns(&[
            Column::new("Security Identity", ColumnType::Integer, ".status.identity.id")
                .described("Id of the identity"),
            Column::new(
                "Ingress Enforcement",
                ColumnType::Text,
                ".status.policy.ingress.state",
            )
            .described("Policy of ingress traffic; always empty")
            .wide(),
            Column::new(
                "Egress Enforcement",
                ColumnType::Text,
                ".status.policy.egress.state",
            )
            .described("Policy of egress traffic; always empty")
            .wide(),
            Column::new("Endpoint State", ColumnType::Text, ".status.state")
                .described("State of the endpoint"),
            Column::new("IPv4", ColumnType::Text, ".status.networking.addressing[0].ipv4")
                .described("IPv4 address of the endpoint"),
            Column::new("IPv6", ColumnType::Text, ".status.networking.addressing[0].ipv6")
                .described("IPv6 address of the endpoint"),
        ])
}

pub fn cilium_endpoint_slice() -> Definition {
    of::<CiliumEndpointSlice>(&["ces"])
}

pub fn cilium_node() -> Definition {
    of::<CiliumNode>(&["cn", "ciliumn"])
        .subresources(Subresources::Status)
        .columns(&[
            Column::new(
                "CiliumInternalIP",
                ColumnType::Text,
                r#".spec.addresses[?(@.type=="CiliumInternalIP")].ip"#,
            )
            .described("Address of the node's router"),
            Column::new(
                "InternalIP",
                ColumnType::Text,
                r#".spec.addresses[?(@.type=="InternalIP")].ip"#,
            )
            .described("Address of the node"),
            AGE,
        ])
}

pub fn cilium_network_policy() -> Definition {
    of::<CiliumNetworkPolicy>(&["cnp", "ciliumnp"])
        .categories(&["cilium", "ciliumpolicy"])
        .subresources(Subresources::Status)
        .columns(&[AGE, VALID])
}

pub fn cilium_clusterwide_network_policy() -> Definition {
    of::<CiliumClusterwideNetworkPolicy>(&["ccnp"])
        .categories(&["cilium", "ciliumpolicy"])
        .subresources(Subresources::Status)
        .columns(&[VALID])
}

pub fn cilium_cidr_group() -> Definition {
    without_metadata::<CiliumCIDRGroup>(&["ccg"]).also("v2alpha1", true, unchanged)
}

pub fn cilium_egress_gateway_policy() -> Definition {
    of::<CiliumEgressGatewayPolicy>(&["cegp"])
        .categories(&["cilium", "ciliumpolicy"])
        .subresources(Subresources::Empty)
        .columns(&[AGE])
}

pub fn cilium_local_redirect_policy() -> Definition {
    of::<CiliumLocalRedirectPolicy>(&["clrp"])
        .categories(&["cilium", "ciliumpolicy"])
        .subresources(Subresources::Empty)
        .columns(&[AGE])
}

pub fn cilium_clusterwide_envoy_config() -> Definition {
    of::<CiliumClusterwideEnvoyConfig>(&["ccec"])
        .subresources(Subresources::Empty)
        .columns(&[AGE])
}

pub fn cilium_envoy_config() -> Definition {
    of::<CiliumEnvoyConfig>(&["cec"])
        .subresources(Subresources::Empty)
        .columns(&[AGE])
}

fn bgp<T: Resource + JsonSchema>(short_name: &'static str, subresources: Subresources) -> Definition {
    of::<T>(&[short_name])
        .categories(&["cilium", "ciliumbgp"])
        .subresources(subresources)
        .columns(&[AGE])
}

/// How peers were defined in version `v2alpha1`.
fn old_peers(schema: &mut Value) {
    let peers = at(schema, "spec.bgpInstances[].peers[]");
    if let Some(Value::Object(properties)) = peers.get_mut("properties") {
        properties.shift_remove("autoDiscovery");
    }
    let reference = at(schema, "spec.bgpInstances[].peers[].peerConfigRef");
    for (name, description, default) in [
        ("group", "Group of the kind of the settings.", "cilium.io"),
        ("kind", "Kind of the settings.", "CiliumBGPPeerConfig"),
    ] {
        reference["properties"][name] =
            json!({ "description": description, "type": "string", "default": default });
    }
}

pub fn cilium_bgp_cluster_config() -> Definition {
    bgp::<CiliumBGPClusterConfig>("cbgpcluster", Subresources::Status).also("v2alpha1", true, old_peers)
}

pub fn cilium_bgp_advertisement() -> Definition {
    bgp::<CiliumBGPAdvertisement>("cbgpadvert", Subresources::Empty).also("v2alpha1", true, |schema| {
        let routes = at(schema, "spec.advertisements[]");
        if let Some(Value::Object(properties)) = routes.get_mut("properties") {
            properties.shift_remove("interface");
        }
        // Interfaces were not known: of the rules, the first about services and that about pod networks were there.
        if let Some(Value::Array(rules)) = routes.get_mut("x-kubernetes-validations") {
            let mut index = 0;
            rules.retain(|_| {
                index += 1;
                matches!(index, 1 | 5)
            });
        }
        let types = at(schema, "spec.advertisements[].advertisementType");
        if let Some(Value::Array(words)) = types.get_mut("enum") {
            words.retain(|word| word != "Interface");
        }
    })
}

pub fn cilium_bgp_peer_config() -> Definition {
    bgp::<CiliumBGPPeerConfig>("cbgppeer", Subresources::Status).also("v2alpha1", true, |schema| {
        let transport = at(schema, "spec.transport");
        if let Some(Value::Object(properties)) = transport.get_mut("properties") {
            properties.shift_remove("sourceInterface");
        }
        transport["properties"]["localPort"] = json!({
            "description": "Local port.", "type": "integer", "format": "int32", "minimum": 1, "maximum": 65535,
        });
    })
}

pub fn cilium_bgp_node_config() -> Definition {
    bgp::<CiliumBGPNodeConfig>("cbgpnode", Subresources::Status).also("v2alpha1", true, old_peers)
}

pub fn cilium_bgp_node_config_override() -> Definition {
    bgp::<CiliumBGPNodeConfigOverride>("cbgpnodeoverride", Subresources::Empty)
        .also("v2alpha1", true, unchanged)
}

/// CiliumDatapathPlugin. Its short name is `cddp`, not what its letters suggest.
pub fn cilium_datapath_plugin() -> Definition {
    let mut definition = without_metadata::<CiliumDatapathPlugin>(&["cddp"]);
    definition.versions[0].deprecated = true;
    definition
}

pub fn cilium_load_balancer_ip_pool() -> Definition {
    of::<CiliumLoadBalancerIPPool>(&["ippools", "ippool", "lbippool", "lbippools"])
        .subresources(Subresources::Status)
        .columns(&[
            Column::new("Disabled", ColumnType::Boolean, ".spec.disabled"),
            Column::new(
                "Conflicting",
                ColumnType::Text,
                r#".status.conditions[?(@.type=="cilium.io/PoolConflict")].status"#,
            ),
            Column::new(
                "IPs Available",
                ColumnType::Text,
                r#".status.conditions[?(@.type=="cilium.io/IPsAvailable")].message"#,
            ),
            AGE,
        ])
        .also("v2alpha1", true, unchanged)
}

/// CiliumL2AnnouncementPolicy.
pub fn cilium_l2_announcement_policy() -> Definition {
    of::<CiliumL2AnnouncementPolicy>(&["l2announcement"])
        .subresources(Subresources::Status)
        .columns(&[AGE])
}

pub fn cilium_gateway_class_config() -> Definition {
    of::<CiliumGatewayClassConfig>(&["cgcc"])
        .subresources(Subresources::Status)
        .columns(&[
            Column::new(
                "Accepted",
                ColumnType::Text,
                r#".status.conditions[?(@.type=="Accepted")].status"#,
            ),
            AGE,
            Column::new("Description", ColumnType::Text, ".spec.description").wide(),
        ])
}

pub fn cilium_node_config() -> Definition {
    without_metadata::<CiliumNodeConfig>(&[])
}

/// The storage version is the newest; the one before has the same schema and comes first.
fn multi_cluster_kind(definition: Definition, columns: &[Column]) -> Definition {
    let mut definition = definition
        .subresources(Subresources::Status)
        .columns(columns)
        .also("v1alpha1", false, unchanged);
    definition.versions.reverse();
    definition
}

pub fn service_export() -> Definition {
    let definition =
        Definition::of::<ServiceExport>(Revision::MultiCluster, false).short(&["svcex", "svcexport"]);
    multi_cluster_kind(definition, &[AGE])
}

pub fn service_import() -> Definition {
    let definition =
        Definition::of::<ServiceImport>(Revision::MultiCluster, false).short(&["svcim", "svcimport"]);
    multi_cluster_kind(
        definition,
        &[
            Column::new("Type", ColumnType::Text, ".spec.type"),
            Column::new("IP", ColumnType::Text, ".spec.ips"),
            AGE,
        ],
    )
}
