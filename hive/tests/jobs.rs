// SPDX-License-Identifier: Apache-2.0

//! Jobs: retries, times, events, stopping, panics; with a paused clock.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures::stream;
use hive::{
    Backoff, Cell, Hive, HookCtx, Job, JobCtx, JobMetrics, JobOutcome, JobRun, JobState, Jobs, Level,
    Lifecycle, MemoryHealth, OnFailure, Retry, Running, Settings, SpawnError, StopError, Trigger, Value,
};
use tokio::time::{Instant, sleep};

/// Seconds since the start at which something ran.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<Vec<f64>>>);

impl Times {
    fn note(&self, begun: Instant) {
        self.0.lock().unwrap().push(begun.elapsed().as_secs_f64());
    }

    fn rounded(&self) -> Vec<u64> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .map(|time| time.round() as u64)
            .collect()
    }
}

fn io(text: &str) -> std::io::Error {
    std::io::Error::other(text.to_owned())
}

#[derive(Clone, Value)]
struct Handle(Jobs);

/// A running hive with one module `worker` that has the jobs.
async fn running(
    jobs: impl Fn(&Jobs) -> Result<(), SpawnError> + Send + Sync + 'static,
) -> (Running, Arc<MemoryHealth>) {
    let cell = Cell::module("worker", "Works")
        .run(move |own: Jobs| jobs(&own))
        .provide(|jobs: Jobs| Handle(jobs))
        .library();
    let running = hive::testing::start(Hive::new([cell]).root::<Handle>()).await;
    let health = running.health();
    (running, health)
}

fn runtime_jobs(running: &Running) -> Jobs {
    running.get::<Handle>().unwrap().0
}

#[tokio::test(start_paused = true)]
async fn one_shot_with_n_retries_runs_n_plus_one_times_and_its_failure_stays() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let (running, health) = running(move |jobs| {
        let counter = counter.clone();
        let job = Job::once("connect", move |_: JobCtx| {
            counter.fetch_add(1, Ordering::Relaxed);
            async { Err::<(), _>(io("refused")) }
        });
        jobs.spawn(job.retry(Retry::times(2).backoff(Backoff::constant(Duration::from_secs(1)))))
    })
    .await;

    tokio::task::yield_now().await;
    assert_eq!(
        health.get("worker.job-connect").unwrap().message,
        "Failed (duration 0s, retry 0/2 in 1s)"
    );
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(
        health.get("worker.job-connect").unwrap().message,
        "Failed (duration 0s, retry 1/1 in 1s)"
    );
    sleep(Duration::from_secs(60)).await;

    assert_eq!(runs.load(Ordering::Relaxed), 3);
    let entry = health.get("worker.job-connect").unwrap();
    assert_eq!(
        (entry.level, entry.error.as_deref()),
        (Level::Degraded, Some("refused"))
    );
    assert_eq!(entry.message, "Failed (duration 0s, retry 2/<none> in 0s)");
    let job = &running.controller().jobs()[0];
    assert_eq!(
        (job.state.clone(), job.runs, job.failures),
        (JobState::Failed, 3, 3)
    );
    hive::testing::expect_failure(&running, "job `connect` of module `worker` failed: refused");
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn one_shot_reports_running_and_is_closed_when_finished() {
    let (running, health) =
        running(|jobs| jobs.spawn(Job::once("load", |_: JobCtx| sleep(Duration::from_secs(2))))).await;

    sleep(Duration::from_secs(1)).await;
    assert_eq!(health.get("worker.job-load").unwrap().message, "Running");
    sleep(Duration::from_secs(2)).await;
    assert!(health.get("worker.job-load").is_none());
    assert!(running.controller().jobs().is_empty());
    hive::testing::stop(running).await;
}

/// Fails twice, then waits without end.
#[derive(Default)]
struct Follower {
    runs: AtomicUsize,
    drops: Arc<AtomicUsize>,
}

