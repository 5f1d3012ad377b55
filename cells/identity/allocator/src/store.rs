// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use async_trait::async_trait;
use skep_identity::{Labels, NumericIdentity};

use crate::error::AllocateError;

/// Where the identities of the cluster are. Labels have one id, whichever node allocates it.
#[async_trait]
pub trait IdentityStore: Send + Sync + 'static {
    /// Returns the id of some labels, a new one if they have none, and uses it: until [`release`](Self::release) the identity is
    /// written again if it is deleted. Waits until existing identities are known. The future may be dropped.
    async fn allocate(&self, labels: &Arc<Labels>) -> Result<NumericIdentity, AllocateError>;

    /// Uses an id that another store has allocated: it is written soon.
    fn adopt(&self, labels: &Arc<Labels>, id: NumericIdentity);

    /// Ends a use.
    fn release(&self, labels: &Arc<Labels>);
}

/// Two stores, on the way from one to the other: the first one allocates, the second one gets a copy.
pub struct BothStores {
    pub read: Arc<dyn IdentityStore>,
    pub copy: Arc<dyn IdentityStore>,
}

#[async_trait]
impl IdentityStore for BothStores {
    async fn allocate(&self, labels: &Arc<Labels>) -> Result<NumericIdentity, AllocateError> {
        let id = self.read.allocate(labels).await?;
        self.copy.adopt(labels, id);
        Ok(id)
    }

    fn adopt(&self, labels: &Arc<Labels>, id: NumericIdentity) {
        self.read.adopt(labels, id);
        self.copy.adopt(labels, id);
    }

    fn release(&self, labels: &Arc<Labels>) {
        self.read.release(labels);
        self.copy.release(labels);
    }
}
