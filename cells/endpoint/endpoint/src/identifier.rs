// SPDX-License-Identifier: Apache-2.0

//! How requests name an endpoint.

use std::{fmt, net::IpAddr, num::IntErrorKind, str::FromStr};

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
/// assert_eq!("ipv4:abc".parse(), Ok(Identifier::Nothing("ipv4:abc".into())));
/// assert!("docker:1".parse::<Identifier>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identifier {
    /// `<id>`, `cilium-local:<id>`.
    Id(u16),
    /// `container-id:<container>`.
    Container(String),
    /// `cni-attachment-id:<container>:<interface>`.
    Attachment(String),
    /// `pod-name:<namespace>/<name>`, `cep-name:<namespace>/<name>`.
    Pod(String),
    /// `ipv4:<address>`, `ipv6:<address>`.
    Address(IpAddr),
    /// Well formed, but of no endpoint.
    Nothing(String),
}

/// A name is invalid. Texts are Cilium's: clients show them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentifierError {
    #[error("unknown endpoint ID prefix {0:?}")]
    Prefix(String),
    #[error("endpoint id too large: {0}")]
    TooLarge(i64),
    #[error("invalid numeric cilium id: strconv.ParseInt: parsing {0:?}: {1}")]
    Number(String, &'static str),
    /// The text lacks its cause, as Cilium's does.
    #[error("invalid numeric cilium id: %!w(<nil>)")]
    Negative,
    #[error("unsupported IP address format")]
    Global,
}

impl Identifier {
    pub(crate) fn query(&self) -> Option<Query<Endpoint>> {
        Some(match self {
            Self::Id(id) => Endpoint::BY_ID.key(id),
            Self::Container(container) => Endpoint::BY_CONTAINER.key(container.as_str()),
            Self::Attachment(attachment) => Endpoint::BY_ATTACHMENT.key(attachment.as_str()),
            Self::Pod(pod) => Endpoint::BY_POD.key(pod.as_str()),
            Self::Address(address) => Endpoint::BY_ADDRESS.key(address),
            Self::Nothing(_) => return None,
        })
    }
}

impl FromStr for Identifier {
    type Err = IdentifierError;

    fn from_str(text: &str) -> Result<Self, IdentifierError> {
        let (kind, value) = text.split_once(':').unwrap_or(("cilium-local", text));
        let address = |is_of: fn(&IpAddr) -> bool| {
            let address = value.parse().ok().filter(is_of);
            address.map_or_else(|| Self::Nothing(text.to_owned()), Self::Address)
        };
        Ok(match kind {
            "cilium-local" => Self::Id(number(value)?),
            "cilium-global" => return Err(IdentifierError::Global),
            "container-id" => Self::Container(value.to_owned()),
            "cni-attachment-id" => Self::Attachment(value.to_owned()),
            "pod-name" | "cep-name" => Self::Pod(value.to_owned()),
            "ipv4" => address(IpAddr::is_ipv4),
            "ipv6" => address(IpAddr::is_ipv6),
            _ => return Err(IdentifierError::Prefix(kind.to_owned())),
        })
    }
}

fn number(text: &str) -> Result<u16, IdentifierError> {
    let number = text.parse::<i64>().map_err(|error| {
        let cause = match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        IdentifierError::Number(text.to_owned(), cause)
    })?;
    match number {
        ..0 => Err(IdentifierError::Negative),
        number => u16::try_from(number).map_err(|_| IdentifierError::TooLarge(number)),
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Container(container) => write!(f, "container-id:{container}"),
            Self::Attachment(attachment) => write!(f, "cni-attachment-id:{attachment}"),
            Self::Pod(pod) => write!(f, "pod-name:{pod}"),
            Self::Nothing(text) => f.write_str(text),
            Self::Address(IpAddr::V4(address)) => write!(f, "ipv4:{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "ipv6:{address}"),
        }
    }
}
