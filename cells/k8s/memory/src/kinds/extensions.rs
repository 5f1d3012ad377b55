// SPDX-License-Identifier: Apache-2.0

//! Extension kinds that are known without a definition, with the names that their definitions would give them.

use self::Scope::{Cluster, Namespaced};
use super::Kind;
use crate::gvr::{Gvr, guess_plural};
use crate::schema::Shape;

#[derive(Clone, Copy, PartialEq)]
enum Scope {
    Cluster,
    Namespaced,
}

/// Group, version, kind, scope, whether it has a status sub-resource, short names, categories.
type Extension = (
    &'static str,
    &'static str,
    &'static str,
    Scope,
    bool,
    &'static [&'static str],
    &'static [&'static str],
);

#[rustfmt::skip]
const EXTENSIONS: &[Extension] = &[
    ("cilium.io", "v2", "CiliumNode", Cluster, true, &["cn", "ciliumn"], &["cilium"]),
    ("cilium.io", "v2", "CiliumEndpoint", Namespaced, false, &["cep", "ciliumep"], &["cilium"]),
    ("cilium.io", "v2", "CiliumIdentity", Cluster, true, &["ciliumid"], &["cilium"]),
    ("cilium.io", "v2", "CiliumNetworkPolicy", Namespaced, true, &["cnp", "ciliumnp"], &["cilium", "ciliumpolicy"]),
    ("cilium.io", "v2", "CiliumClusterwideNetworkPolicy", Cluster, true, &["ccnp"], &["cilium", "ciliumpolicy"]),
    ("cilium.io", "v2", "CiliumEnvoyConfig", Namespaced, false, &["cec"], &["cilium"]),
    ("cilium.io", "v2", "CiliumClusterwideEnvoyConfig", Cluster, false, &["ccec"], &["cilium"]),
    ("cilium.io", "v2", "CiliumLocalRedirectPolicy", Namespaced, false, &["clrp"], &["cilium", "ciliumpolicy"]),
    ("cilium.io", "v2", "CiliumEgressGatewayPolicy", Cluster, false, &["cegp"], &["cilium", "ciliumpolicy"]),
    ("cilium.io", "v2", "CiliumNodeConfig", Namespaced, false, &[], &["cilium"]),
    ("cilium.io", "v2", "CiliumCIDRGroup", Cluster, false, &["ccg"], &["cilium"]),
    ("cilium.io", "v2", "CiliumLoadBalancerIPPool", Cluster, true, &["ippools", "ippool", "lbippool", "lbippools"], &["cilium"]),
    ("cilium.io", "v2", "CiliumBGPClusterConfig", Cluster, true, &["cbgpcluster"], &["cilium", "ciliumbgp"]),
    ("cilium.io", "v2", "CiliumBGPPeerConfig", Cluster, true, &["cbgppeer"], &["cilium", "ciliumbgp"]),
    ("cilium.io", "v2", "CiliumBGPAdvertisement", Cluster, false, &["cbgpadvert"], &["cilium", "ciliumbgp"]),
    ("cilium.io", "v2", "CiliumBGPNodeConfig", Cluster, true, &["cbgpnode"], &["cilium", "ciliumbgp"]),
    ("cilium.io", "v2", "CiliumBGPNodeConfigOverride", Cluster, false, &["cbgpnodeoverride"], &["cilium", "ciliumbgp"]),
    ("cilium.io", "v2alpha1", "CiliumEndpointSlice", Cluster, false, &["ces"], &["cilium"]),
    ("cilium.io", "v2alpha1", "CiliumPodIPPool", Cluster, false, &["cpip"], &["cilium"]),
    ("cilium.io", "v2alpha1", "CiliumL2AnnouncementPolicy", Cluster, true, &["l2announcement"], &["cilium"]),
    ("cilium.io", "v2alpha1", "CiliumGatewayClassConfig", Namespaced, true, &["cgcc"], &["cilium"]),
    ("multicluster.x-k8s.io", "v1alpha1", "ServiceExport", Namespaced, true, &["svcex", "svcexport"], &[]),
    ("multicluster.x-k8s.io", "v1alpha1", "ServiceImport", Namespaced, true, &["svcim", "svcimport"], &[]),
    ("multicluster.x-k8s.io", "v1beta1", "ServiceExport", Namespaced, true, &["svcex", "svcexport"], &[]),
    ("multicluster.x-k8s.io", "v1beta1", "ServiceImport", Namespaced, true, &["svcim", "svcimport"], &[]),
    ("policy.networking.k8s.io", "v1alpha1", "AdminNetworkPolicy", Cluster, true, &["anp"], &[]),
    ("policy.networking.k8s.io", "v1alpha1", "BaselineAdminNetworkPolicy", Cluster, true, &["banp"], &[]),
    ("policy.networking.k8s.io", "v1alpha2", "ClusterNetworkPolicy", Cluster, true, &[], &[]),
    ("gateway.networking.k8s.io", "v1", "Gateway", Namespaced, true, &["gtw"], &["gateway-api"]),
    ("gateway.networking.k8s.io", "v1", "GatewayClass", Cluster, true, &["gc"], &["gateway-api"]),
    ("gateway.networking.k8s.io", "v1", "HTTPRoute", Namespaced, true, &[], &["gateway-api"]),
    ("gateway.networking.k8s.io", "v1", "GRPCRoute", Namespaced, true, &[], &["gateway-api"]),
    ("gateway.networking.k8s.io", "v1", "BackendTLSPolicy", Namespaced, true, &["btlspolicy"], &["gateway-api"]),
    ("gateway.networking.k8s.io", "v1beta1", "ReferenceGrant", Namespaced, false, &["refgrant"], &["gateway-api"]),
    ("gateway.networking.k8s.io", "v1alpha2", "TLSRoute", Namespaced, true, &[], &["gateway-api"]),
    ("gateway.networking.k8s.io", "v1alpha2", "TCPRoute", Namespaced, true, &[], &["gateway-api"]),
    ("gateway.networking.k8s.io", "v1alpha2", "UDPRoute", Namespaced, true, &[], &["gateway-api"]),
];

