// SPDX-License-Identifier: Apache-2.0

//! How requests name an endpoint.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use statedb::Query;

use crate::Endpoint;

/// A name of an endpoint: `<kind>:<value>`, or its id alone.
///
/// ```
/// use skep_endpoint::Identifier;
///
/// assert_eq!("417".parse(), Ok(Identifier::Id(417)));
/// assert_eq!("cilium-local:417".parse(), Ok(Identifier::Id(417)));
/// assert_eq!("pod-name:shop/cart-0".parse(), Ok(Identifier::Pod("shop/cart-0".into())));
/// assert!("ipv4:fd00::1".parse::<Identifier>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identifier {
    /// `<id>`, `cilium-local:<id>`; 0 in requests that leave the choice to the agent.
    Id(u16),
    /// `container-id:<container>`, and `cni-attachment-id:<container>` without an interface.
    Container(String),
    /// `cni-attachment-id:<container>:<interface>`.
    Attachment(String),
    /// `pod-name:<namespace>/<name>`, `cep-name:<namespace>/<name>`.
    Pod(String),
    /// `ipv4:<address>`, `ipv6:<address>`.
    Address(IpAddr),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentifierError {
    /// The word before the colon is unknown.
    #[error(
        "`{kind}:` in `{text}` is unknown: name an endpoint by its id, container-id:, cni-attachment-id:, pod-name:, \
         cep-name:, ipv4: or ipv6:"
    )]
    Kind { text: String, kind: String },
    /// What is behind the colon is not of this kind.
    #[error("`{text}`: {value:?} is not {wanted}")]
    Value {
        text: String,
        value: String,
        wanted: &'static str,
    },
}

impl Identifier {
    pub(crate) fn query(&self) -> Query<Endpoint> {
        match self {
            Self::Id(id) => Endpoint::BY_ID.key(id),
            Self::Container(container) => Endpoint::BY_CONTAINER.key(container.as_str()),
            Self::Attachment(attachment) => Endpoint::BY_ATTACHMENT.key(attachment.as_str()),
            Self::Pod(pod) => Endpoint::BY_POD.key(pod.as_str()),
            Self::Address(address) => Endpoint::BY_ADDRESS.key(address),
        }
    }
}

impl FromStr for Identifier {
    type Err = IdentifierError;

    fn from_str(text: &str) -> Result<Self, IdentifierError> {
        let (kind, value) = text.split_once(':').unwrap_or(("cilium-local", text));
        let failed = |wanted| IdentifierError::Value {
            text: text.to_owned(),
            value: value.to_owned(),
            wanted,
        };
        let named = |wanted| match value.is_empty() {
            true => Err(failed(wanted)),
            false => Ok(value.to_owned()),
        };
        Ok(match kind {
            "cilium-local" => Self::Id(value.parse().map_err(|_| failed("an id from 0 to 65535"))?),
            "container-id" => Self::Container(named("the id of a container")?),
            "cni-attachment-id" if value.contains(':') => Self::Attachment(value.to_owned()),
            "cni-attachment-id" => Self::Container(named("the id of a container")?),
            "pod-name" | "cep-name" if value.contains('/') => Self::Pod(value.to_owned()),
            "pod-name" | "cep-name" => return Err(failed("<namespace>/<name>")),
            "ipv4" => {
                let address: Ipv4Addr = value.parse().map_err(|_| failed("an IPv4 address"))?;
                Self::Address(address.into())
            }
            "ipv6" => {
                let address: Ipv6Addr = value.parse().map_err(|_| failed("an IPv6 address"))?;
                Self::Address(address.into())
            }
            _ => {
                return Err(IdentifierError::Kind {
                    text: text.to_owned(),
                    kind: kind.to_owned(),
                });
            }
        })
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Container(container) => write!(f, "container-id:{container}"),
            Self::Attachment(attachment) => write!(f, "cni-attachment-id:{attachment}"),
            Self::Pod(pod) => write!(f, "pod-name:{pod}"),
            Self::Address(IpAddr::V4(address)) => write!(f, "ipv4:{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "ipv6:{address}"),
        }
    }
}
