// SPDX-License-Identifier: Apache-2.0

//! Identities as CiliumIdentities.
//!
//! Existing ones are rows of table `identities`. Several objects may have the same labels, as two agents created them at once:
//! the oldest one counts. The name of an object is its id, so that an id belongs to one object.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hive::JobCtx;
use parking_lot::Mutex;
use skep_identity::{IdentityRange, Label, Labels, NumericIdentity};
use skep_identity_cache::{IdentitySource, SecurityIdentity};
use skep_k8s_client::{Api, Client};
use skep_k8s_controller::{RequestError, request};
use skep_k8s_types::slim::{self, CiliumIdentity, Metadata, Str};
use skep_kvstore_client::backoff;
use statedb::{Db, Snapshot, Table};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::error::AllocateError;
use crate::store::IdentityStore;

/// Pauses between attempts: from the first to the last, doubling.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));
/// How long a created object may take to be reported by the watch.
const ECHO: Duration = Duration::from_secs(10);
/// Pause between two looks at the identities in use.
const ROUND: Duration = Duration::from_secs(1);
const NAMED: usize = 10;

#[derive(Clone, Copy, Debug)]
pub struct ObjectOptions {
    pub range: IdentityRange,
    /// Whether this program creates objects; otherwise it waits for those of the operator.
    pub creates: bool,
    /// Whether the objects are in table `identities`; otherwise another store is, and these are copies.
    pub is_read: bool,
    /// Interval at which copies are compared.
    pub refresh_interval: Duration,
}

pub struct IdentityObjects {
    api: Api<CiliumIdentity>,
    db: Db,
    table: Table<SecurityIdentity>,
    options: ObjectOptions,
    uses: Mutex<HashMap<Arc<Labels>, Use>>,
    adopted: Notify,
}

#[derive(Clone, Copy)]
struct Use {
    id: NumericIdentity,
    count: usize,
    /// Whether its object is known to exist.
    exists: bool,
}

/// An id in use was allocated for other labels: restart the endpoints that use it.
#[derive(Debug, thiserror::Error)]
#[error("ids with other labels: {0}")]
struct Conflicts(String);

enum Created {
    Yes,
    /// It exists with these labels.
    Same,
    /// The id has other labels.
    Taken,
}

impl IdentityObjects {
    pub fn new(
        client: Arc<dyn Client>,
        db: Db,
        table: Table<SecurityIdentity>,
        options: ObjectOptions,
    ) -> Self {
        Self {
            api: Api::all(client),
            db,
            table,
            options,
            uses: Mutex::default(),
            adopted: Notify::new(),
        }
    }

    /// Creates objects of identities in use that are missing. Does not return.
    pub async fn run(&self, cx: &JobCtx) {
        let mut conflicts = HashMap::new();
        let mut failures = 0;
        loop {
            let snapshot = self.db.read();
            let changed = self.table.table_watch(&snapshot);
            match self.repair(&snapshot, &mut conflicts).await {
                Ok(()) => {
                    failures = 0;
                    self.report(&conflicts, cx);
                }
                Err(error) => {
                    failures += 1;
                    cx.health.degraded("Cannot create CiliumIdentities", &error);
                    sleep(backoff(failures, PAUSES)).await;
                    continue;
                }
            }
            drop(snapshot);
            sleep(ROUND).await;
            tokio::select! {
                () = changed.closed(), if self.options.is_read => {}
                () = self.adopted.notified() => {}
                () = sleep(self.options.refresh_interval), if !self.options.is_read => self.doubt(),
            }
        }
    }

    fn report(&self, conflicts: &HashMap<NumericIdentity, Arc<Labels>>, cx: &JobCtx) {
        if conflicts.is_empty() {
            cx.health
                .ok(format!("{} identities in use", self.uses.lock().len()));
            return;
        }
        let texts = conflicts
            .iter()
            .map(|(id, labels)| format!("{id} is not `{labels}`"));
        let texts: Vec<String> = texts.take(NAMED).collect();
        cx.health
            .degraded("Identities in use belong to others", &Conflicts(texts.join("; ")));
    }

    /// Copies may have been deleted.
    fn doubt(&self) {
        self.uses.lock().values_mut().for_each(|used| used.exists = false);
    }

