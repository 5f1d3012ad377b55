// SPDX-License-Identifier: Apache-2.0

//! One Maglev lookup table.

use std::sync::atomic::{AtomicBool, Ordering};

use skep_loadbalancer_maglev::TableSize;
use skep_loadbalancer_maglev::bench::{even, fastest, lopsided};

use crate::report::{Report, Row};
use crate::{alloc, usage};

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let size = TableSize::try_from(16381)?;
    let scratch = scratch(size);
    for (name, weight) in [("equal", even as fn(u32) -> u16), ("very unequal", lopsided)] {
        let took = fastest(size, 1000, weight, 20).as_secs_f64() * 1e3;
        report.add(
            Row::cost(
                format!("Maglev, 16,381 entries, 1,000 backends, {name} weights"),
                took,
                "ms",
            )
            .target(15.0),
        );
    }
    report.add(Row::cost("Maglev, 16,381 entries, 1,000 backends: memory", scratch, "MB").target(4.0));
    usage::reset_peak()
}

/// Most bytes in use while a table is built, above what was in use before.
fn scratch(size: TableSize) -> f64 {
    let before = alloc::in_use();
    let stop = AtomicBool::new(false);
    let most = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = 0;
            while !stop.load(Ordering::Relaxed) {
                most = most.max(alloc::in_use());
            }
            most
        });
        fastest(size, 1000, even, 50);
        stop.store(true, Ordering::Relaxed);
        watcher.join().unwrap_or_default()
    });
    most.saturating_sub(before) as f64 / 1e6
}
