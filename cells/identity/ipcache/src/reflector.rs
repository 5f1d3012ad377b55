// SPDX-License-Identifier: Apache-2.0

//! Nodes and local addresses → table.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use compact_str::{CompactString, format_compact};
use hive::{Job, JobCtx, Jobs, SpawnError};
use skep_bpf_maps::node::{IDENTITY_HOST, IDENTITY_REMOTE_NODE};
use skep_k8s_client::{Api, Client};
use skep_k8s_reflectors::{ReflectError, Reflector};
use skep_k8s_types::slim::{Node, NodeAddressType};
use skep_node::{NodeAddress, NodeName};
use statedb::{Db, RwTable, Table};

use crate::table::NodeIdentity;

/// Why the sources cannot be followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Table(#[from] statedb::Error),
    #[error(transparent)]
    Reflect(#[from] ReflectError),
    #[error(transparent)]
    Job(#[from] SpawnError),
}

#[derive(hive::Params)]
pub(crate) struct Params {
    db: Db,
    table: RwTable<NodeIdentity>,
    addresses: Table<NodeAddress>,
    client: Arc<dyn Client>,
    node: NodeName,
    jobs: Jobs,
}

/// Follows both sources. The table is initialised when both have delivered their first content.
pub(crate) fn start(params: Params) -> Result<(), StartError> {
    let Params {
        db,
        table,
        addresses,
        client,
        node,
        jobs,
    } = params;
    if client.is_enabled() {
        let source = Arc::new(Api::<Node>::all(client));
        Reflector::many(
            "nodes",
            table.clone(),
            source,
            move |found: &Arc<Node>, is_gone, rows| {
                if !is_gone {
                    rows.extend(rows_of(found, node.as_str()));
                }
                Ok(())
            },
        )
        .skip_same(|old, new| old.identity == new.identity)
        .register(&jobs, &db)?;
    }
    let mut txn = db.write(&[&table]);
    let local = Arc::new(table.register_initializer(&mut txn, "node-addresses")?);
    txn.commit();
    jobs.spawn(Job::once("node-addresses", move |cx: JobCtx| {
        let (db, table, addresses, local) = (db.clone(), table.clone(), addresses.clone(), local.clone());
        async move { follow_local(&db, &table, &addresses, &local, &cx).await }
    }))?;
    Ok(())
}

/// Addresses of a node that others reach it by.
pub(crate) fn rows_of(node: &Node, this: &str) -> Vec<NodeIdentity> {
    let identity = if node.metadata.name == this {
        IDENTITY_HOST
    } else {
        IDENTITY_REMOTE_NODE
    };
    let source = format_compact!("node/{}", node.metadata.name);
    let addresses = node.status.addresses.iter().filter(|address| {
        matches!(
            address.kind,
            NodeAddressType::InternalIp | NodeAddressType::ExternalIp | NodeAddressType::CiliumInternalIp
        )
    });
    // A name instead of an address says nothing about packets; it is passed over.
    addresses
        .filter_map(|address| address.address.parse().ok())
        .map(|address| NodeIdentity::pending(address, source.clone(), identity))
        .collect()
}

async fn follow_local(
    db: &Db,
    table: &RwTable<NodeIdentity>,
    addresses: &Table<NodeAddress>,
    local: &statedb::InitGuard,
    cx: &JobCtx,
) -> Result<(), statedb::Error> {
    loop {
        let snapshot = db.read();
        let (is_initialized, filled) = addresses.initialized_watch(&snapshot);
        let changed = addresses.table_watch(&snapshot);
        replace_local(
            db,
            table,
            addresses.all(&snapshot).map(AsRef::as_ref),
            is_initialized.then_some(local),
        )?;
        cx.health.ok("Running");
        tokio::select! {
            () = cx.token.cancelled() => return Ok(()),
            () = changed.closed() => {}
            () = filled.closed(), if !is_initialized => {}
        }
    }
}

/// Makes the rows of local devices these, in one transaction.
pub(crate) fn replace_local<'row>(
    db: &Db,
    table: &RwTable<NodeIdentity>,
    addresses: impl Iterator<Item = &'row NodeAddress>,
    done: Option<&statedb::InitGuard>,
) -> Result<(), statedb::Error> {
    let mut wanted: BTreeMap<(IpAddr, CompactString), NodeIdentity> = addresses
        .map(|found| {
            let source = format_compact!("device/{}", found.device_name);
            (
                (found.addr, source.clone()),
                NodeIdentity::pending(found.addr, source, IDENTITY_HOST),
            )
        })
        .collect();
    let mut txn = db.write(&[table]);
    let had: Vec<NodeIdentity> = table
        .all(&txn)
        .filter(|row| row.source.starts_with("device/"))
        .map(|row| (**row).clone())
        .collect();
    for row in had {
        if wanted.remove(&(row.address, row.source.clone())).is_none() {
            table.delete(&mut txn, &row)?;
        }
    }
    for row in wanted.into_values() {
        table.insert(&mut txn, row)?;
    }
    if let Some(guard) = done {
        txn.initialized(guard)?;
    }
    txn.commit();
    Ok(())
}
