// SPDX-License-Identifier: Apache-2.0

//! Ports, ICMP messages and what is above them: HTTP, DNS, TLS.

use serde::{Deserialize, Serialize};

use super::fqdn::FqdnSelector;
use crate::object::{object, words};
use crate::patterns;

object! {
    /// Ports that are allowed, and what is demanded above them.
    #[derive(Eq)]
    pub struct PortRule {
        /// Envoy listener of one's own that gets the traffic; egress only.
        pub listener: Option<Listener>,
        /// TLS of the proxy towards the destination.
        #[serde(rename = "originatingTLS")]
        pub originating_tls: Option<TlsContext>,
        /// Ports; an entry without ports allows nothing.
        #[schemars(extend("maxItems" = 40))]
        pub ports: Option<Vec<PortProtocol>>,
        /// Demands on layer 7; absent for layers 3 and 4 only.
        pub rules: Option<L7Rules>,
        /// Server names (SNI) that are allowed; with the wildcards of [`FqdnSelector::match_pattern`].
        #[schemars(extend(
            "minItems" = 1,
            "x-kubernetes-list-type" = "set",
            "x-items" = { "maxLength": 255, "pattern": patterns::FQDN_PATTERN },
        ))]
        pub server_names: Option<Vec<String>>,
        /// TLS of the proxy towards the client.
        #[serde(rename = "terminatingTLS")]
        pub terminating_tls: Option<TlsContext>,
    }

    /// Ports that are denied.
    #[derive(Eq)]
    pub struct PortDenyRule {
        /// Ports.
        pub ports: Option<Vec<PortProtocol>>,
    }

    /// A port or a range of ports.
    #[derive(Eq)]
    pub struct PortProtocol {
        /// Last port of the range; 0 or less than `port` for a single port.
        #[schemars(extend("minimum" = 0, "maximum" = 65535))]
        pub end_port: Option<i32>,
        /// Number or name; `0` for all.
        #[schemars(extend("pattern" = patterns::PORT))]
        pub port: Option<String>,
        /// Protocol; absent for any of TCP, UDP and SCTP.
        pub protocol: Option<Protocol>,
    }

    /// An Envoy listener of one's own.
    #[derive(Eq)]
    pub struct Listener {
        /// The configuration that defines the listener.
        pub envoy_config: ListenerConfig,
        /// Name of the listener in the configuration.
        #[schemars(extend("minLength" = 1))]
        pub name: String,
        /// Strength among listeners for the same traffic: 1 is the strongest.
        #[schemars(extend("minimum" = 1, "maximum" = 100))]
        pub priority: Option<crate::shared::Integer>,
    }

    /// A CiliumEnvoyConfig or CiliumClusterwideEnvoyConfig.
    #[derive(Eq)]
    pub struct ListenerConfig {
        /// Kind of the configuration; absent for the one with the scope of the policy.
        pub kind: Option<ListenerConfigKind>,
        /// Name of the configuration.
        #[schemars(extend("minLength" = 1))]
        pub name: String,
    }

    /// Demands on layer 7, of one protocol.
    #[derive(Eq)]
    #[schemars(extend("oneOf" = [{ "required": ["http"] }, { "required": ["dns"] }]))]
    pub struct L7Rules {
        /// Names that may be looked up.
        pub dns: Option<Vec<FqdnSelector>>,
        /// HTTP requests that are allowed.
        pub http: Option<Vec<HttpRule>>,
    }

    /// HTTP requests. All demands must be met.
    #[derive(Eq)]
    pub struct HttpRule {
        /// Headers with what happens if their value is another one.
        pub header_matches: Option<Vec<HeaderMatch>>,
        /// Headers that must be there: `Name` or `Name: value`.
        pub headers: Option<Vec<String>>,
        /// Regular expression for the host.
        #[schemars(extend("format" = "idn-hostname"))]
        pub host: Option<String>,
        /// Regular expression for the method.
        pub method: Option<String>,
        /// Regular expression for the path.
        pub path: Option<String>,
    }

    /// A header with the value that it must have.
    #[derive(Eq)]
    pub struct HeaderMatch {
        /// What happens if the value is another one; absent: the request is dropped.
        pub mismatch: Option<MismatchAction>,
        /// Name of the header.
        #[schemars(extend("minLength" = 1))]
        pub name: String,
        /// Secret with one item, which is the value.
        pub secret: Option<SecretReference>,
        /// The value; used with `secret` if that is missing.
        pub value: Option<String>,
    }

    /// Names a Secret.
    #[derive(Eq)]
    pub struct SecretReference {
        /// Name of the Secret.
        pub name: String,
        /// Namespace of the Secret; the default depends on the use.
        pub namespace: Option<String>,
    }

    /// Certificates of a proxy.
    #[derive(Eq)]
    pub struct TlsContext {
        /// Item of the Secret with the certificate; `tls.crt` if absent.
        pub certificate: Option<String>,
        /// Item of the Secret with the private key; `tls.key` if absent.
        pub private_key: Option<String>,
        /// Secret with certificate and key.
        pub secret: SecretReference,
        /// Item of the Secret with trusted authorities; `ca.crt`, if there is one.
        #[serde(rename = "trustedCA")]
        pub trusted_ca: Option<String>,
    }

    /// ICMP messages.
    #[derive(Eq)]
    pub struct IcmpRule {
        /// Types of messages.
        #[schemars(extend("maxItems" = 40))]
        pub fields: Option<Vec<IcmpField>>,
    }

    /// A type of ICMP messages.
    #[derive(Eq)]
    pub struct IcmpField {
        /// IP version. Default: IPv4.
        #[schemars(extend("x-default" = "IPv4"))]
        pub family: Option<IpFamily>,
        /// Number or name of the type.
        #[serde(rename = "type")]
        #[schemars(extend("pattern" = patterns::ICMP_TYPE))]
        pub kind: IcmpType,
    }
}

