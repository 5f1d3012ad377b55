// SPDX-License-Identifier: Apache-2.0

//! Policies of the tests, as specs in YAML; `{cidr}`, `{other}` and `{port}` stand for options, `{ns}` for the namespace,
//! `{nodes}` for `ipBlock`s of the nodes' addresses.

/// Port of the pods with the host's network.
pub(super) const HOST_NETNS_PORT: u16 = 41000;

/// Address of the local redirect policy: one of link scope, which nothing else has.
pub(super) const REDIRECT_ADDRESS: &str = "169.254.169.249";

/// A policy: kind, name, spec.
pub(super) type Policy = (Kind, &'static str, &'static str);

/// Kind of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Cilium,
    Clusterwide,
    Kubernetes,
    CidrGroup,
    Redirect,
}

pub(super) const ALL_BUT_WORLD: Policy = (
    Kind::Cilium,
    "allow-all-except-world",
    "endpointSelector: {}
egress: [{ toEntities: [cluster, host, remote-node] }]
ingress: [{ fromEntities: [cluster, host, remote-node] }]",
);
pub(super) const ALLOW_ALL_EGRESS: Policy = (
    Kind::Cilium,
    "allow-all-egress",
    "endpointSelector: {}
egress: [{ toEntities: [all] }]",
);
pub(super) const ALLOW_ALL_INGRESS: Policy = (
    Kind::Cilium,
    "allow-all-ingress",
    "endpointSelector: {}
ingress: [{ fromEntities: [all] }]",
);
pub(super) const CLIENT_INGRESS: Policy = (
    Kind::Cilium,
    "client-ingress-from-client2",
    "endpointSelector: { matchLabels: { kind: client } }
ingress: [{ fromEndpoints: [{ matchLabels: { other: client } }] }]",
);
pub(super) const CLIENT_INGRESS_KNP: Policy = (
    Kind::Kubernetes,
    "client-ingress-from-client2",
    "podSelector: { matchLabels: { kind: client } }
policyTypes: [Ingress]
ingress: [{ from: [{ podSelector: { matchLabels: { other: client } } }] }]",
);
pub(super) const INGRESS_DENY: Policy = (
    Kind::Cilium,
    "all-ingress-deny",
    "endpointSelector: {}
ingress: [{}]",
);
pub(super) const INGRESS_DENY_KNP: Policy = (
    Kind::Kubernetes,
    "all-ingress-deny",
    "podSelector: {}
policyTypes: [Ingress]",
);
pub(super) const EGRESS_DENY: Policy = (
    Kind::Cilium,
    "all-egress-deny",
    "endpointSelector: {}
egress: [{}]",
);
pub(super) const EGRESS_DENY_KNP: Policy = (
    Kind::Kubernetes,
    "all-egress-deny",
    "podSelector: {}
policyTypes: [Egress]",
);
pub(super) const ENTITIES_DENY: Policy = (
    Kind::Cilium,
    "all-entities-deny",
    "endpointSelector: {}
egressDeny: [{ toEntities: [all] }]
ingressDeny: [{ fromEntities: [all] }]",
);
pub(super) const CLUSTER_ENTITY: Policy = (
    Kind::Cilium,
    "cluster-entity",
    "endpointSelector: { matchLabels: { kind: client } }
egress: [{ toEntities: [cluster] }]",
);
pub(super) const HOST_EGRESS: Policy = (
    Kind::Cilium,
    "host-entity-egress",
    "endpointSelector: { matchLabels: { kind: client } }
egress: [{ toEntities: [host, remote-node] }]",
);
pub(super) const HOST_INGRESS: Policy = (
    Kind::Cilium,
    "host-entity-ingress",
    "endpointSelector: {}
ingress: [{ fromEntities: [host, remote-node] }]",
);
pub(super) const ECHO_INGRESS: Policy = (
    Kind::Cilium,
    "echo-ingress-from-client2",
    "endpointSelector: { matchLabels: { kind: echo } }
ingress: [{ fromEndpoints: [{ matchLabels: { other: client } }], toPorts: [{ ports: [{ port: '8080', protocol: TCP }] }] }]",
);
pub(super) const ECHO_INGRESS_KNP: Policy = (
    Kind::Kubernetes,
    "echo-ingress-from-client2",
    "podSelector: { matchLabels: { kind: echo } }
policyTypes: [Ingress]
ingress: [{ from: [{ podSelector: { matchLabels: { other: client } } }], ports: [{ port: 8080, protocol: TCP }] }]",
);
pub(super) const CLIENT_EGRESS: Policy = (
    Kind::Cilium,
    "client-egress-to-echo",
    "endpointSelector: { matchLabels: { kind: client } }
egress: [{ toEndpoints: [{ matchLabels: { kind: echo } }], toPorts: [{ ports: [{ port: '8080', protocol: TCP }] }] }]",
);
pub(super) const CLIENT_EGRESS_RANGE: Policy = (
    Kind::Cilium,
    "client-egress-to-echo",
    "endpointSelector: { matchLabels: { kind: client } }
egress: [{ toEndpoints: [{ matchLabels: { kind: echo } }], toPorts: [{ ports: [{ port: '4096', endPort: 8191, protocol: TCP }] }] }]",
);
pub(super) const CLIENT_EGRESS_KNP: Policy = (
    Kind::Kubernetes,
    "client-egress-to-echo",
    "podSelector: { matchLabels: { kind: client } }
policyTypes: [Egress]
egress: [{ to: [{ podSelector: { matchLabels: { kind: echo } } }], ports: [{ port: 8080, protocol: TCP }] }]",
);
pub(super) const CLIENT_EGRESS_EXPRESSION: Policy = (
    Kind::Cilium,
    "client-egress-to-echo-expression",
    "endpointSelector: { matchExpressions: [{ key: kind, operator: In, values: [client] }] }
egress: [{ toEndpoints: [{ matchExpressions: [{ key: kind, operator: In, values: [echo] }] }], toPorts: [{ ports: [{ port: '8080', protocol: TCP }] }] }]",
);
pub(super) const CLIENT_EGRESS_EXPRESSION_KNP: Policy = (
    Kind::Kubernetes,
    "client-egress-to-echo-expression",
    "podSelector: { matchExpressions: [{ key: kind, operator: In, values: [client] }] }
policyTypes: [Egress]
egress: [{ to: [{ podSelector: { matchExpressions: [{ key: kind, operator: In, values: [echo] }] } }], ports: [{ port: 8080, protocol: TCP }] }]",
);
pub(super) const ACCOUNT_EGRESS: Policy = (
    Kind::Cilium,
    "client-with-service-account-egress-to-echo",
    "endpointSelector: { matchLabels: { io.cilium.k8s.policy.serviceaccount: client2 } }
egress: [{ toEndpoints: [{ matchLabels: { kind: echo } }], toPorts: [{ ports: [{ port: '8080', protocol: TCP }] }] }]",
);
pub(super) const EGRESS_TO_ACCOUNT: Policy = (
    Kind::Cilium,
    "client-egress-to-echo-service-account",
    "endpointSelector: { matchLabels: { kind: client } }
egress: [{ toEndpoints: [{ matchLabels: { io.cilium.k8s.policy.serviceaccount: echo-same-node } }], toPorts: [{ ports: [{ port: '8080', protocol: TCP }] }] }]",
);
pub(super) const TO_WORLD: Policy = (
    Kind::Cilium,
    "client-egress-to-entities-world",
    "endpointSelector: { matchLabels: { kind: client } }
egress:
- { toEntities: [world], toPorts: [{ ports: [{ port: '{port}', protocol: TCP }] }] }
- { toEndpoints: [{ matchLabels: { 'k8s:io.kubernetes.pod.namespace': kube-system, 'k8s:k8s-app': kube-dns } }], toPorts: [{ ports: [{ port: '53', protocol: ANY }] }] }",
);
pub(super) const TO_CIDR: Policy = (
    Kind::Cilium,
    "client-egress-to-cidr",
    "endpointSelector: { matchLabels: { kind: client } }
egress: [{ toCIDRSet: [{ cidr: '{cidr}', except: ['{other}/32'] }] }]",
);
pub(super) const TO_CIDR_KNP: Policy = (
    Kind::Kubernetes,
    "client-egress-to-cidr",
    "podSelector: { matchLabels: { kind: client } }
policyTypes: [Egress]
egress: [{ to: [{ ipBlock: { cidr: '{cidr}', except: ['{other}/32'] } }] }]",
);
pub(super) const DENY_FROM_CLIENT2: Policy = (
    Kind::Cilium,
    "echo-ingress-from-other-client-deny",
    "endpointSelector: {}
ingressDeny: [{ fromEndpoints: [{ matchLabels: { other: client } }] }]",
);
pub(super) const DENY_TO_ECHO: Policy = (
    Kind::Cilium,
    "client-egress-to-echo-deny",
    "endpointSelector: { matchLabels: { other: client } }
egressDeny: [{ toEndpoints: [{ matchLabels: { kind: echo } }], toPorts: [{ ports: [{ port: '8080', protocol: TCP }] }] }]",
);
pub(super) const DENY_TO_ECHO_EXPRESSION: Policy = (
    Kind::Cilium,
    "client-egress-to-echo-expression-deny",
    "endpointSelector: { matchExpressions: [{ key: other, operator: In, values: [client] }] }
egressDeny: [{ toEndpoints: [{ matchExpressions: [{ key: kind, operator: In, values: [echo] }] }] }]",
);
pub(super) const DENY_NAMED_PORT: Policy = (
    Kind::Cilium,
    "client-ingress-to-echo-named-port-deny",
    "endpointSelector: { matchLabels: { kind: echo } }
ingressDeny: [{ fromEndpoints: [{ matchLabels: { other: client } }], toPorts: [{ ports: [{ port: http-8080, protocol: TCP }] }] }]",
);
pub(super) const DENY_OF_ACCOUNT: Policy = (
    Kind::Cilium,
    "client-with-service-account-egress-to-echo-deny",
    "endpointSelector: { matchLabels: { io.cilium.k8s.policy.serviceaccount: client2 } }
egressDeny: [{ toEndpoints: [{ matchLabels: { kind: echo } }] }]",
);
pub(super) const DENY_TO_ACCOUNT: Policy = (
    Kind::Cilium,
    "client-egress-to-echo-service-account-deny",
    "endpointSelector: { matchLabels: { kind: client } }
egressDeny: [{ toEndpoints: [{ matchLabels: { io.cilium.k8s.policy.serviceaccount: echo-same-node } }] }]",
);
pub(super) const DENY_CIDR: Policy = (
    Kind::Cilium,
    "client-egress-to-cidr-deny",
    "endpointSelector: { matchLabels: { kind: client } }
egressDeny: [{ toCIDRSet: [{ cidr: '{cidr}', except: ['{other}/32'] }] }]",
);
pub(super) const CIDR_GROUP: Policy = (
    Kind::CidrGroup,
    "cilium-test-external-cidr",
    "externalCIDRs: ['{cidr}']",
);
pub(super) const DENY_CIDR_GROUP: Policy = (
    Kind::Cilium,
    "client-egress-to-cidrgroup-deny",
    "endpointSelector: { matchLabels: { kind: client } }
egressDeny: [{ toCIDRSet: [{ cidrGroupRef: cilium-test-external-cidr, except: ['{other}/32'] }] }]",
);
pub(super) const DENY_CIDR_GROUP_LABEL: Policy = (
    Kind::Cilium,
    "client-egress-to-cidrgroup-deny-by-label",
    "endpointSelector: { matchLabels: { kind: client } }
egressDeny: [{ toCIDRSet: [{ cidrGroupSelector: { matchLabels: { cilium-test: external } }, except: ['{other}/32'] }] }]",
);
pub(super) const CLUSTERWIDE_EGRESS: Policy = (
    Kind::Clusterwide,
    "cilium-test-egress-to-namespace",
    "endpointSelector: { matchLabels: { 'k8s:io.kubernetes.pod.namespace': '{ns}', kind: client } }
egress: [{ toEndpoints: [{ matchLabels: { 'k8s:io.kubernetes.pod.namespace': '{ns}', kind: echo } }] }]",
);
pub(super) const ECHO_INGRESS_L7: Policy = (
    Kind::Cilium,
    "echo-ingress-l7-http",
    "endpointSelector: { matchLabels: { kind: echo } }
ingress: [{ fromEndpoints: [{ matchLabels: { other: client } }], toPorts: [{ ports: [{ port: '8080', protocol: TCP }], rules: { http: [{ method: GET, path: /public$ }] } }] }]",
);

