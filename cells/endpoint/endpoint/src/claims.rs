// SPDX-License-Identifier: Apache-2.0

//! Endpoints → identities of their addresses, in the ipcache.

use std::sync::Arc;

use hive::JobCtx;
use skep_ipcache::{Claim, Owner, PodMetadata, Prefix, Publisher, ResourceId, Source};

use crate::{Endpoint, Endpoints, Phase};

/// Kind of the resources that claim for endpoints.
pub(crate) const KIND: &str = "endpoint";

/// Keeps the claims on addresses of endpoints equal to the table, until cancelled.
pub(crate) async fn follow(
    publisher: &Publisher,
    endpoints: &Endpoints,
    cx: &JobCtx,
) -> Result<(), statedb::Error> {
    let (db, table) = (endpoints.db(), endpoints.table());
    publisher
        .follow_rows(db, &table, |row| row.id, claims_of, cx)
        .await
}

/// What an endpoint claims: nothing without identity, and nothing once its deletion has begun.
fn claims_of(row: &Endpoint) -> Vec<(Prefix, Claim)> {
    let (Some(identity), Phase::Live | Phase::Restored) = (row.identity, row.phase) else {
        return Vec::new();
    };
    let owner = Owner::new(Source::Local, ResourceId::new(KIND, "", &row.id.to_string()));
    let pod = (!row.spec.pod.is_empty()).then(|| {
        Arc::new(PodMetadata {
            namespace: row.spec.namespace.as_str().into(),
            name: row.spec.pod.as_str().into(),
            named_ports: row
                .pod
                .as_ref()
                .map(|pod| pod.ipcache_ports())
                .unwrap_or_default(),
        })
    });
    let claim = Claim::identity(owner, identity).pod(pod);
    row.spec
        .addresses()
        .map(|address| (Prefix::address(address), claim.clone()))
        .collect()
}
