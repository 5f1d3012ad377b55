// SPDX-License-Identifier: Apache-2.0

//! A kubelet on containerd, for nodes of the lab, and the controllers of what it runs.
//!
//! - [`Cri`]: client of the container runtime interface;
//! - [`Image`]: images made of folders, as nothing is pulled;
//! - [`run`]: the pods of a [`Node`], with what the chart's pods need and no more;
//! - [`workloads`]: DaemonSets, Deployments, Jobs, CronJobs, and the scheduler.

mod container;
pub mod cri;
mod env;
pub mod image;
mod kubelet;
mod node;
mod object;
mod probe;
mod volumes;
mod worker;
pub mod workloads;

pub use container::log;
pub use cri::{Cri, CriError};
pub use image::{Image, ImageError};
pub use k8s_cri::v1 as api;
pub use kubelet::run;
pub use node::{Connect, Node, logs};
