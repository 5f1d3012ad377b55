// SPDX-License-Identifier: Apache-2.0

//! Allocates identities.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use skep_identity::{IdentityRange, NumericIdentity};
use skep_kvstore_client::{Client, Error, Lifetime, Lock, Locked, LostKeys, backoff, keys};

use crate::cache::{Identities, IdentityObserver};
use crate::claim::{Claim, Local};
use crate::decoder::IdentityDecoder;
use crate::gc::id_of;
use crate::layout::{IdentityKeys, IdentityLabels, shuffled};
use crate::local::LabelLocks;
use hive::error_chain as chain;
use skep_kvstore_store::queue::Failure;
use skep_kvstore_store::{InvalidEntry, Observer};
use skep_kvstore_store::{WatchStore, WatchStoreOptions, WatchStoreStatus};

/// How often an allocation is tried.
const ATTEMPTS: u32 = 16;
/// Pauses between attempts: from the first to the last, doubling.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));

/// How an [`IdentityAllocator`] behaves.
#[derive(Clone, Debug)]
pub struct AllocatorOptions {
    /// End of the slave keys of this node: its IPv4 address, or its IPv6 address if it has no other.
    pub node: String,
    /// The ids of the own cluster.
    pub range: IdentityRange,
    /// The keys of the own cluster.
    pub keys: IdentityKeys,
    /// How often the keys of used identities are compared and written again; at least a second.
    pub refresh_interval: Duration,
    /// Of the store that reads the identities of the own cluster.
    pub watch: WatchStoreOptions,
}

impl AllocatorOptions {
    /// Cilium's keys and times: refresh every 5 min.
    pub fn new(cluster: impl Into<String>, node: impl Into<String>, range: IdentityRange) -> Self {
        Self {
            node: node.into(),
            range,
            keys: IdentityKeys::default(),
            refresh_interval: Duration::from_secs(5 * 60),
            watch: WatchStoreOptions::new(cluster),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub id: NumericIdentity,
    /// Whether no node had it before.
    pub is_new: bool,
    /// Whether this program did not use it before.
    pub is_first_use: bool,
}

/// Why an identity could not be allocated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AllocateError {
    /// The labels make no key: fix them.
    #[error("labels `{labels}` have no identity: {reason}")]
    Labels {
        labels: IdentityLabels,
        reason: &'static str,
    },

    /// All ids of the cluster are allocated. Unused ones are free again after two rounds of the
    /// [`IdentityGc`](crate::IdentityGc).
    #[error("identity of `{labels}`: no id is free in {range}")]
    Exhausted {
        labels: IdentityLabels,
        range: IdentityRange,
    },

    /// The id has been allocated for other labels meanwhile. Try again.
    #[error("identity of `{labels}`: {id} has been taken")]
    Taken {
        labels: IdentityLabels,
        id: NumericIdentity,
    },

    /// The key-value store failed; see the cause.
    #[error("identity of `{labels}` cannot be allocated")]
    Store {
        labels: IdentityLabels,
        #[source]
        cause: Error,
    },
}

impl AllocateError {
    /// Whether the same allocation may succeed soon, without any change.
    fn is_transient(&self) -> bool {
        match self {
            Self::Taken { .. } => true,
            Self::Labels { .. } | Self::Exhausted { .. } => false,
            Self::Store { cause, .. } => cause.is_transient() || cause.is_lock_lost(),
        }
    }
}

/// The labels are not in use: each release needs an allocation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("identity of `{0}` is not in use")]
pub struct NotInUse(pub IdentityLabels);

/// Allocates identities of the own cluster, and keeps those that this program uses alive, while [`run`](Self::run) runs.
/// Clones are the same allocator.
///
/// Labels have one id in a cluster: who allocates holds the lock of the labels. An identity lives as long as a node has a
/// slave key for it; slave keys have the lease of their node. A master key that is deleted while this program uses it is
/// written again at once.
///
/// ```
/// use std::sync::Arc;
/// use skep_identity::{IdentityRange, MaxConnectedClusters};
/// use skep_kvstore_client::{Client, ClientKind, ClientOptions, memory::Memory};
/// use skep_identity_kvstore::{AllocatorOptions, Identities, IdentityAllocator};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (client, _driver) = Client::new(Arc::new(Memory::new()), ClientOptions::new("etcd", ClientKind::Full));
/// let range = IdentityRange::of_cluster(7, MaxConnectedClusters::Max255)?;
/// let options = AllocatorOptions::new("alder", "192.168.50.21", range);
/// let allocator = IdentityAllocator::new(client, Identities::new(), (), options);
///
/// let labels = "k8s:app=cart;k8s:io.kubernetes.pod.namespace=shop;".into();
/// let allocation = tokio::select! {
///     () = allocator.run() => unreachable!("it never returns"),
///     allocation = allocator.allocate(&labels) => allocation?,
/// };
///
/// assert!(allocation.is_new && allocation.is_first_use);
/// allocator.release(&labels)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct IdentityAllocator {
    inner: Arc<Inner>,
}

