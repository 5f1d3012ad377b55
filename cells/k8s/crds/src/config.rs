// SPDX-License-Identifier: Apache-2.0

//! Which definitions are registered.

use crate::definition::Definition;
use crate::definitions;

/// Which definitions are registered. Turning a feature off never deletes a definition.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Skip the registration of CRDs.
    #[config(default = false)]
    pub skip_crd_creation: bool,
    /// Disable CiliumEndpoints.
    #[config(default = false)]
    pub disable_endpoint_crd: bool,
    /// Enable CiliumEndpointSlices.
    #[config(default = false)]
    pub enable_cilium_endpoint_slice: bool,
    /// Enable CiliumNodes.
    #[config(default = true)]
    pub enable_ciliumnode_crd: bool,
    /// Enable CiliumNetworkPolicies.
    #[config(default = true)]
    pub enable_cilium_network_policy: bool,
    /// Enable CiliumClusterwideNetworkPolicies.
    #[config(default = true)]
    pub enable_cilium_clusterwide_network_policy: bool,
    /// Enable CiliumEgressGatewayPolicies.
    #[config(default = false)]
    pub enable_egress_gateway: bool,
    /// Enable CiliumLocalRedirectPolicies.
    #[config(default = false)]
    pub enable_local_redirect_policy: bool,
    /// Enable CiliumEnvoyConfigs and CiliumClusterwideEnvoyConfigs.
    #[config(default = false)]
    pub enable_envoy_config: bool,
    /// Enable the CRDs of the BGP control plane.
    #[config(default = false)]
    pub enable_bgp_control_plane: bool,
    /// Enable CiliumDatapathPlugins.
    #[config(default = false)]
    pub enable_datapath_plugins: bool,
    /// Enable CiliumGatewayClassConfigs.
    #[config(default = false)]
    pub enable_gateway_api: bool,
    /// Enable the Multi-Cluster Services API.
    #[config(default = false)]
    pub clustermesh_enable_mcs_api: bool,
    /// Install the CRDs of the Multi-Cluster Services API.
    #[config(default = true)]
    pub clustermesh_mcs_api_install_crds: bool,
}

/// What settings of other cells mean for the definitions. A cell that owns them provides it; the default stands for a
/// cluster without a key-value store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, hive::Value)]
pub struct CrdContext {
    pub has_kvstore: bool,
    pub identities_in_crds: bool,
    /// A plugin allocates addresses (`ipam: delegated-plugin`).
    pub delegates_ipam: bool,
    pub enforces_kubernetes_policies: bool,
}

impl Default for CrdContext {
    fn default() -> Self {
        Self {
            has_kvstore: false,
            identities_in_crds: true,
            delegates_ipam: false,
            enforces_kubernetes_policies: true,
        }
    }
}

impl Config {
    /// The definitions to register, in this order.
    pub fn definitions(&self, context: &CrdContext) -> Vec<Definition> {
        let mut selected: Vec<Definition> = definitions::cilium()
            .into_iter()
            .filter(|definition| self.selects(&definition.kind, context))
            .collect();
        if self.clustermesh_enable_mcs_api && self.clustermesh_mcs_api_install_crds {
            selected.extend(definitions::multi_cluster());
        }
        selected
    }

    fn selects(&self, kind: &str, context: &CrdContext) -> bool {
        let has_policies = self.enable_cilium_network_policy || self.enable_cilium_clusterwide_network_policy;
        match kind {
            "CiliumEndpoint" => !self.disable_endpoint_crd || self.needs_endpoints(context, has_policies),
            "CiliumEndpointSlice" => self.enable_cilium_endpoint_slice,
            "CiliumNode" => {
                self.enable_ciliumnode_crd || !(context.delegates_ipam && context.identities_in_crds)
            }
            "CiliumNetworkPolicy" => self.enable_cilium_network_policy,
            "CiliumClusterwideNetworkPolicy" => self.enable_cilium_clusterwide_network_policy,
            "CiliumCIDRGroup" => has_policies,
            "CiliumEgressGatewayPolicy" => self.enable_egress_gateway,
            "CiliumLocalRedirectPolicy" => self.enable_local_redirect_policy,
            "CiliumEnvoyConfig" | "CiliumClusterwideEnvoyConfig" => self.enable_envoy_config,
            "CiliumDatapathPlugin" => self.enable_datapath_plugins,
            "CiliumGatewayClassConfig" => self.enable_gateway_api,
            kind if kind.starts_with("CiliumBGP") => self.enable_bgp_control_plane,
            _ => true,
        }
    }

    /// Without them no agent would know the identities behind the addresses of other nodes.
    fn needs_endpoints(&self, context: &CrdContext, has_policies: bool) -> bool {
        !context.has_kvstore
            && !self.enable_cilium_endpoint_slice
            && (has_policies || context.enforces_kubernetes_policies)
    }
}

#[cfg(test)]
mod tests {
    use hive::Config as _;

    use super::*;

    fn kinds(config: &Config, context: &CrdContext) -> Vec<String> {
        let definitions = config.definitions(context);
        definitions
            .into_iter()
            .map(|definition| definition.kind)
            .collect()
    }

    #[test]
    fn registers_by_default_what_always_is_in_use() {
        let config = Config::defaults().unwrap();

        assert_eq!(
            kinds(&config, &CrdContext::default()),
            [
                "CiliumIdentity",
                "CiliumPodIPPool",
                "CiliumEndpoint",
                "CiliumNode",
                "CiliumNetworkPolicy",
                "CiliumClusterwideNetworkPolicy",
                "CiliumCIDRGroup",
                "CiliumLoadBalancerIPPool",
                "CiliumL2AnnouncementPolicy",
                "CiliumNodeConfig",
            ]
        );
    }

    #[test]
    fn features_add_their_kinds() {
        let mut config = Config::defaults().unwrap();
        config.enable_bgp_control_plane = true;
        config.enable_envoy_config = true;
        config.clustermesh_enable_mcs_api = true;

        let kinds = kinds(&config, &CrdContext::default());

        assert_eq!(
            kinds.iter().filter(|kind| kind.starts_with("CiliumBGP")).count(),
            5
        );
        let position = |kind: &str| kinds.iter().position(|k| k == kind).unwrap();
        assert!(position("CiliumClusterwideEnvoyConfig") < position("CiliumEnvoyConfig"));
        assert!(position("CiliumNodeConfig") < position("ServiceImport"));
    }

    #[test]
    fn keeps_kinds_that_nothing_replaces() {
        let mut config = Config::defaults().unwrap();
        config.disable_endpoint_crd = true;
        config.enable_ciliumnode_crd = false;
        let has = |context: &CrdContext, kind: &str| kinds(&config, context).iter().any(|k| k == kind);
        let alone = CrdContext::default();
        let with_kvstore = CrdContext {
            has_kvstore: true,
            ..alone
        };
        let delegated = CrdContext {
            delegates_ipam: true,
            ..alone
        };

        assert!(has(&alone, "CiliumEndpoint") && !has(&with_kvstore, "CiliumEndpoint"));
        assert!(has(&alone, "CiliumNode") && !has(&delegated, "CiliumNode"));
    }
}
