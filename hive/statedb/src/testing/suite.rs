// SPDX-License-Identifier: Apache-2.0

//! The hive of the `statedb` script suite: tables `test1`, `test2`, `test-objects`, and a reconciler with a mock
//! target, driven by commands.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use hive::{Cell, HealthSink, Jobs, Level, Members, MemoryHealth};
use hive_script::{
    Command, CommandError, CommandHandle, Context, Flag, Invocation, Outcome, Output, Spec, regexp,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use super::TestTables;
use crate::{
    Db, Error, Index, InitGuard, Obj, Revision, Row, RwTable,
    reconciler::{
        BatchOps, Config, Delete, Operation, Ops, Reconciler, ReconcilerHandle, ReconcilerMetrics, Round,
        Status, StatusField, StatusKind, Update,
    },
    row::{self, BoxError},
};

/// Pause between two checks of a condition that a command waits for.
const POLL: Duration = Duration::from_millis(5);

/// Returns all cells of the suite but [`crate::cell`]: tables, the mock target, its commands and `health`.
pub fn cell() -> Cell {
    Cell::module("test", "StateDB script tests")
        .provide(tables)
        .provide(Suite::new)
        .provide(health)
        .provide(health_sink)
        .provide(commands)
}

fn tables(db: Db) -> Result<Arc<TestTables>, Error> {
    Ok(Arc::new(TestTables::new(&db)?))
}

fn health() -> Arc<MemoryHealth> {
    Arc::new(MemoryHealth::new())
}

fn health_sink(memory: Arc<MemoryHealth>) -> Arc<dyn HealthSink> {
    memory
}

/// An object of the table `test-objects`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct TargetObject {
    #[serde(rename(serialize = "ID"))]
    id: u64,
    #[serde(rename(serialize = "Faulty"))]
    faulty: bool,
    #[serde(rename(serialize = "Updates"))]
    updates: u64,
    #[serde(rename(serialize = "Status"))]
    status: Status,
}

const ID: Index<TargetObject, u64> = Index::new("id", |object, keys| keys.add(&object.id));

impl Row for TargetObject {
    fn header() -> &'static [&'static str] {
        &["ID", "Faulty", "StatusKind", "StatusError"]
    }
    fn cells(&self) -> Vec<String> {
        let (kind, error) = (self.status.kind.to_string(), self.status.error_text().to_owned());
        vec![self.id.to_string(), self.faulty.to_string(), kind, error]
    }
    fn to_json(&self) -> Result<Value, BoxError> {
        row::to_json(self)
    }
    fn from_yaml(text: &str) -> Result<Self, BoxError> {
        row::from_yaml(text)
    }
}

/// What the commands share.
struct Suite {
    db: Db,
    table: RwTable<TargetObject>,
    initializer: InitGuard,
    jobs: Jobs,
    faulty: Arc<AtomicBool>,
    history: Arc<History>,
    counters: Arc<Counters>,
    reconciler: Mutex<Option<ReconcilerHandle>>,
}

impl Suite {
    fn new(db: Db, jobs: Jobs) -> Result<Arc<Self>, Error> {
        let table = RwTable::builder("test-objects").primary(ID).build(&db)?;
        let mut txn = db.write(&[&table]);
        let initializer = table.register_initializer(&mut txn, "test")?;
        txn.commit();
        Ok(Arc::new(Self {
            db,
            table,
            initializer,
            jobs,
            faulty: Arc::default(),
            history: Arc::default(),
            counters: Arc::default(),
            reconciler: Mutex::new(None),
        }))
    }

    fn start(&self, options: &[String]) -> Result<(), CommandError> {
        let has = |option: &str| options.iter().any(|given| given == option);
        if let Some(unknown) = options
            .iter()
            .find(|option| !["with-prune", "with-refresh", "with-batchops"].contains(&option.as_str()))
        {
            return Err(CommandError::usage(format_args!("unknown option {unknown}")));
        }
        let config = Config {
            retry_min: Duration::from_millis(1),
            retry_max: Duration::from_millis(1),
            // Longer than a busy machine takes between two commands of a script.
            refresh_interval: has("with-refresh").then_some(Duration::from_millis(500)),
            refresh_rate: 10_000,
            prune_interval: has("with-prune").then_some(Duration::from_secs(3600)),
            metrics: Arc::clone(&self.counters) as Arc<dyn ReconcilerMetrics>,
            ..Config::default()
        };
        let target = Target {
            faulty: Arc::clone(&self.faulty),
            history: Arc::clone(&self.history),
        };
        let field = StatusField {
            get: |object: &TargetObject| object.status.clone(),
            set: |object, status| object.status = status,
        };
        let (db, table) = (&self.db, self.table.clone());
        let handle = match has("with-batchops") {
            true => Reconciler::new(db, table, field, AtOnce(target), config).spawn(&self.jobs),
            false => Reconciler::new(db, table, field, target, config).spawn(&self.jobs),
        };
        let handle = handle.map_err(|err| CommandError::chain(&err))?;
        *self.reconciler.lock() = Some(handle);
        Ok(())
    }

