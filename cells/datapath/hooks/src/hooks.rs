// SPDX-License-Identifier: Apache-2.0

//! The hooks at interfaces of endpoints.

use std::{error::Error, fmt::Debug, future::Future, net::IpAddr, pin::Pin, time::SystemTime};

use skep_bpf_sys::link::LinkError;
use tokio::sync::watch;

/// Attaches the packet programs to interfaces of endpoints.
pub trait EndpointHooks: Send + Sync + Debug {
    /// Attaches `cil_from_container` to the host side of an endpoint's interface, by whatever is quickest; idempotent,
    /// replaces in place.
    ///
    /// # Errors
    ///
    /// [`HookError`]; what was attached before stays so.
    fn attach(&self, endpoint: u16, interface: &str) -> Result<(), HookError>;

    /// Attaches `cil_to_container` to the host side of an endpoint's interface, for what the kernel sends there; as
    /// [`attach`](Self::attach).
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach).
    fn attach_egress(&self, endpoint: u16, interface: &str) -> Result<(), HookError>;

    /// Detaches `cil_to_container` from this interface of an endpoint, whoever has attached it; fine if it is not there.
    ///
    /// # Errors
    ///
    /// [`HookError::Detach`] if a link or a filter cannot be removed.
    fn detach_egress(&self, endpoint: u16, interface: &str) -> Result<(), HookError>;

    /// Detaches the programs of an endpoint; fine if there are none.
    ///
    /// # Errors
    ///
    /// [`HookError::Detach`] if a link cannot be removed.
    fn detach(&self, endpoint: u16) -> Result<(), HookError>;

    /// Waits until the programs are loaded: before, [`attach`](Self::attach) returns [`HookError::NotLoaded`].
    fn loaded(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Removes what programs remember of flows.
pub trait EndpointFlows: Send + Sync + Debug {
    /// Removes the conntrack and NAT entries of all flows from and to these addresses: their endpoints are gone, and the
    /// next ones that have them start anew.
    fn forget(
        &self,
        addresses: Vec<IpAddr>,
    ) -> Pin<Box<dyn Future<Output = Result<(), ForgetError>> + Send + '_>>;
}

/// A complete pass of conntrack's garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowPass {
    /// Number of passes since the start of the agent.
    pub number: u64,
    pub start: SystemTime,
    /// When the next pass is due.
    pub next: SystemTime,
}

/// Reports passes of conntrack's garbage collection.
pub trait FlowPasses: Send + Sync + Debug {
    /// The last complete pass.
    fn passes(&self) -> watch::Receiver<Option<FlowPass>>;
}

/// Entries of flows were not removed, or not all. They are removed when they expire.
#[derive(Debug, thiserror::Error)]
#[error("entries of flows of endpoints that are gone are not removed: {}", list(.addresses))]
pub struct ForgetError {
    pub addresses: Vec<IpAddr>,
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// Why a program was not attached to or detached from the interface of an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The programs are not loaded yet. Wait for [`EndpointHooks::loaded`]; health of `datapath-loader` says what is wrong.
    #[error("endpoint {endpoint}: the packet programs are not loaded")]
    NotLoaded { endpoint: u16 },
    /// There is no interface of this name. It may have gone with its pod.
    #[error("endpoint {endpoint}: no interface {interface}")]
    NoInterface { endpoint: u16, interface: String },
    #[error("endpoint {endpoint}: no program at interface {interface}")]
    Attach {
        endpoint: u16,
        interface: String,
        #[source]
        source: LinkError,
    },
    #[error("endpoint {endpoint}: its links were not removed")]
    Detach {
        endpoint: u16,
        #[source]
        source: LinkError,
    },
}