/// Number or name of a type of ICMP messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IcmpType {
    /// Number. The schema has no bounds for it.
    Number(i64),
    /// Name, such as `EchoRequest`.
    Name(String),
}

impl Default for IcmpType {
    fn default() -> Self {
        IcmpType::Number(0)
    }
}

impl schemars::JsonSchema for IcmpType {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "IcmpType".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "x-kubernetes-int-or-string": true,
        })
    }
}

words! {
    /// Protocols above IP.
    pub enum Protocol {
        /// TCP.
        Tcp = "TCP",
        /// UDP.
        Udp = "UDP",
        /// SCTP.
        Sctp = "SCTP",
        /// VRRP; needs `enable-extended-ip-protocols`, as those below.
        Vrrp = "VRRP",
        /// IGMP.
        Igmp = "IGMP",
        /// GRE.
        Gre = "GRE",
        /// IPv4 in IPv4.
        Ipip = "IPIP",
        /// IPv6 in IPv4.
        Ipv6 = "IPV6",
        /// IPsec, encrypted payload.
        Esp = "ESP",
        /// IPsec, authentication header.
        Ah = "AH",
        /// TCP, UDP and SCTP.
        Any = "ANY",
    }

    /// Kinds that define listeners.
    pub enum ListenerConfigKind {
        /// CiliumEnvoyConfig.
        Namespaced = "CiliumEnvoyConfig",
        /// CiliumClusterwideEnvoyConfig.
        Clusterwide = "CiliumClusterwideEnvoyConfig",
    }

    /// What happens to a request whose header has another value.
    pub enum MismatchAction {
        /// It is logged and passes.
        Log = "LOG",
        /// The header is added.
        Add = "ADD",
        /// The header is deleted.
        Delete = "DELETE",
        /// The value is replaced.
        Replace = "REPLACE",
    }

    /// IP versions.
    pub enum IpFamily {
        /// IPv4.
        Ipv4 = "IPv4",
        /// IPv6.
        Ipv6 = "IPv6",
    }
}
