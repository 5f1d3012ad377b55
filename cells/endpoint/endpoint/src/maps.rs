// SPDX-License-Identifier: Apache-2.0

//! The maps that endpoints are written to.

use std::sync::Arc;

use hive::Member;
use skep_bpf_maps::{
    endpoint::{self, ENDPOINTS, LXC, LxcKey, LxcValue},
    policy::{POLICY, PolicyEntry, PolicyKey},
};
use skep_bpf_sys::Map;
use skep_datapath_maps::{InstanceMaps, MapOwner, Maps};

/// Endpoints and addresses of the node, by address.
pub(crate) type LxcMap = Map<LxcKey, LxcValue>;

/// Endpoints of the node, by interface.
pub(crate) type EndpointMap = Map<u32, endpoint::Endpoint>;

/// The maps that endpoints are written to.
#[derive(Debug)]
pub struct EndpointMaps {
    /// `cilium_lxc`.
    pub lxc: Map<LxcKey, LxcValue>,
    /// `skep_endpoints`.
    pub facts: Map<u32, endpoint::Endpoint>,
    /// `cilium_policy_v2_<id>`, which `skep-policy-maps` writes.
    pub policies: InstanceMaps<PolicyKey, PolicyEntry>,
}

impl EndpointMaps {
    pub fn new(maps: &Arc<Maps>) -> Self {
        Self {
            lxc: maps.handle(&LXC),
            facts: maps.handle(&ENDPOINTS),
            policies: InstanceMaps::new(maps.clone(), &POLICY),
        }
    }
}

pub(crate) fn handles(maps: Arc<Maps>) -> Arc<EndpointMaps> {
    Arc::new(EndpointMaps::new(&maps))
}

/// The families of endpoints are part of the program.
pub(crate) fn owner() -> Member<MapOwner> {
    Member(MapOwner::new(endpoint::OWNER))
}
