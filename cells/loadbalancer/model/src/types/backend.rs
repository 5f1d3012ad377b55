// SPDX-License-Identifier: Apache-2.0

//! The backend: one address that serves one service, as one source describes it.

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

    /// Flag byte in the backend map: 0 active, 1 terminating (both kinds), 2 quarantined, 3 maintenance.
    pub const fn map_flags(self) -> u8 {
        match self {
            Self::Active => 0,
            Self::Terminating | Self::TerminatingNotServing => 1,
            Self::Quarantined => 2,
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
            state: BackendState::Active,
        }
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
        }
    }

    /// Whether it may take new connections as one of the first choice.
    pub fn is_active_healthy(&self) -> bool {
        self.params.state == BackendState::Active && !self.unhealthy
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
