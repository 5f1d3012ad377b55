// SPDX-License-Identifier: Apache-2.0

//! Socket load balancing: services become backends when sockets connect, send or ask for their peer.
//!
//! - [`cell`] loads the programs of `skep-bpf-programs` with the pinned maps and attaches them to the root of the
//!   cgroup tree by pinned links. They stay attached when the agent ends, are replaced in place by the next
//!   one, and are detached when socket load balancing is switched off. Client sockets of backends that were
//!   reported dead ([`DeadBackends`]) are destroyed.
//!
//! The load balancer's cells report removed backends, and when the maps are filled, by the traits of `skep-datapath-hooks`.
//!
//! What the programs do is written in `bpf/progs/cgroup_socketlb.bpf.c`.

#![warn(missing_docs)]

mod cell;
mod datapath;
mod diag;
mod jit;
mod ports;
mod terminate;

pub use cell::cell;
pub use datapath::{
    DatapathError, ForeignProgram, SocketDatapath, SocketSettings, SocketStatus, links_directory,
};
pub use diag::{DiagError, DiagTerminator};
pub use ports::{Ports, PortsError};
pub use skep_bpf_programs::DeadBackend;
pub use terminate::DeadBackends;

hive::catalogue!(cell);
