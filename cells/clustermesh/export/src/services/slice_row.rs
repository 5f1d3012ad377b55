// SPDX-License-Identifier: Apache-2.0

//! Row of `mesh-endpoint-slices`.

use std::net::IpAddr;
use std::sync::Arc;

use skep_clustermesh_types::{
    BackendZone, ClusterEndpointSlice, ClusterService, Conditions, Endpoint, ForZone, Ports,
    SERVICE_NAME_LABEL, ServicePort, ValueError,
};
use skep_k8s_types::slim::Str;
use statedb::{Index, Row};

use super::row::{port_number, protocol};
use crate::objects::EndpointSlice;
use crate::parts::Parts;

/// A slice of the endpoints of a service.
#[derive(Debug, Clone)]
pub(crate) struct SliceRow {
    /// `<namespace>/<name>`.
    pub(crate) name: Str,
    pub(crate) namespace: Str,
    /// `<namespace>/<name>` of its service.
    pub(crate) service: Str,
    /// The family of the addresses; `None` if they are names.
    pub(crate) is_ipv4: Option<bool>,
    /// The slice, without the cluster that it is of, encoded: as an object it is four times as large, and there are
    /// thousands.
    message: Box<[u8]>,
    /// What of it is not published.
    pub(crate) fault: Option<Box<str>>,
}

/// Why a part of a slice is not published. Fix the object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidSlice {
    /// An address is none, or of another family than the slice.
    #[error("`{address}` is not an address of type {kind}")]
    Address { address: String, kind: &'static str },
    #[error("invalid port {0}: it must be from 1 to 65535")]
    Port(i32),
}

impl SliceRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));
    pub(crate) const BY_SERVICE: Index<Self, str> = Index::new("service", |row, keys| keys.add(&row.service));

    pub(crate) fn new(object: &Arc<EndpointSlice>) -> Option<Self> {
        let metadata = &object.metadata;
        let service = metadata
            .labels
            .get(SERVICE_NAME_LABEL)
            .filter(|name| !name.is_empty())?;
        let is_ipv4 = match object.address_type.as_str() {
            "IPv4" => Some(true),
            "IPv6" => Some(false),
            _ => None,
        };
        let (mut message, mut parts) = (object.message(), Parts::default());
        if let Some(is_ipv4) = is_ipv4 {
            leave_out_invalid(&mut message, is_ipv4, &mut parts);
        }
        Some(Self {
            name: Str::new(format!("{}/{}", metadata.namespace, metadata.name)),
            namespace: metadata.namespace.clone(),
            service: Str::new(format!("{}/{service}", metadata.namespace)),
            is_ipv4,
            message: message.to_message().into(),
            fault: parts.fault(),
        })
    }

    /// The slice as other clusters read it, but for the cluster that it is of.
    pub(crate) fn message(&self) -> Result<ClusterEndpointSlice, ValueError> {
        ClusterEndpointSlice::from_message(&self.message)
    }

    /// Adds what the slice holds to its service.
    pub(crate) fn add_backends(&self, service: &mut ClusterService) -> Result<(), ValueError> {
        if self.is_ipv4.is_none() {
            return Ok(());
        }
        let slice = self.message()?;
        let ports = ports(&slice);
        for endpoint in slice.endpoints.iter().filter(|endpoint| is_usable(endpoint)) {
            for ip in endpoint
                .addresses
                .iter()
                .filter_map(|ip| ip.parse::<IpAddr>().ok())
            {
                let ip = ip.to_canonical();
                let backend = service.backends.entry(ip).or_default();
                *backend = match backend.is_empty() {
                    true => ports.clone(),
                    // Another slice has the address, with other ports.
                    false => backend.iter().chain(ports.iter()).cloned().collect(),
                };
                if !endpoint.hostname().is_empty() {
                    let name = endpoint.hostname().to_owned();
                    service.hostnames.insert(ip.to_string(), name);
                }
                if !endpoint.zone().is_empty() {
                    service.zones.insert(ip.to_string(), backend_zone(endpoint));
                }
            }
        }
        Ok(())
    }
}

/// Addresses and ports that are none, and endpoints that have no other address.
fn leave_out_invalid(slice: &mut ClusterEndpointSlice, is_ipv4: bool, parts: &mut Parts) {
    let kind = if is_ipv4 { "IPv4" } else { "IPv6" };
    let mut is_address = |address: &String| {
        let ip: Option<IpAddr> = address.parse().ok();
        let valid = ip.filter(|ip| ip.is_ipv4() == is_ipv4);
        let address = address.clone();
        parts
            .take(valid.ok_or(InvalidSlice::Address { address, kind }))
            .is_some()
    };
    slice.endpoints.retain_mut(|endpoint| {
        endpoint.addresses.retain(&mut is_address);
        !endpoint.addresses.is_empty()
    });
    slice.ports.retain(|port| match port.port {
        Some(number) => {
            let valid = port_number(number).ok_or(InvalidSlice::Port(number));
            parts.take(valid).is_some()
        }
        None => true,
    });
}

fn ports(slice: &ClusterEndpointSlice) -> Ports {
    let ports = slice.ports.iter().filter_map(|port| {
        let number = port_number(port.port?)?;
        let port_of = ServicePort {
            protocol: protocol(port.protocol.as_deref()),
            port: number,
        };
        Some((Str::new(port.name()), port_of))
    });
    ports.collect()
}

/// Whether an endpoint is used as a backend: also while it terminates, as long as it serves. What is unknown counts as yes,
/// as in slices of this cluster.
fn is_usable(endpoint: &Endpoint) -> bool {
    let Conditions { ready, serving, .. } = endpoint.conditions.unwrap_or_default();
    ready.unwrap_or(true) || serving.unwrap_or(true)
}

fn backend_zone(endpoint: &Endpoint) -> BackendZone {
    let hints = endpoint.hints.iter().flat_map(|hints| &hints.for_zones);
    let zones = hints.map(|hint| ForZone {
        name: Str::new(hint.name()),
    });
    BackendZone {
        zone: Str::new(endpoint.zone()),
        for_zones: Some(zones.collect()),
    }
}

impl Row for SliceRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Service", "Endpoints"]
    }

    fn cells(&self) -> Vec<String> {
        let endpoints = self.message().map(|slice| slice.endpoints.len());
        vec![
            self.name.to_string(),
            self.service.to_string(),
            endpoints.unwrap_or_default().to_string(),
        ]
    }
}
