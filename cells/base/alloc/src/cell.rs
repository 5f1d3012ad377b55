// SPDX-License-Identifier: Apache-2.0

//! Cell: hands back the pages of the program, and the memory of C libraries, that only its start needed.
//! Requires and provides nothing.

use std::time::Duration;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, SpawnError};

use crate::program;

#[derive(Debug, Clone, hive::Config)]
struct Config {
    /// Delay after start before unused program pages and freed C memory are returned to the kernel; 0: never.
    #[config(default = "5s")]
    release_program_after: Duration,
}

hive::catalogue!(cell);

/// Releases the pages of the program.
pub fn cell() -> Cell {
    Cell::module("program-memory", "Hands back pages that only the start needed")
        .config::<Config>()
        .run(release)
}

fn release(config: Cfg<Config>, jobs: Jobs) -> Result<(), SpawnError> {
    let after = config.release_program_after;
    if after.is_zero() {
        return Ok(());
    }
    let job = Job::once("release", move |cx: JobCtx| async move {
        if cx.until_cancelled(tokio::time::sleep(after)).await.is_none() {
            return Ok(());
        }
        let before = program::resident()?;
        program::release()?;
        crate::trim_c();
        tracing::debug!(
            before,
            after = program::resident()?,
            "Released pages of the program"
        );
        Ok::<(), std::io::Error>(())
    });
    jobs.spawn(job.when_ready())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use hive::{Hive, Settings};

    use super::*;

    /// Large beside what else the test uses.
    static CONSTANTS: [u8; 8 << 20] = [7; 8 << 20];

    /// Reads all constants; returns how much of the program is there with them.
    fn touch() -> u64 {
        let read = CONSTANTS.iter().filter(|byte| **std::hint::black_box(byte) == 7);
        assert_eq!(read.count(), CONSTANTS.len());
        program::resident().unwrap()
    }

    fn hive(after: &str) -> impl Future<Output = hive::Running> {
        let settings = Settings::new().flag("release-program-after", after);
        hive::testing::start_with(Hive::new([cell()]), settings)
    }

    #[tokio::test]
    async fn pages_of_the_program_go_once_it_is_ready() {
        let before = touch();

        let running = hive("1ms").await;

        let deadline = Instant::now() + Duration::from_secs(30);
        while program::resident().unwrap() > before - CONSTANTS.len() as u64 / 2 {
            assert!(Instant::now() < deadline, "{before} bytes are still there");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        hive::testing::stop(running).await;
    }

    #[tokio::test]
    async fn zero_keeps_them() {
        let running = hive("0").await;

        assert_eq!(running.controller().jobs().len(), 0);
        hive::testing::stop(running).await;
    }
}
