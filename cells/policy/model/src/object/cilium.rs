// SPDX-License-Identifier: Apache-2.0

//! CiliumNetworkPolicy and CiliumClusterwideNetworkPolicy as agents read them: less strict than the schema of the API
//! server, and with a difference between absent lists and empty ones.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, de};
use skep_k8s_types::slim::LabelSelector;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Policy {
    pub metadata: Metadata,
    pub spec: Option<RuleSpec>,
    pub specs: Option<Vec<RuleSpec>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    #[serde(deserialize_with = "text")]
    pub name: String,
    #[serde(deserialize_with = "text")]
    pub namespace: String,
    #[serde(deserialize_with = "text")]
    pub uid: String,
    pub generation: i64,
    pub annotations: Option<BTreeMap<String, String>>,
    pub labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RuleSpec {
    pub endpoint_selector: Option<LabelSelector>,
    pub node_selector: Option<LabelSelector>,
    pub ingress: Option<Vec<IngressRule>>,
    pub ingress_deny: Option<Vec<IngressRule>>,
    pub egress: Option<Vec<EgressRule>>,
    pub egress_deny: Option<Vec<EgressRule>>,
    pub enable_default_deny: DefaultDeny,
    pub labels: Option<Vec<RuleLabel>>,
    pub log: Log,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DefaultDeny {
    pub ingress: Option<bool>,
    pub egress: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Log {
    #[serde(deserialize_with = "text")]
    pub value: String,
}

/// An element of a list of a rule, with the names that its fields have in that list.
macro_rules! peer_rule {
    ($name:ident, $endpoints:literal, $cidr:literal, $cidr_set:literal, $entities:literal, $groups:literal, $nodes:literal,
     $requires:literal, $services:meta, $fqdns:meta) => {
        #[derive(Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub(crate) struct $name {
            #[serde(rename = $endpoints)]
            pub endpoints: Option<Vec<LabelSelector>>,
            #[serde(rename = $cidr)]
            pub cidr: Option<Vec<Text>>,
            #[serde(rename = $cidr_set)]
            pub cidr_set: Option<Vec<CidrRule>>,
            #[serde(rename = $entities)]
            pub entities: Option<Vec<Text>>,
            #[serde(rename = $groups)]
            pub groups: Option<Vec<PeerGroup>>,
            #[serde(rename = $nodes)]
            pub nodes: Option<Vec<LabelSelector>>,
            /// Without function.
            #[serde(rename = $requires)]
            pub _requires: Option<Vec<Text>>,
            #[$services]
            pub services: Option<Vec<PeerService>>,
            #[$fqdns]
            pub fqdns: Option<Vec<FqdnRule>>,
            pub to_ports: Option<Vec<PortRule>>,
            pub icmps: Option<Vec<IcmpRule>>,
            pub authentication: Option<Authentication>,
        }
    };
}

peer_rule!(
    IngressRule,
    "fromEndpoints",
    "fromCIDR",
    "fromCIDRSet",
    "fromEntities",
    "fromGroups",
    "fromNodes",
    "fromRequires",
    serde(skip),
    serde(skip)
);
peer_rule!(
    EgressRule,
    "toEndpoints",
    "toCIDR",
    "toCIDRSet",
    "toEntities",
    "toGroups",
    "toNodes",
    "toRequires",
    serde(rename = "toServices"),
    serde(rename = "toFQDNs")
);

impl From<IngressRule> for EgressRule {
    fn from(rule: IngressRule) -> Self {
        Self {
            endpoints: rule.endpoints,
            cidr: rule.cidr,
            cidr_set: rule.cidr_set,
            entities: rule.entities,
            groups: rule.groups,
            nodes: rule.nodes,
            _requires: rule._requires,
            services: None,
            fqdns: None,
            to_ports: rule.to_ports,
            icmps: rule.icmps,
            authentication: rule.authentication,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Authentication {
    #[serde(deserialize_with = "text")]
    pub mode: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CidrRule {
    #[serde(deserialize_with = "text")]
    pub cidr: String,
    #[serde(deserialize_with = "text")]
    pub cidr_group_ref: String,
    pub cidr_group_selector: Option<LabelSelector>,
    pub except: Option<Vec<Text>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PeerGroup {
    pub aws: Option<AwsGroup>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AwsGroup {
    pub labels: Option<BTreeMap<String, String>>,
    pub security_groups_ids: Option<Vec<String>>,
    pub security_groups_names: Option<Vec<String>>,
    #[serde(deserialize_with = "text")]
    pub region: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PeerService {
    pub k8s_service: Option<KubernetesService>,
    pub k8s_service_selector: Option<KubernetesServiceSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct KubernetesService {
    #[serde(deserialize_with = "text")]
    pub namespace: String,
    #[serde(deserialize_with = "text")]
    pub service_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct KubernetesServiceSelector {
    #[serde(deserialize_with = "text")]
    pub namespace: String,
    pub selector: LabelSelector,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct FqdnRule {
    #[serde(deserialize_with = "text")]
    pub match_name: String,
    #[serde(deserialize_with = "text")]
    pub match_pattern: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PortRule {
    pub ports: Option<Vec<PortSpec>>,
    pub rules: Option<L7Spec>,
    pub server_names: Option<Vec<Text>>,
    pub listener: Option<Listener>,
    #[serde(rename = "terminatingTLS")]
    pub terminating_tls: Option<Tls>,
    #[serde(rename = "originatingTLS")]
    pub originating_tls: Option<Tls>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PortSpec {
    #[serde(deserialize_with = "text")]
    pub port: String,
    pub end_port: Option<i32>,
    #[serde(deserialize_with = "text")]
    pub protocol: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct L7Spec {
    pub http: Option<Vec<HttpSpec>>,
    pub dns: Option<Vec<FqdnRule>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HttpSpec {
    #[serde(deserialize_with = "text")]
    pub path: String,
    #[serde(deserialize_with = "text")]
    pub method: String,
    #[serde(deserialize_with = "text")]
    pub host: String,
    pub headers: Option<Vec<Text>>,
    pub header_matches: Option<Vec<HeaderSpec>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct HeaderSpec {
    #[serde(deserialize_with = "text")]
    pub mismatch: String,
    #[serde(deserialize_with = "text")]
    pub name: String,
    #[serde(deserialize_with = "text")]
    pub value: String,
    pub secret: Option<SecretSpec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SecretSpec {
    #[serde(deserialize_with = "text")]
    pub namespace: String,
    #[serde(deserialize_with = "text")]
    pub name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Listener {
    pub envoy_config: ListenerConfig,
    #[serde(deserialize_with = "text")]
    pub name: String,
    pub priority: Option<u8>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ListenerConfig {
    #[serde(deserialize_with = "text")]
    pub kind: String,
    #[serde(deserialize_with = "text")]
    pub name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Tls {
    pub secret: SecretSpec,
    #[serde(rename = "trustedCA", deserialize_with = "text")]
    pub trusted_ca: String,
    #[serde(deserialize_with = "text")]
    pub certificate: String,
    #[serde(deserialize_with = "text")]
    pub private_key: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct IcmpRule {
    pub fields: Option<Vec<IcmpField>>,
}

/// A type of ICMP messages. An unknown name is an error of the decoder.
#[derive(Debug, Deserialize)]
#[serde(try_from = "IcmpSpec")]
pub(crate) struct IcmpField {
    pub family: String,
    /// `None` if it is missing.
    pub kind: Option<i64>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct IcmpSpec {
    #[serde(deserialize_with = "text")]
    family: String,
    #[serde(rename = "type")]
    kind: Option<IcmpKind>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum IcmpKind {
    Number(i64),
    Name(String),
}

impl TryFrom<IcmpSpec> for IcmpField {
    type Error = String;

    fn try_from(spec: IcmpSpec) -> Result<Self, String> {
        let family = match spec.family.is_empty() {
            true => "IPv4".to_owned(),
            false => spec.family,
        };
        let kind = match spec.kind {
            None => None,
            Some(IcmpKind::Number(number)) => Some(number),
            Some(IcmpKind::Name(name)) => match name.parse() {
                Ok(number) => Some(number),
                Err(_) => Some(
                    super::icmp::type_of_name(&family, &name)
                        .map(i64::from)
                        .ok_or_else(|| format!("ICMP type {name} not found in {family}"))?,
                ),
            },
        };
        Ok(Self { family, kind })
    }
}

/// A label of a rule: an object, or a text.
#[derive(Debug)]
pub(crate) struct RuleLabel {
    pub source: String,
    pub key: String,
    pub value: String,
}

impl<'de> Deserialize<'de> for RuleLabel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Parts {
                #[serde(default)]
                source: String,
                #[serde(default)]
                key: String,
                #[serde(default)]
                value: String,
            },
        }
        let label = match Form::deserialize(deserializer)? {
            Form::Text(text) => {
                let (name, value) = text.split_once('=').unwrap_or((&text, ""));
                let (source, key) = name.split_once(':').unwrap_or(("", name));
                Self {
                    source: source.to_owned(),
                    key: key.to_owned(),
                    value: value.to_owned(),
                }
            }
            Form::Parts { source, key, value } => Self { source, key, value },
        };
        match label.key.is_empty() {
            true => Err(de::Error::custom("label without a key")),
            false => Ok(label),
        }
    }
}

/// A text, which YAML may write as a number or a truth value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text(pub String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text(deserializer).map(Self)
    }
}

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct Scalar;

    impl de::Visitor<'_> for Scalar {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }

        fn visit_bool<E>(self, value: bool) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_i64<E>(self, value: i64) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_u64<E>(self, value: u64) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_f64<E>(self, value: f64) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_unit<E>(self) -> Result<String, E> {
            Ok(String::new())
        }
    }

    deserializer.deserialize_any(Scalar)
}