    async fn repair(
        &self,
        snapshot: &Snapshot,
        conflicts: &mut HashMap<NumericIdentity, Arc<Labels>>,
    ) -> Result<(), RequestError> {
        let uses: Vec<(Arc<Labels>, Use)> = self
            .uses
            .lock()
            .iter()
            .map(|(labels, used)| (labels.clone(), *used))
            .collect();
        conflicts.retain(|id, labels| uses.iter().any(|(used, of)| used == labels && of.id == *id));
        for (labels, used) in uses {
            if self.options.is_read {
                match self.row(snapshot, used.id) {
                    Some(row) if row.labels == labels => {
                        conflicts.remove(&used.id);
                        continue;
                    }
                    Some(_) => _ = conflicts.insert(used.id, labels),
                    None if !self.options.creates => {}
                    None => {
                        tracing::warn!(identity = %used.id, %labels, "A used CiliumIdentity was deleted: creating it again");
                        self.create_used(used.id, labels, conflicts).await?;
                    }
                }
            } else if !used.exists {
                self.create_used(used.id, labels, conflicts).await?;
            }
        }
        Ok(())
    }

    async fn create_used(
        &self,
        id: NumericIdentity,
        labels: Arc<Labels>,
        conflicts: &mut HashMap<NumericIdentity, Arc<Labels>>,
    ) -> Result<(), RequestError> {
        match self.create(id, &labels).await? {
            Created::Taken => {
                tracing::error!(identity = %id, %labels, "A used identity has been allocated for other labels");
                conflicts.insert(id, labels);
            }
            Created::Yes | Created::Same => {
                conflicts.remove(&id);
                if let Some(used) = self.uses.lock().get_mut(&labels) {
                    used.exists = true;
                }
            }
        }
        Ok(())
    }

    fn row<'a>(&'a self, snapshot: &'a Snapshot, id: NumericIdentity) -> Option<&'a SecurityIdentity> {
        let row = self.table.get(snapshot, SecurityIdentity::BY_ID.key(&id.get()))?;
        (row.source == IdentitySource::Kubernetes).then_some(&**row)
    }

    /// The id of the oldest object with some labels, and whether the operator has marked it as unused.
    pub(crate) fn existing(&self, snapshot: &Snapshot, labels: &Labels) -> Option<(NumericIdentity, bool)> {
        let text = labels.to_string();
        let rows = self.table.list(snapshot, SecurityIdentity::BY_LABELS.key(&text));
        let own = rows.filter(|row| row.source == IdentitySource::Kubernetes);
        // Objects without time are those of a server that sets none.
        let oldest = own.min_by_key(|row| (row.object.created, row.id))?;
        Some((oldest.id, oldest.object.is_marked))
    }

    async fn wait_listed(&self) {
        let source = IdentitySource::Kubernetes.to_string();
        loop {
            let snapshot = self.db.read();
            let (_, changed) = self.table.initialized_watch(&snapshot);
            if !self.table.pending_initializers(&snapshot).contains(&source) {
                return;
            }
            changed.closed().await;
        }
    }

    /// Uses an existing object, or creates one. `None`: another attempt is needed.
    async fn attempt(&self, labels: &Arc<Labels>) -> Result<Option<NumericIdentity>, AllocateError> {
        let failed = |cause| AllocateError::Request {
            labels: labels.clone(),
            cause,
        };
        let snapshot = self.db.read();
        let changed = self.table.table_watch(&snapshot);
        if let Some((id, is_marked)) = self.existing(&snapshot, labels) {
            if !is_marked {
                return Ok(Some(id));
            }
            return match self.unmark(id).await {
                Ok(()) => Ok(Some(id)),
                // Deleted meanwhile: the table will say so.
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(failed(error)),
            };
        }
        if !self.options.creates {
            changed.closed().await;
            return Ok(None);
        }
        let ids = shuffled(self.options.range).filter(|id| {
            let key = SecurityIdentity::BY_ID.key(&id.get());
            self.table.get(&snapshot, key).is_none()
        });
        for id in ids {
            if !matches!(self.create(id, labels).await.map_err(failed)?, Created::Taken) {
                return Ok(Some(id));
            }
        }
        Err(AllocateError::Exhausted {
            labels: labels.clone(),
            range: self.options.range,
        })
    }

