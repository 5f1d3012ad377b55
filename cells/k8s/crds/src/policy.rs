// SPDX-License-Identifier: Apache-2.0

//! CiliumNetworkPolicy and CiliumClusterwideNetworkPolicy, whose schemas are the same.

mod fqdn;
mod peers;
mod ports;

use std::collections::BTreeMap;

use crate::object::{kind, object, words};
use crate::patterns;
use crate::shared::LabelSelector;

pub use fqdn::FqdnSelector;
pub use peers::{
    AwsGroup, CidrRule, EgressDenyRule, EgressRule, Entity, IngressDenyRule, IngressRule, KubernetesService,
    KubernetesServiceSelector, PeerGroup, PeerService,
};
pub use ports::{
    HeaderMatch, HttpRule, IcmpField, IcmpRule, IcmpType, IpFamily, L7Rules, Listener, ListenerConfig,
    ListenerConfigKind, MismatchAction, PortDenyRule, PortProtocol, PortRule, Protocol, SecretReference,
    TlsContext,
};

kind! {
    /// Rules about the traffic of pods of one namespace.
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "has(self.spec) || has(self.specs)", "message": "spec or specs must be provided" },
    ]))]
    CiliumNetworkPolicy, "cilium.io", "v2", "ciliumnetworkpolicies", true, {
        /// A rule.
        pub spec: Option<Rule>,
        /// More rules; they add up with `spec`.
        pub specs: Option<Vec<Rule>>,
        /// What controllers report about the policy.
        pub status: Option<PolicyStatus>,
    }
}

kind! {
    /// Rules about the traffic of pods of all namespaces, and of nodes.
    #[schemars(extend("x-kubernetes-validations" = [
        { "rule": "has(self.spec) || has(self.specs)", "message": "spec or specs must be provided" },
    ]))]
    CiliumClusterwideNetworkPolicy, "cilium.io", "v2", "ciliumclusterwidenetworkpolicies", false, {
        /// A rule.
        pub spec: Option<Rule>,
        /// More rules; they add up with `spec`.
        pub specs: Option<Vec<Rule>>,
        /// What controllers report about the policy.
        pub status: Option<PolicyStatus>,
    }
}

object! {
    /// Which traffic of which subjects is allowed or denied. Absent lists and empty lists differ: see `Option`s.
    #[derive(Eq)]
    #[schemars(extend(
        "oneOf" = [{ "required": ["endpointSelector"] }, { "required": ["nodeSelector"] }],
        "anyOf" = [
            { "required": ["ingress"] },
            { "required": ["ingressDeny"] },
            { "required": ["egress"] },
            { "required": ["egressDeny"] },
        ],
    ))]
    pub struct Rule {
        /// Free text for people.
        pub description: Option<String>,
        /// Allowed egress traffic.
        pub egress: Option<Vec<EgressRule>>,
        /// Denied egress traffic; stronger than what is allowed.
        pub egress_deny: Option<Vec<EgressDenyRule>>,
        /// Whether traffic that no rule allows is denied. Absent: in the directions that the rule has entries for.
        pub enable_default_deny: Option<DefaultDeny>,
        /// Pods that the rule is about; empty for all of the namespace, or of the cluster in a clusterwide policy.
        pub endpoint_selector: Option<LabelSelector>,
        /// Allowed ingress traffic.
        pub ingress: Option<Vec<IngressRule>>,
        /// Denied ingress traffic; stronger than what is allowed.
        pub ingress_deny: Option<Vec<IngressDenyRule>>,
        /// Labels of the rule, beside those that name the policy.
        pub labels: Option<Vec<RuleLabel>>,
        /// What flows that match the rule carry in their log.
        pub log: Option<LogConfig>,
        /// Nodes that the rule is about; in clusterwide policies only.
        pub node_selector: Option<LabelSelector>,
    }

    /// Whether traffic that no rule allows is denied.
    #[derive(Eq)]
    pub struct DefaultDeny {
        /// For egress; absent if `egress` or `egressDeny` has entries.
        pub egress: Option<bool>,
        /// For ingress; absent if `ingress` or `ingressDeny` has entries.
        pub ingress: Option<bool>,
    }

    /// A label of a rule.
    #[derive(Eq)]
    pub struct RuleLabel {
        /// Key of the label.
        pub key: String,
        /// Where the label comes from; empty for `unspec`.
        pub source: Option<String>,
        /// Value of the label.
        pub value: Option<String>,
    }

    /// What flows that match a rule carry in their log.
    #[derive(Eq)]
    pub struct LogConfig {
        /// Text that Hubble shows with flows.
        #[schemars(extend("maxLength" = 32, "pattern" = patterns::PRINTABLE))]
        pub value: Option<String>,
    }

    /// Demands mutual authentication of peers.
    #[derive(Eq)]
    pub struct Authentication {
        /// Which authentication is demanded.
        pub mode: AuthenticationMode,
    }

    /// What controllers report about a policy.
    #[derive(Eq)]
    pub struct PolicyStatus {
        /// Conditions of the policy.
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
        pub conditions: Option<Vec<PolicyCondition>>,
        /// Policies made from this one. No longer written.
        pub derivative_policies: Option<BTreeMap<String, DerivativePolicy>>,
    }

    /// One aspect of the state of a policy.
    #[derive(Eq)]
    pub struct PolicyCondition {
        /// When the status last changed (RFC 3339).
        #[schemars(extend("format" = "date-time"))]
        pub last_transition_time: Option<String>,
        /// Details for people.
        pub message: Option<String>,
        /// Why the condition has this status, for programs.
        pub reason: Option<String>,
        /// `True`, `False` or `Unknown`.
        pub status: String,
        /// Name of the condition, such as `Valid`.
        #[serde(rename = "type")]
        pub kind: String,
    }

    /// State of a policy made from another one.
    #[derive(Eq)]
    pub struct DerivativePolicy {
        /// Annotations of the policy.
        pub annotations: Option<BTreeMap<String, String>>,
        /// The policy is in force on all endpoints.
        pub enforcing: Option<bool>,
        /// Why the policy could not be imported.
        pub error: Option<String>,
        /// When this was written (RFC 3339).
        #[schemars(extend("format" = "date-time"))]
        pub last_updated: Option<String>,
        /// Revision of the policy repository that first had the policy.
        pub local_policy_revision: Option<i64>,
        /// The policy was imported.
        pub ok: Option<bool>,
    }
}

words! {
    /// Which authentication of peers is demanded.
    pub enum AuthenticationMode {
        /// None.
        Disabled = "disabled",
        /// Mutual authentication.
        Required = "required",
        /// One that always fails, for tests.
        TestAlwaysFail = "test-always-fail",
    }
}
