// SPDX-License-Identifier: Apache-2.0

//! Row of `mesh-endpoints`.

use std::net::IpAddr;

use skep_clustermesh_types::{IpIdentityPair, NamedPort};
use skep_k8s_types::slim::{Metadata, Str};
use statedb::{Index, Row};

use crate::objects::{CiliumEndpoint, CiliumEndpointSlice, EndpointWire, NamedPortWire, SliceEntry};

/// An endpoint, by itself or in a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndpointRow {
    /// `<namespace>/<name>`, after the name of its slice if it is in one.
    pub(crate) name: Str,
    pub(crate) namespace: Str,
    /// Identifies the endpoint among those that have the same name one after the other.
    uid: Str,
    /// Its addresses, and since which resource version it claims them.
    claims: Box<[(IpAddr, u64)]>,
    /// What is published of each address, without the address.
    value: IpIdentityPair,
    /// Why it cannot be published as it is now.
    pub(crate) fault: Option<Box<str>>,
}

/// Why an endpoint cannot be published. Fix the object; until then its last valid state stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidEndpoint {
    /// An address is none.
    #[error("`{0}` is not an IP address")]
    Address(Str),
    /// The identity does not fit.
    #[error("invalid identity {0}")]
    Identity(i64),
    /// The index of the encryption key does not fit.
    #[error("encryption key {0}: it must be from 0 to 255")]
    Key(i64),
    /// A port does not exist.
    #[error("invalid port {0}: it must be from 0 to 65535")]
    Port(i64),
}

impl EndpointRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));
    pub(crate) const BY_NAMESPACE: Index<Self, str> =
        Index::new("namespace", |row, keys| keys.add(&row.namespace));
    pub(crate) const BY_ADDRESS: Index<Self, IpAddr> = Index::new("address", |row, keys| {
        for (ip, _) in &row.claims {
            keys.add(ip);
        }
    });

    /// The row of an endpoint; none as long as it has no identity or no addresses.
    pub(crate) fn of_endpoint(endpoint: &CiliumEndpoint) -> Result<Option<Self>, InvalidEndpoint> {
        let metadata = &endpoint.metadata;
        let Some(status) = &endpoint.status else {
            return Ok(None);
        };
        let Some(identity) = &status.identity else {
            return Ok(None);
        };
        let name = Str::new(format!("{}/{}", metadata.namespace, metadata.name));
        let base = Base {
            name,
            namespace: &metadata.namespace,
            pod: &metadata.name,
            uid: &metadata.uid,
            version: version(metadata),
        };
        base.row(identity.id, &status.endpoint)
    }

    /// The rows of the endpoints of a slice. Those that are invalid have a fault and claim nothing.
    pub(crate) fn of_slice(slice: &CiliumEndpointSlice) -> Vec<Self> {
        let namespace = slice.namespace.clone().unwrap_or_default();
        let entries = slice.endpoints.iter().flatten();
        entries
            .filter_map(|entry| Self::of_entry(&slice.metadata, &namespace, entry))
            .collect()
    }

    fn of_entry(slice: &Metadata, namespace: &Str, entry: &SliceEntry) -> Option<Self> {
        let (pod, uid) = (entry.name.as_ref()?, entry.pod_uid.clone().unwrap_or_default());
        let base = Base {
            name: Str::new(format!("{}/{namespace}/{pod}", slice.name)),
            namespace,
            pod,
            uid: &uid,
            version: version(slice),
        };
        match base.row(entry.id?, &entry.endpoint) {
            Ok(row) => row,
            Err(error) => Some(base.invalid(&error)),
        }
    }

    /// The row to store in the place of a former one: claims are kept as long as it is the same endpoint.
    pub(crate) fn merge(old: &Self, mut new: Self) -> Self {
        if old.uid != new.uid {
            return new;
        }
        if new.fault.is_some() {
            return Self {
                fault: new.fault,
                ..old.clone()
            };
        }
        for (ip, since) in &mut new.claims {
            if let Some((_, before)) = old.claims.iter().find(|(claimed, _)| claimed == ip) {
                *since = *before;
            }
        }
        new
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.claims.iter().map(|(ip, _)| *ip)
    }

    /// Since when it claims an address.
    pub(crate) fn claimed(&self, ip: IpAddr) -> u64 {
        let claim = self.claims.iter().find(|(claimed, _)| *claimed == ip);
        claim.map(|(_, since)| *since).unwrap_or_default()
    }

    /// What is published of an address.
    pub(crate) fn value(&self, ip: IpAddr) -> IpIdentityPair {
        IpIdentityPair {
            ip: Some(ip),
            ..self.value.clone()
        }
    }
}

