// SPDX-License-Identifier: Apache-2.0

//! Pools of pods: annotations of the pod, then of its namespace, then selectors of pools.

use skep_k8s_reflectors::tables::{LocalPod, NamespaceRow};
use skep_k8s_types::{
    selector::Selector,
    slim::{LabelSelector, Labels},
};
use statedb::{Db, Snapshot, Table};

use super::pools::PoolRow;
use crate::{Family, IpamError, PoolSelector, SelectionCause};

const ANY_FAMILY: &str = "ipam.cilium.io/ip-pool";
const REQUIRED: &str = "ipam.cilium.io/require-pool-match";
/// Labels that selectors see beside those of the pod.
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_NAME: &str = "io.kubernetes.pod.name";

/// Why no pool is selected. Texts are Cilium's.
#[derive(Debug, thiserror::Error)]
enum SelectionError {
    #[error("ipam-metadata-manager has not synced all pod IP pools yet")]
    Starting,
    #[error("resource {kind} {name:?} not found")]
    Missing { kind: &'static str, name: String },
    #[error(
        "no matching CiliumPodIPPool found for pod {pod} (family={family}) and require-pool-match annotation is set on {place}"
    )]
    NoMatch {
        pod: String,
        family: &'static str,
        place: &'static str,
    },
    #[error("multiple CiliumPodIPPools match pod {pod} (family={family}): [{pools}]")]
    Ambiguous {
        pod: String,
        family: &'static str,
        pools: String,
    },
}

pub(super) struct Pools {
    pub(super) db: Db,
    pub(super) pods: Table<LocalPod>,
    pub(super) namespaces: Table<NamespaceRow>,
    pub(super) pools: Table<PoolRow>,
    pub(super) default_pool: String,
    pub(super) only_masquerade_default_pool: bool,
}

fn annotated(annotations: &Labels, family: Family) -> Option<String> {
    let own = format!("ipam.cilium.io/{}-pool", family.as_str());
    let found = annotations.get(&own).or_else(|| annotations.get(ANY_FAMILY));
    found.filter(|pool| !pool.is_empty()).map(str::to_owned)
}

fn matches(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    // The API server has refused invalid ones.
    selector
        .is_none_or(|selector| Selector::try_from(selector).is_ok_and(|selector| selector.matches(labels)))
}

impl Pools {
    /// Names of the pools whose selectors match.
    fn matching(&self, snapshot: &Snapshot, family: Family, pod: &Labels, namespace: &Labels) -> Vec<String> {
        let pools = self.pools.all(snapshot).filter(|row| {
            let spec = &row.0.spec;
            let networks = match family {
                Family::V4 => &spec.ipv4,
                Family::V6 => &spec.ipv6,
            };
            networks.is_some()
                && (spec.pod_selector.is_some() || spec.namespace_selector.is_some())
                && matches(spec.pod_selector.as_ref(), pod)
                && matches(spec.namespace_selector.as_ref(), namespace)
        });
        pools.map(|row| row.to_string()).collect()
    }

    fn select(&self, family: Family, owner: &str) -> Result<Option<String>, SelectionError> {
        let Some((namespace_name, pod_name)) = owner.split_once('/').filter(|(_, name)| !name.contains('/'))
        else {
            return Ok(None);
        };
        let snapshot = self.db.read();
        if !self.pools.initialized_watch(&snapshot).0 {
            return Err(SelectionError::Starting);
        }
        let missing = |kind, name: &str| SelectionError::Missing {
            kind,
            name: name.to_owned(),
        };
        let pod = self.pods.get(&snapshot, LocalPod::BY_NAME.key(owner));
        let pod = &pod.ok_or_else(|| missing("Pod", owner))?.metadata;
        let namespace = self
            .namespaces
            .get(&snapshot, NamespaceRow::BY_NAME.key(namespace_name));
        let namespace = namespace.ok_or_else(|| missing("Namespace", namespace_name))?;
        let named = annotated(&pod.annotations, family).or_else(|| annotated(&namespace.annotations, family));
        if named.is_some() {
            return Ok(named);
        }
        let known = [(POD_NAMESPACE, namespace_name), (POD_NAME, pod_name)];
        let labels = Labels::from_iter(pod.labels.iter().chain(known));
        let mut pools = self.matching(&snapshot, family, &labels, &namespace.labels);
        let (name, family) = (owner.to_owned(), family.as_str());
        if pools.len() > 1 {
            let pools = pools.join(" ");
            return Err(SelectionError::Ambiguous {
                pod: name,
                family,
                pools,
            });
        }
        let is_required = |annotations: &Labels| annotations.get(REQUIRED) == Some("true");
        match pools.pop() {
            Some(pool) => Ok(Some(pool)),
            None if is_required(&pod.annotations) => Err(SelectionError::NoMatch {
                pod: name,
                family,
                place: "pod",
            }),
            None if is_required(&namespace.annotations) => Err(SelectionError::NoMatch {
                pod: name,
                family,
                place: "namespace",
            }),
            None => Ok(None),
        }
    }
}

impl PoolSelector for Pools {
    fn pool(&self, family: Family, owner: &str) -> Result<Option<String>, SelectionCause> {
        Ok(self.select(family, owner)?)
    }

    fn skips_masquerade(&self, pool: &str) -> Result<bool, IpamError> {
        if self.only_masquerade_default_pool {
            return Ok(pool != self.default_pool);
        }
        let snapshot = self.db.read();
        let row = self.pools.get(&snapshot, PoolRow::BY_NAME.key(pool));
        let row = row.ok_or_else(|| IpamError::UnknownPool(pool.to_owned()))?;
        Ok(row.skips_masquerade())
    }
}
