// SPDX-License-Identifier: Apache-2.0

//! Clusters of network namespaces on one machine.
//!
//! A lab stands in for the machines of a cluster by namespaces: every node has its own network,
//! mounts, BPF file system and control group, and runs the real agent; pods are built-in echo servers and
//! clients in namespaces of their own. See `skep-lab --help`.

pub mod agents;
mod certificates;
pub mod cgroup;
pub mod cni;
pub mod command;
pub mod containerd;
pub mod control_plane;
pub mod demo;
pub mod echo;
pub mod enter;
mod events;
mod folder;
pub mod install;
pub mod kubelet;
pub mod lab_options;
pub mod link;
pub mod machine;
pub mod mesh;
pub mod operators;
pub mod paths;
pub mod plan;
pub mod pod;
pub mod process;
mod restarter;
mod runtime;
pub mod session;
pub mod state;
pub mod supervisor;
mod terminal;
pub mod volumes;