    fn mark_initialized(&self) -> Result<(), Error> {
        let mut txn = self.db.write(&[&self.table]);
        txn.initialized(&self.initializer)?;
        txn.commit();
        Ok(())
    }
}

/// Operations done, oldest first.
struct History {
    done: watch::Sender<Vec<String>>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            done: watch::Sender::new(Vec::new()),
        }
    }
}

impl History {
    fn add(&self, operation: String, failed: bool) -> Result<(), BoxError> {
        let text = if failed {
            format!("{operation} fail")
        } else {
            operation
        };
        self.done.send_modify(|done| done.push(text));
        if failed { Err("oops".into()) } else { Ok(()) }
    }
}

/// A target that records operations.
struct Target {
    faulty: Arc<AtomicBool>,
    history: Arc<History>,
}

impl Target {
    fn fails(&self, object: &TargetObject) -> bool {
        object.faulty || self.faulty.load(Ordering::Acquire)
    }
}

impl Ops<TargetObject> for Target {
    fn update(&mut self, _: &Round<'_>, _: Revision, object: &mut TargetObject) -> Result<(), BoxError> {
        let name = if object.status.kind == StatusKind::Refreshing {
            "update-refresh"
        } else {
            "update"
        };
        let failed = self.fails(object);
        object.updates += 1;
        self.history.add(format!("{name}({})", object.id), failed)
    }
    fn delete(&mut self, _: &Round<'_>, _: Revision, object: &TargetObject) -> Result<(), BoxError> {
        self.history
            .add(format!("delete({})", object.id), self.fails(object))
    }
    fn prune(
        &mut self,
        _: &Round<'_>,
        objects: &mut dyn Iterator<Item = &Obj<TargetObject>>,
    ) -> Result<(), BoxError> {
        self.history.add(
            format!("prune(n={})", objects.count()),
            self.faulty.load(Ordering::Acquire),
        )
    }
}

/// The same target, which takes all of a round at once.
struct AtOnce(Target);

impl BatchOps<TargetObject> for AtOnce {
    fn batch(
        &mut self,
        round: &Round<'_>,
        deletes: &mut [Delete<TargetObject>],
        updates: &mut [Update<TargetObject>],
    ) {
        for entry in deletes {
            entry.result = self.0.delete(round, entry.revision, &entry.object);
        }
        for entry in updates {
            entry.result = self.0.update(round, entry.revision, &mut entry.object);
        }
    }
    fn prune(
        &mut self,
        round: &Round<'_>,
        objects: &mut dyn Iterator<Item = &Obj<TargetObject>>,
    ) -> Result<(), BoxError> {
        Ops::prune(&mut self.0, round, objects)
    }
}