/// Resource versions grow with time. One that is no number counts as old.
fn version(metadata: &Metadata) -> u64 {
    metadata.resource_version.parse().unwrap_or_default()
}

/// What a row has apart from the state of the endpoint.
struct Base<'a> {
    name: Str,
    namespace: &'a Str,
    pod: &'a Str,
    uid: &'a Str,
    version: u64,
}

impl Base<'_> {
    fn row(&self, identity: i64, endpoint: &EndpointWire) -> Result<Option<EndpointRow>, InvalidEndpoint> {
        let Some(networking) = &endpoint.networking else {
            return Ok(None);
        };
        let mut claims: Vec<(IpAddr, u64)> = Vec::new();
        for pair in networking.addressing.iter().flatten() {
            for text in pair.ipv4.iter().chain(&pair.ipv6) {
                if let Some(ip) = address(text)?
                    && claims.iter().all(|(claimed, _)| *claimed != ip)
                {
                    claims.push((ip, self.version));
                }
            }
        }
        let key = endpoint.encryption.as_ref().and_then(|encryption| encryption.key);
        let key = key.unwrap_or_default();
        let mut named_ports = endpoint
            .named_ports
            .iter()
            .flatten()
            .map(named_port)
            .collect::<Result<Vec<_>, _>>()?;
        named_ports.sort_by(|a, b| a.name.cmp(&b.name));
        let value = IpIdentityPair {
            host_ip: networking.node.as_ref().map(address).transpose()?.flatten(),
            id: u32::try_from(identity).map_err(|_| InvalidEndpoint::Identity(identity))?,
            key: u8::try_from(key).map_err(|_| InvalidEndpoint::Key(key))?,
            k8s_namespace: self.namespace.clone(),
            k8s_pod_name: self.pod.clone(),
            k8s_service_account: endpoint.service_account.clone().unwrap_or_default(),
            named_ports,
            ..IpIdentityPair::default()
        };
        Ok(Some(self.with(claims, value, None)))
    }

    fn invalid(&self, error: &InvalidEndpoint) -> EndpointRow {
        let fault = error.to_string().into_boxed_str();
        self.with(Vec::new(), IpIdentityPair::default(), Some(fault))
    }

    fn with(
        &self,
        claims: Vec<(IpAddr, u64)>,
        value: IpIdentityPair,
        fault: Option<Box<str>>,
    ) -> EndpointRow {
        EndpointRow {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            uid: self.uid.clone(),
            claims: claims.into(),
            value,
            fault,
        }
    }
}

fn address(text: &Str) -> Result<Option<IpAddr>, InvalidEndpoint> {
    if text.is_empty() {
        return Ok(None);
    }
    let ip: IpAddr = text.parse().map_err(|_| InvalidEndpoint::Address(text.clone()))?;
    Ok(Some(ip.to_canonical()))
}

fn named_port(port: &NamedPortWire) -> Result<NamedPort, InvalidEndpoint> {
    let number = port.port.unwrap_or_default();
    Ok(NamedPort {
        name: port.name.clone().unwrap_or_default(),
        port: u16::try_from(number).map_err(|_| InvalidEndpoint::Port(number))?,
        protocol: port.protocol.clone().unwrap_or_default(),
    })
}

impl Row for EndpointRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Identity", "Addresses"]
    }

    fn cells(&self) -> Vec<String> {
        let addresses: Vec<String> = self.addresses().map(|ip| ip.to_string()).collect();
        vec![
            self.name.to_string(),
            self.value.id.to_string(),
            addresses.join(", "),
        ]
    }
}
