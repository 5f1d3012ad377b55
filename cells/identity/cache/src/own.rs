// SPDX-License-Identifier: Apache-2.0

//! Cell: identities of the own cluster. Requires: [`Writer`], [`IdentityConfig`], a client of the key-value store, optionally one of Kubernetes.
//!
//! A source reports changes; one transaction writes all that have come meanwhile.

mod keys;
mod objects;

use std::sync::Arc;

use compact_str::CompactString;
use hive::{BoxError, Cell, Cfg, Jobs, Params};
use skep_base_settings::identity::IdentityConfig;
use skep_identity::{Labels, NumericIdentity};
use skep_k8s_client::{Api, Client as KubernetesClient};
use skep_k8s_reflectors::Feed;
use skep_kvstore_client::Client;
use statedb::{InitGuard, WriteTxn};

use self::objects::{IdentityObject, Objects};
use crate::table::{IdentitySource, ObjectFacts, SecurityIdentity};
use crate::writer::Writer;

hive::catalogue!(cell);

/// Identities of the own cluster.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("identity-watcher", "Security identities of the own cluster").run(start)
}

#[derive(Params)]
struct StartParams {
    config: Cfg<IdentityConfig>,
    writer: Writer,
    kvstore: Client,
    kubernetes: Option<Arc<dyn KubernetesClient>>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), BoxError> {
    if params.config.identity_allocation_mode.reads_objects() {
        let client = params.kubernetes.filter(|client| client.is_enabled());
        let Some(client) = client else { return Ok(()) };
        let source = Source::new(params.writer, IdentitySource::Kubernetes)?;
        let objects = Arc::new(Api::<IdentityObject>::all(client));
        Feed::new("watch-ciliumidentities", objects, Objects::new(source))
            .optional_kind()
            .spawn(&params.jobs)?;
    } else if params.kvstore.is_enabled() {
        let source = Source::new(params.writer, IdentitySource::KvStore)?;
        let state = (params.kvstore, source);
        params.jobs.keep("watch-kvstore", state, keys::watch)?;
    }
    Ok(())
}

#[derive(Debug)]
enum IdentityChange {
    Upsert(NumericIdentity, Arc<Labels>, ObjectFacts),
    Delete(NumericIdentity),
    Synced,
}

/// Writes the identities of one source.
#[derive(Clone)]
struct Source {
    writer: Writer,
    source: IdentitySource,
    guard: Arc<InitGuard>,
}

impl Source {
    fn new(writer: Writer, source: IdentitySource) -> Result<Self, statedb::Error> {
        let guard = Arc::new(writer.register_source(&source.to_string())?);
        Ok(Self {
            writer,
            source,
            guard,
        })
    }

    fn write(&self, changes: impl IntoIterator<Item = IdentityChange>) -> Result<(), statedb::Error> {
        let mut txn = self.writer.write();
        for change in changes {
            self.apply(&mut txn, change)?;
        }
        txn.commit();
        Ok(())
    }

    fn apply(&self, txn: &mut WriteTxn, change: IdentityChange) -> Result<(), statedb::Error> {
        match change {
            IdentityChange::Upsert(id, labels, object) => {
                let row = SecurityIdentity {
                    id,
                    source: self.source,
                    cluster: CompactString::default(),
                    labels,
                    object,
                };
                self.writer.upsert(txn, row).map(drop)
            }
            IdentityChange::Delete(id) => self.writer.delete(txn, self.source, id),
            IdentityChange::Synced => self.writer.done(txn, &self.guard),
        }
    }
}
