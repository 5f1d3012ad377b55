// SPDX-License-Identifier: Apache-2.0

//! Endpoints by address for the DNS proxy, and their names in state files.

use std::{net::IpAddr, sync::Arc, time::Duration};

use hive::JobCtx;
use skep_identity::NumericIdentity;
use skep_policy_fqdn::{Names, ProxyEndpoint, ProxyEndpoints};
use statedb::{Db, RwTable, Table};

use crate::{Endpoint, state_dir::StateDir};

/// Time between two writes of the names of an endpoint.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct ByAddress {
    db: Db,
    table: Table<Endpoint>,
}

impl ProxyEndpoints for ByAddress {
    fn by_address(&self, address: IpAddr) -> Option<ProxyEndpoint> {
        let snapshot = self.db.read();
        let row = self.table.get(&snapshot, Endpoint::BY_ADDRESS.key(&address))?;
        let identity = row.identity.filter(|_| row.is_live())?;
        Some(ProxyEndpoint { id: row.id, identity })
    }

    fn host(&self) -> Option<ProxyEndpoint> {
        let snapshot = self.db.read();
        let mut rows = self.table.all(&snapshot);
        let row = rows.find(|row| row.identity == Some(NumericIdentity::HOST) && row.is_live())?;
        let (id, identity) = (row.id, NumericIdentity::HOST);
        Some(ProxyEndpoint { id, identity })
    }
}

pub(crate) fn by_address(db: Db, table: RwTable<Endpoint>) -> Arc<dyn ProxyEndpoints> {
    Arc::new(ByAddress {
        db,
        table: table.reader(),
    })
}

/// Writes names into the state files of endpoints, at the end a last time.
pub(crate) async fn save(files: StateDir, names: Names, cx: JobCtx) -> Result<(), tokio::task::JoinError> {
    loop {
        let is_last = tokio::select! {
            () = tokio::time::sleep(INTERVAL) => false,
            () = cx.cancelled() => true,
        };
        let (files, names) = (files.clone(), names.clone());
        let saved = tokio::task::spawn_blocking(move || {
            let mut failed = None;
            for endpoint in names.dirty() {
                if let Err(error) = files.save_names(endpoint, &names.saved(endpoint)) {
                    failed = Some(error);
                }
            }
            failed
        });
        match saved.await? {
            None => cx.health.ok("Running"),
            Some(error) => cx.health.degraded("Names of endpoints are not saved", &error),
        }
        if is_last {
            return Ok(());
        }
    }
}
