// SPDX-License-Identifier: Apache-2.0

//! What is counted and measured of the allocation.

use std::time::Duration;

use crate::allocator::Family;

/// How much of a pool is in use, in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolUsage {
    pub pool: String,
    pub family: Family,
    pub free: u128,
    pub held: usize,
}

/// Records what the operator does for nodes. Feature `metrics` has one for Prometheus.
pub trait IpamRecorder: Send + Sync {
    /// A node was queued, to be looked at.
    fn queued(&self);
    /// A round looked at `nodes`; it began `waited` after the first of them was due.
    fn round(&self, nodes: usize, waited: Duration, took: Duration);
    /// How many nodes there are, and how many do not have their networks.
    fn nodes(&self, total: usize, in_deficit: usize);
    fn pools(&self, usage: &[PoolUsage]);
}

pub(crate) struct Unrecorded;

impl IpamRecorder for Unrecorded {
    fn queued(&self) {}
    fn round(&self, _: usize, _: Duration, _: Duration) {}
    fn nodes(&self, _: usize, _: usize) {}
    fn pools(&self, _: &[PoolUsage]) {}
}
