// SPDX-License-Identifier: Apache-2.0

//! What the agent's configuration says about policies.

use compact_str::CompactString;

/// `enable-policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Enforcement {
    /// In directions that rules select the endpoint for.
    #[default]
    Default,
    /// In both directions of every endpoint.
    Always,
    Never,
}

/// Settings that rules and their resolution depend on. The defaults are those of the agent under Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct PolicySettings {
    /// Name of the own cluster.
    pub cluster: CompactString,
    pub enforcement: Enforcement,
    /// The host may reach endpoints unless a rule denies it (`allow-localhost`).
    pub allow_localhost: bool,
    pub l7_proxy: bool,
    pub icmp_rules: bool,
    pub extended_protocols: bool,
    pub node_selector_labels: bool,
    pub host_firewall: bool,
    /// Peers of rules that name no cluster are of the own one (`policy-default-local-cluster`).
    pub default_local_cluster: bool,
    /// Rules can leave their direction open (`enable-non-default-deny-policies`).
    pub non_default_deny: bool,
    pub ipv4: bool,
    /// Both families are on: the world has an identity for each.
    pub dual_stack: bool,
    /// TLS secrets are references, which the proxy resolves.
    pub secrets_by_reference: bool,
    /// Keeps the corners in which Cilium allows more than a rule says; see [`Self::cilium_corners`].
    pub fail_open: bool,
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            cluster: CompactString::const_new("default"),
            enforcement: Enforcement::Default,
            allow_localhost: true,
            l7_proxy: true,
            icmp_rules: true,
            extended_protocols: false,
            node_selector_labels: false,
            host_firewall: false,
            default_local_cluster: true,
            non_default_deny: true,
            ipv4: true,
            dual_stack: false,
            secrets_by_reference: true,
            fail_open: false,
        }
    }
}

impl PolicySettings {
    /// Settings with the corners that Cilium leaves open:
    ///
    /// - `toServices`, `toFQDNs` and `toGroups` that select nothing, beside ports, select any destination; in `egressDeny`
    ///   `toServices` is never resolved;
    /// - an ICMP rule for type 0, and a range that starts at port 0, stand for the whole protocol;
    /// - a `cidrGroupSelector` of negative requirements alone selects what is in no group;
    /// - an unknown authentication mode demands none; ICMP types out of range are accepted, and port names of protocols
    ///   without ports (the schema of the API server refuses the first);
    /// - rules of the Baseline tier that allow apply to who is isolated by policies of the normal tier, and allowed namespaces are
    ///   those of all clusters.
    #[must_use]
    pub fn cilium_corners(mut self) -> Self {
        self.fail_open = true;
        self
    }
}
