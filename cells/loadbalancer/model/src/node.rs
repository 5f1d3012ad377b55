// SPDX-License-Identifier: Apache-2.0

//! Addresses of this node, as the writer and the reconciler read them.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use statedb::Snapshot;

/// Addresses of the node at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// All of them.
    pub all: HashSet<IpAddr>,
    /// IPv4 addresses that answer node ports, in table order.
    pub node_port_v4: Vec<IpAddr>,
    /// IPv6 addresses that answer node ports, in table order.
    pub node_port_v6: Vec<IpAddr>,
}

/// Where name and addresses of the node are read.
pub trait NodeAddresses: Send + Sync {
    /// Name of the node; empty if it is not known.
    fn name(&self) -> Arc<str> {
        "".into()
    }

    /// The addresses in a snapshot.
    fn addresses(&self, snapshot: &Snapshot) -> Arc<Addresses>;
}

/// A node without addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAddresses;

impl NodeAddresses for NoAddresses {
    fn addresses(&self, _snapshot: &Snapshot) -> Arc<Addresses> {
        Arc::default()
    }
}
