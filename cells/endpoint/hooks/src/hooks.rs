// SPDX-License-Identifier: Apache-2.0

//! The hooks at interfaces of endpoints.

use std::{fmt::Debug, future::Future, pin::Pin};

use skep_bpf_sys::link::LinkError;

/// Attaches the packet programs to interfaces of endpoints.
pub trait EndpointHooks: Send + Sync + Debug {
    /// Attaches `cil_from_container` to the host side of an endpoint's interface, by whatever is quickest; idempotent,
    /// replaces in place.
    ///
    /// # Errors
    ///
    /// [`HookError`]; what was attached before stays so.
    fn attach(&self, endpoint: u16, interface: &str) -> Result<(), HookError>;

    /// Detaches the program of an endpoint; fine if there is none.
    ///
    /// # Errors
    ///
    /// [`HookError::Detach`] if a link cannot be removed.
    fn detach(&self, endpoint: u16) -> Result<(), HookError>;

    /// Waits until the programs are loaded: before, [`attach`](Self::attach) returns [`HookError::NotLoaded`].
    fn loaded(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Why a program was not attached to or detached from the interface of an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The programs are not loaded yet. Wait for [`EndpointHooks::loaded`]; health of `datapath-loader` says what is wrong.
    #[error("endpoint {endpoint}: the packet programs are not loaded")]
    NotLoaded {
        /// Id of the endpoint.
        endpoint: u16,
    },
    /// There is no interface of this name. It may have gone with its pod.
    #[error("endpoint {endpoint}: no interface {interface}")]
    NoInterface {
        /// Id of the endpoint.
        endpoint: u16,
        /// Name of the interface.
        interface: String,
    },
    /// The program was not attached.
    #[error("endpoint {endpoint}: no program at interface {interface}")]
    Attach {
        /// Id of the endpoint.
        endpoint: u16,
        /// Name of the interface.
        interface: String,
        /// Why.
        #[source]
        source: LinkError,
    },
    /// A link was not removed.
    #[error("endpoint {endpoint}: its links were not removed")]
    Detach {
        /// Id of the endpoint.
        endpoint: u16,
        /// Why.
        #[source]
        source: LinkError,
    },
}
