// SPDX-License-Identifier: Apache-2.0

//! Owners of desired devices and routes.

use std::{collections::BTreeSet, fmt, sync::Arc};

use parking_lot::Mutex;
use serde::{Serialize, Serializer};

/// A registered owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Owner {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Why there is no owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OwnerError {
    #[error("owner already exists")]
    Exists,
    /// Register it first.
    #[error("owner does not exist")]
    Missing,
    #[error("owner cannot be empty")]
    Empty,
}

/// All owners.
#[derive(Debug, Default)]
pub(crate) struct Owners(Mutex<BTreeSet<Owner>>);

impl Owners {
    pub(crate) fn register(&self, name: &str) -> Result<Owner, OwnerError> {
        if name.is_empty() {
            return Err(OwnerError::Empty);
        }
        let owner = Owner(name.into());
        match self.0.lock().insert(owner.clone()) {
            true => Ok(owner),
            false => Err(OwnerError::Exists),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Result<Owner, OwnerError> {
        let owner = Owner(name.into());
        self.check(&owner).map(|()| owner)
    }

    pub(crate) fn check(&self, owner: &Owner) -> Result<(), OwnerError> {
        match self.0.lock().contains(owner) {
            true => Ok(()),
            false => Err(OwnerError::Missing),
        }
    }

    pub(crate) fn remove(&self, owner: &Owner) -> Result<(), OwnerError> {
        match self.0.lock().remove(owner) {
            true => Ok(()),
            false => Err(OwnerError::Missing),
        }
    }
}
