// SPDX-License-Identifier: Apache-2.0

//! Socket load balancing: services become backends when sockets connect, send or ask for their peer.
//!
//! - [`cell`] loads the programs of `skep-bpf-programs` with the pinned maps and attaches them to the root of the
//!   cgroup tree by pinned links. They stay attached when the agent ends, are replaced in place by the next
//!   one, and are detached when socket load balancing is switched off. Client sockets of backends that were
//!   reported dead ([`DeadBackends`]) are destroyed.
//! - [`loadbalancer_cell`] joins it to the load balancer's cells: it reports removed backends, and when the maps
//!   are filled.
//!
//! What the programs do is written in `bpf/progs/cgroup_socketlb.bpf.c`.

mod cell;
mod datapath;
mod diag;
mod jit;
mod loadbalancer;
mod ports;
mod terminate;

pub use cell::cell;
pub use datapath::{
    DatapathError, ForeignProgram, MapsWritten, SocketDatapath, SocketSettings, SocketStatus, links_directory,
};
pub use diag::{DiagError, DiagTerminator};
pub use loadbalancer::loadbalancer_cell;
pub use ports::{Ports, PortsError};
pub use skep_bpf_programs::DeadBackend;
pub use terminate::{DeadBackends, PodNetworks};

hive::catalogue!(cell);
hive::catalogue!(loadbalancer_cell);
