// SPDX-License-Identifier: Apache-2.0

//! The maps that endpoints are written to.

use std::sync::Arc;

use hive::Members;
use skep_bpf_maps::{
    endpoint::{self, ENDPOINTS, LXC, LxcKey, LxcValue},
    policy,
};
use skep_bpf_sys::Map;
use skep_datapath_maps::{MapOwner, Maps};

use crate::Policies;

/// Endpoints and addresses of the node, by address.
pub(crate) type LxcMap = Map<LxcKey, LxcValue>;

/// The maps that endpoints are written to.
#[derive(Debug)]
pub struct EndpointMaps {
    /// `cilium_lxc`.
    pub lxc: Map<LxcKey, LxcValue>,
    /// `skep_endpoints`.
    pub facts: Map<u32, endpoint::Endpoint>,
    /// `skep_policies` and the maps that it leads to.
    pub policies: Policies,
}

impl EndpointMaps {
    pub fn new(maps: &Maps) -> Self {
        Self {
            lxc: maps.handle(&LXC),
            facts: maps.handle(&ENDPOINTS),
            policies: Policies::new(maps),
        }
    }
}

pub(crate) fn handles(maps: Arc<Maps>) -> Arc<EndpointMaps> {
    Arc::new(EndpointMaps::new(&maps))
}

/// The families of endpoints and of their policies are part of the program.
pub(crate) fn owners() -> Members<MapOwner> {
    Members(vec![MapOwner::new(endpoint::OWNER), MapOwner::new(policy::OWNER)])
}
