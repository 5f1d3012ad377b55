// SPDX-License-Identifier: Apache-2.0

//! Health of modules and of jobs that run at intervals, for the status.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use hive::{Controller, JobInfo, JobKind, Member};
use skep_base_api::{ModuleHealth, StatusProbe};
use skep_base_api_types::{
    ControllerConfiguration, ControllerRuns, ControllerStatus, ModuleStatus, Status as Part, StatusResponse,
};
use skep_base_health::{LevelName, Status, never};
use skep_base_metrics::{Gauge, Metrics};
use statedb::{Db, Table};
use uuid::Uuid;

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

/// Jobs that run at intervals, as of the last request for the status.
#[derive(Debug, Metrics)]
pub(crate) struct ControllerMetrics {
    /// Number of failing jobs that run at intervals.
    #[metric(name = "controllers_failing")]
    failing: Gauge,
}

/// Jobs that run at intervals: what Cilium calls controllers.
struct Controllers {
    hive: Controller,
    db: Db,
    table: Table<Status>,
    metrics: Arc<ControllerMetrics>,
}

impl Controllers {
    fn list(&self) -> Vec<ControllerStatus> {
        let snapshot = self.db.read();
        let rows = self.table.all(&snapshot);
        let health: HashMap<String, &Status> = rows.map(|row| (row.id.to_string(), &**row)).collect();
        let jobs = self.hive.jobs().into_iter();
        let timers = jobs.filter(|job| job.kind == JobKind::Timer);
        timers
            .map(|job| {
                let id = format!("{}.timer-job-{}", job.module.as_str(), job.name);
                controller(&job, &id, health.get(&id).copied())
            })
            .collect()
    }
}

fn controller(job: &JobInfo, id: &str, health: Option<&Status>) -> ControllerStatus {
    let failing = health.filter(|row| row.level == LevelName::Degraded);
    let time = |time| (time != never()).then_some(time);
    ControllerStatus {
        configuration: Some(ControllerConfiguration {
            error_retry: true,
            interval: job
                .interval
                .map(skep_duration::format_duration)
                .unwrap_or_default(),
            ..ControllerConfiguration::default()
        }),
        name: job.name.to_string(),
        status: ControllerRuns {
            consecutive_failure_count: failing.map_or(0, |row| row.count),
            failure_count: job.failures,
            last_failure_msg: failing.map(message).unwrap_or_default(),
            last_failure_timestamp: failing.and_then(|row| time(row.updated)),
            last_success_timestamp: health.and_then(|row| time(row.last_ok)),
            success_count: job.runs.saturating_sub(job.failures),
        },
        uuid: Uuid::new_v5(&Uuid::NAMESPACE_OID, id.as_bytes()).to_string(),
    }
}

fn message(row: &Status) -> String {
    match row.error.as_str() {
        "" => row.message.clone(),
        error => error.to_owned(),
    }
}

#[async_trait]
impl StatusProbe for Controllers {
    fn name(&self) -> &'static str {
        "controllers"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Part> {
        response.controllers.extend(self.list());
        let jobs = response.controllers.iter();
        let failing = jobs.filter(|job| job.status.consecutive_failure_count > 0);
        self.metrics.failing.set(failing.count() as f64);
        None
    }
}

/// Part `controllers`.
pub(crate) fn controllers(
    hive: Controller,
    db: Db,
    table: Table<Status>,
    metrics: Arc<ControllerMetrics>,
) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Controllers {
        hive,
        db,
        table,
        metrics,
    }))
}