impl Follower {
    async fn follow(&self, cx: &JobCtx) -> Result<(), std::io::Error> {
        if self.runs.fetch_add(1, Ordering::Relaxed) < 2 {
            return Err(io("refused"));
        }
        let _drops = CountDrops(self.drops.clone());
        cx.health.ok("Following");
        std::future::pending().await
    }
}

struct CountDrops(Arc<AtomicUsize>);

impl Drop for CountDrops {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn kept_job_is_retried_with_its_state_and_dropped_at_the_stop() {
    let drops = Arc::new(AtomicUsize::new(0));
    let (running, health) = running({
        let drops = drops.clone();
        move |jobs| {
            let (runs, drops) = (AtomicUsize::new(0), drops.clone());
            jobs.keep("follow", Follower { runs, drops }, Follower::follow)
        }
    })
    .await;

    sleep(Duration::from_secs(5)).await;
    assert_eq!(health.get("worker.job-follow").unwrap().message, "Following");
    assert_eq!(running.controller().jobs()[0].failures, 2);

    hive::testing::stop(running).await;
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn cancelled_job_is_not_retried_but_an_inner_cancellation_is_an_error() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let (running, _) = running(move |jobs| {
        let counter = counter.clone();
        let job = Job::once("work", move |cx: JobCtx| {
            let run = counter.fetch_add(1, Ordering::Relaxed);
            async move {
                if run > 0 {
                    cx.cancelled().await;
                }
                Err::<(), _>(io("context cancelled"))
            }
        });
        jobs.spawn(job.retry(Retry::forever()))
    })
    .await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(
        runs.load(Ordering::Relaxed),
        2,
        "the inner cancellation was retried"
    );

    hive::testing::stop(running).await;

