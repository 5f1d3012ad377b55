// SPDX-License-Identifier: Apache-2.0

//! The tests: policies, connections, and how each must end.

use super::{
    TestOptions,
    environment::NAMES,
    policies::{self as p, Policy},
    scenario::{Action, Scenario},
};
use crate::access::Settings;

/// How a connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expect {
    Ok,
    /// Any error.
    Drop,
    /// An error of HTTP.
    HttpError,
}

impl Expect {
    pub(super) fn fits(self, code: i32) -> bool {
        match self {
            Self::Ok => code == 0,
            // 6 and 7 are no drops by a policy, but what a policy leads to where the name or the reset is dropped.
            Self::Drop => code != 0 && code != 22,
            Self::HttpError => code == 22,
        }
    }
}

/// What a test requires of the installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    KubeProxyReplacement,
    L7Proxy,
    TwoClusters,
    OneCluster,
    IcmpRules,
    DnsProxy,
    HostFirewall,
    NodesMatchCidrs,
    RedirectPolicies,
}

impl Needs {
    /// What is missing.
    pub(super) fn missing(self, settings: &Settings, options: &TestOptions) -> Option<&'static str> {
        let is_met = match self {
            Self::KubeProxyReplacement => settings.is_true("kube-proxy-replacement"),
            // The setting alone enables nothing: there is no such proxy.
            Self::L7Proxy => false,
            Self::TwoClusters => options.environment.multi_cluster.is_some(),
            Self::OneCluster => options.environment.multi_cluster.is_none(),
            Self::IcmpRules => settings.text("enable-icmp-rules") != "false",
            Self::DnsProxy => settings.text("enable-l7-proxy") != "false",
            Self::HostFirewall => settings.is_true("enable-host-firewall"),
            Self::NodesMatchCidrs => settings.text("policy-cidr-match-mode").contains("nodes"),
            Self::RedirectPolicies => settings.is_true("enable-local-redirect-policy"),
        };
        let text = match self {
            Self::KubeProxyReplacement => "kube-proxy-replacement is not true",
            Self::L7Proxy => "there is no L7 proxy",
            Self::TwoClusters => "--multi-cluster is not given",
            Self::OneCluster => "--multi-cluster is given",
            Self::IcmpRules => "enable-icmp-rules is false",
            Self::DnsProxy => "enable-l7-proxy is false",
            Self::HostFirewall => "enable-host-firewall is not true",
            Self::NodesMatchCidrs => "policy-cidr-match-mode has no nodes",
            Self::RedirectPolicies => "enable-local-redirect-policy is not true",
        };
        (!is_met).then_some(text)
    }
}

/// A test.
pub(super) struct Test {
    pub(super) name: &'static str,
    pub(super) needs: &'static [Needs],
    /// Pods of the test are in audit mode: nothing is dropped.
    pub(super) is_audited: bool,
    pub(super) policies: &'static [Policy],
    pub(super) scenarios: &'static [Scenario],
    pub(super) expect: fn(&Action) -> Expect,
}

fn ok(_: &Action) -> Expect {
    Expect::Ok
}

fn dropped(_: &Action) -> Expect {
    Expect::Drop
}

fn only(is: bool) -> Expect {
    if is { Expect::Ok } else { Expect::Drop }
}

fn from_client2(action: &Action) -> Expect {
    only(action.source == "client2")
}

fn not_from_client2(action: &Action) -> Expect {
    only(action.source != "client2")
}

/// Replies of the world pass a policy on ingress.
fn ingress_only(action: &Action) -> Expect {
    only(action.scenario.is_external())
}

/// Pods of the client's own node stay in the same cluster.
fn local_cluster(action: &Action) -> Expect {
    only(!(action.target == "echo-other-node" && action.source != "client3"))
}

fn not_other_address(action: &Action) -> Expect {
    only(!action.name.contains("(other)"))
}

/// The first of the names that echo pods serve.
fn first_name(action: &Action) -> Expect {
    only(action.target == NAMES[0])
}

use Needs::{
    DnsProxy, HostFirewall, IcmpRules, KubeProxyReplacement, L7Proxy, NodesMatchCidrs, OneCluster,
    RedirectPolicies, TwoClusters,
};
use Scenario::{
    ClientToClient, ClientToClientPing, HostToNodeport, HostToPod, HostToService, PodToCidr, PodToFqdn,
    PodToHost, PodToHostPing, PodToHostport, PodToItselfViaService, PodToLocalNodeport, PodToPod,
    PodToPodNoFrag, PodToPodWithEndpoints, PodToRedirect, PodToRemoteNodeport, PodToService, PodToWorld,
};

