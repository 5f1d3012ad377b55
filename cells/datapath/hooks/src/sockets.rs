// SPDX-License-Identifier: Apache-2.0

//! Traits between socket load balancing and other cells.

use std::{future::Future, net::SocketAddr, path::PathBuf, pin::Pin};

/// Reports when the maps hold all services that were known at start.
///
/// Only asked when maps had to be replaced: programs that work with the old ones go on with them until the
/// new ones are as good.
pub trait MapsWritten: Send + Sync {
    fn written(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Knows the network namespaces of the pods on this node.
pub trait PodNetworks: Send + Sync {
    /// Files that name the namespaces, for `setns(2)`.
    fn namespaces(&self) -> Vec<PathBuf>;
}

/// Destroys client sockets of backends that are gone. Cheap to report to; the work is done by a job.
pub trait SocketTermination: Send + Sync {
    fn is_enabled(&self) -> bool;

    /// Reports a backend that is removed, unhealthy, quarantined or in maintenance: address, port, IP protocol number.
    fn report(&self, backend: SocketAddr, proto: u8);

    /// Revokes a report: the backend is alive again.
    fn revoke(&self, backend: SocketAddr, proto: u8);
}
