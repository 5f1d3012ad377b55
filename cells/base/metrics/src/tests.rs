// SPDX-License-Identifier: Apache-2.0

//! The cell from outside: exposition and commands.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hive::{All, Built, Cell, Hive, Members, Settings};
use hive_script::{CommandHandle, Environment, Lifetime, State, default_commands, named};

use crate::*;

crate::declare!(fn test_metrics);

/// The metrics of the suite `metrics`.
fn test_metrics() -> Members<MetricHandle> {
    let gauge = Gauge::new(Opts::unprefixed("test_A", "A"));
    gauge.set(1.0);
    let counter = Counter::new(Opts::unprefixed("test_B", "B").disabled());
    counter.add(2.0);
    let histogram = HistogramVec::new(Opts::unprefixed("test_C_seconds", "C"), ["lbl"]);
    for value in [0.01, 0.01, 0.1, 1.0] {
        histogram.with(["a"]).observe(value);
    }
    Members(vec![Arc::new(gauge), Arc::new(counter), Arc::new(histogram)])
}

fn build(settings: Settings) -> Built {
    let cells = [cell(), Cell::module("test", "Test metrics").provide(test_metrics)];
    let hive = Hive::new(cells)
        .root::<All<CommandHandle>>()
        .root::<Arc<Registry>>()
        .root::<Arc<Sampler>>();
    hive.plan(settings).unwrap().build().unwrap()
}

/// Runs a script and returns its log.
async fn script(built: &Built, text: &str) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(Mutex::new(String::new()));
    let sink = log.clone();
    let mut commands = default_commands();
    commands.extend(built.get::<All<CommandHandle>>().unwrap().into_iter().map(named));
    let sink = Box::new(move |text: &str| sink.lock().unwrap().push_str(text));
    let mut state = State::new(
        dir.path(),
        commands,
        Environment::new(),
        Lifetime::unlimited(),
        sink,
    );
    state
        .execute("test", text)
        .await
        .map_err(|error| error.to_string())?;
    let log = log.lock().unwrap().clone();
    Ok(log)
}

#[tokio::test]
async fn values_are_listed_in_columns() {
    let built = build(Settings::new());

    let log = script(&built, "metrics ^test\n").await.unwrap();

    assert_eq!(
        log,
        "> metrics ^test\nMetric           Labels   Value\ntest_A                    1.000000\ntest_C_seconds   lbl=a    10ms / 800ms / 980ms\n"
    );
}

#[tokio::test]
async fn labels_are_searched_too() {
    let built = build(Settings::new());

    let log = script(&built, "metrics 'seconds lbl=a$'\nmetrics nothing\n")
        .await
        .unwrap();

    assert!(log.contains("test_C_seconds") && !log.contains("test_A"), "{log}");
    assert!(
        log.ends_with("> metrics nothing\nMetric   Labels   Value\n"),
        "{log}"
    );
}

#[tokio::test]
async fn values_are_listed_as_json_and_yaml() {
    let built = build(Settings::new());

    let log = script(
        &built,
        "metrics -f json test_A\nmetrics -f json test_C\nmetrics --format=yaml test\n",
    )
    .await
    .unwrap();

    assert!(
        log.contains("[\n  {\n    \"name\": \"test_A\",\n    \"value\": 1\n  }\n]\n"),
        "{log}"
    );
    assert!(log.contains("[\n  {\n    \"labels\": {\n      \"lbl\": \"a\"\n    },\n    \"name\": \"test_C_seconds\",\n    \"value\": 0.8\n  }\n]\n"), "{log}");
    assert!(log.ends_with("- labels: {}\n  name: test_A\n  value: 1\n- labels:\n    lbl: a\n  name: test_C_seconds\n  value: 0.8\n"), "{log}");
    let error = script(&built, "metrics -f xml\n").await.unwrap_err();
    assert_eq!(
        error,
        "test:1: metrics: unknown format \"xml\", expected table, yaml or json"
    );
}

