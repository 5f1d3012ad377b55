// SPDX-License-Identifier: Apache-2.0

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use skep_identity::{Labels, NumericIdentity, Scope};
use skep_identity_cache::{LocalIdentities, LocalIdentity};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::error::AllocateError;
use crate::fixed::FixedIdentities;
use crate::store::IdentityStore;

/// Allocates identities. Cheap to clone.
#[derive(Clone, hive::Value)]
pub struct Allocator(Arc<Inner>);

struct Inner {
    fixed: FixedIdentities,
    local: LocalIdentities,
    store: Option<Arc<dyn IdentityStore>>,
    timeout: Duration,
    uses: Mutex<HashMap<Arc<Labels>, Weak<Use>>>,
}

/// Labels of the cluster that are held, or about to be.
struct Use {
    labels: Arc<Labels>,
    id: OnceCell<NumericIdentity>,
    store: Arc<dyn IdentityStore>,
    inner: Weak<Inner>,
}

/// An identity in use. Clones are the same use; it is released when the last one is dropped.
#[derive(Clone)]
pub struct Held {
    id: NumericIdentity,
    labels: Arc<Labels>,
    _use: HeldBy,
}

#[derive(Clone)]
#[expect(dead_code, reason = "released when dropped")]
enum HeldBy {
    Nothing,
    Node(LocalIdentity),
    Store(Arc<Use>),
}

impl Allocator {
    /// An allocator; without a store it has reserved identities and those of the node alone.
    pub fn new(
        fixed: FixedIdentities,
        local: LocalIdentities,
        store: Option<Arc<dyn IdentityStore>>,
        timeout: Duration,
    ) -> Self {
        Self(Arc::new(Inner {
            fixed,
            local,
            store,
            timeout,
            uses: Mutex::default(),
        }))
    }

    /// Allocates the identity of some labels. Those that are held need no I/O; others wait for the store, for
    /// `identity-allocation-timeout` at most. The future may be dropped.
    ///
    /// # Errors
    ///
    /// [`AllocateError`]; all but [`Exhausted`](AllocateError::Exhausted) and [`NoStore`](AllocateError::NoStore) may pass soon.
    pub async fn allocate(&self, labels: &Arc<Labels>) -> Result<Held, AllocateError> {
        let held = |id, by| Held {
            id,
            labels: labels.clone(),
            _use: by,
        };
        if let Some(id) = self.0.fixed.identity(labels) {
            return Ok(held(id, HeldBy::Nothing));
        }
        if labels.scope() != Scope::Global {
            let local = self.0.local.allocate(labels)?;
            return Ok(held(local.id(), HeldBy::Node(local)));
        }
        let store = self.0.store.as_ref();
        let store = store.ok_or_else(|| AllocateError::NoStore(labels.clone()))?;
        let used = self.use_of(labels, store);
        let allocate = used.id.get_or_try_init(|| store.allocate(labels));
        let allocated = timeout(self.0.timeout, allocate).await;
        let id = *allocated.map_err(|_| AllocateError::Timeout {
            labels: labels.clone(),
            timeout: self.0.timeout,
        })??;
        Ok(held(id, HeldBy::Store(used)))
    }

    /// Identities of the cluster that are held.
    pub fn held(&self) -> usize {
        let uses = self.0.uses.lock();
        let is_held = |used: &&Weak<Use>| used.upgrade().is_some_and(|used| used.id.initialized());
        uses.values().filter(is_held).count()
    }

    fn use_of(&self, labels: &Arc<Labels>, store: &Arc<dyn IdentityStore>) -> Arc<Use> {
        let mut uses = self.0.uses.lock();
        if let Some(used) = uses.get(labels).and_then(Weak::upgrade) {
            return used;
        }
        let used = Arc::new(Use {
            labels: labels.clone(),
            id: OnceCell::new(),
            store: store.clone(),
            inner: Arc::downgrade(&self.0),
        });
        uses.insert(labels.clone(), Arc::downgrade(&used));
        used
    }
}

impl Held {
    pub fn id(&self) -> NumericIdentity {
        self.id
    }

    pub fn labels(&self) -> &Arc<Labels> {
        &self.labels
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if self.id.initialized() {
            self.store.release(&self.labels);
        }
        if let Some(inner) = self.inner.upgrade() {
            let mut uses = inner.uses.lock();
            // Another use of these labels may have begun.
            if uses
                .get(&self.labels)
                .is_some_and(|used| used.strong_count() == 0)
            {
                uses.remove(&self.labels);
            }
        }
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.labels == other.labels
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.id, self.labels)
    }
}

impl fmt::Debug for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocator").field("held", &self.held()).finish()
    }
}