pub(super) const CLIENT_INGRESS_ICMP: Policy = (
    Kind::Cilium,
    "client-ingress-icmp",
    "endpointSelector: { matchLabels: { kind: client } }
ingress:
- fromEndpoints: [{ matchLabels: { other: client } }]
  icmps: [{ fields: [{ type: 8, family: IPv4 }, { type: 128, family: IPv6 }] }]",
);
pub(super) const DENY_ICMP_FROM_CLIENT2: Policy = (
    Kind::Cilium,
    "client-ingress-from-other-client-icmp-deny",
    "endpointSelector: {}
ingressDeny:
- fromEndpoints: [{ matchLabels: { other: client } }]
  icmps: [{ fields: [{ type: 8, family: IPv4 }, { type: 128, family: IPv6 }] }]",
);
pub(super) const ACCOUNT_EGRESS_RANGE: Policy = (
    Kind::Cilium,
    "client-with-service-account-egress-to-echo",
    "endpointSelector: { matchLabels: { io.cilium.k8s.policy.serviceaccount: client2 } }
egress: [{ toEndpoints: [{ matchLabels: { kind: echo } }], toPorts: [{ ports: [{ port: '4096', endPort: 8191, protocol: TCP }] }] }]",
);
pub(super) const DENY_TO_ECHO_RANGE: Policy = (
    Kind::Cilium,
    "client-egress-to-echo-deny",
    "endpointSelector: { matchLabels: { other: client } }
egressDeny: [{ toEndpoints: [{ matchLabels: { kind: echo } }], toPorts: [{ ports: [{ port: '4096', endPort: 8191, protocol: TCP }] }] }]",
);
pub(super) const DENY_HOSTS: Policy = (
    Kind::Cilium,
    "host-entity-egress-deny",
    "endpointSelector: { matchLabels: { kind: client } }
egressDeny: [{ toEntities: [host, remote-node] }]",
);
pub(super) const DENY_WORLD: Policy = (
    Kind::Cilium,
    "world-entity-egress-deny",
    "endpointSelector: { matchLabels: { kind: client } }
egressDeny: [{ toEntities: [world] }]",
);
pub(super) const NODES_KNP: Policy = (
    Kind::Kubernetes,
    "client-egress-to-nodes",
    "podSelector: { matchLabels: { kind: client } }
policyTypes: [Egress]
egress: [{ to: {nodes} }]",
);
/// The own node has the identity of the host, which no CIDR selects.
pub(super) const OWN_NODE: Policy = (
    Kind::Cilium,
    "client-egress-to-own-node",
    "endpointSelector: { matchLabels: { kind: client } }
egress: [{ toEntities: [host] }]",
);
pub(super) const DNS_ONLY: Policy = (
    Kind::Cilium,
    "dns-only",
    "endpointSelector: { matchLabels: { kind: client } }
egress:
- toEndpoints: [{ matchLabels: { kind: echo } }]
  toPorts: [{ ports: [{ port: '8053', protocol: UDP }], rules: { dns: [{ matchPattern: '*' }] } }]",
);
pub(super) const TO_FQDNS: Policy = (
    Kind::Cilium,
    "to-fqdns",
    "endpointSelector: { matchLabels: { kind: client } }
egress:
- { toFQDNs: [{ matchName: one.cilium-test }], toPorts: [{ ports: [{ port: '{port}', protocol: TCP }] }] }
- toEndpoints: [{ matchLabels: { kind: echo } }]
  toPorts: [{ ports: [{ port: '8053', protocol: UDP }], rules: { dns: [{ matchPattern: '*' }] } }]",
);
pub(super) const TO_FQDNS_PATTERN: Policy = (
    Kind::Cilium,
    "to-fqdns-pattern",
    "endpointSelector: { matchLabels: { kind: client } }
egress:
- { toFQDNs: [{ matchPattern: '*.cilium-test' }] }
- toEndpoints: [{ matchLabels: { kind: echo } }]
  toPorts: [{ ports: [{ port: '8053', protocol: UDP }], rules: { dns: [{ matchPattern: '*' }] } }]",
);
pub(super) const DNS_NAME: Policy = (
    Kind::Cilium,
    "dns-name",
    "endpointSelector: { matchLabels: { kind: client } }
egress:
- { toEntities: [world] }
- toEndpoints: [{ matchLabels: { kind: echo } }]
  toPorts: [{ ports: [{ port: '8053', protocol: UDP }], rules: { dns: [{ matchName: one.cilium-test }] } }]",
);
pub(super) const CLUSTERWIDE_INGRESS: Policy = (
    Kind::Clusterwide,
    "cilium-test-ingress-from-namespace",
    "endpointSelector: { matchLabels: { 'k8s:io.kubernetes.pod.namespace': '{ns}', kind: echo } }
ingress: [{ fromEndpoints: [{ matchLabels: { 'k8s:io.kubernetes.pod.namespace': '{ns}', other: client } }] }]",
);
pub(super) const HOST_FIREWALL_INGRESS: Policy = (
    Kind::Clusterwide,
    "cilium-test-host-firewall-ingress",
    "nodeSelector: {}
enableDefaultDeny: { ingress: false, egress: false }
ingressDeny:
- fromEndpoints: [{ matchLabels: { 'k8s:io.kubernetes.pod.namespace': '{ns}', other: client } }]
  toPorts: [{ ports: [{ port: '41000', protocol: TCP }] }]",
);
pub(super) const HOST_FIREWALL_EGRESS: Policy = (
    Kind::Clusterwide,
    "cilium-test-host-firewall-egress",
    "nodeSelector: {}
enableDefaultDeny: { ingress: false, egress: false }
egressDeny:
- toEndpoints: [{ matchLabels: { 'k8s:io.kubernetes.pod.namespace': '{ns}', name: echo-other-node } }]
  toPorts: [{ ports: [{ port: '8080', protocol: TCP }] }]",
);
pub(super) const REDIRECT: Policy = (
    Kind::Redirect,
    "cilium-test-redirect",
    "redirectFrontend: { addressMatcher: { ip: 169.254.169.249, toPorts: [{ port: '8080', protocol: TCP }] } }
redirectBackend: { localEndpointSelector: { matchLabels: { name: echo-same-node } }, toPorts: [{ port: '8080', protocol: TCP }] }",
);
