// SPDX-License-Identifier: Apache-2.0

//! What operators see and tune: parallel phases, readiness, timeouts, times, the state as JSON.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hive::{
    Built, Cell, Config, Controller, Hive, HiveMetrics, Hook, HookCtx, HookState, Job, JobCtx, Jobs, Level,
    Lifecycle, Readiness, Scope, Settings, Shutdown, SpawnError, StartError, State, StopError, Value,
};
use tokio::time::Instant;

/// What happened when, in seconds since the first note.
#[derive(Clone, Value)]
struct Clock {
    begun: Arc<Mutex<Option<Instant>>>,
    notes: Arc<Mutex<Vec<(u64, String)>>>,
}

impl Clock {
    fn new() -> Self {
        Self {
            begun: Arc::default(),
            notes: Arc::default(),
        }
    }

    fn note(&self, what: impl Into<String>) {
        let begun = *self.begun.lock().unwrap().get_or_insert_with(Instant::now);
        self.notes
            .lock()
            .unwrap()
            .push((begun.elapsed().as_secs(), what.into()));
    }

    fn take(&self) -> Vec<(u64, String)> {
        *self.begun.lock().unwrap() = None;
        std::mem::take(&mut self.notes.lock().unwrap())
    }

    fn at(&self, what: &str) -> Option<u64> {
        let notes = self.notes.lock().unwrap();
        notes.iter().find(|(_, note)| note == what).map(|(at, _)| *at)
    }
}

