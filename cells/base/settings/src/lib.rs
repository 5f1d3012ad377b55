// SPDX-License-Identifier: Apache-2.0

//! Settings that several cells read, named as Cilium's.
//!
//! Each setting is declared once: those of the datapath by [`cell`], those of the cluster by [`cluster::cell`], of identities by
//! [`identity::cell`], of addresses of services by [`service_ipam_cell`], the name of the node by [`node_name::cell`]. Every
//! other cell reads what it requires as `Cfg<T>` and declares nothing:
//!
//! | struct | what it holds |
//! |---|---|
//! | [`AddressFamilies`] | `enable-ipv4`, `enable-ipv6` |
//! | [`KubeProxyReplacement`] | `kube-proxy-replacement` |
//! | [`NodePorts`] | `node-port-range` and how the range is protected |
//! | [`ServiceConfig`] | what calls to services without backends get |
//! | [`ForwardingConfig`] | how packets from outside reach backends on other nodes |
//! | [`MapConfig`] | sizes of maps |
//! | [`SocketLbConfig`] | socket load balancing |
//! | [`MonitorConfig`] | events, and the clock of the programs |
//! | [`TunnelConfig`] | how packets travel between pods of different nodes |
//! | [`ConntrackConfig`] | how long connections are remembered |
//! | [`PacketConfig`] | events and unusual packets at interfaces |
//! | [`AttachConfig`] | how programs are attached to interfaces |
//! | [`MtuConfig`] | how large packets may be |
//! | [`MasqueradeConfig`] | which packets of pods get the node's address |
//! | [`BalancingConfig`], [`MaglevConfig`] | how backends are picked |
//! | [`BandwidthConfig`] | rates of pods |
//! | [`ServiceIpamConfig`] | which controller allocates addresses to load balancer services |
//! | [`ClusterSettings`](cluster::ClusterSettings) | name and id of the cluster, size of the mesh |
//! | [`IdentityConfig`](identity::IdentityConfig) | where identities are allocated |
//! | [`HealthCheckConfig`] | probes between nodes |
//! | [`KernelConfig`] | where settings of the kernel are |
//! | [`StateConfig`] | where the agent keeps its state |
//!
//! [`cilium`] lists the settings of Cilium's programs with their state here.

#![warn(missing_docs)]

mod balancing;
mod bandwidth;
mod cell;
pub mod cilium;
pub mod cluster;
mod clusters;
mod forwarding;
mod health_check;
pub mod identity;
mod kernel;
mod maglev;
mod maps;
mod monitor;
mod mtu;
pub mod node_name;
mod node_ports;
mod packets;
mod routing;
mod services;
mod socketlb;
mod state;
#[cfg(test)]
mod testing;
mod tunnel;

pub use balancing::{Algorithm, BalancingConfig, DefaultIpam, ServiceIpamConfig, UnknownWord};
pub use bandwidth::BandwidthConfig;
pub use cell::{cell, service_ipam_cell};
pub use clusters::{MaxConnectedClusters, UnsupportedMax};
pub use forwarding::{Dispatch, ForwardingConfig, ForwardingError, NodeMode};
pub use health_check::HealthCheckConfig;
pub use kernel::KernelConfig;
pub use maglev::{HashSeed, MaglevConfig, MaglevError, TableSize};
pub use maps::MapConfig;
pub use monitor::{Aggregation, DebugGroups, MonitorConfig};
pub use mtu::{MtuConfig, PathProbing};
pub use node_name::NodeName;
pub use node_ports::{NodePorts, PortRange, PortRangeError};
pub use packets::{ConntrackConfig, NoBackend, PacketConfig, TcpFlags, whole_seconds};
pub use routing::{Acceleration, AttachConfig, MasqueradeConfig};
pub use services::{AddressFamilies, KubeProxyReplacement, ServiceConfig};
pub use socketlb::SocketLbConfig;
pub use state::StateConfig;
pub use tunnel::{RoutingMode, SourcePorts, TunnelConfig, TunnelProtocol, Underlay};

hive::catalogue!(cell);
hive::catalogue!(service_ipam_cell);
