// SPDX-License-Identifier: Apache-2.0

//! Health of modules, for the status.

use std::sync::Arc;

use skep_base_api::ModuleHealth;
use skep_base_api_types::ModuleStatus;
use skep_base_health::Status;
use statedb::{Db, Table};

struct Modules {
    db: Db,
    table: Table<Status>,
}

impl ModuleHealth for Modules {
    fn modules(&self) -> Vec<ModuleStatus> {
        self.table
            .all(&self.db.read())
            .map(|row| ModuleStatus {
                id: row.id.to_string(),
                level: row.level.to_string(),
                message: row.message.to_string(),
                error: row.error.to_string(),
            })
            .collect()
    }
}

/// The health table as the API shows it.
pub(crate) fn modules(db: Db, table: Table<Status>) -> Arc<dyn ModuleHealth> {
    Arc::new(Modules { db, table })
}
