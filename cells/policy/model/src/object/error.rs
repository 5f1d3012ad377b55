// SPDX-License-Identifier: Apache-2.0

//! Why objects are refused.

use crate::{fqdn::FqdnError, ports::PortError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The object does not decode into its type.
    Decode,
    /// A field has a value that is not accepted.
    Invalid,
}

/// An object is refused; what it said before stays in force. Its writer must fix the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {object}: {}{fault}", if field.is_empty() { String::new() } else { format!("{field}: ") })]
pub struct ObjectError {
    pub kind: String,
    /// Namespace and name.
    pub object: String,
    /// Such as `spec.ingress[0].fromCIDR[0]`.
    pub field: String,
    pub class: Class,
    pub fault: Box<Fault>,
}

impl ObjectError {
    pub(super) fn new(
        kind: &str,
        namespace: &str,
        name: &str,
        field: &str,
        class: Class,
        fault: Fault,
    ) -> Self {
        Self {
            kind: kind.to_owned(),
            object: match namespace.is_empty() {
                true => name.to_owned(),
                false => format!("{namespace}/{name}"),
            },
            field: field.to_owned(),
            class,
            fault: Box::new(fault),
        }
    }
}

/// What is wrong with a field, in the words of Cilium where it has them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("kind `{0}` is not a policy")]
    Kind(String),
    #[error("{0}")]
    Decode(String),
    #[error("{0} must have name")]
    NoName(&'static str),
    #[error("empty policy")]
    Empty,
    #[error("rule must have at least one of Ingress, IngressDeny, Egress, EgressDeny")]
    NoDirection,
    #[error("rule must have one of EndpointSelector or NodeSelector")]
    NoSubject,
    #[error("rule cannot have both EndpointSelector and NodeSelector")]
    TwoSubjects,
    #[error("rule cannot have NodeSelector")]
    NodeSubject,
    #[error("invalid label selector: {0}")]
    LabelSelector(String),
    #[error("combining {0} and {1} is not supported yet")]
    Combination(&'static str, &'static str),
    #[error(
        "FromNodes/ToNodes rules can only be applied when the \"enable-node-selector-labels\" flag is set"
    )]
    NodeLabels,
    #[error("IP must be specified")]
    NoAddress,
    #[error("unable to parse CIDR: \"{0}\"")]
    Cidr(String),
    #[error("one of cidr, cidrGroupRef, or cidrGroupSelector is required")]
    NoCidr,
    #[error("more than one of cidr, cidrGroupRef, or cidrGroupSelector may not be set")]
    SeveralCidrs,
    #[error("allow CIDR prefix {0} does not contain exclude CIDR prefix {1}")]
    Except(String, String),
    #[error("unsupported entity: {0}")]
    Entity(String),
    #[error("L7 policy is not supported on host ingress yet")]
    HostIngressL7,
    #[error("L7 policy is not supported since L7 proxy is not enabled")]
    NoProxy,
    #[error("L7 protocol DNS is not supported on ingress yet")]
    IngressDns,
    #[error("L7 protocol HTTP is not supported on host egress yet")]
    HostEgressHttp,
    #[error("ICMP rules can only be applied when the \"enable-icmp-rules\" flag is set")]
    IcmpOff,
    #[error("the ICMPs block may only be present without ToPorts. Define a separate rule to use ToPorts")]
    IcmpAndPorts,
    #[error("too many types, the max is 40")]
    TooManyTypes,
    #[error("wrong family: {0}")]
    Family(String),
    #[error("ICMP type is missing")]
    NoIcmpType,
    #[error("ICMP type {0} is out of range")]
    IcmpType(i64),
    #[error("too many ports, the max is 40")]
    TooManyPorts,
    #[error("port must be specified")]
    NoPort,
    #[error(transparent)]
    Port(#[from] PortError),
    #[error("port must be empty or 0")]
    PortOfProtocol,
    #[error(
        "invalid protocol \"{0}\", must be {{ tcp | udp | sctp | vrrp | igmp | gre | ipip | ipv6 | esp | ah | any }}"
    )]
    Protocol(String),
    #[error("DNS rules do not support port ranges")]
    DnsRange,
    #[error("L7 rules can only apply to TCP (not {0}) except for DNS rules")]
    L7Protocol(String),
    #[error("L7 rules can not be used when a port is 0")]
    L7PortZero,
    #[error("port 53 must be specified for DNS rules")]
    DnsPort,
    #[error("multiple L7 protocol rule types specified in single rule")]
    SeveralL7,
    #[error("ServerNames are not allowed with L7 rules without TLS termination")]
    ServerNames,
    #[error("empty server name is not allowed")]
    EmptyServerName,
    #[error("Listener is not allowed on ingress ({0})")]
    IngressListener(String),
    #[error("Listener is not allowed with L7 rules ({0})")]
    ListenerAndL7(String),
    #[error("error parsing regexp: {0}")]
    Regex(String),
    #[error("Header name missing")]
    HeaderName,
    #[error("Invalid header action: {0}")]
    HeaderAction(String),
    #[error("Secret name missing")]
    SecretName,
    #[error("unknown authentication mode: {0}")]
    AuthMode(String),
    #[error(transparent)]
    Fqdn(#[from] FqdnError),
    #[error("egress.to.nodes is not supported since node selector labels are disabled")]
    ClusterNodes,
    #[error("egress.to.domainNames is only supported for egress.action=Accept")]
    ClusterNames,
    #[error("egress.to.domainNames is not supported since L7 proxy is not enabled")]
    ClusterNamesProxy,
    #[error("unknown {0} \"{1}\"")]
    Word(&'static str, String),
    #[error("more than 25 rules")]
    TooManyRules,
}

/// `list[index]`.
pub(super) fn at(list: &str, index: usize) -> String {
    format!("{list}[{index}]")
}

/// A fault at a field.
pub(super) type Faulty<T> = Result<T, (String, Fault)>;
