// SPDX-License-Identifier: Apache-2.0

//! A test does not pass over jobs that have failed for good.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use hive::{Backoff, Cell, Hive, Job, JobCtx, JobState, Jobs, OnFailure, Retry, Running, Shutdown, testing};

fn cell(job: impl Fn() -> Job + Send + Sync + 'static) -> Cell {
    Cell::module("worker", "Works").run(move |jobs: Jobs| jobs.spawn(job()))
}

async fn running(job: impl Fn() -> Job + Send + Sync + 'static) -> Running {
    testing::start(Hive::new([cell(job)])).await
}

async fn unlucky() {
    panic!("out of luck");
}

fn panics() -> Job {
    Job::once("work", |_: JobCtx| unlucky()).into()
}

fn fails() -> Job {
    let job = Job::once("work", |_: JobCtx| async { Err::<(), _>("no route".to_owned()) });
    job.on_failure(OnFailure::Shutdown).into()
}

/// The message of the panic with which `stop` ends.
async fn message_of_stop(running: Running) -> Option<String> {
    let panic = AssertUnwindSafe(testing::stop(running))
        .catch_unwind()
        .await
        .err()?;
    Some(text(&*panic))
}

fn text(panic: &(dyn std::any::Any + Send)) -> String {
    panic.downcast_ref::<String>().unwrap().clone()
}

#[tokio::test]
async fn stop_fails_over_a_job_that_panicked() {
    let message = message_of_stop(running(panics).await).await.unwrap();

    assert!(
        message.starts_with("job `work` of module `worker` failed: panicked at "),
        "{message}"
    );
    assert!(message.ends_with("out of luck"), "{message}");
}

#[tokio::test]
async fn stop_fails_over_a_job_that_stopped_the_hive() {
    let message = message_of_stop(running(fails).await).await.unwrap();

    assert_eq!(message, "job `work` of module `worker` failed: no route");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_fails_over_dead_jobs_on_several_threads() {
    assert!(message_of_stop(running(panics).await).await.is_some());
}

#[tokio::test]
async fn stop_fails_over_a_job_that_ended_with_an_error_and_has_no_retry() {
    let running =
        running(|| Job::once("work", |_: JobCtx| async { Err::<(), _>("no route".to_owned()) }).into());

    assert!(
        message_of_stop(running.await)
            .await
            .unwrap()
            .ends_with("no route")
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_retried_is_alive_unless_it_panics() {
    let retry = || Retry::forever().backoff(Backoff::constant(Duration::from_secs(1)));
    let errs = running(move || {
        Job::once("work", |_: JobCtx| async { Err::<(), _>("no route".to_owned()) })
            .retry(retry())
            .into()
    })
    .await;
    let panics =
        running(move || Job::every(Duration::from_secs(1), "work", |_: JobCtx| unlucky()).into()).await;

    tokio::time::sleep(Duration::from_secs(3)).await;

    assert_eq!(message_of_stop(errs).await, None);
    assert!(message_of_stop(panics).await.unwrap().ends_with("out of luck"));
}

#[tokio::test]
async fn stop_fails_over_a_module_that_ended_the_hive_with_an_error() {
    let cell = Cell::module("app", "App").run(|jobs: Jobs, shutdown: Shutdown| {
        jobs.spawn(Job::once("work", move |_: JobCtx| {
            shutdown.fail("cannot go on", "disk full");
            async {}
        }))
    });

    let message = message_of_stop(testing::start(Hive::new([cell])).await)
        .await
        .unwrap();

    assert_eq!(message, "module `app` asked to stop: cannot go on: disk full");
}

#[tokio::test]
async fn dropping_the_hive_fails_over_a_dead_job() {
    let running = running(panics).await;
    while running.controller().jobs()[0].state != JobState::Failed {
        tokio::task::yield_now().await;
    }

    let panic = std::panic::catch_unwind(AssertUnwindSafe(|| drop(running))).unwrap_err();

    assert!(text(&*panic).ends_with("out of luck"));
}

#[tokio::test]
async fn expected_failures_pass_and_missing_ones_do_not() {
    let expected = running(panics).await;
    testing::expect_failure(&expected, "out of luck");
    let missing =
        running(|| Job::once("work", |cx: JobCtx| async move { cx.cancelled().await }).into()).await;
    testing::expect_failure(&missing, "out of luck");

    assert_eq!(message_of_stop(expected).await, None);
    assert_eq!(
        message_of_stop(missing).await.unwrap(),
        "expected a failure with the text \"out of luck\", but there was none"
    );
}

/// Runs itself a second time, as a test without a subscriber.
#[tokio::test]
async fn warnings_reach_the_output_of_a_test_without_subscriber() {
    const CHILD: &str = "HIVE_TEST_OF_A_TEST";
    if std::env::var_os(CHILD).is_some() {
        let running = running(panics).await;
        testing::expect_failure(&running, "out of luck");
        testing::stop(running).await;
        return;
    }

    let name = "warnings_reach_the_output_of_a_test_without_subscriber";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();

    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{errors}");
    assert!(errors.contains("warning: Job failed"), "{errors}");
    assert!(errors.contains("out of luck"), "{errors}");
}
