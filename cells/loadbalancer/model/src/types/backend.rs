// SPDX-License-Identifier: Apache-2.0

//! The backend: one address that serves one service, as one source describes it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use super::{BackendZone, L3n4Addr, Names, ServiceName, Source};

/// Weight of a backend that has none of its own.
pub const DEFAULT_WEIGHT: u16 = 100;

/// State of a backend. The numbers are those in dumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum BackendState {
    /// Takes new connections.
    #[default]
    Active = 0,
    /// Keeps its connections; takes new ones only if no backend is active.
    Terminating = 1,
    /// Keeps its connections, takes no new ones.
    TerminatingNotServing = 2,
    /// Taken out by a health checker.
    Quarantined = 3,
    /// Taken out by hand or not ready; never in a slot.
    Maintenance = 4,
}

impl BackendState {
    /// Text in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Terminating => "terminating",
            Self::TerminatingNotServing => "terminating-not-serving",
            Self::Quarantined => "quarantined",
            Self::Maintenance => "maintenance",
        }
    }

    /// The state with the given number.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Active,
            1 => Self::Terminating,
            2 => Self::TerminatingNotServing,
            3 => Self::Quarantined,
            4 => Self::Maintenance,
            _ => return None,
        })
    }

    /// Flag byte in the backend map: 0 active, 1 terminating, 2 quarantined, 3 maintenance. From 2 on, flows that end
    /// with no packet of their own, those of UDP, are balanced anew: so a terminating backend that does not serve is 2.
    pub const fn map_flags(self) -> u8 {
        match self {
            Self::Active => 0,
            Self::Terminating => 1,
            Self::TerminatingNotServing | Self::Quarantined => 2,
            Self::Maintenance => 3,
        }
    }
}

impl fmt::Display for BackendState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a source says about a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendParams {
    /// Where it listens; external scope.
    pub address: L3n4Addr,
    /// Names of its port; absent or empty: serves every port of its protocol.
    pub port_names: Names,
    /// Share of new connections, relative to the others.
    pub weight: u16,
    /// Node it runs on; `None` counts as this node.
    pub node_name: Option<Arc<str>>,
    /// Zone and hints, if known.
    pub zone: Option<Arc<BackendZone>>,
    /// Cluster it runs in; 0: this one.
    pub cluster_id: u32,
    /// Who says so.
    pub source: Source,
    /// Which object of the source says so, if several may name one address, as endpoint slices do; else 0.
    pub claimant: u32,
    /// State.
    pub state: BackendState,
}

impl BackendParams {
    /// An active backend with default weight and nothing else known.
    pub const fn new(address: L3n4Addr, source: Source) -> Self {
        Self {
            address,
            port_names: Names::ABSENT,
            weight: DEFAULT_WEIGHT,
            node_name: None,
            zone: None,
            cluster_id: 0,
            source,
            claimant: 0,
            state: BackendState::Active,
        }
    }

    /// Whether two claims come from one object: the later one replaces the other.
    pub(crate) fn is_same_claimant(&self, other: &Self) -> bool {
        (self.source, self.cluster_id, self.claimant) == (other.source, other.cluster_id, other.claimant)
    }

    /// What several claims to one address come to, in whatever order they are: the one in the best state counts, with
    /// the port names of all in that state. `None` if there is none.
    pub fn of_claims(claims: &[Self]) -> Option<Self> {
        // Of equal ones it does not matter which; it must be the same one each time.
        let order = |claim: &&Self| {
            let zone = claim.zone.as_deref();
            (
                claim.state,
                Reverse(claim.node_name.clone()),
                Reverse(zone.map(|zone| (zone.zone.clone(), zone.for_zones.as_slice().to_vec()))),
                Reverse(claim.weight),
                (claim.source, claim.cluster_id),
            )
        };
        let mut best = claims.iter().min_by_key(order)?.clone();
        let equal = || claims.iter().filter(|claim| claim.state == best.state);
        if equal().any(|claim| claim.port_names != best.port_names) {
            let is_every_port = equal().any(|claim| claim.port_names.is_empty());
            let names: BTreeSet<&str> = equal().flat_map(|claim| claim.port_names.iter()).collect();
            best.port_names = match is_every_port {
                true => Names::ABSENT,
                false => names.into_iter().collect(),
            };
        }
        Some(best)
    }
}

/// A backend of a service. Rows of table `backends`, one a service, address and source; immutable once inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Service it serves.
    pub service: ServiceName,
    /// What the source says.
    pub params: BackendParams,
    /// Whether a health checker found it dead, for this service.
    pub unhealthy: bool,
    /// When the health checker last said something new; `None`: never checked.
    pub unhealthy_updated_at: Option<Box<SystemTime>>,
    /// Priority of the source; the smallest wins.
    pub source_priority: u8,
    /// Every claim to the address, if there are several; [`params`](Self::params) is what they come to.
    pub claims: Option<Box<[BackendParams]>>,
    /// In a set of one frontend, never in the table: it is there for the connections that it has, and gets no new ones.
    pub is_kept: bool,
}

impl Backend {
    /// A backend of a service that no health checker looked at.
    pub const fn new(service: ServiceName, params: BackendParams) -> Self {
        let source_priority = params.source.priority();
        Self {
            service,
            params,
            unhealthy: false,
            unhealthy_updated_at: None,
            source_priority,
            claims: None,
            is_kept: false,
        }
    }

    /// Every claim to the address.
    pub fn claims(&self) -> &[BackendParams] {
        match &self.claims {
            Some(claims) => claims,
            None => std::slice::from_ref(&self.params),
        }
    }

    /// The row with these claims; `None` if they say what the row says already, or there is none.
    pub(crate) fn with_claims(&self, mut claims: Vec<BackendParams>) -> Option<Self> {
        if *claims == *self.claims() {
            return None;
        }
        let (params, claims) = match claims.len() {
            0 => return None,
            1 => (claims.remove(0), None),
            _ => (BackendParams::of_claims(&claims)?, Some(claims.into())),
        };
        Some(Self {
            params,
            claims,
            ..self.clone()
        })
    }

    /// Whether it may take new connections as one of the first choice.
    pub fn is_active_healthy(&self) -> bool {
        self.params.state == BackendState::Active && !self.unhealthy
    }

    /// Whether clients with session affinity stay with it.
    pub fn keeps_clients(&self) -> bool {
        self.is_active_healthy() && !self.is_kept
    }

    /// Whether it may take connections: active or terminating, and healthy.
    pub fn is_alive(&self) -> bool {
        matches!(
            self.params.state,
            BackendState::Active | BackendState::Terminating
        ) && !self.unhealthy
    }

    /// Whether it runs on the given node; one without a node name runs everywhere.
    pub fn is_on_node(&self, node: &str) -> bool {
        self.params
            .node_name
            .as_deref()
            .is_none_or(|name| name.is_empty() || name == node)
    }
}
