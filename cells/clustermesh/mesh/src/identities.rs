// SPDX-License-Identifier: Apache-2.0

//! Cell: identities of remote clusters, as table `remote-identities`.
//! Requires: a database, the mesh. Provides: an observer, the read-only table.
//!
//! Labels of an identity are written once: another set of labels has another number. Table initialised: the identities of all
//! remote clusters were read, or `clustermesh-sync-timeout` is over.

use std::fmt;
use std::sync::Arc;

use compact_str::CompactString;
use futures::FutureExt;
use futures::future::BoxFuture;
use hive::{Cell, Health, Jobs, Member};
use serde_json::{Value, json};
use skep_clustermesh_types::{ClusterName, Identity, Kind, RemoteInfo};
use skep_kvstore::Key;
use statedb::row::BoxError;
use statedb::{Db, Index, Row, RwTable, Table};

use crate::batch::Batches;
use crate::complete::{Awaited, StartError};
use crate::mesh::ClusterMesh;
use crate::metrics::ClusterMeshMetrics;
use crate::observer::{MeshObserver, ValueObserver, observe};

/// Identities a transaction.
const BATCH: usize = 1000;

hive::catalogue!(cell);

/// Identities of remote clusters.
pub fn cell() -> Cell {
    Cell::module("clustermesh-identities", "Identities of remote clusters")
        .provide_private(new_table)
        .provide(read_only)
        .provide(new_observer)
        .run(start)
        .library() // other cells read the table
}

/// Row of `remote-identities`: an identity that a remote cluster has allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteIdentity {
    /// Its number, which no other cluster has.
    pub id: u32,
    /// The cluster.
    pub cluster: ClusterName,
    /// Its labels as they are written: `k8s:app=cart;k8s:tier=;`.
    pub labels: CompactString,
}

impl RemoteIdentity {
    /// By number.
    pub const BY_ID: Index<Self, u32> = Index::new("id", |row, keys| keys.add(&row.id));
    /// By labels: identities of one set of labels, in several clusters.
    pub const BY_LABELS: Index<Self, str> = Index::new("labels", |row, keys| keys.add(row.labels.as_str()));
    /// By cluster.
    pub const BY_CLUSTER: Index<Self, str> =
        Index::new("cluster", |row, keys| keys.add(row.cluster.as_str()));
}

impl Row for RemoteIdentity {
    fn header() -> &'static [&'static str] {
        &["ID", "Cluster", "Labels"]
    }

    fn cells(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.cluster.to_string(),
            self.labels.to_string(),
        ]
    }

    fn to_json(&self) -> Result<Value, BoxError> {
        Ok(json!({"ID": self.id, "Cluster": self.cluster.as_str(), "Labels": self.labels.as_str()}))
    }
}

/// Writes remote identities. `None` is an identity that is gone.
struct IdentityObserver {
    batches: Arc<Batches<u32, Option<RemoteIdentity>>>,
}

impl fmt::Debug for IdentityObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.batches.fmt(f)
    }
}

impl ValueObserver<Identity> for IdentityObserver {
    fn upsert(&self, cluster: &RemoteInfo, _name: &Key, identity: &Arc<Identity>) {
        let row = RemoteIdentity {
            id: identity.id,
            cluster: cluster.name.clone(),
            labels: identity.text.clone(),
        };
        self.batches.note(identity.id, Some(row));
    }

    fn delete(&self, _cluster: &RemoteInfo, name: &Key) {
        // Values with another name were rejected when they were decoded.
        if let Ok(id) = name.parse() {
            self.batches.note(id, None);
        }
    }

    fn flushed(&self) -> BoxFuture<'_, ()> {
        self.batches.flushed().boxed()
    }
}

fn new_table(db: Db) -> Result<RwTable<RemoteIdentity>, statedb::Error> {
    RwTable::builder("remote-identities")
        .primary(RemoteIdentity::BY_ID)
        .index(RemoteIdentity::BY_LABELS)
        .index(RemoteIdentity::BY_CLUSTER)
        .build(&db)
}

fn read_only(table: RwTable<RemoteIdentity>) -> Table<RemoteIdentity> {
    table.reader()
}

fn new_observer(metrics: Arc<ClusterMeshMetrics>) -> (Arc<IdentityObserver>, Member<Arc<dyn MeshObserver>>) {
    let observer = Arc::new(IdentityObserver {
        batches: Arc::new(Batches::new(Kind::Identities, BATCH, metrics)),
    });
    let member = Member(observe::<Identity>(observer.clone()));
    (observer, member)
}

fn start(
    mesh: Arc<ClusterMesh>,
    observer: Arc<IdentityObserver>,
    (db, table): (Db, RwTable<RemoteIdentity>),
    jobs: Jobs,
    health: Health,
) -> Result<(), StartError> {
    if !mesh.is_enabled() {
        return Ok(());
    }
    let mut txn = db.write(&[&table]);
    let guard = table.register_initializer(&mut txn, "clustermesh")?;
    txn.commit();
    let (writing_db, writing) = (db.clone(), table.clone());
    observer
        .batches
        .clone()
        .spawn(&jobs, "write-identities", move |batch| {
            let mut txn = writing_db.write(&[&writing]);
            for (id, row) in batch {
                match row {
                    Some(row) => drop(writing.insert(&mut txn, row)?),
                    None => drop(writing.delete_by(&mut txn, RemoteIdentity::BY_ID.key(&id))?),
                }
            }
            txn.commit();
            Ok(())
        })?;
    let awaited = Awaited {
        kinds: &[Kind::Identities],
        what: "Identities of remote clusters",
        done: move || {
            let mut txn = db.write(&[&table]);
            txn.initialized(&guard)?;
            txn.commit();
            Ok(())
        },
    };
    awaited.spawn(mesh, &jobs, "wait-identities", health)?;
    Ok(())
}
