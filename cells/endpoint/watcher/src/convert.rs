// SPDX-License-Identifier: Apache-2.0

//! An endpoint as an object has it → what its addresses are.

use std::net::{AddrParseError, IpAddr};
use std::sync::Arc;

use skep_identity::NumericIdentity;
use skep_ipcache::PodMetadata;
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{DescribedEndpoint, EndpointNamedPort, Str};
use smallvec::SmallVec;

/// Why an endpoint cannot be read. Its last valid state stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// An entry of a slice has no name.
    #[error("an endpoint of namespace `{namespace}` has no name")]
    NoName { namespace: Str },
    /// An address, or that of the node, is none.
    #[error("endpoint `{endpoint}`: address `{address}` is invalid")]
    Address {
        endpoint: ObjectKey,
        address: Str,
        #[source]
        cause: AddrParseError,
    },
    /// The number is none of an identity.
    #[error("endpoint `{endpoint}`: identity {identity} is out of range")]
    Identity { endpoint: ObjectKey, identity: i64 },
    /// The index of the encryption key is not one of 0 to 255.
    #[error("endpoint `{endpoint}`: encryption key {key} is out of range")]
    Key { endpoint: ObjectKey, key: i64 },
    /// A named port has no valid number or protocol.
    #[error("endpoint `{endpoint}`: named port `{port}` is invalid")]
    Port { endpoint: ObjectKey, port: Str },
}

/// What the addresses of an endpoint are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Endpoint {
    pub(crate) addresses: SmallVec<[IpAddr; 2]>,
    pub(crate) identity: NumericIdentity,
    pub(crate) node: IpAddr,
    pub(crate) key: u8,
    pub(crate) pod: Arc<PodMetadata>,
}

/// The endpoint; `None` while it has no addresses or its node is not known.
pub(crate) fn endpoint(described: &DescribedEndpoint<'_>) -> Result<Option<Endpoint>, EndpointError> {
    let DescribedEndpoint {
        key,
        identity,
        encryption_key,
        named_ports,
        networking,
        service_account: _,
    } = described;
    if key.name.is_empty() {
        let namespace = key.namespace.clone();
        return Err(EndpointError::NoName { namespace });
    }
    let Some(networking) = networking.filter(|networking| !networking.node.is_empty()) else {
        return Ok(None);
    };
    let parse = |text: &Str| {
        text.parse::<IpAddr>().map_err(|cause| EndpointError::Address {
            endpoint: key.clone(),
            address: text.clone(),
            cause,
        })
    };
    let node = parse(&networking.node)?;
    let addresses = networking.addresses().map(parse);
    let addresses: SmallVec<[IpAddr; 2]> = addresses.collect::<Result<_, _>>()?;
    if addresses.is_empty() {
        return Ok(None);
    }
    let mut ports = Vec::new();
    for port in *named_ports {
        ports.push(named_port(port).ok_or_else(|| EndpointError::Port {
            endpoint: key.clone(),
            port: port.name.clone(),
        })?);
    }
    ports.sort();
    Ok(Some(Endpoint {
        addresses,
        identity: numeric(*identity).ok_or_else(|| EndpointError::Identity {
            endpoint: key.clone(),
            identity: identity.unwrap_or_default(),
        })?,
        node,
        key: u8::try_from(*encryption_key).map_err(|_| EndpointError::Key {
            endpoint: key.clone(),
            key: *encryption_key,
        })?,
        pod: Arc::new(PodMetadata {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            named_ports: ports.into(),
        }),
    }))
}

/// An endpoint without an identity is one that no agent manages yet.
fn numeric(identity: Option<i64>) -> Option<NumericIdentity> {
    match identity {
        None => Some(NumericIdentity::UNMANAGED),
        Some(number) => u32::try_from(number)
            .ok()
            .map(NumericIdentity::new)
            .filter(|identity| *identity != NumericIdentity::UNKNOWN && identity.scope().is_some()),
    }
}

fn named_port(port: &EndpointNamedPort) -> Option<(Str, u8, u16)> {
    let protocol = PodMetadata::protocol(&port.protocol)?;
    let number = u16::try_from(port.port).ok()?;
    Some((port.name.clone(), protocol, number))
}
