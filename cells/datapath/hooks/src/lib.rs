// SPDX-License-Identifier: Apache-2.0

//! The traits between the datapath and its users: programs at interfaces of endpoints, flows of endpoints that are gone,
//! sockets of backends that are gone, and what socket load balancing waits for.
//!
//! `skep-datapath-loader` implements [`EndpointHooks`] with the packet programs, `skep-datapath-conntrack` [`EndpointFlows`],
//! `skep-datapath-socketlb` [`SocketTermination`]. This is
//! a crate of its own, so that what calls them links neither the programs nor libbpf. With feature `testing` there are both
//! in memory.

mod events;
mod hooks;
mod sockets;
#[cfg(feature = "testing")]
pub mod testing;

/// Interface that is the gateway of pods.
pub const HOST_DEVICE: &str = "cilium_host";
/// The other side of [`HOST_DEVICE`].
pub const NET_DEVICE: &str = "cilium_net";

pub use events::{EventOptions, EventState, EventSwitch, RateSwitch};
pub use hooks::{EndpointFlows, EndpointHooks, FlowPass, FlowPasses, ForgetError, HookError};
pub use sockets::{MapsWritten, PodNetworks, SocketTermination};
