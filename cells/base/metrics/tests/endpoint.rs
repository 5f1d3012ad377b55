// SPDX-License-Identifier: Apache-2.0

//! Metrics as Prometheus reads them.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::time::Duration;

use hive::{Cell, Hive, Job, JobCtx, Jobs, Level, Settings, SpawnError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(flavor = "multi_thread")]
async fn endpoint_serves_what_jobs_did() {
    fn job(jobs: Jobs) -> Result<(), SpawnError> {
        for port in 1..=3 {
            jobs.spawn(Job::once(format!("port-{port}"), |_: JobCtx| async {}))?;
        }
        jobs.spawn(Job::once("work", |_: JobCtx| async {}))
    }
    let cells = [
        skep_base_metrics::cell(),
        skep_base_metrics::endpoint::cell(),
        Cell::module("worker", "Works").run(job),
    ];
    let settings = Settings::new().flag("prometheus-serve-addr", "127.0.0.1:0");
    let running = hive::testing::start_with(Hive::new(cells), settings).await;
    let health = running.health();
    let address = wait(|| {
        let entry = health.get("metrics-endpoint.job-prometheus-endpoint")?;
        entry.message.strip_prefix("Serving on ").map(str::to_owned)
    })
    .await;

    let text = loop {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let counts = |job: &str, runs: u32| {
            text.contains(&format!(
                "cilium_hive_jobs_runs_total{{job_name=\"{job}\",module_id=\"worker\"}} {runs}\n"
            ))
        };
        // Those that differ in a number are one.
        if counts("work", 1) && counts("port", 3) {
            break text;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };

    assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
    assert!(
        text.contains("# TYPE cilium_hive_jobs_oneshot_last_run_duration_seconds gauge\n"),
        "{text}"
    );
    assert!(!text.contains("cilium_statedb_"), "{text}");
    let collect = health.get("metrics.job-collect").unwrap();
    assert_eq!(collect.level, Level::Ok);
    assert!(collect.message.starts_with("Sampled ") && collect.message.contains(", next collection at 2"));
    running.stop().await.unwrap();
}

/// Waits until `ready` gives something.
async fn wait<T>(ready: impl Fn() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = ready() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), found)
        .await
        .expect("it comes in time")
}
