// SPDX-License-Identifier: Apache-2.0

//! Modes `kubernetes` and `cluster-pool`: pod CIDRs of the Node or of the CiliumNode become the ranges of [`Ipam`].

use std::sync::Arc;

use futures::{Stream, StreamExt as _, pin_mut, stream};
use hive::{Health, JobCtx};
use ipnet::IpNet;
use skep_base_settings::NodeName;
use skep_node_local::{LocalNode, LocalNodeStore};
use statedb::{Db, Table};

use super::node::{self, IpamNode, OwnNode};
use crate::{Ends, Family, Ipam, Range, allocator::Allocator};

/// The Kubernetes Node of this node, as networks: now, and after each change.
fn node_networks(
    db: Db,
    table: Table<LocalNode>,
    name: &NodeName,
) -> impl Stream<Item = Vec<IpNet>> + Send + 'static {
    let name = name.as_str().to_owned();
    let state = (db, table, name, None::<statedb::Watch>);
    stream::unfold(state, |(db, table, name, watch)| async move {
        if let Some(watch) = watch {
            watch.closed().await;
        }
        let snapshot = db.read();
        let (row, watch) = table.get_watch(&snapshot, LocalNode::BY_NAME.key(&name));
        let networks = row.map(|row| row.pod_cidrs.clone()).unwrap_or_default();
        Some((networks, (db, table, name, Some(watch))))
    })
}

/// A pod CIDR is missing: let kube-controller-manager or the operator allocate it, or turn the family off.
#[derive(Debug, thiserror::Error)]
#[error("the node has no {0} pod CIDR")]
struct Missing(String);

/// Applies pod CIDRs. The first one of each family is the range of the node for this run.
fn apply(ipam: &Ipam, networks: &[IpNet], health: &Health) {
    let missing: Vec<String> = ipam.change(|state| {
        let missing = Family::enabled(ipam.families()).filter(|family| {
            let allocator = state.allocator(*family);
            let mut own = networks.iter().filter(|network| Family::of(network.addr()) == *family);
            match (allocator.as_ref(), own.next()) {
                (None, None) => return true,
                (None, Some(network)) => *allocator = Some(Allocator::Range(Range::new(*network, Ends::default()))),
                (Some(Allocator::Range(range)), first) => {
                    if first.is_some_and(|first| first.trunc() != range.network()) {
                        tracing::warn!(cidr = %range.network(), "Pod CIDR of the node has changed: restart the agent to use the new one");
                    }
                }
                (Some(_), _) => {}
            }
            false
        });
        missing.map(|family| family.to_string()).collect()
    });
    match missing.is_empty() {
        true => {
            ipam.set_ready();
            health.ok(ipam.status());
        }
        false => health.degraded("Waiting for pod CIDRs", &Missing(missing.join(" and "))),
    }
}

/// Source of pod CIDRs.
pub(super) enum Networks {
    Node(Table<LocalNode>),
    CiliumNode(Table<OwnNode>),
}

pub(super) struct FollowNetworks {
    pub(super) db: Db,
    pub(super) ipam: Ipam,
    pub(super) name: NodeName,
    pub(super) local: LocalNodeStore,
    pub(super) networks: Networks,
}

impl FollowNetworks {
    pub(super) async fn run(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        let db = self.db.clone();
        match &self.networks {
            Networks::Node(table) => {
                self.follow(node_networks(db, table.clone(), &self.name), cx)
                    .await
            }
            Networks::CiliumNode(table) => {
                let nodes = node::changes(db, table.clone(), &self.name);
                let networks =
                    |node: Option<Arc<IpamNode>>| node.map(|node| node.pod_cidrs()).unwrap_or_default();
                self.follow(nodes.map(networks), cx).await
            }
        }
    }

    async fn follow(
        &self,
        networks: impl Stream<Item = Vec<IpNet>> + Send,
        cx: &JobCtx,
    ) -> Result<(), statedb::Error> {
        pin_mut!(networks);
        while let Some(networks) = networks.next().await {
            apply(&self.ipam, &networks, &cx.health);
            if matches!(self.networks, Networks::CiliumNode(_)) {
                let families = [Family::V4, Family::V6].into_iter();
                let cidrs = families.filter_map(|family| self.ipam.network(family).parse().ok());
                let cidrs = cidrs.collect();
                self.local.update(|node| node.set_ipam_cidrs(cidrs))?;
            }
        }
        Ok(())
    }
}