type OwnIdentities = WatchStore<IdentityDecoder, IdentityObserver<BoxObserver>>;
type BoxObserver = Box<dyn Observer<NumericIdentity, IdentityLabels>>;

struct Inner {
    client: Client,
    options: AllocatorOptions,
    identities: Identities,
    local: Local,
    locks: LabelLocks,
    /// Used ids whose master key has other labels.
    conflicts: Mutex<BTreeMap<NumericIdentity, IdentityLabels>>,
    status: WatchStoreStatus,
    worker: tokio::sync::Mutex<Worker>,
}

struct Worker {
    store: OwnIdentities,
    lost: LostKeys,
}

impl Observer<NumericIdentity, IdentityLabels> for BoxObserver {
    fn upsert(&mut self, id: &NumericIdentity, labels: &Arc<IdentityLabels>) {
        (**self).upsert(id, labels);
    }

    fn delete(&mut self, id: &NumericIdentity, labels: &Arc<IdentityLabels>) {
        (**self).delete(id, labels);
    }

    fn synced(&mut self) {
        (**self).synced();
    }

    fn invalid(&mut self, entry: &InvalidEntry) {
        (**self).invalid(entry);
    }
}

impl IdentityAllocator {
    /// An allocator that uses no identity. The identities of the own cluster become known in `identities`, and are reported to
    /// the observer.
    pub fn new(
        client: Client,
        identities: Identities,
        observer: impl Observer<NumericIdentity, IdentityLabels>,
        options: AllocatorOptions,
    ) -> Self {
        let local = Local::new();
        let observer: BoxObserver = Box::new(observer);
        let store = WatchStore::new(
            IdentityDecoder::own(),
            identities.observer(observer),
            options.watch.clone(),
        )
        .reclaim({
            let local = local.clone();
            Box::new(move |name| local.reclaim(name))
        });
        Self {
            inner: Arc::new(Inner {
                identities,
                local,
                locks: LabelLocks::default(),
                conflicts: Mutex::default(),
                status: store.status(),
                worker: tokio::sync::Mutex::new(Worker {
                    store,
                    lost: client.lost_keys(&keys::below(&options.keys.slaves())),
                }),
                client,
                options,
            }),
        }
    }

    pub fn identities(&self) -> &Identities {
        &self.inner.identities
    }

    /// How the store is that reads the identities of the own cluster.
    pub fn status(&self) -> &WatchStoreStatus {
        &self.inner.status
    }

    /// Used ids whose master key has other labels, which are returned: the store lost keys, and another node allocated the
    /// id again. Restart the endpoints that use them.
    pub fn conflicts(&self) -> BTreeMap<NumericIdentity, IdentityLabels> {
        self.inner.conflicts.lock().clone()
    }