const fn test(
    name: &'static str,
    policies: &'static [Policy],
    scenarios: &'static [Scenario],
    expect: fn(&Action) -> Expect,
) -> Test {
    Test {
        name,
        needs: &[],
        is_audited: false,
        policies,
        scenarios,
        expect,
    }
}

const fn needing(needs: &'static [Needs], test: Test) -> Test {
    Test { needs, ..test }
}

/// All tests, in order.
pub(super) static TESTS: &[Test] = &[
    test(
        "no-policies",
        &[],
        &[
            PodToPod,
            ClientToClient,
            ClientToClientPing,
            PodToService,
            PodToHost,
            PodToHostPing,
            HostToPod,
        ],
        ok,
    ),
    test("no-policies-external", &[], &[PodToWorld, PodToCidr], ok),
    needing(
        &[KubeProxyReplacement, OneCluster],
        test("no-policies-hostport", &[], &[PodToHostport], ok),
    ),
    test(
        "no-policies-extra",
        &[],
        &[PodToRemoteNodeport, PodToLocalNodeport],
        ok,
    ),
    needing(
        &[KubeProxyReplacement],
        test("no-policies-from-host", &[], &[HostToService, HostToNodeport], ok),
    ),
    test("pod-to-pod-no-frag", &[], &[PodToPodNoFrag], ok),
    test(
        "allow-all-except-world",
        &[p::ALL_BUT_WORLD],
        &[
            PodToPod,
            ClientToClient,
            ClientToClientPing,
            PodToService,
            PodToHost,
        ],
        ok,
    ),
    test(
        "client-ingress",
        &[p::CLIENT_INGRESS],
        &[ClientToClient, ClientToClientPing],
        from_client2,
    ),
    test(
        "client-ingress-knp",
        &[p::CLIENT_INGRESS_KNP],
        &[ClientToClient, ClientToClientPing],
        from_client2,
    ),
    needing(
        &[IcmpRules],
        test(
            "client-ingress-icmp",
            &[p::CLIENT_INGRESS_ICMP],
            &[ClientToClientPing, ClientToClient],
            |action| only(action.source == "client2" && action.scenario == ClientToClientPing),
        ),
    ),
    test(
        "all-ingress-deny",
        &[p::INGRESS_DENY],
        &[PodToPod, PodToCidr],
        ingress_only,
    ),
    test(
        "all-ingress-deny-knp",
        &[p::INGRESS_DENY_KNP],
        &[PodToPod, PodToCidr],
        ingress_only,
    ),
    Test {
        is_audited: true,
        ..test("all-ingress-deny-audit", &[p::INGRESS_DENY], &[PodToPod], ok)
    },
    test("all-egress-deny", &[p::EGRESS_DENY], &[PodToPod], dropped),
    test("all-egress-deny-knp", &[p::EGRESS_DENY_KNP], &[PodToPod], dropped),
    test(
        "all-entities-deny",
        &[p::ENTITIES_DENY],
        &[PodToPod, PodToCidr],
        dropped,
    ),
    needing(
        &[OneCluster],
        test("cluster-entity", &[p::CLUSTER_ENTITY], &[PodToPod], ok),
    ),
    needing(
        &[TwoClusters],
        test(
            "cluster-entity-multi-cluster",
            &[p::CLUSTER_ENTITY],
            &[PodToPod],
            local_cluster,
        ),
    ),
    test("host-entity-egress", &[p::HOST_EGRESS], &[PodToHost], ok),
    test(
        "host-entity-egress-deny",
        &[p::ALLOW_ALL_EGRESS, p::DENY_HOSTS],
        &[PodToHost, PodToPod],
        |action| only(action.scenario == PodToPod),
    ),
    test(
        "world-entity-egress-deny",
        &[p::ALLOW_ALL_EGRESS, p::DENY_WORLD],
        &[PodToCidr, PodToPod],
        |action| only(action.scenario == PodToPod),
    ),
    needing(
        &[NodesMatchCidrs],
        test(
            "pod-to-node-cidrpolicy",
            &[p::NODES_KNP, p::OWN_NODE],
            &[PodToHost],
            ok,
        ),
    ),
    test("host-entity-ingress", &[p::HOST_INGRESS], &[HostToPod], ok),
    test("echo-ingress", &[p::ECHO_INGRESS], &[PodToPod], from_client2),
    test(
        "echo-ingress-knp",
        &[p::ECHO_INGRESS_KNP],
        &[PodToPod],
        from_client2,
    ),
    test("client-egress", &[p::CLIENT_EGRESS], &[PodToPod], ok),
    test(
        "client-egress-port-range",
        &[p::CLIENT_EGRESS_RANGE],
        &[PodToPod],
        ok,
    ),
    test("client-egress-knp", &[p::CLIENT_EGRESS_KNP], &[PodToPod], ok),
    test(
        "client-egress-expression",
        &[p::CLIENT_EGRESS_EXPRESSION],
        &[PodToPod],
        ok,
    ),
    test(
        "client-egress-expression-knp",
        &[p::CLIENT_EGRESS_EXPRESSION_KNP],
        &[PodToPod],
        ok,
    ),
    test(
        "client-with-service-account-egress-to-echo",
        &[p::ACCOUNT_EGRESS],
        &[PodToPod],
        ok,
    ),
    test(
        "client-with-service-account-egress-to-echo-port-range",
        &[p::ACCOUNT_EGRESS_RANGE],
        &[PodToPod],
        ok,
    ),
    test(
        "client-egress-to-echo-service-account",
        &[p::EGRESS_TO_ACCOUNT],
        &[PodToPod],
        |action| only(action.target == "echo-same-node"),
    ),
    test("to-entities-world", &[p::TO_WORLD], &[PodToWorld], ok),
    test("to-cidr-external", &[p::TO_CIDR], &[PodToCidr], not_other_address),
    test(
        "to-cidr-external-knp",
        &[p::TO_CIDR_KNP],
        &[PodToCidr],
        not_other_address,
    ),
    test(
        "echo-ingress-from-other-client-deny",
        &[p::ALLOW_ALL_EGRESS, p::ALLOW_ALL_INGRESS, p::DENY_FROM_CLIENT2],
        &[PodToPod, ClientToClient],
        not_from_client2,
    ),
    needing(
        &[IcmpRules],
        test(
            "client-ingress-from-other-client-icmp-deny",
            &[
                p::ALLOW_ALL_EGRESS,
                p::ALLOW_ALL_INGRESS,
                p::DENY_ICMP_FROM_CLIENT2,
            ],
            &[PodToPod, ClientToClientPing],
            |action| only(action.scenario == PodToPod || action.source != "client2"),
        ),
    ),
    test(
        "client-egress-to-echo-deny-port-range",
        &[p::ALLOW_ALL_EGRESS, p::ALLOW_ALL_INGRESS, p::DENY_TO_ECHO_RANGE],
        &[PodToPod],
        not_from_client2,
    ),
    test(
        "client-egress-to-echo-deny",
        &[p::ALLOW_ALL_EGRESS, p::ALLOW_ALL_INGRESS, p::DENY_TO_ECHO],
        &[PodToPod],
        not_from_client2,
    ),
    test(
        "client-ingress-to-echo-named-port-deny",
        &[p::ALLOW_ALL_EGRESS, p::ALLOW_ALL_INGRESS, p::DENY_NAMED_PORT],
        &[PodToPod],
        not_from_client2,
    ),
    test(
        "client-egress-to-echo-expression-deny",
        &[
            p::ALLOW_ALL_EGRESS,
            p::ALLOW_ALL_INGRESS,
            p::DENY_TO_ECHO_EXPRESSION,
        ],
        &[PodToPod],
        not_from_client2,
    ),
    test(
        "client-with-service-account-egress-to-echo-deny",
        &[p::ALLOW_ALL_EGRESS, p::ALLOW_ALL_INGRESS, p::DENY_OF_ACCOUNT],
        &[PodToPod],
        not_from_client2,
    ),
    test(
        "client-egress-to-echo-service-account-deny",
        &[p::ALLOW_ALL_EGRESS, p::ALLOW_ALL_INGRESS, p::DENY_TO_ACCOUNT],
        &[PodToPod],
        |action| only(action.target != "echo-same-node"),
    ),
    test(
        "client-egress-to-cidr-deny",
        &[p::ALLOW_ALL_EGRESS, p::DENY_CIDR],
        &[PodToCidr],
        |action| only(action.name.contains("(other)")),
    ),
    test(
        "client-egress-to-cidrgroup-deny",
        &[p::ALLOW_ALL_EGRESS, p::CIDR_GROUP, p::DENY_CIDR_GROUP],
        &[PodToCidr],
        |action| only(action.name.contains("(other)")),
    ),
    test(
        "client-egress-to-cidrgroup-deny-by-label",
        &[p::ALLOW_ALL_EGRESS, p::CIDR_GROUP, p::DENY_CIDR_GROUP_LABEL],
        &[PodToCidr],
        |action| only(action.name.contains("(other)")),
    ),
    // Without a rule that allows, the other address is denied by default.
    test(
        "client-egress-to-cidr-deny-default",
        &[p::DENY_CIDR],
        &[PodToCidr],
        dropped,
    ),
    test("pod-to-itself-via-service", &[], &[PodToItselfViaService], ok),
    needing(
        &[L7Proxy],
        test(
            "echo-ingress-l7",
            &[p::ECHO_INGRESS_L7],
            &[PodToPodWithEndpoints],
            |action| match (action.source.as_str(), action.target.ends_with("public")) {
                ("client2", true) => Expect::Ok,
                ("client2", false) => Expect::HttpError,
                _ => Expect::Drop,
            },
        ),
    ),
    needing(
        &[OneCluster],
        test(
            "egress-to-specific-namespace-ccnp",
            &[p::CLUSTERWIDE_EGRESS],
            &[PodToPod],
            ok,
        ),
    ),
    needing(
        &[OneCluster],
        test(
            "ingress-from-specific-namespace-ccnp",
            &[p::CLUSTERWIDE_INGRESS],
            &[PodToPod],
            from_client2,
        ),
    ),
    needing(
        &[DnsProxy],
        test("dns-only", &[p::DNS_ONLY], &[PodToPod, PodToFqdn], dropped),
    ),
    needing(
        &[DnsProxy],
        test("dns-rule-name", &[p::DNS_NAME], &[PodToFqdn], first_name),
    ),
    needing(
        &[DnsProxy],
        test("to-fqdns", &[p::TO_FQDNS], &[PodToFqdn], first_name),
    ),
    needing(
        &[DnsProxy],
        test("to-fqdns-pattern", &[p::TO_FQDNS_PATTERN], &[PodToFqdn], ok),
    ),
    needing(
        &[RedirectPolicies],
        test("local-redirect-policy", &[p::REDIRECT], &[PodToRedirect], ok),
    ),
    needing(
        &[HostFirewall],
        test(
            "host-firewall-ingress",
            &[p::HOST_FIREWALL_INGRESS],
            &[PodToHost],
            not_from_client2,
        ),
    ),
    needing(
        &[HostFirewall],
        test(
            "host-firewall-egress",
            &[p::HOST_FIREWALL_EGRESS],
            &[HostToPod],
            |action| only(action.target != "echo-other-node"),
        ),
    ),
];