    sleep(Duration::from_secs(600)).await;
    assert_eq!(runs.load(Ordering::Relaxed), 2, "ours was not");
}

#[tokio::test(start_paused = true)]
async fn backoff_doubles_with_jitter_and_begins_anew_after_a_stable_run() {
    let times = Times::default();
    let noted = times.clone();
    let begun = Instant::now();
    let (running, _) = running(move |jobs| {
        let noted = noted.clone();
        let job = Job::once("flaky", move |_: JobCtx| {
            noted.note(begun);
            let run = noted.0.lock().unwrap().len();
            async move {
                if run == 4 {
                    sleep(Duration::from_secs(1000)).await;
                }
                Err::<(), _>(io("flaky"))
            }
        });
        let backoff = Backoff::exponential(Duration::from_secs(10), Duration::from_secs(40));
        jobs.spawn(job.retry(Retry::forever().backoff(backoff)))
    })
    .await;

    sleep(Duration::from_secs(1200)).await;

    let times = times.0.lock().unwrap().clone();
    let waits: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (wait, full) in waits.iter().zip([10.0, 20.0, 40.0, 1010.0, 20.0]) {
        let jittered = if full > 1000.0 { wait - 1000.0 } else { *wait };
        let full = if full > 1000.0 { 10.0 } else { full };
        assert!(
            jittered <= full + 0.01 && jittered >= full * 0.8 - 0.01,
            "{waits:?}"
        );
    }
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn timer_ticks_after_the_interval_without_overlap_and_folds_missed_ticks() {
    let times = Times::default();
    let noted = times.clone();
    let begun = Instant::now();
    let (running, health) = running(move |jobs| {
        let noted = noted.clone();
        jobs.spawn(Job::every(Duration::from_secs(10), "tick", move |_: JobCtx| {
            noted.note(begun);
            let long = noted.0.lock().unwrap().len() == 2;
            async move {
                if long {
                    sleep(Duration::from_secs(35)).await;
                }
            }
        }))
    })
    .await;
    tokio::task::yield_now().await;
    assert_eq!(health.get("worker.timer-job-tick").unwrap().message, "Primed");

    sleep(Duration::from_secs(75)).await;

    // 20 s + 35 s: the ticks at 30, 40 and 50 s make one run at 55 s.
    assert_eq!(times.rounded(), [10, 20, 55, 60, 70]);
    assert_eq!(health.get("worker.timer-job-tick").unwrap().message, "OK (0s)");
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn timer_can_run_at_start_and_jitter() {
    let times = Times::default();
    let noted = times.clone();
    let begun = Instant::now();
    let (running, _) = running(move |jobs| {
        let noted = noted.clone();
        let job = Job::every(Duration::from_secs(100), "tick", move |_: JobCtx| {
            noted.note(begun);
            async {}
        });
        jobs.spawn(job.run_at_start().jitter(0.1))
    })
    .await;

    sleep(Duration::from_secs(1000)).await;

    let times = times.0.lock().unwrap().clone();
    assert!(times[0] < 0.1);
    let waits: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.iter().all(|wait| (89.9..110.1).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| (wait - 100.0).abs() > 0.1), "{waits:?}");
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn triggers_fold_and_a_trigger_in_the_window_runs_at_its_end() {
    let times = Times::default();
    let (noted, trigger) = (times.clone(), Trigger::new());
    let begun = Instant::now();
    let pulled = trigger.clone();
    let (running, _) = running(move |jobs| {
        let noted = noted.clone();
        let job = Job::every(Duration::ZERO, "sync", move |_: JobCtx| {
            noted.note(begun);
            async {}
        });
        jobs.spawn(job.trigger(&pulled).min_interval(Duration::from_secs(10)))
    })
    .await;

    trigger.trigger();
    trigger.trigger();
    sleep(Duration::from_secs(3)).await;
    trigger.trigger();
    assert!(trigger.is_pending());
    sleep(Duration::from_secs(60)).await;

    assert_eq!(times.rounded(), [0, 10], "two folded, and the third not lost");
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn trigger_does_not_wait_for_the_next_tick() {
    let times = Times::default();
    let (noted, trigger) = (times.clone(), Trigger::new());
    let begun = Instant::now();
    let pulled = trigger.clone();
    let (running, _) = running(move |jobs| {
        let noted = noted.clone();
        let job = Job::every(Duration::from_secs(60), "sync", move |_: JobCtx| {
            noted.note(begun);
            async {}
        });
        jobs.spawn(job.trigger(&pulled))
    })
    .await;

    sleep(Duration::from_secs(5)).await;
    trigger.trigger();
    sleep(Duration::from_secs(60)).await;

    assert_eq!(times.rounded(), [5, 60]);
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn debounce_waits_for_quiet_but_not_longer_than_the_maximum() {
    let times = Times::default();
    let (noted, trigger) = (times.clone(), Trigger::new());
    let begun = Instant::now();
    let pulled = trigger.clone();
    let (running, _) = running(move |jobs| {
        let noted = noted.clone();
        let job = Job::every(Duration::ZERO, "sync", move |_: JobCtx| {
            noted.note(begun);
            async {}
        });
        jobs.spawn(
            job.trigger(&pulled)
                .debounce(Duration::from_secs(2), Duration::from_secs(5)),
        )
    })
    .await;

    trigger.trigger();
    sleep(Duration::from_secs(20)).await;
    assert_eq!(times.rounded(), [2], "after two quiet seconds");
    for _ in 0..10 {
        trigger.trigger();
        sleep(Duration::from_secs(1)).await;
    }
    sleep(Duration::from_secs(20)).await;

    assert_eq!(
        times.rounded(),
        [2, 25, 31],
        "after five seconds without quiet; then after the last trigger"
    );
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn trigger_pending_at_a_tick_is_consumed_by_that_run() {
    let times = Times::default();
    let (noted, trigger) = (times.clone(), Trigger::new());
    let begun = Instant::now();
    let pulled = trigger.clone();
    let (running, _) = running(move |jobs| {
        let noted = noted.clone();
        let job = Job::every(Duration::from_secs(10), "sync", move |_: JobCtx| {
            noted.note(begun);
            async {}
        });
        jobs.spawn(
            job.trigger(&pulled)
                .debounce(Duration::from_secs(3), Duration::from_secs(3)),
        )
    })
    .await;

    sleep(Duration::from_secs(9)).await;
    trigger.trigger();
    sleep(Duration::from_secs(9)).await;

    assert_eq!(times.rounded(), [10]);
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn timer_goes_on_after_an_error() {
    let (running, health) = running(|jobs| {
        jobs.spawn(Job::every(Duration::from_secs(1), "sync", |_: JobCtx| async {
            Err::<(), _>(io("no peer"))
        }))
    })
    .await;

    sleep(Duration::from_millis(2500)).await;

    let entry = health.get("worker.timer-job-sync").unwrap();
    assert_eq!(
        (entry.level, &*entry.message),
        (Level::Degraded, "Timer job failed (duration 0s)")
    );
    let job = &running.controller().jobs()[0];
    assert_eq!(
        (job.state.clone(), job.runs, job.failures),
        (JobState::Running, 2, 2)
    );
    assert_eq!(job.interval, Some(Duration::from_secs(1)));
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn observer_survives_an_error_and_reports_recovery_at_once() {
    let (running, health) =
        running(|jobs| {
            let events = || {
                stream::unfold(0u32, |number| async move {
                    sleep(Duration::from_secs(1)).await;
                    Some((number, number + 1))
                })
            };
            jobs.spawn(Job::for_each("events", events, |_: JobCtx, number: u32| async move {
            if number == 1 { Err(io("bad event")) } else { Ok(()) }
        }))
        })
        .await;
    let message = || health.get("worker.observer-job-events").unwrap().message;
    let at = |seconds: f64| sleep(Duration::from_secs_f64(seconds));

    at(0.5).await;
    assert_eq!(message(), "Primed");
    at(1.0).await;
    assert_eq!(message(), "OK (0s) [1]");
    at(1.0).await;
    assert_eq!(message(), "Observer job failed (duration 0s)");
    at(1.0).await;
    assert_eq!(message(), "OK (0s) [3]");
    at(5.0).await;
    assert_eq!(message(), "OK (0s) [3]", "at most every ten seconds");
    at(6.0).await;
    assert_eq!(message(), "OK (0s) [13]");
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn panicking_job_is_contained_and_shows_in_health_and_metrics() {
    #[derive(Default)]
    struct Counts(Mutex<Vec<(String, JobOutcome)>>);
    impl JobMetrics for Counts {
        fn ran(&self, run: &JobRun<'_>) {
            self.0.lock().unwrap().push((run.job.to_owned(), run.outcome));
        }
    }
    fn jobs(jobs: Jobs) -> Result<(), SpawnError> {
        jobs.spawn(Job::once("panics", |_: JobCtx| async {
            let divisor = std::hint::black_box(0);
            assert!(divisor != 0, "division by zero");
        }))?;
        jobs.spawn(Job::every(Duration::from_secs(1), "goes-on", |_: JobCtx| async {}))
    }
    let cells = [
        Cell::module("worker", "Works").run(jobs),
        Cell::module("counts", "Counts")
            .provide(|| Arc::new(Counts::default()))
            .provide(|counts: Arc<Counts>| -> Arc<dyn JobMetrics> { counts }),
    ];
    let running = hive::testing::start(Hive::new(cells).root::<Arc<Counts>>()).await;

    sleep(Duration::from_millis(1500)).await;

    let entry = running.health().get("worker.job-panics").unwrap();
    assert_eq!(entry.level, Level::Degraded);
    let error = entry.error.unwrap();
    assert!(
        error.starts_with("panicked at hive/tests/jobs.rs:") && error.ends_with("division by zero"),
        "{error}"
    );
    let counts = running.get::<Arc<Counts>>().unwrap();
    assert_eq!(
        *counts.0.lock().unwrap(),
        [
            ("panics".to_owned(), JobOutcome::Panicked),
            ("goes-on".to_owned(), JobOutcome::Ok)
        ]
    );
    hive::testing::expect_failure(&running, "division by zero");
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn job_that_must_not_fail_stops_the_hive_with_its_error() {
    let (running, _) = running(|jobs| {
        jobs.spawn(
            Job::once("serve", |_: JobCtx| async { Err::<(), _>(io("socket closed")) })
                .on_failure(OnFailure::Shutdown),
        )
    })
    .await;

    let cause = running.wait().await;

    assert_eq!(
        cause.to_string(),
        "job `serve` of module `worker` failed: socket closed"
    );
    assert!(cause.is_failure());
    hive::testing::expect_failure(&running, "job `serve` of module `worker` failed: socket closed");
    hive::testing::stop(running).await;
}

#[tokio::test]
async fn jobs_start_after_the_hooks_of_their_constructor_and_runtime_jobs_stop_first() {
    static NOTES: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    fn note(text: &'static str) {
        NOTES.lock().unwrap().push(text);
    }
    fn worker(lifecycle: Lifecycle, jobs: Jobs) -> Result<Handle, SpawnError> {
        jobs.spawn(Job::once("declared", |cx: JobCtx| async move {
            note("declared starts");
            cx.cancelled().await;
            note("declared ends");
        }))?;
        lifecycle.on_start("open", |_: HookCtx| async { note("open") });
        lifecycle.on_stop("close", |_: HookCtx| async { note("close") });
        Ok(Handle(jobs))
    }
    let cell = Cell::module("worker", "Works").provide(worker);
    let running = hive::testing::start(Hive::new([cell]).root::<Handle>()).await;
    tokio::task::yield_now().await;
    let jobs = runtime_jobs(&running);
    jobs.spawn(Job::once("late", |cx: JobCtx| async move {
        note("late starts");
        cx.cancelled().await;
        note("late ends");
    }))
    .unwrap();
    tokio::task::yield_now().await;

    hive::testing::stop(running).await;

    assert_eq!(
        *NOTES.lock().unwrap(),
        [
            "open",
            "declared starts",
            "late starts",
            "late ends",
            "declared ends",
            "close"
        ]
    );
}

#[tokio::test]
async fn job_added_after_stop_is_an_error() {
    let (running, _) = running(|_| Ok(())).await;
    let jobs = runtime_jobs(&running);
    let _built = running.stop().await.unwrap();

    let error = jobs.spawn(Job::once("late", |_: JobCtx| async {})).unwrap_err();

    assert!(matches!(error, SpawnError::Stopped { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn job_that_does_not_end_is_aborted_and_named() {
    let (running, _) =
        running(|jobs| jobs.spawn(Job::once("deaf", |_: JobCtx| std::future::pending::<()>()))).await;
    tokio::task::yield_now().await;

    let error = running.stop().await.unwrap_err();

    assert!(matches!(error, StopError::Failed(_)));
    assert_eq!(
        error.to_string(),
        "failed to stop: job `deaf` of module `worker` did not end within 30s"
    );
}

#[tokio::test(start_paused = true)]
async fn names_are_checked_and_unique_and_instances_are_told_apart() {
    let (running, health) = running(|jobs| {
        let idle = |name: &'static str| Job::once(name, |cx: JobCtx| async move { cx.cancelled().await });
        assert!(matches!(
            jobs.spawn(idle("has blank")),
            Err(SpawnError::BadName { .. })
        ));
        assert!(matches!(jobs.spawn(idle("")), Err(SpawnError::BadName { .. })));
        jobs.spawn(idle("twin"))?;
        assert!(matches!(
            jobs.spawn(idle("twin")),
            Err(SpawnError::Duplicate { .. })
        ));
        jobs.spawn(idle("twin").instance("west"))?;
        jobs.scope("part").spawn(idle("other"))
    })
    .await;
    let jobs = runtime_jobs(&running);
    jobs.spawn(Job::once(
        "twin",
        |cx: JobCtx| async move { cx.cancelled().await },
    ))
    .unwrap();
    tokio::task::yield_now().await;

    let names: Vec<_> = health
        .entries()
        .iter()
        .map(|entry| entry.id.to_string())
        .collect();

    assert_eq!(
        names,
        [
            "worker.job-twin",
            "worker.job-twin/2",
            "worker.job-twin/west",
            "worker.part.job-other"
        ]
    );
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn only_the_last_sixteen_failures_of_a_module_are_kept() {
    let (running, health) = running(|_| Ok(())).await;
    let jobs = runtime_jobs(&running);

    for number in 0..20 {
        jobs.spawn(Job::once(format!("fails-{number:02}"), |_: JobCtx| async {
            Err::<(), _>(io("no"))
        }))
        .unwrap();
        sleep(Duration::from_millis(1)).await;
    }

    let names: Vec<_> = health
        .entries()
        .iter()
        .map(|entry| entry.id.to_string())
        .collect();
    assert_eq!(names.len(), 16);
    assert_eq!(names[0], "worker.job-fails-04");
    assert_eq!(running.controller().jobs().len(), 16);
    hive::testing::expect_failure(&running, "failed: no");
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn the_list_tells_how_old_a_job_is_and_how_long_its_run_has_taken() {
    let (running, _) = running(|jobs| {
        let minute = Duration::from_secs(60);
        jobs.spawn(Job::every(minute, "collect", |_: JobCtx| {
            sleep(Duration::from_secs(10))
        }))
    })
    .await;
    let seconds = || {
        let job = running.controller().jobs().remove(0);
        (job.age().as_secs(), job.running_for().map(|time| time.as_secs()))
    };

    sleep(Duration::from_secs(59)).await;
    assert_eq!(seconds(), (59, None));
    sleep(Duration::from_secs(4)).await;
    assert_eq!(seconds(), (63, Some(3)));
    sleep(Duration::from_secs(9)).await;
    assert_eq!(seconds(), (72, None));
    hive::testing::stop(running).await;
}

/// What a job owns, if it is still there.
type Owned = Arc<Mutex<Weak<()>>>;

/// A job that owns the `Jobs` that it was added to, as structs of parameters do, and something else.
fn owning(jobs: &Jobs, owned: &Owned) -> Result<(), SpawnError> {
    let params = (jobs.clone(), Arc::new(()));
    *owned.lock().unwrap() = Arc::downgrade(&params.1);
    jobs.spawn(Job::once("work", move |cx: JobCtx| {
        let params = params.clone();
        async move {
            cx.cancelled().await;
            drop(params);
        }
    }))
}

fn is_there(owned: &Owned) -> bool {
    owned.lock().unwrap().upgrade().is_some()
}

#[tokio::test(start_paused = true)]
async fn what_jobs_own_goes_with_the_hive() {
    let owned = Owned::default();
    let of_job = owned.clone();
    let (running, health) = running(move |jobs| owning(jobs, &of_job)).await;
    drop(health);
    assert!(is_there(&owned));

    running.stop().await.unwrap();

    assert!(!is_there(&owned));
}

#[tokio::test(start_paused = true)]
async fn what_jobs_own_goes_if_the_hive_is_not_built() {
    let owned = Owned::default();
    let of_job = owned.clone();
    let hive = Hive::new([
        Cell::module("worker", "Works").run(move |jobs: Jobs| owning(&jobs, &of_job)),
        Cell::module("broken", "Fails").run(|| Err::<(), _>(io("broken"))),
    ]);

    let failed = hive.plan(Settings::new()).unwrap().build();

    assert!(failed.is_err());
    let was_there = !owned.lock().unwrap().ptr_eq(&Weak::new());
    assert!(was_there && !is_there(&owned));
}
