// SPDX-License-Identifier: Apache-2.0

//! The writer of table `desired-devices`.

use std::sync::Arc;

use statedb::{Db, InitGuard, KeyBuf, RwTable, reconciler::Status};

use super::row::{DesiredDevice, Vlan};
use crate::owner::{Owner, OwnerError, Owners};

/// Longest name of an interface (`IFNAMSIZ` without the end mark).
const LONGEST_NAME: usize = 15;

/// Why a device cannot be desired.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(transparent)]
    Owner(#[from] OwnerError),
    #[error("device name cannot be empty")]
    NoName,
    #[error("device name \"{0}\" exceeds maximum length of 15 characters")]
    LongName(String),
    /// Remove the other's first.
    #[error("device {name} exists with different owner {owner}")]
    Conflict { name: String, owner: Owner },
    #[error(transparent)]
    Table(#[from] statedb::Error),
}

/// Writes table `desired-devices`.
#[derive(Debug, Clone)]
pub struct DesiredDevices {
    db: Db,
    table: RwTable<DesiredDevice>,
    owners: Arc<Owners>,
}

impl hive::Value for DesiredDevices {}

impl DesiredDevices {
    pub(crate) fn new(db: Db, table: RwTable<DesiredDevice>) -> Self {
        Self {
            db,
            table,
            owners: Arc::default(),
        }
    }

    /// Returns the owner of a name, which is registered if it is new.
    pub fn owner(&self, name: &str) -> Result<Owner, OwnerError> {
        match self.owners.register(name) {
            Err(OwnerError::Exists) => self.owners.get(name),
            registered => registered,
        }
    }

    /// Returns a registered owner.
    pub fn get_owner(&self, name: &str) -> Result<Owner, OwnerError> {
        self.owners.get(name)
    }

    /// Deletes all devices of an owner, and the owner.
    pub fn remove_owner(&self, owner: &Owner) -> Result<(), DeviceError> {
        self.owners.remove(owner)?;
        let mut txn = self.db.write(&[&self.table]);
        let all: Vec<_> = self
            .table
            .all(&txn)
            .filter(|row| row.owner == *owner)
            .cloned()
            .collect();
        for row in all {
            self.table.delete(&mut txn, &row)?;
        }
        txn.commit();
        Ok(())
    }

    /// Registers a source of devices. Nothing is pruned before all sources are [initialized](Self::initialized).
    pub fn register_initializer(&self, name: &str) -> Result<InitGuard, statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        let guard = self.table.register_initializer(&mut txn, name)?;
        txn.commit();
        Ok(guard)
    }

    /// Reports that a source has delivered all devices.
    pub fn initialized(&self, guard: &InitGuard) -> Result<(), statedb::Error> {
        let mut txn = self.db.write(&[&self.table]);
        txn.initialized(guard)?;
        txn.commit();
        Ok(())
    }

    pub fn upsert(&self, owner: &Owner, name: &str, spec: Vlan) -> Result<(), DeviceError> {
        self.owners.check(owner)?;
        if name.is_empty() {
            return Err(DeviceError::NoName);
        }
        if name.len() > LONGEST_NAME {
            return Err(DeviceError::LongName(name.to_owned()));
        }
        let row = DesiredDevice {
            owner: owner.clone(),
            name: name.to_owned(),
            spec,
            status: Status::pending(),
        };
        let mut txn = self.db.write(&[&self.table]);
        let mut others = self.table.list(&txn, DesiredDevice::BY_NAME.key(name));
        if let Some(other) = others.find(|other| other.owner != *owner) {
            return Err(DeviceError::Conflict {
                name: name.to_owned(),
                owner: other.owner.clone(),
            });
        }
        drop(others);
        let present = self.table.get_by_primary(&txn, &KeyBuf::of(row.id().as_str()));
        if present.is_none_or(|present| present.spec != row.spec) {
            self.table.insert(&mut txn, row)?;
            txn.commit();
        }
        Ok(())
    }

    pub fn delete(&self, owner: &Owner, name: &str) -> Result<(), DeviceError> {
        self.owners.check(owner)?;
        let mut txn = self.db.write(&[&self.table]);
        self.table
            .delete_by(&mut txn, DesiredDevice::BY_ID.key(&format!("{owner}/{name}")))?;
        txn.commit();
        Ok(())
    }
}
