// SPDX-License-Identifier: Apache-2.0

//! Cells: health as a table, and its history.
//! Requires: `Db`; optionally a [`Clock`]. Provides: the sink of all health, `Table<Status>`, commands, metrics.

use std::path::PathBuf;
use std::sync::Arc;

use hive::{Cell, Cfg, Health, HookCtx, Lifecycle};
use statedb::clock::{Clock, SystemClock};

use crate::history::History;
use crate::table::{self, HealthTable};
use crate::{Status, command, metrics};

/// Health of all modules as a table.
///
/// ```
/// use hive::{Hive, Settings};
///
/// Hive::new([statedb::cell(), skep_base_health::cell()]).plan(Settings::new()).unwrap();
/// ```
pub fn cell() -> Cell {
    Cell::module("health", "Health of all modules as a table")
        .provide_private(table::new)
        .provide(statedb::read_only::<Status>)
        .provide(HealthTable::of)
        .provide(command::commands)
        .provide(skep_base_metrics::provided::<metrics::HealthMetrics>)
        .run(metrics::start)
}

/// The history of health in a file, and the command `health/history`. For hives that have [`cell()`].
pub fn history_cell() -> Cell {
    Cell::module("health-history", "History of health")
        .config::<HistoryConfig>()
        .provide(new_history)
        .provide(command::history)
        .run(mark_life)
}

/// Where the history of health is kept.
#[derive(Debug, Clone, hive::Config)]
pub struct HistoryConfig {
    /// File of the health history; one older file is kept. Empty: disabled.
    #[config(
        default = "/var/run/{program}/health-history.log",
        flag = "health-history-file"
    )]
    pub file: PathBuf,
}

fn new_history(config: Cfg<HistoryConfig>, clock: Option<Arc<dyn Clock>>) -> Arc<History> {
    let clock = clock.unwrap_or_else(|| Arc::new(SystemClock));
    Arc::new(History::new(&config.file, clock))
}

/// Writes starts and stops of the hive. A file that cannot be written is no reason not to start.
fn mark_life(lifecycle: Lifecycle, history: Arc<History>, health: Health) {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    let (starting, stopping) = (history.clone(), history);
    lifecycle.on_start("mark-start", move |_: HookCtx| {
        if let Err(error) = starting.started(VERSION) {
            health.degraded("Health history is not written", &error);
        }
        async {}
    });
    lifecycle.on_stop("mark-stop", move |_: HookCtx| {
        stopping.stopped(VERSION);
        async {}
    });
}
