// SPDX-License-Identifier: Apache-2.0

//! Which pod CIDRs each node has, in mode `cluster-pool`.
//!
//! A node keeps what its spec lists; families without a CIDR get one. What is assigned stays reserved for the node until
//! the node is removed, or its spec lists another CIDR of the family: a write that fails loses nothing.

use std::collections::BTreeMap;

use ipnet::IpNet;

use crate::allocator::{Family, OccupyError, PrefixAllocator};

/// Why a node does not have the pod CIDRs that it should. The texts are in the status of the node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// A pod CIDR in the spec is no network: correct the spec.
    #[error("invalid CIDR address: {text}")]
    Malformed { text: String },
    /// A pod CIDR in the spec is in no pool: add its network to the pools, or remove it from the spec.
    #[error("allocator not configured for the requested CIDR {prefix}")]
    Outside { prefix: IpNet },
    /// Every prefix is in use: add a network to the pools.
    #[error("allocator full")]
    Full {
        /// The family without a free prefix.
        family: Family,
    },
}

/// What the spec of a node is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Pod CIDRs, as texts of the spec; those that it has come first.
    pub pod_cidrs: Vec<String>,
    /// Pod CIDRs of the spec that another node holds. They are not in `pod_cidrs`.
    pub duplicates: Vec<OccupyError>,
    pub error: Option<AssignError>,
}

/// Pools of both families, and what each node holds.
#[derive(Debug, Default)]
pub struct ClusterPool {
    pools: BTreeMap<Family, PrefixAllocator>,
    nodes: BTreeMap<String, Vec<IpNet>>,
    has_released: bool,
}

#[derive(Default)]
struct Claim {
    kept: Vec<IpNet>,
    duplicates: Vec<OccupyError>,
    error: Option<AssignError>,
}

impl ClusterPool {
    /// Pools with one allocator for each family in use.
    #[must_use]
    pub fn new(pools: BTreeMap<Family, PrefixAllocator>) -> Self {
        Self {
            pools,
            nodes: BTreeMap::new(),
            has_released: false,
        }
    }

    /// Pod CIDRs that a node holds, whether or not its spec lists them already.
    #[must_use]
    pub fn held(&self, node: &str) -> &[IpNet] {
        self.nodes.get(node).map_or(&[], Vec::as_slice)
    }

    /// The pools, one for each family in use.
    pub fn pools(&self) -> impl Iterator<Item = (Family, &PrefixAllocator)> {
        self.pools.iter().map(|(family, pool)| (*family, pool))
    }

    /// Names of the nodes that hold pod CIDRs.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// Restores the pod CIDRs of a node's spec. Allocates nothing: before the first allocation all nodes are restored.
    pub fn restore(&mut self, node: &str, spec: &[String]) {
        self.claim(node, spec);
    }

    /// Restores the pod CIDRs of a node's spec and allocates one for each family that has none. If the spec contains a pod
    /// CIDR of no pool, it stays as it is, but for duplicates.
    pub fn assign(&mut self, node: &str, spec: &[String]) -> Assignment {
        let Claim {
            kept,
            duplicates,
            error,
        } = self.claim(node, spec);
        if error.is_some() {
            let is_duplicate = |text: &&String| {
                let prefix = text.parse::<IpNet>();
                prefix.is_ok_and(|prefix| duplicates.iter().any(|other| other.prefix() == prefix.trunc()))
            };
            return Assignment {
                pod_cidrs: spec.iter().filter(|text| !is_duplicate(text)).cloned().collect(),
                duplicates,
                error,
            };
        }
        let held = self.nodes.entry(node.to_owned()).or_default();
        let mut assigned = kept;
        let mut error = None;
        for (family, pool) in &mut self.pools {
            if assigned.iter().any(|prefix| Family::of(prefix) == *family) {
                continue;
            }
            let reserved = held.iter().find(|prefix| Family::of(prefix) == *family).copied();
            match reserved.or_else(|| pool.allocate(node)) {
                Some(prefix) => {
                    if reserved.is_none() {
                        held.push(prefix);
                    }
                    assigned.push(prefix);
                }
                None => error = error.or(Some(AssignError::Full { family: *family })),
            }
        }
        if held.is_empty() {
            self.nodes.remove(node);
        }
        Assignment {
            pod_cidrs: assigned.iter().map(ToString::to_string).collect(),
            duplicates,
            error,
        }
    }

    /// Releases everything that a node holds.
    pub fn remove(&mut self, node: &str) {
        for prefix in self.nodes.remove(node).unwrap_or_default() {
            self.release(&prefix, node);
        }
    }

    fn release(&mut self, prefix: &IpNet, node: &str) {
        if let Some(pool) = self.pools.get_mut(&Family::of(prefix)) {
            self.has_released |= pool.release(prefix, node);
        }
    }

    /// Whether a prefix was released since the last call.
    pub(crate) fn take_released(&mut self) -> bool {
        std::mem::take(&mut self.has_released)
    }

    /// Whether the pools have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        let allocators = self.pools.values_mut();
        allocators.fold(false, |changed, pool| pool.take_changed() | changed)
    }

    fn claim(&mut self, node: &str, spec: &[String]) -> Claim {
        let mut claim = Claim::default();
        let mut wanted: Vec<IpNet> = Vec::with_capacity(spec.len());
        for text in spec {
            match text.parse::<IpNet>() {
                Ok(prefix) if wanted.contains(&prefix.trunc()) => {}
                Ok(prefix) => wanted.push(prefix.trunc()),
                Err(_) => {
                    let malformed = AssignError::Malformed { text: text.clone() };
                    claim.error.get_or_insert(malformed);
                }
            }
        }
        // A prefix that the node held and its spec lists no more may overlap one that replaces it.
        let held = self.nodes.remove(node).unwrap_or_default();
        let (mut still, replaced): (Vec<IpNet>, Vec<IpNet>) = held.into_iter().partition(|prefix| {
            !wanted
                .iter()
                .any(|other| other != prefix && (other.contains(prefix) || prefix.contains(other)))
        });
        for prefix in replaced {
            self.release(&prefix, node);
        }
        for prefix in wanted.iter().copied() {
            // In use is also what lies in networks that were removed from the pools.
            let pool = self.pools.get_mut(&Family::of(&prefix));
            let is_inside = pool.as_ref().is_some_and(|pool| pool.contains(&prefix));
            match pool.map_or(Ok(()), |pool| pool.adopt(prefix, node)) {
                Ok(()) => {
                    claim.kept.push(prefix);
                    if !is_inside {
                        claim.error.get_or_insert(AssignError::Outside { prefix });
                    }
                }
                Err(duplicate) => claim.duplicates.push(duplicate),
            }
        }
        // Reserved, and not in the spec: it waits to be written, unless the spec has another one of its family. One outside the
        // pools was never assigned here.
        still.retain(|prefix| !claim.kept.contains(prefix));
        let family = |prefix: &IpNet| Family::of(prefix);
        let (stale, waiting): (Vec<IpNet>, Vec<IpNet>) = still.into_iter().partition(|prefix| {
            let is_assigned = |pool: &PrefixAllocator| pool.contains(prefix);
            !self.pools.get(&family(prefix)).is_some_and(is_assigned)
                || claim.kept.iter().any(|kept| family(kept) == family(prefix))
        });
        for prefix in stale {
            self.release(&prefix, node);
        }
        let now: Vec<IpNet> = claim.kept.iter().copied().chain(waiting).collect();
        if !now.is_empty() {
            self.nodes.insert(node.to_owned(), now);
        }
        claim
    }
}

#[cfg(test)]
mod tests;
