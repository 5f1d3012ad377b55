// SPDX-License-Identifier: Apache-2.0

//! CiliumIdentities.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use futures::StreamExt;
use hive::JobCtx;
use skep_identity::{LabelError, Labels, NumericIdentity};
use skep_k8s_client::{Api, Backoff, Client, ObjectEvent, WatchState, WatcherEvent, watcher};
use skep_k8s_types::Resource;
use skep_k8s_types::slim::{CiliumIdentity, Str};

use super::{IdentityChange, Source};

/// Events that share a transaction at most.
const BATCH: usize = 512;

/// Keeps the table in step with the objects. Does not return, unless the table cannot be written.
pub(super) async fn watch(
    client: Arc<dyn Client>,
    source: Source,
    cx: &JobCtx,
) -> Result<(), statedb::Error> {
    let api = Api::<CiliumIdentity>::all(client);
    let mut batches = watcher(Arc::new(api), Backoff::default()).ready_chunks(BATCH);
    let mut objects = Objects::default();
    // Watchers never end.
    while let Some(batch) = batches.next().await {
        for event in batch {
            objects.apply(event);
        }
        source.write(std::mem::take(&mut objects.changes))?;
        objects.report(cx);
    }
    Ok(())
}

/// The identity of the object with a name.
fn id_of(name: &Str) -> Option<NumericIdentity> {
    CiliumIdentity::id_of(name).map(NumericIdentity::new)
}

/// Why an object has no identity: fix or delete it. Its last valid state stays.
#[derive(Debug, thiserror::Error)]
enum InvalidIdentity {
    /// Its name is not a number.
    #[error("CiliumIdentity {0}: the name must be a decimal number without leading zeros")]
    Name(Str),
    /// One of its labels is invalid.
    #[error("CiliumIdentity {name}")]
    Label {
        name: Str,
        #[source]
        cause: LabelError,
    },
}

#[derive(Default)]
struct Objects {
    known: HashSet<NumericIdentity>,
    invalid: BTreeMap<Str, InvalidIdentity>,
    state: WatchState,
    changes: Vec<IdentityChange>,
}

impl Objects {
    fn apply(&mut self, event: WatcherEvent<CiliumIdentity>) {
        self.state.note(&event);
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                self.invalid.clear();
                let names = items.iter().map(|object| &object.metadata.name);
                let names = names.chain(invalid.iter().map(|error| &error.object.name));
                let present: HashSet<NumericIdentity> = names.filter_map(id_of).collect();
                let gone: Vec<NumericIdentity> = self.known.difference(&present).copied().collect();
                gone.into_iter().for_each(|id| self.delete(id));
                items.iter().for_each(|object| self.upsert(object));
                self.changes.push(IdentityChange::Synced);
            }
            WatcherEvent::Object(ObjectEvent::Applied(object)) => self.upsert(&object),
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => {
                self.invalid.remove(&key.name);
                if let Some(id) = id_of(&key.name) {
                    self.delete(id);
                }
            }
            // The kind is not registered: there are no objects of it until it is.
            WatcherEvent::Failing(error) if error.is_not_found() => {
                self.changes.push(IdentityChange::Synced);
            }
            _ => {}
        }
    }

    fn upsert(&mut self, object: &CiliumIdentity) {
        let name = &object.metadata.name;
        let Some(id) = id_of(name) else {
            self.invalid
                .insert(name.clone(), InvalidIdentity::Name(name.clone()));
            return;
        };
        match Labels::from_pairs(object.security_labels.iter()) {
            Ok(labels) => {
                self.invalid.remove(name);
                self.known.insert(id);
                self.changes
                    .push(IdentityChange::Upsert(id, labels.to_string().into()));
            }
            Err(cause) => {
                let name = name.clone();
                self.invalid
                    .insert(name.clone(), InvalidIdentity::Label { name, cause });
            }
        }
    }

    fn delete(&mut self, id: NumericIdentity) {
        if self.known.remove(&id) {
            self.changes.push(IdentityChange::Delete(id));
        }
    }

    fn report(&self, cx: &JobCtx) {
        let kind = CiliumIdentity::kind().kind;
        if let Some(error) = self.state.failing() {
            match error.is_not_found() {
                true => cx.health.ok(format!("{kind} is not registered")),
                false => cx.health.degraded(format!("Cannot watch {kind}"), &**error),
            }
            return;
        }
        let (undecoded, count) = (self.state.invalid(), self.known.len());
        let message = format!(
            "{} invalid objects, {count} identities",
            undecoded.len() + self.invalid.len()
        );
        if let Some(first) = undecoded.values().next() {
            cx.health.degraded(message, first);
        } else if let Some(first) = self.invalid.values().next() {
            cx.health.degraded(message, first);
        } else {
            cx.health.ok(format!("{count} identities"));
        }
    }
}
