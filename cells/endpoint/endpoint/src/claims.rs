// SPDX-License-Identifier: Apache-2.0

//! Endpoints → identities of their addresses, in the ipcache.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use hive::JobCtx;
use skep_ipcache::{Claim, Owner, PodMetadata, Prefix, ResourceId, Source, SourceGuard, Writer};
use statedb::{ReadTxn, Snapshot, WriteTxn};

use crate::{Endpoint, Endpoints, Phase};

/// Kind of the resources that claim for endpoints.
const KIND: &str = "endpoint";

/// Claims the addresses of endpoints.
pub(crate) struct Claims {
    pub(crate) endpoints: Endpoints,
    pub(crate) ipcache: Writer,
    pub(crate) guard: SourceGuard,
}

impl Claims {
    /// Keeps the ipcache as the table is, until cancelled.
    pub(crate) async fn follow(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        let table = self.endpoints.table();
        self.forget_earlier_run()?;
        let mut published = BTreeMap::new();
        loop {
            let snapshot = self.endpoints.db().read();
            let changed = table.table_watch(&snapshot);
            let (is_complete, completed) = table.initialized_watch(&snapshot);
            self.publish(&snapshot, &mut published, is_complete)?;
            drop(snapshot);
            cx.health.ok("Running");
            tokio::select! {
                () = changed.closed() => {}
                () = completed.closed(), if !is_complete => {}
            }
        }
    }

    fn forget_earlier_run(&self) -> Result<(), statedb::Error> {
        let is_ours = |owner: &Owner| owner.source == Source::Local && owner.resource.kind() == KIND;
        let mut txn = self.ipcache.write();
        self.ipcache.delete_owned(&mut txn, is_ours, |_| false)?;
        txn.commit();
        Ok(())
    }

    fn publish(
        &self,
        snapshot: &Snapshot,
        published: &mut BTreeMap<IpAddr, Owner>,
        is_complete: bool,
    ) -> Result<(), statedb::Error> {
        let wanted = self.claims(snapshot);
        let mut txn = self.ipcache.write();
        let now: BTreeMap<IpAddr, Owner> = wanted
            .iter()
            .map(|(address, claim)| (*address, claim.owner.clone()))
            .collect();
        for (address, claim) in wanted {
            self.ipcache.upsert(&mut txn, Prefix::address(address), claim)?;
        }
        self.withdraw(&mut txn, published, &now)?;
        if is_complete {
            self.guard.done(&mut txn)?;
        }
        txn.commit();
        *published = now;
        Ok(())
    }

    fn withdraw(
        &self,
        txn: &mut WriteTxn,
        published: &BTreeMap<IpAddr, Owner>,
        now: &BTreeMap<IpAddr, Owner>,
    ) -> Result<(), statedb::Error> {
        for (address, owner) in published {
            if now.get(address) != Some(owner) {
                self.ipcache.delete(txn, Prefix::address(*address), owner)?;
            }
        }
        Ok(())
    }

    fn claims(&self, txn: &impl ReadTxn) -> Vec<(IpAddr, Claim)> {
        let table = self.endpoints.table();
        let rows: Vec<_> = table.all(txn).cloned().collect();
        rows.iter().flat_map(|row| claims_of(row)).collect()
    }
}

/// What an endpoint claims: nothing without identity, and nothing once its deletion has begun.
fn claims_of(row: &Endpoint) -> Vec<(IpAddr, Claim)> {
    let (Some(identity), Phase::Live | Phase::Restored) = (row.identity, row.phase) else {
        return Vec::new();
    };
    let owner = Owner::new(Source::Local, ResourceId::new(KIND, "", &row.id.to_string()));
    let pod = (!row.spec.pod.is_empty()).then(|| {
        Arc::new(PodMetadata {
            namespace: row.spec.namespace.as_str().into(),
            name: row.spec.pod.as_str().into(),
            ..PodMetadata::default()
        })
    });
    let claim = Claim::identity(owner, identity).pod(pod);
    row.spec
        .addresses()
        .map(|address| (address, claim.clone()))
        .collect()
}
