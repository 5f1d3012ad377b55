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
}

/// Why a slice cannot be published. Fix the object; until then its last valid state stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidSlice {
    /// An address is none, or of another family than the slice.
    #[error("`{address}` is not an address of type {kind}")]
    Address {
        /// The address.
        address: Str,
        /// Type of the slice.
        kind: Str,
    },
    /// A port does not exist.
    #[error("invalid port {0}: it must be from 1 to 65535")]
    Port(i32),
}

impl SliceRow {
    pub(crate) const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.name));
    pub(crate) const BY_SERVICE: Index<Self, str> = Index::new("service", |row, keys| keys.add(&row.service));

    /// A slice of a service.
    pub(crate) fn new(object: &Arc<EndpointSlice>) -> Result<Option<Self>, InvalidSlice> {
        let metadata = &object.metadata;
        let Some(service) = metadata
            .labels
            .get(SERVICE_NAME_LABEL)
            .filter(|name| !name.is_empty())
        else {
            return Ok(None);
        };
        let is_ipv4 = match object.address_type.as_str() {
            "IPv4" => Some(true),
            "IPv6" => Some(false),
            _ => None,
        };
        if let Some(is_ipv4) = is_ipv4 {
            check(object, is_ipv4)?;
        }
        Ok(Some(Self {
            name: Str::new(format!("{}/{}", metadata.namespace, metadata.name)),
            namespace: metadata.namespace.clone(),
            service: Str::new(format!("{}/{service}", metadata.namespace)),
            is_ipv4,
            message: object.message().to_message().into(),
        }))
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

fn check(slice: &EndpointSlice, is_ipv4: bool) -> Result<(), InvalidSlice> {
    let endpoints = slice.endpoints.iter().flatten();
    for address in endpoints.flat_map(|endpoint| &endpoint.addresses) {
        let ip: Option<IpAddr> = address.parse().ok();
        if ip.is_none_or(|ip| ip.is_ipv4() != is_ipv4) {
            return Err(InvalidSlice::Address {
                address: address.clone(),
                kind: slice.address_type.clone(),
            });
        }
    }
    for port in slice.ports.iter().flatten().filter_map(|port| port.port) {
        port_number(port).ok_or(InvalidSlice::Port(port))?;
    }
    Ok(())
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

/// Whether an endpoint is used as a backend: also while it terminates, as long as it serves. What is unknown counts as yes.
fn is_usable(endpoint: &Endpoint) -> bool {
    let Conditions { ready, serving, .. } = endpoint.conditions.unwrap_or_default();
    let ready = ready.unwrap_or(true);
    ready || serving.unwrap_or(ready)
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
