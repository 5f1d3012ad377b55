// SPDX-License-Identifier: Apache-2.0

//! Metrics: how many components are at each level, and where they are degraded.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hive::{JobCtx, Jobs, SpawnError};
use skep_base_metrics::{GaugeVec, Metrics};
use statedb::{Db, Table};

use crate::status::{LevelName, Status};
use crate::table::{BY_LEVEL, count};

/// Least time between two updates.
const PAUSE: Duration = Duration::from_secs(15);

/// Numbers of reports. Disabled by default.
#[derive(Debug, Metrics)]
#[metrics(prefix = "hive", disabled)]
pub struct HealthMetrics {
    /// Health reporters by level.
    #[metric(labels = ["status"])]
    status: GaugeVec,
    /// Degraded health reporters of a module.
    #[metric(name = "degraded_status", labels = ["module"])]
    degraded: GaugeVec,
}

impl HealthMetrics {
    /// Counts what the table holds now.
    pub(crate) fn update(&self, db: &Db, table: &Table<Status>) {
        for level in LevelName::ALL {
            let name = level.as_str().to_lowercase();
            self.status
                .with([name.as_str()])
                .set(count(table, db, level) as f64);
        }
        let mut modules: BTreeMap<String, usize> = BTreeMap::new();
        let snapshot = db.read();
        for status in table.list(&snapshot, BY_LEVEL.key(LevelName::Degraded.as_str())) {
            *modules.entry(status.id.module_text()).or_default() += 1;
        }
        self.degraded.clear();
        for (module, degraded) in modules {
            self.degraded.with([module.as_str()]).set(degraded as f64);
        }
    }
}

/// Updates the metrics after changes, at most every 15 seconds.
pub(crate) fn start(
    metrics: Arc<HealthMetrics>,
    db: Db,
    table: Table<Status>,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    jobs.keep("module-status-metrics", (metrics, db, table), follow)
}

async fn follow((metrics, db, table): &(Arc<HealthMetrics>, Db, Table<Status>), _: &JobCtx) {
    loop {
        let changed = table.table_watch(&db.read());
        metrics.update(db, table);
        tokio::time::sleep(PAUSE).await;
        changed.closed().await;
    }
}
