// SPDX-License-Identifier: Apache-2.0

//! YAML of the API's models as Cilium's command prints it: names of Go's fields in lower case, and all fields of a
//! model, also those without a value.

use hive_script::text::yaml;
use serde::{Serialize, Serializer, ser::SerializeMap as _};
use serde_json::Value;

/// Fields of each model: `name:type`. Types: `s` text, `n` number, `b` boolean, `d` duration, `t` time, `?` any value or `null`; a name is a
/// model or `null`; `[T]` a list, `{T}` an object with keys of its own.
const MODELS: &[(&str, &str)] = &[
    (
        "Endpoint",
        "id:n spec:EndpointConfigurationSpec status:EndpointStatus",
    ),
    (
        "EndpointConfigurationSpec",
        "label-configuration:LabelConfigurationSpec options:{s}",
    ),
    (
        "EndpointConfigurationStatus",
        "error:s immutable:{s} realized:EndpointConfigurationSpec",
    ),
    ("LabelConfigurationSpec", "user:[s]"),
    (
        "LabelConfigurationStatus",
        "derived:[s] disabled:[s] realized:LabelConfigurationSpec security-relevant:[s]",
    ),
    (
        "LabelConfiguration",
        "spec:LabelConfigurationSpec status:LabelConfigurationStatus",
    ),
    (
        "EndpointStatus",
        "controllers:[ControllerStatus] external-identifiers:EndpointIdentifiers health:EndpointHealth \
         identity:Identity labels:LabelConfigurationStatus log:[EndpointStatusChange] namedPorts:[Port] \
         networking:EndpointNetworking policy:EndpointPolicyStatus realized:EndpointConfigurationSpec state:s",
    ),
    (
        "ControllerStatus",
        "configuration:ControllerConfiguration name:s status:ControllerState uuid:s",
    ),
    (
        "ControllerConfiguration",
        "error-retry:b error-retry-base:d interval:d",
    ),
    (
        "ControllerState",
        "consecutive-failure-count:n failure-count:n last-failure-msg:s last-failure-timestamp:t \
         last-success-timestamp:t success-count:n",
    ),
    (
        "EndpointIdentifiers",
        "cni-attachment-id:s container-id:s container-name:s docker-endpoint-id:s docker-network-id:s \
         k8s-namespace:s k8s-pod-name:s pod-name:s",
    ),
    ("EndpointHealth", "bpf:s connected:b overallHealth:s policy:s"),
    ("Identity", "id:n labels:[s] labelsSHA256:s"),
    ("IdentityEndpoints", "identity:Identity refCount:n"),
    ("EndpointStatusChange", "code:s message:s state:s timestamp:s"),
    ("Port", "name:s port:n protocol:s"),
    (
        "EndpointNetworking",
        "addressing:[AddressPair] container-interface-name:s host-addressing:NodeAddressing host-mac:s \
         interface-index:n interface-name:s mac:s",
    ),
    (
        "AddressPair",
        "ipv4:s ipv4-expiration-uuid:s ipv4-pool-name:s ipv6:s ipv6-expiration-uuid:s ipv6-pool-name:s",
    ),
    (
        "NodeAddressing",
        "ipv4:NodeAddressingElement ipv6:NodeAddressingElement",
    ),
    (
        "NodeAddressingElement",
        "address-type:s alloc-range:s enabled:b ip:s",
    ),
    (
        "EndpointPolicyStatus",
        "proxy-policy-revision:n proxy-statistics:[ProxyStatistics] realized:EndpointPolicy spec:EndpointPolicy",
    ),
    (
        "ProxyStatistics",
        "allocated-proxy-port:n location:s port:n protocol:s statistics:?",
    ),
    (
        "EndpointPolicy",
        "allowed-egress-identities:[n] allowed-ingress-identities:[n] build:n cidr-policy:CIDRPolicy \
         denied-egress-identities:[n] denied-ingress-identities:[n] id:n l4:L4Policy policy-enabled:s \
         policy-revision:n",
    ),
    ("CIDRPolicy", "egress:[PolicyRule] ingress:[PolicyRule]"),
    ("L4Policy", "egress:[PolicyRule] ingress:[PolicyRule]"),
    (
        "PolicyRule",
        "derived-from-rules:[[s]] rule:s rules-by-selector:{[[s]]}",
    ),
    (
        "IPListEntry",
        "cidr:s encryptKey:n hostIP:s identity:n metadata:IPListEntryMetadata",
    ),
    ("IPListEntryMetadata", "name:s namespace:s source:s"),
    (
        "NodeElement",
        "health-endpoint-address:NodeAddressing ingress-address:NodeAddressing name:s \
         primary-address:NodeAddressing secondary-addresses:[NodeAddressingElement] source:s",
    ),
    ("NodeID", "id:n ips:[s]"),
    ("Service", "spec:ServiceSpec status:ServiceStatus"),
    ("ServiceStatus", "realized:ServiceSpec"),
    (
        "ServiceSpec",
        "backend-addresses:[BackendAddress] flags:ServiceSpecFlags frontend-address:FrontendAddress id:n",
    ),
    (
        "ServiceSpecFlags",
        "cluster:s extTrafficPolicy:s healthCheckNodePort:n intTrafficPolicy:s name:s namespace:s natPolicy:s \
         trafficPolicy:s type:s",
    ),
    ("FrontendAddress", "ip:s port:n protocol:s scope:s"),
    (
        "BackendAddress",
        "ip:s nodeName:s port:n preferred:b protocol:s state:s weight:? zone:s",
    ),
    (
        "LRPSpec",
        "frontend-mappings:[FrontendMapping] frontend-type:s lrp-type:s name:s namespace:s service-id:s uid:s",
    ),
    (
        "FrontendMapping",
        "backends:[LRPBackend] frontend-address:FrontendAddress",
    ),
    ("LRPBackend", "backend-address:BackendAddress pod-id:s"),
    ("BPFMapList", "maps:[BPFMap]"),
    ("BPFMap", "cache:[BPFMapEntry] path:s"),
    ("BPFMapEntry", "desired-action:s key:s last-error:s value:s"),
    ("CgroupContainerMetadata", "cgroup-id:n cgroup-path:s"),
    (
        "CgroupPodMetadata",
        "containers:[CgroupContainerMetadata] ips:[s] name:s namespace:s",
    ),
    ("Policy", "policy:s revision:n"),
    (
        "SelectorIdentityMapping",
        "identities:[n] labels:[[Label]] selector:s users:n",
    ),
    ("Label", "cidr:? key:s source:s value:s"),
    (
        "DNSLookup",
        "endpoint-id:n expiration-time:s fqdn:s ips:[s] lookup-time:s source:s ttl:n",
    ),
    (
        "StatusResponse",
        "attach-mode:s auth-certificate-provider:Status bandwidth-manager:BandwidthManager bpf-maps:BPFMapStatus \
         cilium:Status client-id:n clock-source:ClockSource cluster:ClusterStatus cluster-mesh:ClusterMeshStatus \
         cni-chaining:CNIChainingStatus cni-file:Status configured-datapath-mode:s controllers:[ControllerStatus] \
         datapath-mode:s encryption:EncryptionStatus host-firewall:HostFirewall hubble:HubbleStatus \
         hubble-metrics:Status identity-range:IdentityRange ipam:IPAMStatus ipv4-big-tcp:BigTCP ipv6-big-tcp:BigTCP \
         kube-proxy-replacement:KubeProxyReplacement kubernetes:K8sStatus kvstore:Status masquerading:Masquerading \
         nodeMonitor:MonitorStatus proxy:ProxyStatus routing:Routing srv6:Srv6 stale:{s}",
    ),
    ("Status", "msg:s state:s"),
    ("BandwidthManager", "congestionControl:s devices:[s] enabled:b"),
    ("BPFMapStatus", "dynamic-size-ratio:n maps:[BPFMapProperties]"),
    ("BPFMapProperties", "name:s size:n"),
    ("ClockSource", "hertz:n mode:s"),
    ("ClusterStatus", "ciliumHealth:Status nodes:[NodeElement] self:s"),
    ("ClusterMeshStatus", "clusters:[?] num-global-services:n"),
    ("CNIChainingStatus", "mode:s"),
    (
        "EncryptionStatus",
        "ipsec:? mode:s msg:s wireguard:WireguardStatus",
    ),
    (
        "WireguardStatus",
        "interfaces:[WireguardInterface] node-encryption:s",
    ),
    (
        "WireguardInterface",
        "listen-port:n name:s peer-count:n peers:[?] public-key:s",
    ),
    ("HostFirewall", "devices:[s] mode:s"),
    ("HubbleStatus", "msg:s observer:HubbleObserver state:s"),
    (
        "HubbleObserver",
        "current-flows:n max-flows:n seen-flows:n uptime:d",
    ),
    ("IdentityRange", "max-identity:n min-identity:n"),
    ("IPAMStatus", "allocations:{s} ipv4:[s] ipv6:[s] status:s"),
    ("BigTCP", "enabled:b maxGRO:n maxGSO:n"),
    (
        "KubeProxyReplacement",
        "deviceList:[KubeProxyReplacementDevice] devices:[s] directRoutingDevice:s \
         features:KubeProxyReplacementFeatures mode:s",
    ),
    ("KubeProxyReplacementDevice", "ip:[s] name:s"),
    (
        "KubeProxyReplacementFeatures",
        "annotations:[s] bpfSocketLBHostnsOnly:b externalIPs:Feature gracefulTermination:Feature hostPort:Feature \
         hostReachableServices:? nat46X64:Nat46X64Feature nodePort:NodePortFeature sessionAffinity:Feature \
         socketLB:Feature socketLBTracing:Feature",
    ),
    ("Feature", "enabled:b"),
    (
        "Nat46X64Feature",
        "enabled:b gateway:GatewayFeature service:Feature",
    ),
    ("GatewayFeature", "enabled:b prefixes:[s]"),
    (
        "NodePortFeature",
        "acceleration:s algorithm:s dsrMode:s enabled:b lutSize:n mode:s portMax:n portMin:n",
    ),
    ("K8sStatus", "k8s-api-versions:[s] msg:s state:s"),
    (
        "Masquerading",
        "enabled:b enabledProtocols:MasqueradingProtocols ip-masq-agent:b mode:s snat-exclusion-cidr:s \
         snat-exclusion-cidr-v4:s snat-exclusion-cidr-v6:s",
    ),
    ("MasqueradingProtocols", "ipv4:b ipv6:b"),
    ("MonitorStatus", "cpus:n lost:n npages:n pagesize:n unknown:n"),
    (
        "ProxyStatus",
        "envoy-deployment-mode:s ip:s port-range:s redirects:[ProxyRedirect] total-ports:n total-redirects:n",
    ),
    ("ProxyRedirect", "name:s proxy:s proxy-port:n"),
    (
        "Routing",
        "inter-host-routing-mode:s intra-host-routing-mode:s tunnel-protocol:s",
    ),
    ("Srv6", "enabled:b srv6EncapMode:s"),
    (
        "HealthResponse",
        "cilium:StatusResponse system-load:LoadResponse uptime:s",
    ),
    ("LoadResponse", "last15min:s last1min:s last5min:s"),
    (
        "HealthStatusResponse",
        "local:SelfStatus nodes:[NodeHealthStatus] probeInterval:s timestamp:s",
    ),
    ("SelfStatus", "name:s"),
    (
        "NodeHealthStatus",
        "endpoint:PathStatus health-endpoint:HostStatus host:HostStatus name:s",
    ),
    (
        "HostStatus",
        "primary-address:PathStatus secondary-addresses:[PathStatus]",
    ),
    (
        "PathStatus",
        "http:ConnectivityStatus icmp:ConnectivityStatus ip:s",
    ),
    ("ConnectivityStatus", "lastProbed:s latency:n status:s"),
];

