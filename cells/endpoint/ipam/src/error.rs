// SPDX-License-Identifier: Apache-2.0

//! Why an address cannot be allocated or released. Texts are Cilium's: clients show them.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::Family;

/// The cause that a pool cannot be selected for a pod.
pub type SelectionCause = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    /// The node has no pod CIDR yet.
    #[error("IPAM is not ready: {0}")]
    NotReady(String),
    /// Turn the family on.
    #[error("{0} allocation disabled")]
    Disabled(Family),
    /// Another plugin allocates: configure it as `ipam.type` of the CNI plugin.
    #[error("addresses are allocated by a delegated plugin")]
    Delegated,
    #[error("unable to restore IP {ip} for {owner:?}: pool name must be provided")]
    RestoreWithoutPool { ip: IpAddr, owner: String },
    #[error("no IPAM pool provided for IP release of {0}")]
    ReleaseWithoutPool(IpAddr),
    /// The address is kept from pods.
    #[error("IP {ip} is excluded, owned by {owner}")]
    Excluded { ip: IpAddr, owner: String },
    #[error("provided IP is not in the valid range. The range of valid IPs is {0}")]
    OutOfRange(IpNet),
    #[error("provided IP is already allocated")]
    Allocated,
    /// All addresses of the node are in use: give it a larger pod CIDR.
    #[error("range is full")]
    Full,
    /// The operator is asked for another network.
    #[error("all CIDR ranges are exhausted")]
    Exhausted,
    #[error("IP {0} not in range of any CIDR")]
    NotInPool(IpAddr),
    /// The operator is asked for a network of the pool.
    #[error("unable to allocate from pool {pool:?} (family {}): pool not (yet) available", .family.as_str())]
    PoolUnavailable { pool: String, family: Family },
    /// Mode `crd`: the CiliumNode has no such address.
    #[error("IP {0} is not available")]
    NotAvailable(IpAddr),
    /// Mode `crd`: all addresses of the CiliumNode are in use.
    #[error("No more IPs available")]
    NoneAvailable,
    /// Fix the annotations or the pools.
    #[error("unable to determine IPAM pool for owner {owner:?}")]
    Selection {
        owner: String,
        #[source]
        cause: SelectionCause,
    },
    /// The CiliumPodIPPool of an allocated network is missing.
    #[error("IP pool '{0}' not found in stateDB table")]
    UnknownPool(String),
    #[error("expiration timer already registered")]
    TimerExists,
    #[error("no expiration timer registered")]
    NoTimer,
    #[error("UUID mismatch, not stopping expiration timer")]
    OtherTimer,
}
