// SPDX-License-Identifier: Apache-2.0

//! Lifecycle: order, roll-back, deadlines, shutdown, scopes.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hive::{
    Cell, Controller, Health, Hive, Hook, HookCtx, HookState, Job, JobCtx, Jobs, Level, Lifecycle, Readiness,
    Scope, Settings, Shutdown, SpawnError, StartError, State, StopError, Value,
};

type Log = Arc<Mutex<Vec<String>>>;

/// What hooks note.
#[derive(Clone, Value, Default)]
struct Notes(Log);

impl Notes {
    fn add(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A hook that notes start and stop.
fn noting(notes: &Notes, name: &'static str) -> Hook {
    let (start, stop) = (notes.clone(), notes.clone());
    Hook::new(name)
        .on_start(move |_: HookCtx| {
            start.add(format!("start {name}"));
            async {}
        })
        .on_stop(move |_: HookCtx| {
            stop.add(format!("stop {name}"));
            async {}
        })
}

fn notes_cell(notes: &Notes) -> Cell {
    let notes = notes.clone();
    Cell::module("notes", "Notes").provide(move || notes.clone())
}

#[derive(Clone, Value)]
struct Base;

fn base(lifecycle: Lifecycle, notes: Notes) -> Base {
    lifecycle.add(noting(&notes, "base"));
    Base
}

fn top(lifecycle: Lifecycle, notes: Notes, _base: Base) {
    lifecycle.add(noting(&notes, "top"));
}

fn stack(notes: &Notes) -> Vec<Cell> {
    // `top` is declared first and still starts last.
    vec![
        Cell::module("top", "Top").run(top),
        Cell::module("base", "Base").provide(base),
        notes_cell(notes),
    ]
}

/// A cell with one hook.
fn hooked(id: &'static str, hook: impl Fn() -> Hook + Send + Sync + 'static) -> Cell {
    Cell::module(id, "Hooked").run(move |lifecycle: Lifecycle, _base: Base| lifecycle.add(hook()))
}

fn build(cells: impl IntoIterator<Item = Cell>, args: &[&str]) -> hive::Built {
    let settings = Settings::new().args(args.iter().copied());
    hive::testing::plan(Hive::new(cells), settings).build().unwrap()
}

fn failing() -> Hook {
    Hook::new("failing").on_start(|_: HookCtx| async { Err::<(), _>(std::io::Error::other("port taken")) })
}

#[tokio::test]
async fn hooks_start_in_dependency_order_and_stop_in_reverse() {
    let notes = Notes::default();
    let running = build(stack(&notes), &[]).start().await.unwrap();
    assert_eq!(notes.take(), ["start base", "start top"]);

    running.stop().await.unwrap();

    assert_eq!(notes.take(), ["stop top", "stop base"]);
}

#[tokio::test]
async fn stopped_hive_starts_again_with_hooks_and_jobs() {
    let notes = Notes::default();
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let job = Cell::module("job", "Job").run(move |jobs: Jobs| {
        let counter = counter.clone();
        jobs.spawn(Job::once("count", move |cx: JobCtx| {
            counter.fetch_add(1, Ordering::Relaxed);
            async move { cx.cancelled().await }
        }))
    });
    let built = build(stack(&notes).into_iter().chain([job]), &[]);

    let built = built.start().await.unwrap().stop().await.unwrap();
    let running = built.start().await.unwrap();

    assert_eq!(notes.take().len(), 6);
    tokio::task::yield_now().await;
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn failed_start_rolls_back_what_had_started_and_returns_both_errors() {
    let notes = Notes::default();
    let bad_stop = hooked("bad-stop", || {
        Hook::new("bad-stop")
            .on_stop(|_: HookCtx| async { Err::<(), _>(std::io::Error::other("will not stop")) })
    });
    let late = notes.clone();
    let late = hooked("late", move || noting(&late, "late"));
    let cells = [
        notes_cell(&notes),
        Cell::module("base", "Base").provide(base),
        bad_stop,
        hooked("bad", failing),
        late,
    ];

    let error = build(cells, &[]).start().await.unwrap_err();

    assert_eq!(notes.take(), ["start base", "stop base"]);
    let text = error.to_string();
    assert!(
        text.starts_with("failed to start: hook `failing` of module `bad`: port taken"),
        "{text}"
    );
    assert!(
        text.ends_with("failed to stop: hook `bad-stop` of module `bad-stop`: will not stop"),
        "{text}"
    );
}

#[tokio::test]
async fn stop_continues_after_an_error_and_a_panic() {
    let notes = Notes::default();
    let bad = hooked("bad", || {
        Hook::new("bad").on_stop(|_: HookCtx| async { Err::<(), _>(std::io::Error::other("stuck file")) })
    });
    let panics = hooked("panics", || {
        Hook::new("panics").on_stop(|_: HookCtx| async { assert!(std::hint::black_box(false), "oh no") })
    });
    let cells = [
        notes_cell(&notes),
        Cell::module("base", "Base").provide(base),
        bad,
        panics,
    ];

    let error = build(cells, &[]).start().await.unwrap().stop().await.unwrap_err();

    assert_eq!(notes.take(), ["start base", "stop base"]);
    let StopError::Failed(failures) = &error else {
        panic!("{error}")
    };
    assert_eq!(failures.len(), 2);
    assert!(
        error.to_string().contains("panicked at hive/tests/lifecycle.rs"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn stuck_stop_hooks_are_abandoned_and_named_and_the_others_run() {
    let notes = Notes::default();
    let stuck = |id: &'static str| {
        hooked(id, move || {
            Hook::new(id).on_stop(|_: HookCtx| std::future::pending::<()>())
        })
    };
    let cells = [
        notes_cell(&notes),
        Cell::module("base", "Base").provide(base),
        stuck("stuck1"),
        stuck("stuck2"),
        stuck("stuck3"),
    ];
    let running = build(cells, &["--hive-stop-timeout=8s"]).start().await.unwrap();
    let begun = tokio::time::Instant::now();

    let error = running.stop().await.unwrap_err();

    assert_eq!(
        begun.elapsed().as_secs(),
        7,
        "4 s, 2 s, 1 s: half of what is left for each"
    );
    assert_eq!(notes.take(), ["start base", "stop base"]);
    let text = error.to_string();
    assert!(
        text.contains("hook `stuck3` of module `stuck3` was not done after 4s"),
        "{text}"
    );
    assert!(text.contains("`stuck1`") && text.contains("`stuck2`"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn start_hook_over_its_deadline_is_an_error_that_names_it() {
    let slow = |timeout: Option<u64>| {
        hooked("slow", move || {
            let hook = Hook::new("serve").on_start(|_: HookCtx| std::future::pending::<()>());
            match timeout {
                Some(seconds) => hook.start_timeout(Duration::from_secs(seconds)),
                None => hook,
            }
        })
    };
    let start = |timeout| async move {
        let notes = Notes::default();
        let cells = [
            notes_cell(&notes),
            Cell::module("base", "Base").provide(base),
            slow(timeout),
        ];
        let error = build(cells, &["--hive-start-timeout=30s"])
            .start()
            .await
            .unwrap_err();
        assert_eq!(notes.take(), ["start base", "stop base"]);
        error.to_string()
    };

    let text = start(None).await;
    let begin =
        "failed to start: hook `serve` of module `slow` was not done after 30s (hive/tests/lifecycle.rs:";
    assert!(text.starts_with(begin), "{text}");
    assert!(text.ends_with("); use a job for long-running work"), "{text}");
    assert!(start(Some(2)).await.contains("after 2s"));
}

#[tokio::test(start_paused = true)]
async fn shutdown_request_during_start_cancels_it_and_rolls_back() {
    let notes = Notes::default();
    let asks = Cell::module("asks", "Asks").run(|shutdown: Shutdown, jobs: Jobs, _base: Base| {
        jobs.spawn(Job::once("ask", move |_: JobCtx| {
            let shutdown = shutdown.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                shutdown.request("changed my mind");
            }
        }))
    });
    let slow = hooked("slow", || {
        Hook::new("slow").on_start(|_: HookCtx| std::future::pending::<()>())
    });
    let cells = [
        notes_cell(&notes),
        Cell::module("base", "Base").provide(base),
        asks,
        slow,
    ];

    let error = build(cells, &[]).start().await.unwrap_err();

    assert_eq!(notes.take(), ["start base", "stop base"]);
    assert_eq!(
        error.to_string(),
        "start called off: module `asks` asked to stop: changed my mind; hook `slow` of module `slow` was running"
    );
}

#[tokio::test]
async fn first_shutdown_request_becomes_the_exit_cause() {
    let cell = Cell::module("asks", "Asks").run(|shutdown: Shutdown, lifecycle: Lifecycle| {
        lifecycle.on_start("ask", move |_: HookCtx| {
            let shutdown = shutdown.clone();
            async move {
                tokio::spawn(async move {
                    shutdown.fail("disk is gone", std::io::Error::other("no such device"));
                    shutdown.request("second");
                });
            }
        });
    });
    let running = build([cell], &[]).start().await.unwrap();

    let cause = running.wait().await;

    assert!(cause.is_failure());
    assert_eq!(
        cause.to_string(),
        "module `asks` asked to stop: disk is gone: no such device"
    );
    running.stop().await.unwrap();
}

#[tokio::test]
async fn controller_starts_stops_and_shows_states_and_does_nothing_twice() {
    let notes = Notes::default();
    let built = build(stack(&notes), &[]);
    let controller = built.controller();
    assert_eq!(controller.state(), State::New);
    assert!(controller.hooks().iter().all(|hook| hook.state == HookState::New));

    controller.start().await.unwrap();
    controller.start().await.unwrap();
    assert_eq!(controller.state(), State::Running);
    assert_eq!(notes.take(), ["start base", "start top"]);
    let hooks = controller.hooks();
    assert_eq!(
        hooks.iter().map(|hook| &*hook.name).collect::<Vec<_>>(),
        ["base", "top"]
    );
    assert!(
        hooks
            .iter()
            .all(|hook| hook.state == HookState::Started && hook.start_took.is_some())
    );

    controller.stop().await.unwrap();
    controller.stop().await.unwrap();
    assert_eq!(controller.state(), State::Stopped);
    assert_eq!(notes.take(), ["stop top", "stop base"]);
    let tree = controller.tree();
    assert!(
        tree.contains("Start hooks:\n\n  • base (hive/tests/lifecycle.rs:"),
        "{tree}"
    );
    assert!(
        tree.contains("Stop hooks:\n\n  • top (hive/tests/lifecycle.rs:"),
        "{tree}"
    );
    drop(built);
    assert!(matches!(controller.start().await, Err(StartError::Gone)));
}

#[tokio::test]
async fn controller_is_injected() {
    static FOUND: Mutex<Option<Controller>> = Mutex::new(None);
    fn take(controller: Controller) {
        *FOUND.lock().unwrap() = Some(controller);
    }

    let built = build([Cell::module("command", "Command").run(take)], &[]);

    let controller = FOUND.lock().unwrap().clone().unwrap();
    controller.start().await.unwrap();
    assert_eq!(built.controller().state(), State::Running);
}

#[tokio::test]
async fn ready_when_started_and_all_guards_are_dropped() {
    #[derive(Clone, Value)]
    struct Guards(Arc<Mutex<Vec<hive::ReadyGuard>>>, Readiness);
    fn guards(readiness: Readiness) -> Guards {
        Guards(
            Arc::new(Mutex::new(vec![readiness.guard("first list")])),
            readiness,
        )
    }

    let built = hive::testing::plan(
        Hive::new([Cell::module("sync", "Sync").provide(guards)]).root::<Guards>(),
        Settings::new(),
    )
    .build()
    .unwrap();
    let Guards(guards, readiness) = built.get::<Guards>().unwrap();
    assert_eq!(readiness.pending(), ["start hooks", "sync: first list"]);
    let running = built.start().await.unwrap();
    assert!(!readiness.is_ready());

    guards.lock().unwrap().clear();

    readiness.ready().await;
    running.stop().await.unwrap();
    assert!(!readiness.is_ready());
}

struct Leader;
struct Feature;

fn scoped(notes: &Notes) -> Cell {
    let notes = notes.clone();
    Cell::module("garbage", "Garbage")
        .run(move |lifecycle: Lifecycle, _base: Base| lifecycle.add(noting(&notes, "garbage")))
}

async fn scope_hive(cells: Vec<Cell>) -> (hive::Running, Scope<Leader>) {
    let running = hive::testing::start(Hive::new(cells).root::<Scope<Leader>>()).await;
    let scope = running.get::<Scope<Leader>>().unwrap();
    (running, scope)
}

#[tokio::test]
async fn scope_collects_the_same_hooks_wherever_it_is_declared() {
    for position in 0..3 {
        let notes = Notes::default();
        let mut cells = stack(&notes);
        cells.insert(position, Cell::scope::<Leader>("leader", [scoped(&notes)]));

        let (running, leader) = scope_hive(cells).await;
        assert_eq!(notes.take(), ["start base", "start top"]);
        leader.start().await.unwrap();
        leader.start().await.unwrap();
        assert!(leader.is_running());
        assert_eq!(notes.take(), ["start garbage"]);
        leader.stop().await.unwrap();
        assert_eq!(notes.take(), ["stop garbage"]);
        leader.start().await.unwrap();
        notes.take();

        let _built = running.stop().await.unwrap();
        assert_eq!(notes.take(), ["stop garbage", "stop top", "stop base"]);
        assert!(matches!(leader.start().await, Err(StartError::NotRunning { .. })));
    }
}

#[tokio::test]
async fn scope_on_demand_counts_its_users() {
    let notes = Notes::default();
    let mut cells = stack(&notes);
    cells.push(Cell::scope::<Leader>("leader", [scoped(&notes)]));
    let (running, scope) = scope_hive(cells).await;
    notes.take();

    scope.acquire().await.unwrap();
    scope.acquire().await.unwrap();
    scope.release().await.unwrap();
    assert_eq!(notes.take(), ["start garbage"]);
    scope.release().await.unwrap();
    assert_eq!(notes.take(), ["stop garbage"]);
    scope.release().await.unwrap();
    assert!(!scope.is_running());
    running.stop().await.unwrap();
}

#[tokio::test]
async fn scope_with_running_dependents_is_not_stopped() {
    #[derive(Clone, Value)]
    struct Inner;
    let notes = Notes::default();
    let mut cells = stack(&notes);
    cells.push(Cell::scope::<Leader>(
        "leader",
        [Cell::module("inner", "Inner").provide(|| Inner)],
    ));
    cells.push(Cell::scope::<Feature>(
        "feature",
        [Cell::module("user", "User").run(|_: Inner| ())],
    ));
    let running = hive::testing::start(Hive::new(cells).root::<(Scope<Leader>, Scope<Feature>)>()).await;
    let (leader, feature) = running.get::<(Scope<Leader>, Scope<Feature>)>().unwrap();

    let error = feature.start().await.unwrap_err();
    assert_eq!(error.to_string(), "cannot start: scope `leader` does not run");
    leader.start().await.unwrap();
    feature.start().await.unwrap();
    let error = leader.stop().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot stop: scope `feature` runs and needs this one"
    );
    feature.stop().await.unwrap();
    leader.stop().await.unwrap();
    running.stop().await.unwrap();
}

#[tokio::test]
async fn object_of_a_scope_is_not_for_the_outside() {
    #[derive(Clone, Value)]
    struct Inner;
    let cells = [
        Cell::scope::<Leader>("leader", [Cell::module("inner", "Inner").provide(|| Inner)]),
        Cell::module("user", "User").run(|_: Inner| ()),
    ];

    let report = Hive::new(cells).plan(Settings::new()).err().unwrap();

    assert_eq!(report.errors().next().unwrap().code.as_str(), "H019");
}

#[tokio::test]
async fn failed_scope_start_leaves_the_hive_running() {
    let notes = Notes::default();
    let mut cells = stack(&notes);
    cells.push(Cell::scope::<Leader>(
        "leader",
        [scoped(&notes), hooked("bad", failing)],
    ));
    let (running, leader) = scope_hive(cells).await;
    notes.take();

    assert!(leader.acquire().await.is_err());

    assert_eq!(notes.take(), ["start garbage", "stop garbage"]);
    assert!(!leader.is_running());
    assert_eq!(running.controller().state(), State::Running);
    running.stop().await.unwrap();
}

#[tokio::test]
async fn health_of_the_hive_goes_to_the_sink_that_a_cell_provides() {
    #[derive(Default)]
    struct Sink(Mutex<Vec<String>>);
    impl hive::HealthSink for Sink {
        fn report(&self, id: &hive::HealthId, report: hive::HealthReport) {
            self.0.lock().unwrap().push(format!("{id} {}", report.message));
        }
        fn close(&self, id: &hive::HealthId) {
            self.0.lock().unwrap().push(format!("{id} closed"));
        }
    }
    // The sink needs something that reports health itself.
    fn early(health: Health) -> Base {
        health.ok("early");
        Base
    }
    fn sink(_base: Base) -> Arc<Sink> {
        Arc::new(Sink::default())
    }
    fn late(health: Health) {
        health.scope("part").ok("late");
    }
    let cells = [
        Cell::module("late", "Late").run(late),
        Cell::module("sink", "Sink")
            .provide(sink)
            .provide(|sink: Arc<Sink>| -> Arc<dyn hive::HealthSink> { sink }),
        Cell::module("early", "Early").provide(early),
    ];

    let built = hive::testing::plan(Hive::new(cells).root::<Arc<Sink>>(), Settings::new())
        .build()
        .unwrap();

    assert_eq!(
        *built.get::<Arc<Sink>>().unwrap().0.lock().unwrap(),
        ["early early", "late.part late"]
    );
}

#[test]
fn health_close_removes_exactly_its_subtree() {
    let (health, reports) = hive::testing::health("agent");
    for name in ["job-1", "job-10", "other"] {
        health.scope(name).ok("fine");
    }
    health
        .scope("job-1")
        .scope("inner")
        .degraded("broken", &std::io::Error::other("cause"));

    health.scope("job-1").close();

    let left: Vec<_> = reports
        .entries()
        .iter()
        .map(|entry| entry.id.to_string())
        .collect();
    assert_eq!(left, ["agent.job-10", "agent.other"]);
    assert_eq!(reports.get("agent.other").unwrap().level, Level::Ok);
}

#[tokio::test]
async fn spawning_in_a_stop_hook_is_an_error() {
    static RESULT: Mutex<Option<Result<(), SpawnError>>> = Mutex::new(None);
    let cell = Cell::module("late", "Late").run(|lifecycle: Lifecycle, jobs: Jobs| {
        lifecycle.on_stop("spawn", move |_: HookCtx| {
            *RESULT.lock().unwrap() = Some(jobs.spawn(Job::once("late", |_: JobCtx| async {})));
            async {}
        });
    });

    build([cell], &[]).start().await.unwrap().stop().await.unwrap();

    let result = RESULT.lock().unwrap().take().unwrap();
    assert_eq!(
        result.unwrap_err().to_string(),
        "job `late`: module `late` has stopped"
    );
}
