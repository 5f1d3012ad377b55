// SPDX-License-Identifier: Apache-2.0

//! What a proxy demands of redirected traffic: carried along, not judged here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use crate::fqdn::{FqdnSelector, is_star};

/// HTTP requests that are allowed: all demands must be met. Empty for every request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRule {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub method: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub header_matches: Vec<HeaderMatch>,
}

/// A header with the value that it must have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderMatch {
    /// `LOG`, `ADD`, `DELETE` or `REPLACE`; empty: other requests are dropped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mismatch: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretName>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// Names a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct SecretName {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    pub name: String,
}

/// Demands on layer 7, of one protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum L7Rules {
    #[default]
    None,
    Http(Vec<HttpRule>),
    Dns(Vec<FqdnSelector>),
}

impl L7Rules {
    pub fn is_empty(&self) -> bool {
        match self {
            Self::None => true,
            Self::Http(rules) => rules.is_empty(),
            Self::Dns(rules) => rules.is_empty(),
        }
    }

    /// Adds the rule that allows everything, unless it is there.
    pub(crate) fn add_wildcard(&mut self) {
        match self {
            Self::None => {}
            Self::Http(rules) => push_new(rules, HttpRule::default()),
            Self::Dns(rules) if rules.iter().any(|rule| is_star(&rule.match_pattern)) => {}
            Self::Dns(rules) => rules.push(FqdnSelector::pattern("*")),
        }
    }

    /// Requests that either allows. A side without rules allows all.
    pub(crate) fn unite(&mut self, other: &Self) {
        if self.is_empty() != other.is_empty() {
            if self.is_empty() {
                *self = other.clone();
            }
            self.add_wildcard();
            return;
        }
        match (self, other) {
            (Self::Http(rules), Self::Http(others)) => {
                for rule in others {
                    push_new(rules, rule.clone());
                }
            }
            (Self::Dns(rules), Self::Dns(others)) => {
                for rule in others {
                    push_new(rules, rule.clone());
                }
            }
            _ => {}
        }
    }
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Which proxy understands the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Parser {
    #[default]
    None,
    Tls,
    Http,
    Dns,
    /// An Envoy listener of a CiliumEnvoyConfig.
    Crd,
}

impl Parser {
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Tls => "tls",
            Self::Http => "http",
            Self::Dns => "dns",
            Self::Crd => "crd",
        }
    }

    /// Priority among redirects of one level; lower is stronger.
    pub const fn listener_priority(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Http => 101,
            Self::Tls => 116,
            Self::Dns => 121,
            Self::Crd => 126,
        }
    }
}

/// Certificates of a proxy, as a rule names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsContext {
    pub secret: SecretName,
    /// Items of the Secret; empty for `ca.crt`, `tls.crt` and `tls.key`.
    pub trusted_ca: String,
    pub certificate: String,
    pub private_key: String,
}

/// Certificates of a proxy, with their values where Secrets are not left to the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSecret {
    pub secret: SecretName,
    pub values: Option<TlsValues>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsValues {
    pub trusted_ca: String,
    pub certificate: String,
    pub private_key: String,
}

/// Secrets with their items.
pub type Secrets = BTreeMap<SecretName, BTreeMap<String, String>>;

/// An Envoy listener, as a rule names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerRule {
    /// In the namespace of the subject; else of a clusterwide configuration.
    pub is_namespaced: bool,
    pub config: String,
    pub name: String,
    /// 0 for the default.
    pub priority: u8,
    /// Of a clusterwide policy: subjects without namespace are an error.
    pub is_clusterwide_policy: bool,
}

/// Everything that the ports of a rule demand above layer 4.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortDemands {
    pub rules: L7Rules,
    pub terminating_tls: Option<TlsContext>,
    pub originating_tls: Option<TlsContext>,
    pub server_names: BTreeSet<String>,
    pub listener: Option<ListenerRule>,
}

impl PortDemands {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Name of a listener: `<namespace>/<configuration>/<listener>`.
pub type ListenerName = Arc<str>;
