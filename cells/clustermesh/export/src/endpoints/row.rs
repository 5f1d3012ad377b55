// SPDX-License-Identifier: Apache-2.0

//! Row of `mesh-endpoints`.

use std::net::IpAddr;

use skep_clustermesh_types::{IpIdentityPair, NamedPort};
use skep_k8s_types::slim::{
    CiliumEndpoint, CiliumEndpointSlice, DescribedEndpoint, EndpointNamedPort, Metadata, Str,
};
use statedb::{Index, Row};

use crate::parts::Parts;

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
    node: Option<IpAddr>,
    identity: u32,
    encryption_key: u8,
    service_account: Str,
    /// In the order of the object.
    named_ports: Box<[NamedPort]>,
    /// Whether nothing of it can be published.
    is_invalid: bool,
    /// What of it is not published.
    pub(crate) fault: Option<Box<str>>,
}

/// Why a part of an endpoint cannot be published. Fix the object. Without an identity its last valid state stays until then.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidEndpoint {
    #[error("`{0}` is not an IP address")]
    Address(Str),
    #[error("invalid identity {0}")]
    Identity(i64),
    /// The index of the encryption key does not fit.
    #[error("encryption key {0}: it must be from 0 to 255")]
    Key(i64),
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
        let status = endpoint.status.as_ref();
        let Some(identity) = status.and_then(|status| status.identity) else {
            return Ok(None);
        };
        let Some(described) = endpoint.described() else {
            return Ok(None);
        };
        let metadata = &endpoint.metadata;
        let base = Base {
            name: Str::new(described.key.to_string()),
            endpoint: described,
            uid: &metadata.uid,
            version: version(metadata),
        };
        base.row(identity.id.unwrap_or_default())
    }

    /// The rows of the endpoints of a slice. Those that are invalid have a fault and claim nothing.
    pub(crate) fn of_slice(slice: &CiliumEndpointSlice) -> Vec<Self> {
        let entries = slice.described().zip(&slice.endpoints);
        entries
            .filter(|(endpoint, _)| !endpoint.key.name.is_empty())
            .filter_map(|(endpoint, entry)| Self::of_entry(&slice.metadata, endpoint, &entry.pod_uid))
            .collect()
    }

    fn of_entry(slice: &Metadata, endpoint: DescribedEndpoint<'_>, uid: &Str) -> Option<Self> {
        let identity = endpoint.identity?;
        let base = Base {
            name: Str::new(format!("{}/{}", slice.name, endpoint.key)),
            endpoint,
            uid,
            version: version(slice),
        };
        match base.row(identity) {
            Ok(row) => row,
            Err(error) => Some(base.invalid(&error)),
        }
    }

    /// The row to store in the place of a former one: claims are kept as long as it is the same endpoint.
    pub(crate) fn merge(old: &Self, mut new: Self) -> Self {
        if old.uid != new.uid {
            return new;
        }
        if new.is_invalid {
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
        let pod = self.name.rsplit('/').next().unwrap_or_default();
        IpIdentityPair {
            ip: Some(ip),
            host_ip: self.node,
            id: self.identity,
            key: self.encryption_key,
            k8s_namespace: self.namespace.clone(),
            k8s_pod_name: Str::new(pod),
            k8s_service_account: self.service_account.clone(),
            named_ports: self.named_ports.to_vec(),
            ..IpIdentityPair::default()
        }
    }
}

/// Resource versions grow with time. One that is no number counts as old.
fn version(metadata: &Metadata) -> u64 {
    metadata.resource_version.parse().unwrap_or_default()
}

/// What a row is made of.
struct Base<'a> {
    name: Str,
    endpoint: DescribedEndpoint<'a>,
    uid: &'a Str,
    version: u64,
}

impl Base<'_> {
    fn row(&self, identity: i64) -> Result<Option<EndpointRow>, InvalidEndpoint> {
        let endpoint = &self.endpoint;
        let Some(networking) = endpoint.networking else {
            return Ok(None);
        };
        let identity = u32::try_from(identity).map_err(|_| InvalidEndpoint::Identity(identity))?;
        let mut parts = Parts::default();
        let mut claims: Vec<(IpAddr, u64)> = Vec::new();
        for text in networking.addresses() {
            if let Some(ip) = parts.take(address(text)).flatten()
                && claims.iter().all(|(claimed, _)| *claimed != ip)
            {
                claims.push((ip, self.version));
            }
        }
        let key = endpoint.encryption_key;
        let in_range = u8::try_from(key).map_err(|_| InvalidEndpoint::Key(key));
        let named_ports = endpoint.named_ports.iter().map(named_port);
        Ok(Some(EndpointRow {
            claims: claims.into(),
            node: parts.take(address(&networking.node)).flatten(),
            identity,
            // Cilium publishes the lowest byte.
            encryption_key: parts.take(in_range).unwrap_or(key.to_le_bytes()[0]),
            service_account: endpoint.service_account.clone(),
            named_ports: named_ports.filter_map(|port| parts.take(port)).collect(),
            fault: parts.fault(),
            ..self.nothing()
        }))
    }

    fn invalid(&self, error: &InvalidEndpoint) -> EndpointRow {
        EndpointRow {
            is_invalid: true,
            fault: Some(error.to_string().into_boxed_str()),
            ..self.nothing()
        }
    }

    fn nothing(&self) -> EndpointRow {
        EndpointRow {
            name: self.name.clone(),
            namespace: self.endpoint.key.namespace.clone(),
            uid: self.uid.clone(),
            claims: Box::default(),
            node: None,
            identity: 0,
            encryption_key: 0,
            service_account: Str::default(),
            named_ports: Box::default(),
            is_invalid: false,
            fault: None,
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

fn named_port(port: &EndpointNamedPort) -> Result<NamedPort, InvalidEndpoint> {
    Ok(NamedPort {
        name: port.name.clone(),
        port: u16::try_from(port.port).map_err(|_| InvalidEndpoint::Port(port.port))?,
        protocol: port.protocol.clone(),
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
            self.identity.to_string(),
            addresses.join(", "),
        ]
    }
}
