// SPDX-License-Identifier: Apache-2.0

//! Objects with the fields that only this crate judges by: owners and annotations.
//!
//! They are types of their own, so that the compact types of the agents do not grow.

use serde::{Deserialize, Serialize};
use skep_k8s_types::resource;
use skep_k8s_types::slim::Metadata;

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