    async fn create(&self, id: NumericIdentity, labels: &Labels) -> Result<Created, RequestError> {
        let object = object(id, labels);
        match request(self.api.create(&object)).await {
            Ok(_) => Ok(Created::Yes),
            Err(RequestError::Api(error)) if error.is_already_exists() => {
                let present = request(self.api.get(&object.metadata.name)).await?;
                match present.security_labels == object.security_labels {
                    true => Ok(Created::Same),
                    false => Ok(Created::Taken),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the mark of the operator, which deletes marked objects.
    async fn unmark(&self, id: NumericIdentity) -> Result<(), RequestError> {
        // An update: agents have no right to patch CiliumIdentities.
        let mut object = (*request(self.api.get(&id.to_string())).await?).clone();
        if object
            .metadata
            .annotations
            .contains_key(CiliumIdentity::HEARTBEAT)
        {
            object.metadata.annotations.remove(CiliumIdentity::HEARTBEAT);
            request(self.api.update(&object)).await?;
        }
        Ok(())
    }

    fn use_again(&self, labels: &Arc<Labels>) -> Option<NumericIdentity> {
        let mut uses = self.uses.lock();
        let used = uses.get_mut(labels)?;
        used.count += 1;
        Some(used.id)
    }

    fn first_use(&self, labels: &Arc<Labels>, id: NumericIdentity, exists: bool) {
        let first = Use { id, count: 1, exists };
        self.uses.lock().insert(labels.clone(), first);
    }

    /// Waits until the table has a created object, and returns the oldest one of its labels: another agent may have been
    /// faster.
    async fn settle(&self, labels: &Labels, created: NumericIdentity) -> NumericIdentity {
        let shown = async {
            loop {
                let snapshot = self.db.read();
                let changed = self.table.table_watch(&snapshot);
                if self.row(&snapshot, created).is_some() {
                    let oldest = self.existing(&snapshot, labels);
                    return oldest.map_or(created, |(id, _)| id);
                }
                changed.closed().await;
            }
        };
        timeout(ECHO, shown).await.unwrap_or(created)
    }
}

/// All ids of a range, from a random one on.
fn shuffled(range: IdentityRange) -> impl Iterator<Item = NumericIdentity> {
    let (first, last) = (range.first().get(), range.last().get());
    let start = fastrand::u32(first..=last.max(first));
    (start..=last).chain(first..start).map(NumericIdentity::new)
}

fn object(id: NumericIdentity, labels: &Labels) -> CiliumIdentity {
    let namespace = labels.get(Labels::NAMESPACE).map(Label::value);
    let security_labels = labels.iter().map(|label| {
        let name = format!("{}:{}", label.source(), label.key());
        (name, label.value().to_owned())
    });
    CiliumIdentity {
        metadata: Metadata {
            name: Str::new(id.to_string()),
            labels: slim::Labels::from_iter(namespace.map(|namespace| (Labels::NAMESPACE, namespace))),
            ..Metadata::default()
        },
        security_labels: security_labels.collect(),
    }
}

#[async_trait]
impl IdentityStore for IdentityObjects {
    async fn allocate(&self, labels: &Arc<Labels>) -> Result<NumericIdentity, AllocateError> {
        if let Some(id) = self.use_again(labels) {
            return Ok(id);
        }
        self.wait_listed().await;
        let mut failures = 0;
        loop {
            match self.attempt(labels).await {
                Ok(Some(id)) => {
                    let id = self.settle(labels, id).await;
                    self.first_use(labels, id, true);
                    return Ok(id);
                }
                Ok(None) => {}
                Err(error @ AllocateError::Exhausted { .. }) => return Err(error),
                Err(error) => {
                    let error = hive::error_chain(&error);
                    tracing::info!(attempt = failures, %error, "Unable to allocate an identity: retrying");
                }
            }
            failures += 1;
            sleep(backoff(failures, PAUSES)).await;
        }
    }

    fn adopt(&self, labels: &Arc<Labels>, id: NumericIdentity) {
        if self.use_again(labels).is_none() {
            self.first_use(labels, id, false);
            self.adopted.notify_one();
        }
    }

    fn release(&self, labels: &Arc<Labels>) {
        let mut uses = self.uses.lock();
        if let Some(used) = uses.get_mut(labels) {
            used.count -= 1;
            if used.count == 0 {
                uses.remove(labels);
            }
        }
    }
}