    /// Allocates the identity of some labels, or uses it once more. Labels that are in use need no I/O; others wait until the
    /// existing identities are known, so that [`run`](Self::run) has to run, and are tried 16 times with pauses of 20 ms to
    /// 10 s.
    ///
    /// The future may be dropped: a slave key that it has written is deleted then.
    ///
    /// # Errors
    ///
    /// [`AllocateError`] of the last attempt.
    pub async fn allocate(&self, labels: &IdentityLabels) -> Result<Allocation, AllocateError> {
        check(labels)?;
        if let Some(allocation) = self.use_again(labels) {
            return Ok(allocation);
        }
        if !self.inner.client.is_enabled() {
            // Returns the error that says so.
            let path = self.inner.options.keys.lock(labels);
            self.inner.client.get(&path).await.map_err(store(labels))?;
        }
        self.inner.status.wait_synced().await;
        let mut failures = 0;
        loop {
            match self.attempt(labels).await {
                Ok(allocation) => return Ok(allocation),
                Err(error) => {
                    failures += 1;
                    if failures == ATTEMPTS || !error.is_transient() {
                        return Err(error);
                    }
                    tracing::info!(attempt = failures, error = %chain(&error), "Unable to allocate identity, retrying");
                    tokio::time::sleep(backoff(failures, PAUSES)).await;
                }
            }
        }
    }

    /// Uses an id that was allocated elsewhere: its keys are written soon.
    pub fn adopt(&self, labels: &IdentityLabels, id: NumericIdentity) {
        let local = &self.inner.local;
        let mut uses = local.uses.lock();
        if uses.again(labels).is_none() && uses.claim(id, labels) {
            uses.first(labels, id);
            local.queue.push(labels.clone());
        }
    }

    /// Ends a use. Returns whether it was the last one: then the slave key of this node is deleted soon. The master key stays for
    /// other nodes.
    ///
    /// # Errors
    ///
    /// [`NotInUse`] without an allocation before.
    pub fn release(&self, labels: &IdentityLabels) -> Result<bool, NotInUse> {
        let released = self.inner.local.uses.lock().release(labels);
        let (id, is_last) = released.ok_or_else(|| NotInUse(labels.clone()))?;
        if is_last {
            self.inner.conflicts.lock().remove(&id);
            self.inner.local.queue.push(labels.clone());
        }
        Ok(is_last)
    }

    /// How often labels are used by this program.
    pub fn uses(&self, labels: &IdentityLabels) -> usize {
        self.inner.local.uses.lock().count(labels)
    }

    /// Reads the identities of the own cluster, and keeps the used ones alive. Never returns: dropping the future pauses the
    /// allocator. A second call waits until the first one is dropped.
    pub async fn run(&self) {
        let inner = &*self.inner;
        if !inner.client.is_enabled() {
            return std::future::pending().await;
        }
        let mut worker = inner.worker.lock().await;
        let Worker { store, lost } = &mut *worker;
        let masters = inner.options.keys.masters();
        let repair = async {
            loop {
                let labels = inner.local.queue.next().await;
                self.handle(&labels).await;
            }
        };
        let leases = async {
            loop {
                for key in lost.next().await {
                    self.lost(&key);
                }
            }
        };
        let refresh = async {
            let pause = inner.options.refresh_interval.max(Duration::from_secs(1));
            loop {
                tokio::time::sleep(pause).await;
                let labels = inner.local.uses.lock().labels();
                for labels in labels {
                    inner.local.queue.push(labels);
                }
            }
        };
        tokio::join!(store.watch(&inner.client, &masters), repair, leases, refresh);
    }

    fn use_again(&self, labels: &IdentityLabels) -> Option<Allocation> {
        let id = self.inner.local.uses.lock().again(labels)?;
        Some(Allocation {
            id,
            is_new: false,
            is_first_use: false,
        })
    }

    async fn attempt(&self, labels: &IdentityLabels) -> Result<Allocation, AllocateError> {
        let inner = &*self.inner;
        let _local = inner.locks.acquire(labels).await;
        if let Some(allocation) = self.use_again(labels) {
            return Ok(allocation);
        }
        let path = inner.options.keys.lock(labels);
        let lock = inner.client.lock(&path).await.map_err(store(labels))?;
        let result = self.allocate_locked(labels, &lock).await;
        if let Err(error) = lock.unlock().await {
            // The driver of the client releases it.
            tracing::debug!(error = %chain(&error), "Unable to release lock");
        }
        result
    }

