// SPDX-License-Identifier: Apache-2.0

//! Measures check, construction, start and stop of 10, 100 and 1,000 cells.
//!
//! `cargo run --release -p hive --features bench --example scaling`

use std::error::Error;
use std::time::{Duration, Instant};

use hive::{Hive, Settings};

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    println!(
        "{:>6} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "cells", "declare", "check", "construct", "start", "stop"
    );
    for count in [10, 100, 1000] {
        let mut best = [Duration::MAX; 5];
        for _ in 0..50 {
            let times = runtime.block_on(once(count))?;
            for (best, time) in best.iter_mut().zip(times) {
                *best = time.min(*best);
            }
        }
        print!("{count:>6}");
        for time in best {
            print!(" {:>12}", hive::format_duration(time));
        }
        println!();
    }
    Ok(())
}

async fn once(count: usize) -> Result<[Duration; 5], Box<dyn Error>> {
    let mut times = [Duration::ZERO; 5];
    let mut begun = Instant::now();
    let mut lap = |index: usize| {
        times[index] = begun.elapsed();
        begun = Instant::now();
    };
    let cells = hive::bench::cells(count);
    lap(0);
    let plan = Hive::new(cells).plan(Settings::new())?;
    lap(1);
    let built = plan.build()?;
    lap(2);
    let running = built.start().await?;
    lap(3);
    running.stop().await?;
    lap(4);
    Ok(times)
}
