// SPDX-License-Identifier: Apache-2.0

//! A store of identities in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use skep_identity::{IdentityRange, Labels, NumericIdentity};
use skep_identity_cache::LocalIdentities;

use crate::allocator::Allocator;
use crate::error::AllocateError;
use crate::fixed::FixedIdentities;
use crate::store::IdentityStore;

/// Identities in memory. Clones are the same store, as several nodes have it.
#[derive(Clone)]
pub struct MemoryIdentities {
    range: IdentityRange,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    ids: HashMap<Arc<Labels>, NumericIdentity>,
    uses: HashMap<Arc<Labels>, usize>,
}

impl MemoryIdentities {
    pub fn new(range: IdentityRange) -> Self {
        Self {
            range,
            state: Arc::default(),
        }
    }

    /// An allocator with this store.
    pub fn allocator(&self, local: LocalIdentities) -> Allocator {
        let store = Arc::new(self.clone());
        Allocator::new(
            FixedIdentities::default(),
            local,
            Some(store),
            Duration::from_secs(120),
        )
    }

    /// How often labels are used.
    pub fn uses(&self, labels: &Labels) -> usize {
        self.state.lock().uses.get(labels).copied().unwrap_or_default()
    }
}

#[async_trait]
impl IdentityStore for MemoryIdentities {
    async fn allocate(&self, labels: &Arc<Labels>) -> Result<NumericIdentity, AllocateError> {
        let mut state = self.state.lock();
        let next = NumericIdentity::new(self.range.first().get() + state.ids.len() as u32);
        let known = state.ids.get(labels).copied();
        let id = known.or_else(|| self.range.contains(next).then_some(next));
        let id = id.ok_or_else(|| AllocateError::Exhausted {
            labels: labels.clone(),
            range: self.range,
        })?;
        state.ids.insert(labels.clone(), id);
        *state.uses.entry(labels.clone()).or_default() += 1;
        Ok(id)
    }

    fn adopt(&self, labels: &Arc<Labels>, id: NumericIdentity) {
        let mut state = self.state.lock();
        state.ids.insert(labels.clone(), id);
        *state.uses.entry(labels.clone()).or_default() += 1;
    }

    fn release(&self, labels: &Arc<Labels>) {
        if let Some(uses) = self.state.lock().uses.get_mut(labels) {
            *uses = uses.saturating_sub(1);
        }
    }
}
