// SPDX-License-Identifier: Apache-2.0

//! The watched objects, with the time of their creation: the older one of two has precedence.

use serde::{Deserialize, Serialize};
use skep_k8s_crds::pools::{CiliumLoadBalancerIPPool, LoadBalancerPoolSpec};
use skep_k8s_crds::shared::ConditionsStatus;
use skep_k8s_types::slim::{CreatedMetadata, Metadata, Service, ServiceSpec, ServiceStatus};
use skep_k8s_types::{Kind, Resource};

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PoolObject {
    pub(crate) metadata: CreatedMetadata,
    pub(crate) spec: LoadBalancerPoolSpec,
    pub(crate) status: Option<ConditionsStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ServiceObject {
    pub(crate) metadata: CreatedMetadata,
    pub(crate) spec: ServiceSpec,
    pub(crate) status: ServiceStatus,
}

impl Resource for PoolObject {
    fn kind() -> Kind {
        CiliumLoadBalancerIPPool::kind()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata.common
    }

    fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata.common
    }
}

impl Resource for ServiceObject {
    fn kind() -> Kind {
        Service::kind()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata.common
    }

    fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata.common
    }
}