#[tokio::test]
async fn samples_include_disabled_metrics() {
    let built = build(Settings::new());
    built.get::<Arc<Sampler>>().unwrap().sample();

    let log = script(&built, "metrics -s -o out test_\ncat out\n")
        .await
        .unwrap();

    assert!(
        log.ends_with(
            "Metric           Labels   5m                     30m            60m            120m\n\
             test_A                    1                      0              0              0\n\
             test_B                    2                      0              0              0\n\
             test_C_seconds   lbl=a    10ms / 800ms / 980ms   0s / 0s / 0s   0s / 0s / 0s   0s / 0s / 0s\n"
        ),
        "{log}"
    );
}

#[tokio::test]
async fn samples_are_dumped() {
    let built = build(Settings::new());
    built.get::<Arc<Sampler>>().unwrap().sample();

    let log = script(
        &built,
        "metrics -s -f json -o out test_\ncat out\nmetrics -s -f yaml test_C\n",
    )
    .await
    .unwrap();

    let json = log
        .split("[stdout]\n")
        .nth(1)
        .unwrap()
        .split("> metrics")
        .next()
        .unwrap();
    let dump: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(
        (&dump["nsamples"], &dump["interval_seconds"]),
        (&24.into(), &300.into())
    );
    assert_eq!(
        dump["samples"][1]["gaugeOrCounter"]["samples"]
            .as_array()
            .unwrap()
            .len(),
        24
    );
    assert_eq!(dump["samples"][1]["latest"], "2");
    assert_eq!(dump["samples"][2]["labels"], "lbl=a");
    assert!(log.contains("nsamples: 24\ninterval_seconds: 300\nsamples:\n    - name: test_C_seconds\n      labels: lbl=a\n      histogram:\n        p50:\n"), "{log}");
}

#[tokio::test]
async fn the_first_metric_that_matches_is_plotted() {
    let built = build(Settings::new());
    built.get::<Arc<Sampler>>().unwrap().sample();

    let log = script(
        &built,
        "metrics/plot test_C\nmetrics/plot --rate -o out test_\ngrep 'test_A .rate per second' out\n! grep test_B out\n",
    )
    .await
    .unwrap();

    assert!(
        log.contains("test_C_seconds (p99)") && log.contains("[ lbl=a ]"),
        "{log}"
    );
    let log = script(&built, "metrics/plot\nmetrics/plot nope\n").await.unwrap();
    assert!(log.contains("regexp needed to find metric\n"), "{log}");
    assert!(log.contains("no metric found matching regexp \"nope\""), "{log}");
}

