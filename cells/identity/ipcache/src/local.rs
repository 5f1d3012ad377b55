// SPDX-License-Identifier: Apache-2.0

//! Claimed labels → an identity of this node.
//!
//! A prefix outside of the cluster has the claimed labels, the label of the world and what the networks around it pass on: all
//! but reserved labels, of several `cidr:` labels that of the longest network. A node, the health endpoint and the ingress have
//! neither the world nor labels of networks; a node with labels of its own has an identity of its own.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use skep_bpf_maps::node::IpcacheKey;
use skep_identity::{Label, LabelSource, Labels, NumericIdentity, Reserved, Scope};
use skep_identity_cache::{LocalIdentities, LocalIdentity};
use statedb::{ReadTxn, Table, WriteTarget, WriteTxn};

use crate::claim::Claims;
use crate::map::IpcacheMap;
use crate::prefix::Prefix;
use crate::table::IpcacheEntry;

/// Allocates identities for labels of prefixes. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LabelIdentities {
    table: Table<IpcacheEntry>,
    identities: LocalIdentities,
    map: Option<Arc<IpcacheMap>>,
    is_dual_stack: bool,
    /// Other nodes have labels of networks as well.
    are_nodes_in_networks: bool,
    earlier: Arc<Mutex<Earlier>>,
}

/// Ids of this node that entries of an earlier run have: their prefixes get the same ones.
#[derive(Default)]
enum Earlier {
    #[default]
    Unknown,
    Known(HashMap<IpcacheKey, NumericIdentity>),
    /// All sources have delivered: the map has none that the table has not.
    Gone,
}

const fn is_world(reserved: Reserved) -> bool {
    matches!(
        reserved,
        Reserved::World | Reserved::WorldIpv4 | Reserved::WorldIpv6
    )
}

fn is_of_networks(label: &Label) -> bool {
    matches!(
        label.source(),
        LabelSource::Cidr | LabelSource::CidrGroup | LabelSource::Fqdn
    )
}

/// Labels that a network passes on to prefixes within it.
pub(crate) fn passed_on(claims: &Claims) -> Labels {
    claims
        .labels()
        .filter(|label| is_of_networks(label))
        .cloned()
        .collect()
}

impl LabelIdentities {
    pub(crate) fn new(
        table: Table<IpcacheEntry>,
        identities: LocalIdentities,
        map: Option<Arc<IpcacheMap>>,
        is_dual_stack: bool,
    ) -> Self {
        Self {
            table,
            identities,
            map,
            is_dual_stack,
            are_nodes_in_networks: false,
            earlier: Arc::default(),
        }
    }

    /// With labels of networks for other nodes, if `is_on`.
    pub(crate) fn with_networks_of_nodes(mut self, is_on: bool) -> Self {
        self.are_nodes_in_networks = is_on;
        self
    }

    /// The table of identities, which each transaction has too.
    pub(crate) fn target(&self) -> &dyn WriteTarget {
        self.identities.table()
    }

    /// The identity of a prefix with these claims; `None` if a reserved one or a claimed one is.
    pub(crate) fn identity(
        &self,
        txn: &mut WriteTxn,
        prefix: Prefix,
        claims: &Claims,
        before: Option<&LocalIdentity>,
    ) -> Option<LocalIdentity> {
        if claims.number().is_some() || claims.labels().next().is_none() {
            return None;
        }
        let labels = self.labels(txn, prefix, claims)?;
        if let Some(same) = before.filter(|before| **before.labels() == labels) {
            return Some(same.clone());
        }
        let wanted = self.wanted(txn, prefix);
        let allocated = self.identities.allocate_in(txn, &Arc::new(labels), wanted);
        if let Err(error) = &allocated {
            tracing::warn!(%prefix, error = %hive::error_chain(error), "A prefix has no identity");
        }
        allocated.ok()
    }

    /// The labels of a prefix; `None` if their identity is a reserved one.
    fn labels(&self, txn: &impl ReadTxn, prefix: Prefix, claims: &Claims) -> Option<Labels> {
        let reserved = claims.reserved();
        if reserved.contains(Reserved::Host) {
            return None;
        }
        let is_inside = |reserved: Reserved| !is_world(reserved) && reserved != Reserved::KubeApiserver;
        if reserved.iter().any(is_inside) {
            let is_node = reserved.contains(Reserved::RemoteNode);
            let kept = claims.labels().filter(|label| match label.source() {
                LabelSource::Reserved => !label.reserved().is_some_and(is_world),
                LabelSource::Node => is_node,
                _ => !is_of_networks(label),
            });
            let mut labels: Vec<Label> = kept.cloned().collect();
            if is_node && self.are_nodes_in_networks {
                let of_networks = claims.labels().filter(|label| is_of_networks(label));
                let own: Labels = of_networks.cloned().collect();
                labels.extend(self.inherited(txn, prefix, &own));
                labels.extend(own.iter().cloned());
            }
            let labels: Labels = labels.into_iter().collect();
            let is_reserved = labels.iter().all(|label| label.reserved().is_some());
            let has_identity = is_reserved && reserved.identity().is_some();
            return (!has_identity && labels.scope() != Scope::Global).then_some(labels);
        }
        let world = Reserved::world(prefix.net().addr(), self.is_dual_stack);
        let own = claims
            .labels()
            .filter(|label| *label.source() != LabelSource::Node && !label.reserved().is_some_and(is_world));
        let own: Labels = own.cloned().collect();
        let mut labels: Vec<Label> = self.inherited(txn, prefix, &own);
        labels.extend(own.iter().cloned());
        if labels.is_empty() {
            return None;
        }
        labels.push(world.into());
        Some(labels.into_iter().collect())
    }

    /// What the networks around a prefix pass on, that of the longest last.
    fn inherited(&self, txn: &impl ReadTxn, prefix: Prefix, own: &Labels) -> Vec<Label> {
        let mut inherited = Vec::new();
        let mut has_network = own.iter().any(|label| *label.source() == LabelSource::Cidr);
        for network in prefix.networks_around() {
            let Some(row) = self.table.get(txn, IpcacheEntry::BY_PREFIX.key(&network)) else {
                continue;
            };
            for label in passed_on(&row.claims).iter() {
                let is_network = *label.source() == LabelSource::Cidr;
                if !(is_network && has_network) {
                    inherited.push(label.clone());
                    has_network |= is_network;
                }
            }
        }
        inherited.reverse();
        inherited
    }

    /// The id that the entry of a prefix had before a restart.
    fn wanted(&self, txn: &impl ReadTxn, prefix: Prefix) -> Option<NumericIdentity> {
        let mut earlier = self.earlier.lock();
        if self.table.is_initialized(txn) {
            if !matches!(*earlier, Earlier::Gone) {
                *earlier = Earlier::Gone;
                self.identities.forget_earlier();
            }
            return None;
        }
        if matches!(*earlier, Earlier::Unknown) {
            let mut ids = HashMap::new();
            let read = self.map.as_ref()?.for_each(|key, value| {
                let id = NumericIdentity::new(value.identity);
                if matches!(id.scope(), Some(Scope::Local | Scope::RemoteNode)) {
                    ids.insert(key, id);
                }
            });
            // A map that cannot be read cannot be written either.
            read.ok()?;
            self.identities.keep_earlier(ids.values().copied());
            *earlier = Earlier::Known(ids);
        }
        match &*earlier {
            Earlier::Known(ids) => ids.get(&prefix.map_key()).copied(),
            Earlier::Unknown | Earlier::Gone => None,
        }
    }
}
