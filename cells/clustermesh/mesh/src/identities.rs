// SPDX-License-Identifier: Apache-2.0

//! Cell: identities of remote clusters, in table `identities`.
//! Requires: the writer of the table, the mesh. Provides: an observer.
//!
//! Labels of an identity are written once: another set of labels has another number. The source is done when the identities
//! of all remote clusters were read, or `clustermesh-sync-timeout` is over.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hive::{BoxError, Cell, Health, Jobs, Member};
use skep_clustermesh_types::{Identity, Kind, RemoteInfo};
use skep_identity::NumericIdentity;
use skep_identity_cache::{IdentitySource, ObjectFacts, SecurityIdentity, Writer};
use skep_kvstore_client::Key;

use crate::batch::{Batches, in_table};
use crate::complete::InitialSync;
use crate::mesh::ClusterMesh;
use crate::metrics::ClusterMeshMetrics;
use crate::observer::{MeshObserver, ValueObserver, observe};

const BATCH: usize = 1000;

hive::catalogue!(cell);

pub fn cell() -> Cell {
    Cell::module("clustermesh-identities", "Identities of remote clusters")
        .provide(new_observer)
        .run(start)
}

/// Writes remote identities. `None` is an identity that is gone.
struct IdentityObserver {
    batches: Arc<Batches<NumericIdentity, Option<SecurityIdentity>>>,
}

impl fmt::Debug for IdentityObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.batches.fmt(f)
    }
}

impl ValueObserver<Identity> for IdentityObserver {
    fn upsert(&self, cluster: &RemoteInfo, _name: &Key, identity: &Arc<Identity>) {
        let id = NumericIdentity::new(identity.id);
        let row = match identity.text.parse() {
            Ok(labels) => Some(SecurityIdentity {
                id,
                source: IdentitySource::ClusterMesh,
                cluster: cluster.name.as_str().into(),
                labels: Arc::new(labels),
                object: ObjectFacts::default(),
            }),
            Err(error) => {
                tracing::warn!(identity = %id, cluster = %cluster.name, %error, "Ignoring identity with invalid labels");
                None
            }
        };
        self.batches.note(id, row);
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
    writer: Writer,
    jobs: Jobs,
    health: Health,
) -> Result<(), BoxError> {
    if !mesh.is_enabled() {
        return Ok(());
    }
    let guard = writer.register_source("clustermesh")?;
    let writing = writer.clone();
    observer
        .batches
        .clone()
        .spawn(&jobs, "write-identities", move |batch| {
            let mut txn = writing.write();
            for (id, row) in batch {
                match row {
                    Some(row) => drop(writing.upsert(&mut txn, row)?),
                    None => writing.delete(&mut txn, IdentitySource::ClusterMesh, id)?,
                }
            }
            txn.commit();
            Ok(in_table())
        })?;
    let awaited = InitialSync {
        kinds: &[Kind::Identities],
        what: "Identities of remote clusters",
        done: move || {
            let mut txn = writer.write();
            writer.done(&mut txn, &guard)?;
            txn.commit();
            Ok(())
        },
    };
    awaited.spawn(mesh, &jobs, "wait-identities", health)?;
    Ok(())
}
