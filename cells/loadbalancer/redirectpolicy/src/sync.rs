// SPDX-License-Identifier: Apache-2.0

//! Job `skip-maps`: makes the skip maps follow table `desired-skiplbmap`.
//!
//! The maps hold a hundred entries at most, so each round compares all of them with what the table asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hive::JobCtx;
use jiff::Timestamp;
use skep_bpf_sys::MapError;
use statedb::reconciler::{Status, StatusKind};
use statedb::{Db, Obj, RwTable, Snapshot};

use crate::{SkipEntry, SkipMaps, SkipRedirects};

const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub(crate) enum SyncError {
    #[error("cannot read the skip maps")]
    Read(#[source] MapError),
    #[error("cannot write {entry}")]
    Write {
        entry: SkipEntry,
        #[source]
        cause: MapError,
    },
}

pub(crate) struct Sync {
    pub(crate) db: Db,
    pub(crate) table: RwTable<SkipRedirects>,
    pub(crate) maps: Arc<SkipMaps>,
    /// Becomes true when every source has delivered its first list, so that entries no policy asks for can be deleted.
    pub(crate) complete: Box<dyn Fn(&Snapshot) -> bool + Send + std::marker::Sync>,
}

impl Sync {
    pub(crate) async fn run(&self, cx: &JobCtx) {
        loop {
            let snapshot = self.db.read();
            let watch = self.table.table_watch(&snapshot);
            let result = self.round(&snapshot);
            let retry = match &result {
                Ok(entries) => {
                    cx.health.ok(format!("{entries} entries"));
                    // A source that becomes complete later is not seen by the watch.
                    (!(self.complete)(&snapshot)).then_some(RETRY)
                }
                Err(error) => {
                    cx.health.degraded("Cannot write the skip maps", error);
                    Some(RETRY)
                }
            };
            tokio::select! {
                () = watch.closed() => {}
                () = tokio::time::sleep(retry.unwrap_or_default()), if retry.is_some() => {}
            }
        }
    }

    /// Writes what is missing, then removes what is not asked for; statuses say how it went. Returns the number of
    /// entries asked for.
    pub(crate) fn round(&self, snapshot: &Snapshot) -> Result<usize, SyncError> {
        let rows: Vec<Obj<SkipRedirects>> = self.table.all(snapshot).cloned().collect();
        let present: BTreeSet<SkipEntry> = self
            .maps
            .entries()
            .map_err(SyncError::Read)?
            .into_iter()
            .collect();
        let mut wanted = BTreeSet::new();
        let mut failures = BTreeMap::new();
        let mut first = None;
        for row in &rows {
            for entry in entries(row) {
                wanted.insert(entry);
                if !present.contains(&entry)
                    && let Err(cause) = self.maps.insert(&entry)
                {
                    failures.insert(row.pod.clone(), cause.to_string());
                    first.get_or_insert(SyncError::Write { entry, cause });
                }
            }
        }
        if (self.complete)(snapshot) {
            for entry in present.difference(&wanted) {
                if let Err(cause) = self.maps.remove(entry) {
                    first.get_or_insert(SyncError::Write { entry: *entry, cause });
                }
            }
        }
        self.report(&rows, &failures);
        first.map_or(Ok(wanted.len()), Err)
    }

    /// Sets statuses of rows that did not change meanwhile.
    fn report(&self, rows: &[Obj<SkipRedirects>], failures: &BTreeMap<compact_str::CompactString, String>) {
        let now = Timestamp::now();
        let status = |row: &SkipRedirects| match failures.get(&row.pod) {
            None if matches!(row.status.kind, StatusKind::Done | StatusKind::Unset) => None,
            None => Some(row.status.clone().into_done(now)),
            Some(error) if row.status.error_text() == error => None,
            Some(error) => Some(row.status.clone().into_error(now, error.as_str())),
        };
        let reports: Vec<(&Obj<SkipRedirects>, Status)> =
            rows.iter().filter_map(|row| Some((row, status(row)?))).collect();
        if reports.is_empty() {
            return;
        }
        let mut txn = self.db.write(&[&self.table]);
        for (row, status) in reports {
            // A row that changed meanwhile comes again.
            let _ = self.table.compare_and_swap(
                &mut txn,
                row.revision(),
                SkipRedirects {
                    status,
                    ..(**row).clone()
                },
            );
        }
        txn.commit();
    }
}

/// Entries a row asks for: none without a cookie.
fn entries(row: &SkipRedirects) -> impl Iterator<Item = SkipEntry> {
    let entry = |cookie| {
        row.frontends.iter().map(move |address| SkipEntry {
            cookie,
            ip: address.ip(),
            port: address.port(),
        })
    };
    row.cookie.into_iter().flat_map(entry)
}
