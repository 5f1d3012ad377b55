// SPDX-License-Identifier: Apache-2.0

//! The pool of a pod.

use crate::{Family, IpamError, error::SelectionCause};

/// Selects the pools of pods, in mode `multi-pool`.
pub trait PoolSelector: Send + Sync {
    /// The pool of a pod `namespace/name`; `None`: the default pool.
    ///
    /// # Errors
    ///
    /// If the pod is unknown, or pools are ambiguous.
    fn pool(&self, family: Family, owner: &str) -> Result<Option<String>, SelectionCause>;

    /// Whether addresses of a pool are not masqueraded.
    ///
    /// # Errors
    ///
    /// If the pool is unknown.
    fn skips_masquerade(&self, pool: &str) -> Result<bool, IpamError>;
}
