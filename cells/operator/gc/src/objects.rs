// SPDX-License-Identifier: Apache-2.0

//! Objects with the fields that only this crate judges by, and what it writes into objects.
//!
//! The types are separate ones, so that the compact types of the agents do not grow.

use serde::{Deserialize, Serialize};
use skep_k8s_types::resource;
use skep_k8s_types::slim::{CiliumIdentity, Metadata};

/// The annotation of an identity that was found unused: when.
pub const HEARTBEAT: &str = CiliumIdentity::HEARTBEAT;

/// Reason of the condition `NetworkUnavailable` of a node with an agent.
pub(crate) const REASON: &str = "CiliumIsUp";

/// `cilium.io/v2/CiliumNode`, its metadata.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CiliumNode {
    pub(crate) metadata: Metadata,
}

resource!(
    CiliumNode,
    "cilium.io",
    "v2",
    "CiliumNode",
    "ciliumnodes",
    false,
    fn compact(&mut self) {}
);
