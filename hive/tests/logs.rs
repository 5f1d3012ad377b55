// SPDX-License-Identifier: Apache-2.0

//! What cells log says from which module, and from which function, hook or job.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;
use std::sync::{Arc, Mutex};

use hive::{Cell, Hive, HookCtx, Job, JobCtx, Jobs, Lifecycle, SpawnError, testing};

/// Keeps what is written.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn speak(lifecycle: Lifecycle, jobs: Jobs) -> Result<(), SpawnError> {
    tracing::info!("constructs");
    lifecycle.on_start("open", |_: HookCtx| async { tracing::info!("opens") });
    lifecycle.on_stop("close", |_: HookCtx| async {
        tokio::task::yield_now().await;
        tracing::info!("closes");
    });
    jobs.spawn(Job::once("work", |cx: JobCtx| async move {
        tokio::task::yield_now().await;
        tracing::info!("works");
        cx.cancelled().await;
    }))
}

#[tokio::test]
async fn log_lines_carry_module_and_function() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_max_level(tracing::Level::INFO)
        .with_writer(move || writer.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let cell = Cell::module("agent", "Agent").with(Cell::module("speaker", "Speaks").run(speak));

    let running = testing::start(Hive::new([cell])).await;
    let worked = || String::from_utf8_lossy(&lines.0.lock().unwrap()).contains("works");
    while !worked() {
        tokio::task::yield_now().await;
    }
    testing::stop(running).await;

    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    for line in [
        "constructor{module=agent.speaker function=\"logs::speak\"}: constructs",
        "hook{module=agent.speaker hook=\"open\"}: opens",
        "job{module=agent.speaker job=\"work\"}: works",
        "hook{module=agent.speaker hook=\"close\"}: closes",
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
}
