// SPDX-License-Identifier: Apache-2.0

//! Skip maps in memory, for tests without privileges.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use skep_bpf_sys::MapError;

use crate::{SkipEntry, SkipMaps};

/// Skip maps in memory.
#[derive(Debug, Default)]
pub struct FakeSkipMaps(Mutex<BTreeSet<SkipEntry>>);

impl SkipMaps for FakeSkipMaps {
    fn entries(&self) -> Result<Vec<SkipEntry>, MapError> {
        Ok(self.0.lock().iter().copied().collect())
    }

    fn insert(&self, entry: &SkipEntry) -> Result<(), MapError> {
        self.0.lock().insert(*entry);
        Ok(())
    }

    fn remove(&self, entry: &SkipEntry) -> Result<(), MapError> {
        self.0.lock().remove(entry);
        Ok(())
    }
}
