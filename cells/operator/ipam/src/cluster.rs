// SPDX-License-Identifier: Apache-2.0

//! Mode `cluster-pool` for nodes: `spec.ipam.podCIDRs`.

use serde_json::{Value, json};
use skep_k8s_crds::node::CiliumNode;

use crate::assign::ClusterPool;
use crate::nodes::{Assigned, NodeAllocator, member};
use crate::recorder::PoolUsage;

/// The name that its pool has in metrics.
const POOL: &str = "cluster-pool";

fn pod_cidrs(node: &CiliumNode) -> &[String] {
    let ipam = node.spec.ipam.as_ref();
    ipam.and_then(|ipam| ipam.pod_cidrs.as_deref())
        .unwrap_or_default()
}

impl NodeAllocator for ClusterPool {
    type Spec = Vec<String>;

    fn take_changed(&mut self) -> bool {
        Self::take_changed(self)
    }

    fn usage(&self) -> Vec<PoolUsage> {
        let pools = self.pools().map(|(family, pool)| PoolUsage {
            pool: POOL.to_owned(),
            family,
            free: pool.free(),
            held: pool.held().filter(|(prefix, _)| pool.contains(prefix)).count(),
        });
        pools.collect()
    }

    fn restore(&mut self, node: &CiliumNode) {
        Self::restore(self, &node.metadata.name, pod_cidrs(node));
    }

    fn assign(&mut self, node: &CiliumNode) -> Assigned<Vec<String>> {
        let assignment = Self::assign(self, &node.metadata.name, pod_cidrs(node));
        Assigned {
            spec: assignment.pod_cidrs,
            duplicates: assignment.duplicates,
            error: assignment.error.as_ref().map(ToString::to_string),
        }
    }

    fn remove(&mut self, node: &str) {
        Self::remove(self, node);
    }

    fn take_released(&mut self) -> bool {
        Self::take_released(self)
    }

    fn spec(node: &CiliumNode) -> Vec<String> {
        pod_cidrs(node).to_vec()
    }

    fn set_spec(object: &mut Value, spec: &Vec<String>) {
        let ipam = member(member(object, "spec"), "ipam");
        ipam["podCIDRs"] = json!(spec);
        member(ipam, "pools");
    }

    fn text(spec: &Vec<String>) -> String {
        spec.join(",")
    }
}
