// SPDX-License-Identifier: Apache-2.0

//! Warnings and errors in the log as Prometheus reads them. There is one log in a process, so one test.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Job, JobCtx, Jobs, Settings, SpawnError};
use skep_base_metrics::{Registry, exposition};
use tracing::level_filters::LevelFilter;

fn job(jobs: Jobs) -> Result<(), SpawnError> {
    jobs.spawn(Job::once("work", |_: JobCtx| async {
        tracing::info!("begins");
        tracing::debug!("looks");
        tracing::warn!("has little left");
        tracing::warn!(target: "quiet", "has nothing to say");
        tracing::warn!("has nothing left");
        tracing::error!("ends");
    }))
}

#[tokio::test]
async fn warnings_and_errors_are_counted_by_module() {
    let hive = || {
        let worker = Cell::module("worker", "Works").run(job);
        Hive::new([skep_base_logging::cell(), skep_base_metrics::cell(), worker]).root::<Arc<Registry>>()
    };
    let settings = || Settings::new().flag("log-filter", "info,quiet=error");
    skep_base_logging::start_logging(&hive().plan(settings()).unwrap());
    assert_eq!(
        LevelFilter::current(),
        LevelFilter::INFO,
        "debug lines are off for all"
    );

    let running = hive::testing::start_with(hive(), settings()).await;
    let registry = running.get::<Arc<Registry>>().unwrap();
    tracing::warn!(target: "skep_k8s_client::watcher", "lost the server");
    let done = async {
        while !exposition(&registry).contains("level=\"error\"") {
            tokio::task::yield_now().await;
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(30), done).await;
    done.expect("the job ends");
    running.stop().await.unwrap();

    let text = exposition(&registry);
    let counted = text.lines().filter(|line| line.contains("errors_warnings_total"));
    assert_eq!(
        counted.collect::<Vec<_>>(),
        [
            "# HELP cilium_errors_warnings_total Log messages of level warning and error",
            "# TYPE cilium_errors_warnings_total counter",
            "cilium_errors_warnings_total{level=\"error\",subsystem=\"worker\"} 1",
            "cilium_errors_warnings_total{level=\"warning\",subsystem=\"k8s-client\"} 1",
            "cilium_errors_warnings_total{level=\"warning\",subsystem=\"worker\"} 2",
        ]
    );
}
