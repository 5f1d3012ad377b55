// SPDX-License-Identifier: Apache-2.0

//! The frontend: an address at which a service is reachable.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use compact_str::CompactString;
use statedb::Revision;
use statedb::reconciler::Status;

use super::{Backend, BackendRow, BackendSet, L3n4Addr, Scope, Service, ServiceName, TrafficPolicy};

/// A service as the table holds it: shared.
pub type ServiceRow = statedb::Obj<Service>;

/// What made a frontend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FrontendKind {
    /// A cluster IP.
    #[default]
    ClusterIp,
    /// A port on every node address; `0.0.0.0` or `::` in the table.
    NodePort,
    /// An external IP.
    ExternalIps,
    /// A virtual IP of a load balancer.
    LoadBalancer,
    /// A port of a pod on its node.
    HostPort,
    /// Made by a local redirect policy.
    LocalRedirect,
}

impl FrontendKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::ClusterIp,
        Self::NodePort,
        Self::ExternalIps,
        Self::LoadBalancer,
        Self::HostPort,
        Self::LocalRedirect,
    ];

    /// Text in tables and dumps.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::ExternalIps => "ExternalIPs",
            Self::LoadBalancer => "LoadBalancer",
            Self::HostPort => "HostPort",
            Self::LocalRedirect => "LocalRedirect",
        }
    }

    /// The kind with the given text.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for FrontendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The part of a frontend that its source decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendParams {
    /// Unique address.
    pub address: L3n4Addr,
    /// What made it.
    pub kind: FrontendKind,
    /// Name of the service port, or empty.
    pub port_name: CompactString,
    /// The service's own port: the address's port, except for node ports.
    pub service_port: u16,
}

/// A frontend. Rows of table `frontends`; immutable once inserted.
#[derive(Clone, Debug)]
pub struct Frontend {
    /// What the source decides.
    pub params: FrontendParams,
    /// The service.
    pub service: ServiceRow,
    /// Backends that are selected for it, in every state. [`selectable_backends`](Self::selectable_backends) are those
    /// to send traffic to.
    pub backends: BackendSet,
    /// Backends of the service that it could use and that are not selected, since others are preferred or a health checker
    /// has not looked at them yet. They have no slot; their entries stay in the maps for the connections that they have.
    pub kept_backends: BackendSet,
    /// Backends a health checker has to look at: those selected and those not checked yet.
    pub health_check_backends: BackendSet,
    /// Service whose backends are used instead (local redirect).
    pub redirect_to: Option<ServiceName>,
    /// Addresses of this node that serve it as well, if it is a node port, or a host port of every address. Each is
    /// in the maps with an id of its own.
    pub node_addresses: Option<Arc<[IpAddr]>>,
    /// Whether this node has the address of a cluster IP or load balancer, which gets no wildcard entry then.
    pub is_node_address: bool,
    /// Numeric id allocated by the reconciler; 0: none yet.
    pub id: u16,
    /// Backends that an earlier run quarantined and no health checker has looked at since; the reconciler notes them.
    pub quarantined: Option<Box<[L3n4Addr]>>,
    /// Position in the order in which ids are allocated: the revision of the last change of what is desired. The writer
    /// stamps it. What only makes the frontend pending again, such as an address of the node, leaves it as it is.
    pub sequence: Revision,
    /// How far the maps follow.
    pub status: Status,
}

impl Frontend {
    /// A frontend without backends that was never reconciled.
    pub fn new(params: FrontendParams, service: ServiceRow) -> Self {
        Self {
            params,
            service,
            backends: BackendSet::default(),
            kept_backends: BackendSet::default(),
            health_check_backends: BackendSet::default(),
            redirect_to: None,
            node_addresses: None,
            is_node_address: false,
            id: 0,
            quarantined: None,
            sequence: 0,
            status: Status::pending(),
        }
    }

    /// The address.
    pub const fn address(&self) -> &L3n4Addr {
        &self.params.address
    }

    /// Name of the service it belongs to.
    pub fn service_name(&self) -> &ServiceName {
        &self.service.name
    }

    /// Whether it is served at the addresses of the node, besides the unspecified address in the table.
    pub fn is_expanded(&self) -> bool {
        match self.params.kind {
            FrontendKind::NodePort => true,
            FrontendKind::HostPort => self.params.address.is_unspecified(),
            _ => false,
        }
    }

    /// The frontend with those that it keeps among its backends, as the maps have them.
    pub fn with_kept_backends(&self) -> Cow<'_, Self> {
        if self.kept_backends.is_empty() {
            return Cow::Borrowed(self);
        }
        let kept = self.kept_backends.iter().map(|row| {
            row.with_object(Backend {
                is_kept: true,
                ..Backend::clone(row)
            })
        });
        Cow::Owned(Self {
            backends: self.backends.iter().cloned().chain(kept).collect(),
            kept_backends: BackendSet::default(),
            ..self.clone()
        })
    }

    /// Kind in the maps: redirected frontends count as [`FrontendKind::LocalRedirect`].
    pub fn effective_kind(&self) -> FrontendKind {
        if self.redirect_to.is_some() {
            FrontendKind::LocalRedirect
        } else {
            self.params.kind
        }
    }

    /// Backends that may get a new connection now: the healthy active ones, or the healthy terminating ones if none is
    /// active. The others in [`backends`](Self::backends) serve connections that they have, or wait to be ready.
    pub fn selectable_backends(&self) -> impl Iterator<Item = &BackendRow> {
        let rows = || self.backends.iter().filter(|row| !self.is_quarantined(row));
        let has_active = rows().any(|row| row.is_active_healthy());
        rows().filter(move |row| match has_active {
            true => row.is_active_healthy(),
            false => row.is_alive(),
        })
    }

    /// Whether a health checker took one of its backends out, in this run or an earlier one.
    pub fn is_quarantined(&self, backend: &Backend) -> bool {
        let quarantined = self.quarantined.as_deref().unwrap_or_default();
        backend.unhealthy || quarantined.contains(&backend.params.address)
    }

    /// Policy that decides about backends on other nodes, by kind and scope; `None`: no policy applies.
    pub fn traffic_policy(&self) -> Option<TrafficPolicy> {
        let service = &self.service;
        match (self.params.kind, self.params.address.scope()) {
            (FrontendKind::HostPort | FrontendKind::LocalRedirect, _) => None,
            // Calls from within the cluster, whatever the internal policy, which is about cluster IPs.
            (FrontendKind::ExternalIps, Scope::Internal) => Some(TrafficPolicy::Cluster),
            (_, Scope::Internal) | (FrontendKind::ClusterIp, _) => Some(service.int_traffic_policy),
            _ => Some(service.ext_traffic_policy),
        }
    }
}