    async fn allocate_locked(
        &self,
        labels: &IdentityLabels,
        lock: &Lock,
    ) -> Result<Allocation, AllocateError> {
        let inner = &*self.inner;
        let locked = inner.client.locked(lock);
        if let Some(id) = self.create_unused(labels, &locked).await? {
            return Ok(Allocation {
                id,
                is_new: true,
                is_first_use: true,
            });
        }
        let (mut claim, is_new) = match self.existing(labels, &locked).await? {
            Some(claim) => (claim, false),
            None => (self.create(labels, &locked).await?, true),
        };
        let slave = inner.options.keys.slave(labels, &inner.options.node);
        claim.is_written = true;
        locked
            .put_if_different(&slave, claim.id.to_string(), Lifetime::Leased)
            .await
            .map_err(store(labels))?;
        Ok(Allocation {
            id: claim.confirm(),
            is_new,
            is_first_use: true,
        })
    }

    /// Allocates a free id for labels that nothing uses, with the slave key of this node: one request. `None` if they have an id, or
    /// if that may be.
    async fn create_unused(
        &self,
        labels: &IdentityLabels,
        locked: &Locked<'_>,
    ) -> Result<Option<NumericIdentity>, AllocateError> {
        let AllocatorOptions { keys, node, .. } = &self.inner.options;
        if !self.inner.identities.own().read().ids(labels).is_empty() {
            return Ok(None);
        }
        let Some(mut claim) = self.claim_free(labels) else {
            return Ok(None);
        };
        let (master, slave) = (keys.master(claim.id), keys.slave(labels, node));
        claim.is_written = true;
        let is_created = locked
            .create_used(
                (&master, labels.to_string()),
                (&slave, claim.id.to_string()),
                &keys.slaves_of(labels),
            )
            .await
            .map_err(store(labels))?;
        claim.is_written = is_created;
        Ok(is_created.then(|| claim.confirm()))
    }

    /// Looks for the id that other nodes use, first among the known identities, then among slave keys.
    async fn existing(
        &self,
        labels: &IdentityLabels,
        locked: &Locked<'_>,
    ) -> Result<Option<Claim>, AllocateError> {
        let mut lost = None;
        let known = self.inner.identities.own().read().ids(labels);
        for id in known {
            match self.candidate(id, labels, locked).await? {
                Candidate::Exists(claim) => return Ok(Some(claim)),
                Candidate::Lost => lost = lost.or(Some(id)),
                Candidate::Other => {}
            }
        }
        let prefix = self.inner.options.keys.slaves_of(labels);
        let slaves = locked.list(&prefix).await.map_err(store(labels))?;
        for slave in slaves.items {
            // Labels may contain slashes: those of others may begin with these.
            let node = slave.key.strip_prefix(&prefix);
            if node.is_none_or(|node| node.contains('/')) {
                continue;
            }
            let Some(id) = id_of(&slave) else {
                tracing::warn!(key = %slave.key, "Ignoring invalid identity id");
                continue;
            };
            match self.candidate(id, labels, locked).await? {
                Candidate::Exists(claim) => return Ok(Some(claim)),
                Candidate::Lost => lost = lost.or(Some(id)),
                Candidate::Other => {}
            }
        }
        // The master key is gone, and the id may be in use: it stays the same.
        match lost.and_then(|id| Claim::new(&self.inner.local, id, labels)) {
            Some(claim) => Ok(Some(self.write_master(claim, locked).await?)),
            None => Ok(None),
        }
    }

    /// Looks at the master key of an id that is known for the labels.
    async fn candidate(
        &self,
        id: NumericIdentity,
        labels: &IdentityLabels,
        locked: &Locked<'_>,
    ) -> Result<Candidate, AllocateError> {
        if !self.inner.options.range.contains(id) {
            return Ok(Candidate::Other);
        }
        // Before the look: from now on a deletion is not missed.
        let Some(claim) = Claim::new(&self.inner.local, id, labels) else {
            return Ok(Candidate::Other);
        };
        let key = self.inner.options.keys.master(id);
        let master = locked.get(&key).await.map_err(store(labels))?;
        Ok(match master {
            Some(master) if master.value == labels.as_str().as_bytes() => Candidate::Exists(claim),
            Some(_) => Candidate::Other,
            None => Candidate::Lost,
        })
    }

    async fn create(&self, labels: &IdentityLabels, locked: &Locked<'_>) -> Result<Claim, AllocateError> {
        let claim = self.claim_free(labels).ok_or_else(|| AllocateError::Exhausted {
            labels: labels.clone(),
            range: self.inner.options.range,
        })?;
        self.write_master(claim, locked).await
    }

