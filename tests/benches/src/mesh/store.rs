// SPDX-License-Identifier: Apache-2.0

//! The etcd of the remote cluster, written to as its own programs do: in transactions, over several connections.

use std::sync::Arc;

use anyhow::Context;
use skep_kvstore_client::{Backend, LeaseId, Op, Txn};

use crate::mesh::remote::Item;

/// Puts of one transaction. etcd accepts 128.
const TRANSACTION: usize = 100;
const PARALLEL: usize = 8;

fn put((key, value): Item) -> Op {
    Op::Put {
        key: key.into(),
        value: value.into(),
        lease: LeaseId::NONE,
    }
}

/// Writes items; the last transaction alone, after all others.
pub(crate) async fn write(store: &Arc<dyn Backend>, items: Vec<Item>) -> anyhow::Result<()> {
    let mut transactions: Vec<Vec<Op>> = Vec::new();
    let mut items = items.into_iter().map(put).peekable();
    while items.peek().is_some() {
        transactions.push(items.by_ref().take(TRANSACTION).collect());
    }
    let last = transactions.pop();
    let mut running = tokio::task::JoinSet::new();
    for then in transactions {
        while running.len() >= PARALLEL {
            finish(&mut running).await?;
        }
        let store = store.clone();
        running.spawn(async move { commit(&store, then).await });
    }
    while !running.is_empty() {
        finish(&mut running).await?;
    }
    match last {
        Some(then) => commit(store, then).await,
        None => Ok(()),
    }
}

async fn finish(running: &mut tokio::task::JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    match running.join_next().await {
        Some(done) => done.context("a write of the store")?,
        None => Ok(()),
    }
}

async fn commit(store: &Arc<dyn Backend>, then: Vec<Op>) -> anyhow::Result<()> {
    let txn = Txn {
        then,
        ..Txn::default()
    };
    store.txn(txn).await.context("a transaction of etcd")?;
    Ok(())
}

pub(crate) async fn write_together(store: &Arc<dyn Backend>, items: Vec<Item>) -> anyhow::Result<()> {
    commit(store, items.into_iter().map(put).collect()).await
}
