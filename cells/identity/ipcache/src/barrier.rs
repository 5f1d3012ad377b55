// SPDX-License-Identifier: Apache-2.0

//! Identities that are known to policies before addresses have them.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use skep_identity_cache::SecurityIdentity;
use statedb::{ReadTxn, Revision, Table};
use tokio::{runtime::Handle, time::timeout};

/// How long an address waits at most: what does not come in time is denied unless a policy allows it for any identity.
const LONGEST: Duration = Duration::from_secs(1);

/// Who decides by identities about packets, such as the policies of endpoints.
pub trait IdentityUser: Send + Sync {
    /// Waits until the identities up to this revision of table `identities` are taken in.
    fn wait(&self, revision: Revision) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Holds entries of addresses back until their identities are known.
#[derive(Clone)]
pub(crate) struct Barrier {
    pub(crate) user: Arc<dyn IdentityUser>,
    pub(crate) identities: Table<SecurityIdentity>,
}

impl Barrier {
    /// Called on a thread that may block.
    pub(crate) fn wait(&self, txn: &impl ReadTxn) {
        let revision = self.identities.revision(txn);
        let waited = Handle::current().block_on(timeout(LONGEST, self.user.wait(revision)));
        if waited.is_err() {
            tracing::warn!(timeout = ?LONGEST, "Addresses get identities that policies do not know yet");
        }
    }
}