    /// Claims an id that is not known to be allocated, if there is one.
    fn claim_free(&self, labels: &IdentityLabels) -> Option<Claim> {
        let known = self.inner.identities.own().read();
        shuffled(self.inner.options.range)
            .filter(|id| !known.contains(*id))
            .find_map(|id| Claim::new(&self.inner.local, id, labels))
    }

    async fn write_master(&self, claim: Claim, locked: &Locked<'_>) -> Result<Claim, AllocateError> {
        let key = self.inner.options.keys.master(claim.id);
        let is_created = locked
            .create(&key, claim.labels.to_string(), Lifetime::Permanent)
            .await
            .map_err(store(&claim.labels))?;
        if is_created {
            return Ok(claim);
        }
        Err(AllocateError::Taken {
            labels: claim.labels.clone(),
            id: claim.id,
        })
    }

    /// The lease of a slave key has ended.
    fn lost(&self, key: &str) {
        let options = &self.inner.options;
        let labels = key
            .strip_prefix(&keys::below(&options.keys.slaves()))
            .and_then(|name| name.strip_suffix(&options.node))
            .and_then(|name| name.strip_suffix('/'));
        if let Some(labels) = labels {
            self.inner.local.queue.push(labels.into());
        }
    }

    /// Makes the keys of some labels as they should be.
    async fn handle(&self, labels: &IdentityLabels) {
        let inner = &*self.inner;
        let queue = &inner.local.queue;
        let Some(_local) = inner.locks.try_acquire(labels) else {
            // They are being allocated.
            queue.failed(Failure::Item);
            return;
        };
        let id = inner.local.uses.lock().id(labels);
        let result = match id {
            Some(id) => self.keep(id, labels).await,
            None => {
                let slave = inner.options.keys.slave(labels, &inner.options.node);
                inner.client.delete(&slave).await.map(drop)
            }
        };
        match result {
            Ok(()) => queue.done(),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "Unable to restore keys of identity, retrying");
                queue.failed(Failure::from(&error));
            }
        }
    }

    /// Writes the keys of a used identity if they are missing.
    async fn keep(&self, id: NumericIdentity, labels: &IdentityLabels) -> Result<(), Error> {
        let inner = &*self.inner;
        let AllocatorOptions { keys, node, .. } = &inner.options;
        let master = keys.master(id);
        match inner.client.get(&master).await? {
            Some(present) if present.value == labels.as_str().as_bytes() => {}
            Some(present) => {
                let found = IdentityLabels::from(&*String::from_utf8_lossy(&present.value));
                tracing::error!(identity = %id, %labels, %found, "Identity in use is allocated to other labels");
                inner.conflicts.lock().insert(id, found);
                return Ok(());
            }
            None => {
                let value = labels.to_string();
                if !inner.client.create(&master, value, Lifetime::Permanent).await? {
                    // Another was faster: look again.
                    inner.local.queue.push(labels.clone());
                    return Ok(());
                }
            }
        }
        inner.conflicts.lock().remove(&id);
        inner
            .client
            .put_if_different(&keys.slave(labels, node), id.to_string(), Lifetime::Leased)
            .await?;
        Ok(())
    }
}

impl fmt::Debug for IdentityAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityAllocator")
            .field("options", &self.inner.options)
            .field("identities", &self.inner.identities)
            .finish_non_exhaustive()
    }
}

/// What the master key of an id says.
enum Candidate {
    Exists(Claim),
    Lost,
    /// It has other labels, or the id is not one of this cluster.
    Other,
}

/// Checks that the keys of some labels are theirs alone.
fn check(labels: &IdentityLabels) -> Result<(), AllocateError> {
    let text = labels.as_str();
    let reason = if text.is_empty() {
        "they are empty"
    } else if text.starts_with('/') || text.ends_with('/') || text.contains("//") {
        "an element of their key would be empty"
    } else {
        return Ok(());
    };
    Err(AllocateError::Labels {
        labels: labels.clone(),
        reason,
    })
}

fn store(labels: &IdentityLabels) -> impl FnOnce(Error) -> AllocateError + use<> {
    let labels = labels.clone();
    |cause| AllocateError::Store { labels, cause }
}
