// SPDX-License-Identifier: Apache-2.0

//! Declare, check, construct and start hives of many cells.

use std::time::{Duration, Instant};

use hive::{Hive, Settings};

use crate::alloc;
use crate::made_up;
use crate::report::{Report, Row, milliseconds};

/// Cells, and what check, construction and start should take, in milliseconds.
const CASES: [(usize, Option<f64>); 3] = [(10, None), (100, None), (1000, Some(2.0))];

const PARTS: [&str; 4] = ["declare", "check", "construct", "start"];

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    for (cells, target) in CASES {
        // The parts of the best run, so that they make the sum.
        let mut best = [Duration::MAX / 8; PARTS.len()];
        for _ in 0..50 {
            let parts = alloc::uncounted(|| runtime.block_on(once(cells)))?;
            if parts.iter().sum::<Duration>() < best.iter().sum::<Duration>() {
                best = parts;
            }
        }
        for (part, time) in PARTS.into_iter().zip(best) {
            let name = format!("hive of {cells} cells: {part}");
            report.add(Row::cost(name, milliseconds(time), "ms"));
        }
        let name = format!("hive of {cells} cells: {}", PARTS[1..].join(", "));
        let sum = best[1..].iter().sum();
        report.add(Row::cost(name, milliseconds(sum), "ms").target(target));
        let name = format!("hive of {cells} cells: {}", PARTS.join(", "));
        let sum = best.iter().sum();
        report.add(Row::cost(name, milliseconds(sum), "ms"));
    }
    Ok(())
}

async fn once(cells: usize) -> anyhow::Result<[Duration; PARTS.len()]> {
    let mut parts = [Duration::ZERO; PARTS.len()];
    let mut begun = Instant::now();
    let mut lap = |part: usize| {
        let now = Instant::now();
        parts[part] = now - begun;
        begun = now;
    };
    let hive = Hive::new(made_up::cells(cells));
    lap(0);
    let plan = hive.plan(Settings::new())?;
    lap(1);
    let built = plan.build()?;
    lap(2);
    let running = built.start().await?;
    lap(3);
    running.stop().await?;
    Ok(parts)
}