#[tokio::test]
async fn page_holds_the_samples() {
    let built = build(Settings::new());
    built.get::<Arc<Sampler>>().unwrap().sample();

    script(
        &built,
        "metrics/html -o page\ngrep '\"latest\":\"2\",\"exists\":1' page\ngrep '</html>' page\n! grep SAMPLES page\n",
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn flag_turns_metrics_on_and_off() {
    let built = build(Settings::new().flag("metrics", "+test_B,-test_A"));
    let text = exposition(&built.get::<Arc<Registry>>().unwrap());

    assert!(
        text.contains("\ntest_B 2\n") && !text.contains("test_A"),
        "{text}"
    );
    assert!(matches!(
        Registry::new([], &["test_A".to_owned()]),
        Err(RegistryError::Change(_))
    ));
}

#[test]
fn metric_that_does_not_exist_cannot_be_shown() {
    let change = |change: &str| {
        let metric: MetricHandle = Arc::new(Counter::new(Opts::new("api_calls_total", "")));
        Registry::new([metric], &[change.to_owned()]).map(drop)
    };

    assert_eq!(
        change("+nope").unwrap_err().to_string(),
        "`+nope`: there is no such metric"
    );
    assert_eq!(
        change("+cilium_api_cals_total").unwrap_err().to_string(),
        "`+cilium_api_cals_total`: there is no such metric; did you mean `+cilium_api_calls_total`?"
    );
    change("-nope").unwrap();
}

/// They were found by a constructor, when all other settings were right.
#[test]
fn metrics_that_do_not_exist_are_findings_of_the_plan_beside_others() {
    for (cell, flag, near) in [
        (cell(), "metrics", "cilium_hive_jobs_runs_total"),
        (
            operator_cell(),
            "operator-metrics",
            "cilium_operator_hive_jobs_runs_total",
        ),
    ] {
        let misspelt = near.replace("_total", "_totl");
        let settings = Settings::new()
            .flag(
                flag,
                format!("+nope,+{misspelt},+hive_jobs_runs_totl,+{near},oops"),
            )
            .flag("metrics-sampling-interval", "often");

        let report = Hive::new([cell])
            .plan(settings)
            .map(drop)
            .unwrap_err()
            .to_string();

        for expected in [
            format!("`--{flag}` (from flag): `+nope`: there is no such metric\n"),
            format!(
                "`--{flag}` (from flag): `+{misspelt}`: there is no such metric; did you mean `+{near}`?\n"
            ),
            "`+hive_jobs_runs_totl`: there is no such metric; did you mean `+hive_jobs_runs_total`?\n"
                .to_owned(),
            format!("`--{flag}` (from flag): `oops` must start with + or -\n"),
            "`metrics-sampling-interval` (from flag): `often` is not a duration".to_owned(),
        ] {
            assert!(report.contains(&expected), "{expected}\n{report}");
        }
        assert!(report.contains("5 errors"), "{report}");
    }
}

/// Only the first one was named, and the flag was that of agents in every program.
#[test]
fn all_metrics_that_no_cell_of_the_program_has_are_named_with_their_flag() {
    for (cell, flag) in [(cell(), "metrics"), (operator_cell(), "operator-metrics")] {
        let hive = Hive::new([cell]).root::<Arc<Registry>>();
        let names = "+workqueue_depth,+workqueue_adds_total";
        let plan = hive.plan(Settings::new().flag(flag, names)).unwrap();

        let error = plan.build().map(drop).unwrap_err().to_string();

        let start = format!("--{flag}: `+workqueue_depth`: there is no such metric");
        assert!(error.contains(&start), "{error}");
        assert!(
            error.contains("`+workqueue_adds_total`: there is no such metric"),
            "{error}"
        );
    }
}

#[test]
fn changes_without_a_sign_are_findings_of_the_plan() {
    for (cell, flag) in [(cell(), "metrics"), (operator_cell(), "operator-metrics")] {
        let report = Hive::new([cell]).plan(Settings::new().flag(flag, "one,+two,three"));

        let report = report.map(drop).unwrap_err().to_string();

        for name in ["one", "three"] {
            let expected = format!("`--{flag}` (from flag): `{name}` must start with + or -");
            assert!(report.contains(&expected), "{report}");
        }
    }
}

#[test]
fn two_metrics_of_one_name_are_refused() {
    let metric = || -> MetricHandle { Arc::new(Counter::new(Opts::new("x", ""))) };

    assert!(
        matches!(Registry::new([metric(), metric()], &[]), Err(RegistryError::Duplicate(name)) if name == "cilium_x")
    );
}

#[test]
fn exposition_escapes_and_sorts() {
    let gauge = GaugeVec::new(Opts::new("b", "two\nlines"), ["z", "a"]);
    gauge.with(["q\"\\\n", "1"]).set(0.5);
    let histogram = Histogram::with_buckets(Opts::new("a_seconds", "A"), [0.5, 0.1]);
    histogram.observe(0.3);
    let empty = CounterVec::new(Opts::new("empty_total", "None"), ["a"]);
    let registry = Registry::new(
        [
            Arc::new(gauge) as _,
            Arc::new(histogram) as _,
            Arc::new(empty) as _,
        ],
        &[],
    )
    .unwrap();

    assert_eq!(
        exposition(&registry),
        "# HELP cilium_a_seconds A\n# TYPE cilium_a_seconds histogram\n\
         cilium_a_seconds_bucket{le=\"0.1\"} 0\ncilium_a_seconds_bucket{le=\"0.5\"} 1\n\
         cilium_a_seconds_bucket{le=\"+Inf\"} 1\ncilium_a_seconds_sum 0.3\ncilium_a_seconds_count 1\n\
         # HELP cilium_b two\\nlines\n# TYPE cilium_b gauge\ncilium_b{a=\"1\",z=\"q\\\"\\\\\\n\"} 0.5\n"
    );
}

#[test]
fn tables_and_reconcilers_are_measured() {
    use statedb::Metrics;
    use statedb::reconciler::Operation;

    let tables = TableMetricSet::new();
    tables.objects("services", 3);
    tables.write_txn_duration("writer", &["services"], Duration::from_micros(20));
    let reconcilers = ReconcilerMetricSet::new();
    let module = reconcilers.for_module("lb");
    module.round();
    module.operation(Operation::Update, Duration::from_millis(1));
    module.errors(2, 1);
    module.prune(Duration::from_millis(1), true);
    let metrics: Vec<_> = tables
        .metrics()
        .into_iter()
        .chain(reconcilers.metrics())
        .collect();
    let on: Vec<String> = metrics
        .iter()
        .map(|metric| format!("+{}", metric.opts().name()))
        .collect();

    let text = exposition(&Registry::new(metrics, &on).unwrap());

    for line in [
        "cilium_statedb_table_objects{table=\"services\"} 3",
        "cilium_statedb_write_txn_duration_seconds_count{handle=\"writer\"} 1",
        "cilium_reconciler_count{module_id=\"lb\"} 1",
        "cilium_reconciler_duration_seconds_count{module_id=\"lb\",op=\"update\"} 1",
        "cilium_reconciler_errors_total{module_id=\"lb\"} 2",
        "cilium_reconciler_errors_current{module_id=\"lb\"} 1",
        "cilium_reconciler_prune_count{module_id=\"lb\"} 1",
        "cilium_reconciler_prune_errors_total{module_id=\"lb\"} 1",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "{line} in {text}");
    }
}

#[tokio::test]
async fn phases_of_the_hive_are_measured() {
    let hive = Hive::new([cell()]).root::<Arc<Registry>>();
    let settings = Settings::new().flag("metrics", "+hive_start_duration_seconds");
    let running = hive::testing::start_with(hive, settings).await;
    let registry = running.get::<Arc<Registry>>().unwrap();

    let text = exposition(&registry);

    let line = text
        .lines()
        .find(|line| line.starts_with("cilium_hive_start_duration_seconds "))
        .unwrap_or_else(|| panic!("{text}"));
    let seconds: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(seconds > 0.0, "{line}");
    assert!(!text.contains("cilium_hive_stop_duration_seconds"), "{text}");
    hive::testing::stop(running).await;
}

#[test]
fn names_start_with_the_namespace_of_the_program() {
    let metrics = || -> [MetricHandle; 2] {
        [
            Arc::new(Counter::new(Opts::new("kvstore_errors_total", "").disabled())),
            Arc::new(Gauge::new(Opts::unprefixed("up", ""))),
        ]
    };
    let exposed = |change: &str| {
        let registry = Registry::in_namespace(Namespace::OPERATOR, metrics(), &[change.to_owned()]);
        registry.map(|registry| exposition(&registry))
    };

    for change in ["+kvstore_errors_total", "+cilium_operator_kvstore_errors_total"] {
        let text = exposed(change).unwrap();

        assert!(
            text.contains("\ncilium_operator_kvstore_errors_total 0\n"),
            "{text}"
        );
        assert!(text.contains("\nup 0\n"), "{text}");
    }
    assert_eq!(
        exposed("+cilium_kvstore_errors_total").unwrap_err().to_string(),
        "`+cilium_kvstore_errors_total`: there is no such metric; did you mean \
         `+cilium_operator_kvstore_errors_total`?"
    );
}

#[test]
fn registry_of_the_cell_has_the_namespace_of_the_program() {
    let hive = Hive::new([cell_in(Namespace::KVSTOREMESH)]).root::<Arc<Registry>>();
    let built = hive.plan(Settings::new()).unwrap().build().unwrap();

    let reference = built.get::<Arc<Registry>>().unwrap().reference();

    assert!(
        reference.contains("`cilium_kvstoremesh_hive_jobs_runs_total`"),
        "{reference}"
    );
    assert!(!reference.contains("`cilium_hive"), "{reference}");
}
