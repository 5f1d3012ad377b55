// SPDX-License-Identifier: Apache-2.0

//! Row of `mesh-endpoint-slices`.

use std::net::IpAddr;
use std::sync::Arc;

use skep_clustermesh_types::{BackendZone, ClusterService, ForZone, Ports, SERVICE_NAME_LABEL, ServicePort};
use skep_k8s_types::slim::Str;
use statedb::{Index, Row};

use super::row::{port_number, protocol};
use crate::objects::{EndpointSlice, EndpointWithHost};

/// A slice of the endpoints of a service.
#[derive(Debug, Clone)]
pub(crate) struct SliceRow {
    /// `<namespace>/<name>`.
    pub(crate) name: Str,
    pub(crate) namespace: Str,
    /// `<namespace>/<name>` of its service.
    pub(crate) service: Str,
    pub(crate) object: Arc<EndpointSlice>,
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
        let row = Self {
            name: Str::new(format!("{}/{}", metadata.namespace, metadata.name)),
            namespace: metadata.namespace.clone(),
            service: Str::new(format!("{}/{service}", metadata.namespace)),
            object: object.clone(),
        };
        row.check()?;
        Ok(Some(row))
    }

    fn check(&self) -> Result<(), InvalidSlice> {
        let Some(is_ipv4) = self.is_ipv4() else {
            return Ok(());
        };
        for address in self.endpoints().flat_map(|endpoint| &endpoint.addresses) {
            let ip: Option<IpAddr> = address.parse().ok();
            if ip.is_none_or(|ip| ip.is_ipv4() != is_ipv4) {
                return Err(InvalidSlice::Address {
                    address: address.clone(),
                    kind: self.object.address_type.clone(),
                });
            }
        }
        for port in self.object.ports.iter().flatten().filter_map(|port| port.port) {
            port_number(port).ok_or(InvalidSlice::Port(port))?;
        }
        Ok(())
    }

    /// The family of the addresses; `None` if they are names.
    pub(crate) fn is_ipv4(&self) -> Option<bool> {
        match self.object.address_type.as_str() {
            "IPv4" => Some(true),
            "IPv6" => Some(false),
            _ => None,
        }
    }

    fn endpoints(&self) -> impl Iterator<Item = &EndpointWithHost> {
        self.object.endpoints.iter().flatten()
    }

    fn ports(&self) -> Ports {
        let ports = self.object.ports.iter().flatten().filter_map(|port| {
            let number = port_number(port.port?)?;
            let name = port.name.clone().unwrap_or_default();
            let protocol = protocol(port.protocol.as_ref());
            Some((
                name,
                ServicePort {
                    protocol,
                    port: number,
                },
            ))
        });
        ports.collect()
    }

    /// Adds what the slice holds to its service.
    pub(crate) fn add_backends(&self, service: &mut ClusterService) {
        if self.is_ipv4().is_none() {
            return;
        }
        let ports = self.ports();
        for endpoint in self.endpoints().filter(|endpoint| endpoint.is_usable()) {
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
                if let Some(name) = endpoint.hostname.as_ref().filter(|name| !name.is_empty()) {
                    service.hostnames.insert(ip.to_string(), name.to_string());
                }
                if let Some(zone) = endpoint.zone.as_ref().filter(|zone| !zone.is_empty()) {
                    service.zones.insert(ip.to_string(), backend_zone(zone, endpoint));
                }
            }
        }
    }
}

fn backend_zone(zone: &Str, endpoint: &EndpointWithHost) -> BackendZone {
    let hints = endpoint.hints.iter().flat_map(|hints| &hints.for_zones).flatten();
    BackendZone {
        zone: zone.clone(),
        for_zones: Some(
            hints
                .map(|hint| ForZone {
                    name: hint.name.clone(),
                })
                .collect(),
        ),
    }
}

impl Row for SliceRow {
    fn header() -> &'static [&'static str] {
        &["Name", "Service", "Endpoints"]
    }

    fn cells(&self) -> Vec<String> {
        let endpoints = self.endpoints().count();
        vec![
            self.name.to_string(),
            self.service.to_string(),
            endpoints.to_string(),
        ]
    }
}