/// The document of a model as YAML; `model` as the types of fields are written.
pub(crate) fn yaml(value: &Value, model: &str) -> Result<String, yaml::Error> {
    yaml::emit_v3(&expand(value, model))
}

enum Tree {
    Scalar(Value),
    List(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Scalar(value) => value.serialize(to),
            Self::List(all) => to.collect_seq(all),
            Self::Object(members) => {
                let mut map = to.serialize_map(Some(members.len()))?;
                for (name, member) in members {
                    map.serialize_entry(name, member)?;
                }
                map.end()
            }
        }
    }
}

fn expand(value: &Value, model: &str) -> Tree {
    let inner = |open: char, close: char| model.strip_prefix(open)?.strip_suffix(close);
    if let Some(element) = inner('[', ']') {
        let all = value.as_array().into_iter().flatten();
        return Tree::List(all.map(|one| expand(one, element)).collect());
    }
    if let Some(element) = inner('{', '}') {
        let mut members: Vec<(String, Tree)> = value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, one)| (name.clone(), expand(one, element)))
            .collect();
        members.sort_by(|(a, _), (b, _)| a.cmp(b));
        return Tree::Object(members);
    }
    let empty = match model {
        "s" => Value::from(""),
        "n" => Value::from(0),
        "b" => Value::from(false),
        "d" => Value::from("0s"),
        "t" => Value::from("0001-01-01T00:00:00.000Z"),
        _ => Value::Null,
    };
    let fields = MODELS.iter().find(|(name, _)| *name == model);
    match (fields, value) {
        (Some((_, fields)), Value::Object(members)) => {
            let fields = fields
                .split_whitespace()
                .filter_map(|field| field.split_once(':'));
            let member = |(name, kind): (&str, &str)| {
                let plain = name.replace('-', "").to_lowercase();
                (plain, expand(members.get(name).unwrap_or(&Value::Null), kind))
            };
            Tree::Object(fields.map(member).collect())
        }
        (_, Value::Null) => Tree::Scalar(empty),
        _ => Tree::Scalar(value.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_known() {
        for (model, fields) in MODELS {
            for field in fields.split_whitespace() {
                let (_, kind) = field.split_once(':').unwrap();
                let kind = kind.trim_matches(['[', ']', '{', '}']);
                let is_known = ["s", "n", "b", "d", "t", "?"].contains(&kind)
                    || MODELS.iter().any(|(name, _)| *name == kind);
                assert!(is_known, "{model}: {field}");
            }
        }
    }

    #[test]
    fn fields_without_a_value_are_there() {
        let identity = serde_json::json!([{"id": 7, "labels": ["k8s:app=cart"]}]);

        let text = yaml(&identity, "[Identity]").unwrap();

        assert_eq!(
            text,
            "- id: 7\n  labels:\n    - k8s:app=cart\n  labelssha256: \"\"\n"
        );
    }
}
