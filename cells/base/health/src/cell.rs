// SPDX-License-Identifier: Apache-2.0

//! Cells: health as a table, and its history.
//! Needs: `Db`; optionally a [`Clock`]. Gives: the sink of all health, `Table<Status>`, commands, metrics.

use std::path::PathBuf;
use std::sync::Arc;

use hive::{Cell, Cfg, HookCtx, Lifecycle};

use crate::history::{History, HistoryError};
use crate::table::{self, HealthTable};
use crate::{Clock, SystemClock, command, metrics};

/// Health of all modules as a table.
///
/// ```
/// use hive::{Hive, Settings};
///
/// Hive::new([statedb::cell(), skep_health::cell()]).plan(Settings::new()).unwrap();
/// ```
pub fn cell() -> Cell {
    Cell::module("health", "Health of all modules as a table")
        .provide_private(table::new)
        .provide(table::read_only)
        .provide(HealthTable::of)
        .provide(command::commands)
        .provide(skep_metrics::provided::<metrics::HealthMetrics>)
        .run(metrics::start)
}

/// A file of what went wrong, and the command `health/history`. For hives that have [`cell()`].
pub fn history_cell() -> Cell {
    Cell::module("health-history", "History of health")
        .config::<HistoryConfig>()
        .provide(open_history)
        .provide(command::history)
        .run(mark_life)
}

/// Where the history of health is kept.
#[derive(Debug, Clone, hive::Config)]
pub struct HistoryConfig {
    /// File for the history of health. One older file is kept beside it.
    #[config(default = "/var/run/cilium/health-history.log", flag = "health-history-file")]
    pub file: PathBuf,
}

fn open_history(
    config: Cfg<HistoryConfig>,
    clock: Option<Arc<dyn Clock>>,
) -> Result<Arc<History>, HistoryError> {
    let clock = clock.unwrap_or_else(|| Arc::new(SystemClock));
    History::open(&config.file, clock).map(Arc::new)
}

/// Writes starts and stops of the hive.
fn mark_life(lifecycle: Lifecycle, history: Arc<History>) {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    let (starting, stopping) = (history.clone(), history);
    lifecycle.on_start("mark-start", move |_: HookCtx| {
        starting.started(VERSION);
        async {}
    });
    lifecycle.on_stop("mark-stop", move |_: HookCtx| {
        stopping.stopped(VERSION);
        async {}
    });
}
