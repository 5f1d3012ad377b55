// SPDX-License-Identifier: Apache-2.0

//! Check, construct and start hives of many cells.

use std::time::{Duration, Instant};

use hive::{Hive, Settings};

use crate::report::{Report, Row};

/// Cells, and what the peer takes in milliseconds.
const CASES: [(usize, f64, Option<f64>); 3] = [(10, 3.0, None), (100, 49.0, None), (1000, 7500.0, Some(2.0))];

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    for (cells, peer, target) in CASES {
        let mut best = Duration::MAX;
        for _ in 0..50 {
            best = best.min(runtime.block_on(once(cells))?);
        }
        report.add(
            Row::cost(
                format!("hive of {cells} cells: declare, check, construct, start"),
                best.as_secs_f64() * 1e3,
                "ms",
            )
            .peer(peer)
            .target(target),
        );
    }
    Ok(())
}

async fn once(cells: usize) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let hive = Hive::new(hive::bench::cells(cells));
    let plan = hive.plan(Settings::new())?;
    let running = plan.build()?.start().await?;
    let took = begun.elapsed();
    running.stop().await?;
    Ok(took)
}