/// Checks of agents rather than connections.
pub(super) const HEALTH: &str = "health";
pub(super) const DROPS: &str = "no-unexpected-packet-drops";
pub(super) const LOGS: &str = "check-log-errors";

/// Reasons of drops that policies and tests cause.
pub(super) const EXPECTED_DROPS: [&str; 15] = [
    "Policy denied",
    "Policy denied by denylist",
    "Unsupported L2 protocol",
    "Unsupported L3 protocol",
    "Stale or unroutable IP",
    "Authentication required",
    "Service backend not found",
    "Unsupported protocol for NAT masquerade",
    "Invalid source ip",
    "Unknown L3 target address",
    "Host datapath not ready",
    "Unknown ICMPv4 code",
    "Unknown ICMPv6 code",
    "Forbidden ICMPv6 message",
    "No egress gateway found",
];

#[cfg(test)]
mod checks {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_differ_and_policies_are_yaml() {
        let mut names = BTreeSet::new();
        for test in TESTS {
            assert!(names.insert(test.name), "{}", test.name);
            assert!(!test.scenarios.is_empty(), "{}", test.name);
            for (_, name, spec) in test.policies {
                let spec = spec.replace("{nodes}", "[]");
                let parsed: Result<serde_json::Value, _> = serde_norway::from_str(&spec);
                assert!(parsed.is_ok_and(|spec| spec.is_object()), "{}: {name}", test.name);
            }
        }
    }

    #[test]
    fn exit_codes_of_the_probe_fit() {
        assert!(
            Expect::Drop.fits(28) && Expect::Drop.fits(7) && !Expect::Drop.fits(0) && !Expect::Drop.fits(22)
        );
        assert!(Expect::Ok.fits(0) && !Expect::Ok.fits(28));
        assert!(Expect::HttpError.fits(22));
    }
}