/// A hook that takes a second to start and two to stop.
fn slow(clock: &Clock, name: &'static str) -> Hook {
    let (starting, stopping) = (clock.clone(), clock.clone());
    Hook::new(name)
        .on_start(move |_: HookCtx| {
            let clock = starting.clone();
            async move {
                clock.note(format!("start {name}"));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        })
        .on_stop(move |_: HookCtx| {
            let clock = stopping.clone();
            async move {
                clock.note(format!("stop {name}"));
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        })
}

#[derive(Clone, Value)]
struct Left;
#[derive(Clone, Value)]
struct Right;
/// Has no hook of its own and needs the left side.
#[derive(Clone, Value)]
struct Bridge;

/// Two sides that know nothing of each other, a bridge on the left one, a top on all of it.
fn diamond(clock: &Clock) -> Vec<Cell> {
    let given = clock.clone();
    let left = |lifecycle: Lifecycle, clock: Clock| {
        lifecycle.add(slow(&clock, "left"));
        Left
    };
    let right = |lifecycle: Lifecycle, clock: Clock| {
        lifecycle.add(slow(&clock, "right"));
        Right
    };
    let top = |lifecycle: Lifecycle, clock: Clock, _bridge: Bridge, _right: Right| {
        lifecycle.add(slow(&clock, "top one"));
        lifecycle.add(slow(&clock, "top two"));
    };
    vec![
        Cell::module("clock", "Clock").provide(move || given.clone()),
        Cell::module("left", "Left").provide(left),
        Cell::module("right", "Right").provide(right),
        Cell::module("bridge", "Bridge").provide(|_left: Left| Bridge),
        Cell::module("top", "Top").run(top),
    ]
}

fn build(cells: impl IntoIterator<Item = Cell>, args: &[&str]) -> Built {
    let settings = Settings::new().args(args.iter().copied());
    hive::testing::plan(Hive::new(cells), settings).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn parallel_start_and_stop_follow_the_graph() {
    let clock = Clock::new();
    let running = build(diamond(&clock), &["--hive-parallel"])
        .start()
        .await
        .unwrap();
    // The top has to wait for the left side although only the bridge, which has no hook, lies between.
    assert_eq!(
        clock.take(),
        [
            (0, "start left".to_owned()),
            (0, "start right".to_owned()),
            (1, "start top one".to_owned()),
            (2, "start top two".to_owned()),
        ]
    );

    running.stop().await.unwrap();

    let stopped = clock.take();
    assert_eq!(
        stopped[..2],
        [(0, "stop top two".to_owned()), (2, "stop top one".to_owned())]
    );
    assert_eq!(stopped[2].0, 4);
    assert_eq!(stopped[3].0, 4, "both sides at once: {stopped:?}");
}

#[tokio::test(start_paused = true)]
async fn without_the_option_one_hook_runs_after_the_other() {
    let clock = Clock::new();
    let running = build(diamond(&clock), &[]).start().await.unwrap();
    let starts: Vec<u64> = clock.take().into_iter().map(|(at, _)| at).collect();
    assert_eq!(starts, [0, 1, 2, 3]);

    running.stop().await.unwrap();

    let stops: Vec<u64> = clock.take().into_iter().map(|(at, _)| at).collect();
    assert_eq!(stops, [0, 2, 4, 6]);
}

#[tokio::test(start_paused = true)]
async fn failure_of_a_parallel_start_stops_what_had_started_and_drops_what_was_at_it() {
    let clock = Clock::new();
    let noted = clock.clone();
    let failing = Cell::module("failing", "Fails").run(move |lifecycle: Lifecycle| {
        lifecycle.on_start("port", |_: HookCtx| async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            Err::<(), _>(std::io::Error::other("port taken"))
        });
    });
    let slower = Cell::module("slower", "Slower").run(move |lifecycle: Lifecycle| {
        let noted = noted.clone();
        lifecycle.add(
            Hook::new("slower")
                .on_start(|cx: HookCtx| async move { cx.token.cancelled().await })
                .on_stop(move |_: HookCtx| {
                    noted.note("stop slower");
                    async {}
                }),
        );
    });
    let cells = diamond(&clock).into_iter().chain([failing, slower]);
    let built = build(cells, &["--hive-parallel"]);
    let controller = built.controller();

    let error = controller.start().await.unwrap_err();

    assert_eq!(
        error.to_string(),
        "failed to start: hook `port` of module `failing`: port taken"
    );
    assert_eq!(controller.state(), State::Failed);
    assert!(clock.at("stop left").is_some() && clock.at("stop right").is_some());
    assert_eq!(clock.at("stop slower"), None, "it had not started");
    assert_eq!(clock.at("stop top one"), None, "it was at its start");
    assert_eq!(clock.at("start top two"), None);
    let failed = |name: &str| {
        let hooks = controller.hooks();
        hooks.into_iter().find(|hook| &*hook.name == name).unwrap().state
    };
    assert_eq!(failed("slower"), HookState::Failed);
}

#[tokio::test(start_paused = true)]
async fn stuck_hook_does_not_hold_up_the_others_of_a_parallel_stop() {
    let clock = Clock::new();
    let stuck = Cell::module("stuck", "Hangs").run(|lifecycle: Lifecycle, _: Right| {
        lifecycle.on_stop("hangs", |_: HookCtx| std::future::pending::<()>());
    });
    let cells = diamond(&clock).into_iter().chain([stuck]);
    let running = build(cells, &["--hive-parallel", "--hive-stop-timeout=20s"])
        .start()
        .await
        .unwrap();
    clock.take();

    let Err(StopError::Failed(failures)) = running.stop().await else {
        panic!("the stuck hook was not reported");
    };

    assert_eq!(failures.len(), 1);
    assert!(
        failures[0]
            .to_string()
            .starts_with("hook `hangs` of module `stuck` was not done after"),
        "{}",
        failures[0]
    );
    assert_eq!(clock.at("stop left"), Some(4), "does not wait for the stuck one");
    assert_eq!(
        clock.at("stop right"),
        Some(10),
        "waits for it until its time is up"
    );
}

#[tokio::test(start_paused = true)]
async fn jobs_that_wait_for_readiness_run_once_all_has_started_and_nobody_holds_a_guard() {
    let clock = Clock::new();
    let (noted, held) = (clock.clone(), Arc::new(Mutex::new(None)));
    let hold = held.clone();
    let first = Cell::module("first", "First").run(move |jobs: Jobs, readiness: Readiness| {
        *hold.lock().unwrap() = Some(readiness.guard("list"));
        let noted = noted.clone();
        let announce = Job::once("announce", move |cx: JobCtx| {
            noted.note(format!("ready in {}", cx.module));
            async {}
        });
        jobs.spawn(announce.when_ready())
    });
    let running = build([first].into_iter().chain(diamond(&clock)), &[])
        .start()
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(clock.at("ready in first"), None);
    let health = running.health().get("first.job-announce").unwrap();
    assert_eq!(
        (health.level, health.message.as_str()),
        (Level::Starting, "Waiting until the hive is ready")
    );

    drop(held.lock().unwrap().take());
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert!(clock.at("ready in first").is_some());
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn job_that_waits_for_readiness_is_cancelled_when_the_hive_stops_before() {
    let held = Arc::new(Mutex::new(Vec::new()));
    let hold = held.clone();
    let cell = Cell::module("never", "Never ready").run(move |jobs: Jobs, readiness: Readiness| {
        hold.lock().unwrap().push(readiness.guard("never released"));
        let announce = Job::once("announce", |cx: JobCtx| async move {
            assert!(cx.token.is_cancelled(), "must not run");
            std::future::pending::<()>().await;
        });
        jobs.spawn(announce.when_ready())
    });
    let running = build([cell], &[]).start().await.unwrap();

    let begun = Instant::now();
    let built = running.stop().await.unwrap();

    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(built.controller().jobs().is_empty());
}

#[tokio::test(start_paused = true)]
async fn timeouts_are_scaled_for_slow_machines() {
    let hanging = || {
        Cell::module("hanging", "Hangs").run(|lifecycle: Lifecycle| {
            let hook = Hook::new("hangs").on_start(|_: HookCtx| std::future::pending::<()>());
            lifecycle.add(hook.start_timeout(Duration::from_secs(2)));
        })
    };
    for (scale, expected) in [("1", 2), ("3.5", 7), ("0.5", 1)] {
        let begun = Instant::now();
        let error = build([hanging()], &[&format!("--hive-timeout-scale={scale}")])
            .start()
            .await
            .unwrap_err();
        assert!(matches!(error, StartError::Hook { .. }), "{error}");
        assert_eq!(begun.elapsed().as_secs(), expected, "scale {scale}");
    }
    for bad in ["0", "-1", "NaN", "inf"] {
        let settings = Settings::new().args([format!("--hive-timeout-scale={bad}")]);
        let report = Hive::new([hanging()]).plan(settings).unwrap_err();
        assert!(
            report.to_string().contains("must be above zero"),
            "{bad}: {report}"
        );
    }
}

/// Notes the phases of a hive.
struct Phases(Arc<Mutex<Vec<String>>>);

impl HiveMetrics for Phases {
    fn built(&self, _: Duration) {
        self.0.lock().unwrap().push("built".into());
    }

    fn started(&self, took: Duration, ok: bool) {
        self.0.lock().unwrap().push(format!("started {took:?} {ok}"));
    }

    fn stopped(&self, took: Duration, ok: bool) {
        self.0.lock().unwrap().push(format!("stopped {took:?} {ok}"));
    }
}

#[tokio::test(start_paused = true)]
async fn phases_are_measured_by_the_cell_that_provides_hive_metrics() {
    let phases = Arc::new(Mutex::new(Vec::new()));
    let given = phases.clone();
    let metrics = Cell::module("metrics", "Metrics").provide(move || {
        let phases: Arc<dyn HiveMetrics> = Arc::new(Phases(given.clone()));
        phases
    });
    let clock = Clock::new();
    let cells = diamond(&clock).into_iter().chain([metrics]);

    let plan = hive::testing::plan(Hive::new(cells), Settings::new());
    assert_eq!(plan.report().warnings().count(), 0, "nothing has to ask for it");
    let built = plan.build().unwrap();
    let running = built.start().await.unwrap();
    running.stop().await.unwrap();

    assert_eq!(
        *phases.lock().unwrap(),
        ["built", "started 4s true", "stopped 8s true"]
    );
}

#[derive(Clone, Config)]
struct Options {
    /// A password.
    #[config(secret, default = "hunter2")]
    password: String,
    /// A size.
    #[config(default = 3)]
    size: u8,
}

struct Extra;

#[tokio::test(start_paused = true)]
async fn running_hive_shows_itself_as_json() {
    fn work(lifecycle: Lifecycle, jobs: Jobs, readiness: Readiness) -> Result<(), SpawnError> {
        let guard = Mutex::new(Some(readiness.guard("list")));
        lifecycle.on_start("open \"door\"", |_: HookCtx| async {
            tokio::time::sleep(Duration::from_millis(2)).await;
        });
        jobs.spawn(Job::once("sync", move |_: JobCtx| {
            drop(guard.lock().unwrap().take());
            async { Err::<(), _>(std::io::Error::other("no\nroute")) }
        }))
    }
    let cells = [
        Cell::module("worker", "Works").config::<Options>().run(work),
        Cell::scope::<Extra>("extra", [Cell::module("spare", "Spare")]),
    ];
    let hive = Hive::new(cells).root::<Scope<Extra>>();
    let built = hive::testing::plan(hive, Settings::new().args(["--size=4"]))
        .build()
        .unwrap();
    let controller = built.controller();
    let parse = |controller: &Controller| -> serde_json::Value {
        serde_json::from_str(&controller.to_json()).expect("valid JSON")
    };
    let new = parse(&controller);
    assert_eq!(new["state"], "new");
    assert_eq!(
        new["waiting_for"],
        serde_json::json!(["start hooks", "worker: list"])
    );

    let running = built.start().await.unwrap();
    running.get::<Scope<Extra>>().unwrap().start().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;

    let json = parse(&controller);
    assert_eq!(
        (&json["state"], &json["ready"]),
        (&"running".into(), &true.into())
    );
    assert_eq!(json["hooks"][0]["name"], "open \"door\"");
    assert_eq!(json["hooks"][0]["start_took_us"], 2000);
    assert_eq!(json["hooks"][0]["running_for_us"], serde_json::Value::Null);
    assert_eq!(json["jobs"][0]["last_error"], "no\nroute");
    assert_eq!(json["jobs"][0]["state"], "failed");
    assert!(json["jobs"][0]["age_us"].is_u64());
    assert!(json["jobs"][0]["running_for_us"].is_null());
    assert_eq!(
        json["scopes"],
        serde_json::json!([{"name": "extra", "running": true}])
    );
    let setting = |name: &str| {
        let settings = json["settings"].as_array().unwrap();
        settings
            .iter()
            .find(|setting| setting["name"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(setting("password")["value"], "***");
    assert_eq!(setting("size")["value"], "4");
    assert!(!controller.to_json().contains("hunter2"));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn hooks_at_work_tell_for_how_long() {
    let cell = Cell::module("slow", "Slow").run(|lifecycle: Lifecycle| {
        lifecycle.on_start("wait", |cx: HookCtx| async move { cx.token.cancelled().await });
    });
    let stop = Cell::module("stop", "Stop")
        .provide(|shutdown: Shutdown| Arc::new(shutdown))
        .library();
    let hive = Hive::new([cell, stop]).root::<Arc<Shutdown>>();
    let built = hive::testing::plan(hive, Settings::new()).build().unwrap();
    let (controller, shutdown) = (built.controller(), built.get::<Arc<Shutdown>>().unwrap());

    let starting = controller.clone();
    let start = tokio::spawn(async move { starting.start().await });
    tokio::time::sleep(Duration::from_secs(3)).await;

    let hook = controller.hooks().remove(0);
    assert_eq!(
        (hook.state, hook.running_for),
        (HookState::Starting, Some(Duration::from_secs(3)))
    );
    shutdown.request("seen enough");
    assert!(start.await.unwrap().is_err());
    assert_eq!(controller.hooks().remove(0).running_for, None);
}

#[test]
fn schema_describes_every_kind_of_setting() {
    #[derive(Clone, Config)]
    struct Kinds {
        /// A switch.
        enable_it: bool,
        /// A number.
        #[config(default = "-3")]
        offset: i32,
        /// A count.
        #[config(default = 7)]
        count: u16,
        /// A share.
        #[config(default = 0.5)]
        share: f64,
        /// A time.
        #[config(default = "5s")]
        period: Duration,
        /// Names.
        #[config(default = "a,b")]
        names: Vec<String>,
        /// Labels.
        labels: std::collections::BTreeMap<String, String>,
        /// Text with "quotes".
        text: Option<String>,
        /// Secret.
        #[config(secret, default = "hunter2")]
        key: String,
        /// Old.
        #[config(deprecated = "use `--text`")]
        old_text: String,
        /// It is never read.
        #[config(hidden)]
        inner: u8,
    }
    let cell = Cell::module("kinds", "Kinds").config::<Kinds>();
    let plan = hive::testing::plan(Hive::new([cell]), Settings::new());

    let text = plan.schema("kinds");

    let schema: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
    assert_eq!(schema["additionalProperties"], false);
    let of = |name: &str| &schema["properties"][name];
    assert_eq!(of("enable-it")["type"], serde_json::json!(["boolean", "string"]));
    assert_eq!(of("enable-it")["default"], false);
    assert_eq!(of("offset")["default"], -3);
    assert_eq!(
        (&of("count")["default"], &of("count")["minimum"]),
        (&7.into(), &0.into())
    );
    assert_eq!(of("share")["default"], 0.5);
    assert_eq!(of("period")["default"], "5s");
    assert_eq!(of("names")["default"], serde_json::json!(["a", "b"]));
    assert_eq!(of("labels")["type"], serde_json::json!(["object", "string"]));
    assert_eq!(of("text")["description"], "Text with \"quotes\".");
    assert_eq!(of("text").get("default"), None);
    assert_eq!(of("key")["writeOnly"], true);
    assert!(!text.contains("hunter2"));
    assert_eq!(of("old-text")["deprecated"], true);
    assert_eq!(schema["properties"].get("inner"), None);
    let config: serde_json::Value = serde_json::from_str(&plan.config_json()).expect("valid JSON");
    assert!(
        config
            .as_array()
            .unwrap()
            .iter()
            .any(|setting| setting["name"] == "period" && setting["origin"] == "default")
    );
}
