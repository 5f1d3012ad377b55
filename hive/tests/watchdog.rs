// SPDX-License-Identifier: Apache-2.0

//! Constructors and hooks that block their thread are reported, named, and failures when they are late.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hive::{Cell, Hive, Hook, HookCtx, HookFailure, Lifecycle, Settings, StartError, StopError};

/// Keeps what is logged.
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

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Blocks this thread until a line is logged, which only another thread can do.
    #[track_caller]
    fn block_until(&self, line: &str) {
        let begun = Instant::now();
        while !self.text().contains(line) {
            assert!(begun.elapsed() < Duration::from_secs(30), "not logged: {line}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn logging() -> (Lines, tracing::subscriber::DefaultGuard) {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    (lines, tracing::subscriber::set_default(subscriber))
}

fn hooked(hook: impl Fn() -> Hook + Send + Sync + 'static) -> Hive {
    Hive::new([Cell::module("slow", "Slow").run(move |lifecycle: Lifecycle| lifecycle.add(hook()))])
}

fn settings(start: &str) -> Settings {
    Settings::new().args([
        format!("--hive-start-timeout={start}"),
        "--hive-report-interval=20ms".into(),
    ])
}

const STILL: &str = "Still waiting for start hook, which blocks its thread";
const MISSED: &str = "blocks its thread past its deadline";

/// A hook that blocks, in its function or in its future, until something is logged.
fn blocking(lines: &Lines, in_future: bool, line: &'static str) -> Hook {
    let (lines, stopped) = (lines.clone(), lines.clone());
    Hook::new("serve")
        .on_start(move |_: HookCtx| {
            let lines = lines.clone();
            if !in_future {
                lines.block_until(line);
            }
            async move {
                if in_future {
                    tokio::task::yield_now().await;
                    lines.block_until(line);
                }
            }
        })
        .on_stop(move |_: HookCtx| {
            writeln!(stopped.clone(), "stopped again").unwrap();
            async {}
        })
}

async fn blocked_hook_is_reported(in_future: bool) {
    let (lines, _guard) = logging();
    let seen = lines.clone();
    let hive = hooked(move || blocking(&seen, in_future, STILL));

    let running = hive
        .plan(settings("5m"))
        .unwrap()
        .build()
        .unwrap()
        .start()
        .await
        .unwrap();

    let text = lines.text();
    let line = text.lines().find(|line| line.contains(STILL)).unwrap();
    assert!(
        line.contains("module=slow name=\"serve\" place=\"hive/tests/watchdog.rs:"),
        "{line}"
    );
    running.stop().await.unwrap();
}

async fn late_hook_is_a_failure(in_future: bool) {
    let (lines, _guard) = logging();
    let seen = lines.clone();
    let hive = hooked(move || blocking(&seen, in_future, MISSED));

    let error = hive
        .plan(settings("150ms"))
        .unwrap()
        .build()
        .unwrap()
        .start()
        .await
        .unwrap_err();

    let StartError::Hook { failure, rollback } = &error else {
        panic!("{error}");
    };
    assert!(rollback.is_empty(), "{error}");
    assert!(
        matches!(failure, HookFailure::Late { hook, .. } if &*hook.name == "serve"),
        "{failure:?}"
    );
    let text = failure.to_string();
    assert!(
        text.starts_with("hook `serve` of module `slow` was done too late"),
        "{text}"
    );
    assert!(text.contains("(hive/tests/watchdog.rs:"), "{text}");
    assert!(lines.text().contains("stopped again"), "it had started");
}

#[tokio::test]
async fn hook_that_blocks_a_current_thread_runtime_is_reported() {
    blocked_hook_is_reported(false).await;
    blocked_hook_is_reported(true).await;
}

#[tokio::test(start_paused = true)]
async fn hook_that_blocks_is_reported_with_a_paused_clock() {
    blocked_hook_is_reported(true).await;
}

#[tokio::test]
async fn hook_that_blocked_past_its_deadline_fails_the_start_and_is_stopped() {
    late_hook_is_a_failure(false).await;
    late_hook_is_a_failure(true).await;
}

#[tokio::test(start_paused = true)]
async fn hook_that_blocked_past_its_deadline_fails_the_start_with_a_paused_clock() {
    late_hook_is_a_failure(false).await;
    late_hook_is_a_failure(true).await;
}

#[tokio::test]
async fn stop_hook_that_blocked_past_its_deadline_is_a_failure() {
    let (lines, _guard) = logging();
    let seen = lines.clone();
    let hive = hooked(move || {
        let seen = seen.clone();
        Hook::new("serve").on_stop(move |_: HookCtx| {
            seen.block_until(MISSED);
            async {}
        })
    });
    let settings = settings("5m").args(["--hive-stop-timeout=300ms"]);
    let running = hive
        .plan(settings)
        .unwrap()
        .build()
        .unwrap()
        .start()
        .await
        .unwrap();

    let StopError::Failed(failures) = running.stop().await.unwrap_err() else {
        panic!("not the hook");
    };

    assert!(
        matches!(&failures[..], [HookFailure::Late { .. }]),
        "{failures:?}"
    );
}

#[test]
fn constructor_that_blocks_is_reported_and_one_that_is_late_fails_the_build() {
    let (lines, _guard) = logging();
    let seen = lines.clone();
    let cell = Cell::module("slow", "Slow").run(move || {
        seen.block_until("Still waiting for constructor, which blocks its thread");
        seen.block_until(MISSED);
    });

    let error = Hive::new([cell])
        .plan(settings("150ms"))
        .unwrap()
        .build()
        .unwrap_err();

    let text = lines.text();
    let line = text.lines().find(|line| line.contains("Still waiting")).unwrap();
    assert!(
        line.contains("module=slow name=\"watchdog::constructor_"),
        "{line}"
    );
    assert!(line.contains("place=\"hive/tests/watchdog.rs:"), "{line}");
    assert_eq!(error.module.as_str(), "slow");
    assert!(error.error.to_string().starts_with("done too late"), "{error}");
}