/// Measurements under the names that `expvar` shows.
#[derive(Default)]
struct Counters(Mutex<BTreeMap<&'static str, f64>>);

impl Counters {
    fn add(&self, name: &'static str, value: f64) {
        *self.0.lock().entry(name).or_default() += value;
    }
}

impl ReconcilerMetrics for Counters {
    fn round(&self) {
        self.add("reconciliation_count.test", 1.0);
    }
    fn operation(&self, operation: Operation, took: Duration) {
        let name = match operation {
            Operation::Update => "reconciliation_duration.test/update",
            Operation::Delete => "reconciliation_duration.test/delete",
        };
        self.add(name, took.as_secs_f64());
    }
    fn errors(&self, new: usize, current: usize) {
        self.add("reconciliation_total_errors.test", new as f64);
        self.0
            .lock()
            .insert("reconciliation_current_errors.test", current as f64);
    }
    fn prune(&self, took: Duration, failed: bool) {
        self.add("prune_count.test", 1.0);
        self.add("prune_duration.test", took.as_secs_f64());
        self.add("prune_total_errors.test", f64::from(u8::from(failed)));
        self.0
            .lock()
            .insert("prune_current_errors.test", f64::from(u8::from(failed)));
    }
}

fn commands(suite: Arc<Suite>, tables: Arc<TestTables>, health: Arc<MemoryHealth>) -> Members<CommandHandle> {
    // The commands require the tables, so that they are constructed.
    drop(tables);
    let specs = [
        (
            Spec::new("mark-init", "Mark the table test-objects initialized"),
            Kind::MarkInit,
        ),
        (
            Spec::new("start-reconciler", "Start the reconciler")
                .args("[with-prune] [with-refresh] [with-batchops]"),
            Kind::Start,
        ),
        (Spec::new("prune", "Request pruning"), Kind::Prune),
        (
            Spec::new("set-faulty", "Make all operations fail, or succeed again").args("true|false"),
            Kind::SetFaulty,
        ),
        (
            Spec::new("expect-ops", "Wait for operations").args("operation..."),
            Kind::Expect,
        ),
        (
            Spec::new("expvar", "Print the measurements")
                .flag(Flag::string("out", "", "File to write to instead of stdout").short('o')),
            Kind::Expvar,
        ),
        (
            Spec::new("health", "Print health reports, wait for one that matches")
                .args("[regexp]")
                .regexp(),
            Kind::Health,
        ),
    ];
    let make = |(spec, kind)| {
        Arc::new(SuiteCommand {
            spec,
            kind,
            suite: Arc::clone(&suite),
            health: Arc::clone(&health),
        }) as CommandHandle
    };
    Members(specs.into_iter().map(make).collect())
}

#[derive(Clone, Copy)]
enum Kind {
    MarkInit,
    Start,
    Prune,
    SetFaulty,
    Expect,
    Expvar,
    Health,
}

struct SuiteCommand {
    spec: Spec,
    kind: Kind,
    suite: Arc<Suite>,
    health: Arc<MemoryHealth>,
}

#[async_trait]
impl Command for SuiteCommand {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    async fn run(&self, cx: &mut Context<'_>, inv: Invocation) -> Result<Outcome, CommandError> {
        match self.kind {
            Kind::MarkInit => self.suite.mark_initialized().map_err(CommandError::new)?,
            Kind::Start => self.suite.start(inv.args())?,
            Kind::Prune => match &*self.suite.reconciler.lock() {
                Some(handle) => handle.prune(),
                None => return Err(CommandError::new("the reconciler is not started")),
            },
            Kind::SetFaulty => {
                let on = inv.arg(0).and_then(|text| text.parse().ok());
                let on = on.ok_or_else(|| CommandError::usage("expected 'true' or 'false'"))?;
                self.suite.faulty.store(on, Ordering::Release);
            }
            Kind::Expect => self.expect(cx, inv.args()).await?,
            Kind::Expvar => return self.expvar(cx, &inv),
            Kind::Health => self.wait_for_health(cx, inv.arg(0)).await?,
        }
        Ok(Outcome::Silent)
    }
}

impl SuiteCommand {
    /// Waits until the latest operations are the wanted ones, in any order.
    async fn expect(&self, cx: &mut Context<'_>, wanted: &[String]) -> Result<(), CommandError> {
        if wanted.is_empty() {
            return Err(CommandError::usage("expected operations"));
        }
        let mut wanted = wanted.to_vec();
        wanted.sort();
        let mut history = self.suite.history.done.subscribe();
        let matches = |done: &Vec<String>| {
            let Some(from) = done.len().checked_sub(wanted.len()) else {
                return false;
            };
            let mut latest = done[from..].to_vec();
            latest.sort();
            latest == wanted
        };
        let waited = cx
            .until_interrupted(history.wait_for(matches))
            .await
            .map(|found| found.is_ok());
        match waited {
            Ok(_) => Ok(()),
            Err(interruption) => {
                cx.log(format!(
                    "operations so far: {}\n",
                    self.suite.history.done.borrow().join(" ")
                ));
                Err(interruption)
            }
        }
    }

    fn expvar(&self, cx: &Context<'_>, inv: &Invocation) -> Result<Outcome, CommandError> {
        let mut out = String::new();
        for (name, value) in &*self.suite.counters.0.lock() {
            let _ = writeln!(out, "{name}: {value}");
        }
        match inv.string("out") {
            "" => Ok(Outcome::stdout(out)),
            file => {
                cx.write_file(file, out)
                    .map_err(|err| CommandError::io("open", cx.path(file), &err))?;
                Ok(Outcome::Output(Output::default()))
            }
        }
    }

    /// Prints the reports; with a pattern waits until one matches.
    async fn wait_for_health(&self, cx: &mut Context<'_>, pattern: Option<&str>) -> Result<(), CommandError> {
        let pattern = pattern
            .map(regexp::compile)
            .transpose()
            .map_err(CommandError::new)?;
        loop {
            let lines = self.health_lines();
            let found: Vec<&String> = lines
                .iter()
                .filter(|line| pattern.as_ref().is_none_or(|pattern| pattern.is_match(line)))
                .collect();
            if pattern.is_none() || !found.is_empty() {
                for line in found {
                    cx.log(format!("{line}\n"));
                }
                return Ok(());
            }
            if let Err(interruption) = cx.until_interrupted(tokio::time::sleep(POLL)).await {
                cx.log(lines.iter().map(|line| format!("{line}\n")).collect::<String>());
                return Err(interruption);
            }
        }
    }

    fn health_lines(&self) -> Vec<String> {
        let line = |entry: hive::HealthEntry| {
            let component = entry.id.component().join(".");
            let level = if entry.level == Level::Degraded {
                "Degraded"
            } else {
                "OK"
            };
            let error = entry.error.unwrap_or_default();
            format!(
                "{component}: level={level} message={} error={error}",
                entry.message
            )
        };
        self.health.entries().into_iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests;