/// The plural of an extension kind: as guessed, but for the one whose definition says otherwise.
fn plural(kind: &str) -> String {
    match kind {
        "Gateway" => "gateways".to_owned(),
        _ => guess_plural(kind),
    }
}

/// All of them.
pub(super) fn kinds() -> impl Iterator<Item = Kind> {
    EXTENSIONS.iter().map(
        |&(group, version, kind, scope, has_status, short_names, categories)| Kind {
            gvr: Gvr::new(group, version, &plural(kind)),
            kind: kind.into(),
            singular: kind.to_lowercase().into(),
            list_kind: format!("{kind}List").into(),
            namespaced: scope == Namespaced,
            short_names: short_names.iter().map(|name| (*name).into()).collect(),
            categories: categories.iter().map(|name| (*name).into()).collect(),
            has_status,
            scale: None,
            counts_generations: true,
            in_slim_domain: true,
            in_core_domain: false,
            storage_version: version.into(),
            shape: Shape::Any,
            custom: None,
        },
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn resources_are_called_as_their_definitions_call_them() {
        let resources: Vec<String> = kinds().map(|kind| kind.gvr.qualified()).collect();

        assert!(resources.contains(&"gateways.gateway.networking.k8s.io".to_owned()));
        assert!(resources.contains(&"ciliumnetworkpolicies.cilium.io".to_owned()));
    }

    #[test]
    fn a_short_name_means_one_resource() {
        let mut owners = HashMap::new();
        for kind in kinds() {
            for name in &kind.short_names {
                let owner = owners.entry(name.clone()).or_insert_with(|| kind.gvr.qualified());
                assert_eq!(*owner, kind.gvr.qualified(), "{name}");
            }
        }
        assert_eq!(owners["cnp"], "ciliumnetworkpolicies.cilium.io");
        assert_eq!(owners["clrp"], "ciliumlocalredirectpolicies.cilium.io");
    }
}
