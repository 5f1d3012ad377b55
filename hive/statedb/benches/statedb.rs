// SPDX-License-Identifier: Apache-2.0

//! Speed of tables and of the reconciler, as a table and, with `--json FILE`, as JSON.
//!
//! `cargo bench -p skep-statedb -- [--json FILE] [FILTER]`. Each row is the median of several runs; rates of a single
//! thread are by its processor time, so that other load disturbs them little. Targets are those the
//! project set itself; they were measured with the Go library on a machine of two cores.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    hint::black_box,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use statedb::{
    Db, Index, Obj, RwTable,
    reconciler::{BatchOps, Config, Delete, NoHealth, Reconciler, Round, Status, StatusField, Update},
    row::BoxError,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

#[derive(Clone)]
struct Item {
    id: u64,
    tags: Arc<BTreeSet<String>>,
}

const ID: Index<Item, u64> = Index::new("id", |item, keys| keys.add(&item.id));
const TAGS: Index<Item, str> = Index::new("tags", |item, keys| {
    item.tags.iter().for_each(|tag| keys.add(tag))
});

fn item(id: u64) -> Item {
    Item {
        id,
        tags: Arc::default(),
    }
}

fn table(db: &Db, name: &str) -> RwTable<Item> {
    RwTable::builder(name)
        .primary(ID)
        .build_plain(db)
        .expect("a fresh table")
}

/// Result of one measurement.
struct Row {
    name: &'static str,
    value: f64,
    unit: &'static str,
    /// What to be ahead of, where the project has a number.
    target: Option<f64>,
    /// Whether more is better.
    more: bool,
}

struct Report {
    filter: Option<String>,
    rows: Vec<Row>,
}

impl Report {
    fn wanted(&self, name: &str) -> bool {
        self.filter
            .as_ref()
            .is_none_or(|filter| name.contains(filter.as_str()))
    }

    fn add(
        &mut self,
        name: &'static str,
        value: f64,
        unit: &'static str,
        target: impl Into<Option<f64>>,
        more: bool,
    ) {
        let target = target.into();
        let row = Row {
            name,
            value,
            unit,
            target,
            more,
        };
        println!("{}", line(&row));
        self.rows.push(row);
    }

    /// Measures operations per second: median of five runs of `run`, which returns how many it did in what time.
    fn rate(
        &mut self,
        name: &'static str,
        target: impl Into<Option<f64>>,
        mut run: impl FnMut() -> (u64, Duration),
    ) {
        if !self.wanted(name) {
            return;
        }
        run();
        let mut rates: Vec<f64> = (0..5)
            .map(|_| {
                let (count, took) = run();
                count as f64 / took.as_secs_f64() / 1e6
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        self.add(name, rates[2], "M/s", target, true);
    }
}

fn line(row: &Row) -> String {
    let Row {
        name,
        value,
        unit,
        target,
        more,
    } = row;
    let Some(target) = target else {
        return format!("{name:<58} {value:>9.3} {unit:<4}");
    };
    let ahead = if *more { value / target } else { target / value };
    format!("{name:<58} {value:>9.3} {unit:<4}  target {target:>8.2}  {ahead:>5.2}x")
}

fn timed(count: u64, run: impl FnOnce()) -> (u64, Duration) {
    let start = thread_time();
    run();
    (count, thread_time().saturating_sub(start))
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn put(db: &Db, table: &RwTable<Item>, items: impl Iterator<Item = Item>) {
    let mut txn = db.write(&[table]);
    for item in items {
        table.insert(&mut txn, item).expect("insert");
    }
    txn.commit();
}

/// Numbers in an order without pattern.
fn shuffled(count: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    for at in (1..order.len()).rev() {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        order.swap(at, (seed >> 33) as usize % (at + 1));
    }
    order
}

fn writes(report: &mut Report) {
    report.rate("write transaction, one object", 0.70, || {
        let db = Db::new();
        let table = table(&db, "items");
        timed(200_000, || {
            (0..200_000).for_each(|_| put(&db, &table, std::iter::once(item(123))))
        })
    });
    report.rate(
        "write transaction, one new object, growing to 100,000",
        0.70,
        || {
            let db = Db::new();
            let table = table(&db, "items");
            timed(100_000, || {
                (0..100_000).for_each(|id| put(&db, &table, std::iter::once(item(id))))
            })
        },
    );
    report.rate("write transaction, one random object of 100,000", None, || {
        let db = Db::new();
        let table = table(&db, "items");
        put(&db, &table, (0..100_000).map(item));
        let order = shuffled(100_000);
        timed(100_000, || {
            order
                .iter()
                .for_each(|&id| put(&db, &table, std::iter::once(item(id))))
        })
    });
    report.rate("insert in batches of 100", 1.88, || {
        let db = Db::new();
        let table = table(&db, "items");
        timed(200_000, || {
            (0..2000).for_each(|batch| put(&db, &table, (batch * 100..batch * 100 + 100).map(item)))
        })
    });
    report.rate("insert random of 1,000,000 in batches of 1000", None, || {
        let db = Db::new();
        let table = table(&db, "items");
        put(&db, &table, (0..1_000_000).map(item));
        let order = shuffled(1_000_000);
        timed(200_000, || {
            order[..200_000]
                .chunks(1000)
                .for_each(|ids| put(&db, &table, ids.iter().map(|&id| item(id))))
        })
    });
    report.rate("insert in batches of 100 with a secondary index", 0.80, || {
        let db = Db::new();
        let table = RwTable::builder("items")
            .primary(ID)
            .index(TAGS)
            .build_plain(&db)
            .expect("a fresh table");
        let tags: Arc<BTreeSet<String>> = Arc::new(["odd".to_owned()].into());
        let make = |id| Item {
            id,
            tags: Arc::clone(&tags),
        };
        timed(200_000, || {
            (0..2000).for_each(|batch| put(&db, &table, (batch * 100..batch * 100 + 100).map(make)))
        })
    });
    report.rate("open a write transaction", 2.17, || {
        let db = Db::new();
        let table = table(&db, "items");
        timed(500_000, || (0..500_000).for_each(|_| db.write(&[&table]).abort()))
    });
    report.rate("commit with 100 tables registered", 1.19, || {
        let db = Db::new();
        let tables: Vec<_> = (0..100)
            .map(|number| table(&db, &format!("items{number}")))
            .collect();
        timed(200_000, || {
            (0..200_000).for_each(|_| put(&db, &tables[50], std::iter::once(item(1))))
        })
    });
}

fn reads(report: &mut Report) {
    for (name, target, size) in [
        ("random lookups, 1000 objects", Some(23.0), 1000),
        ("random lookups, 1,000,000 objects", None, 1_000_000),
    ] {
        if !report.wanted(name) {
            continue;
        }
        let db = Db::new();
        let table = table(&db, "items");
        put(&db, &table, (0..size).map(item));
        let order = shuffled(size);
        let rounds = (2_000_000 / size).max(1);
        report.rate(name, target, || {
            timed(size * rounds, || {
                for _ in 0..rounds {
                    let snapshot = db.read();
                    for id in &order {
                        black_box(table.get(&snapshot, ID.key(id)).expect("is there").id);
                    }
                }
            })
        });
    }
    report.rate("take a snapshot", None, || {
        let db = Db::new();
        let _table = table(&db, "items");
        timed(1_000_000, || {
            (0..1_000_000).for_each(|_| drop(black_box(db.read())))
        })
    });
    if report.wanted("iterate over 1,000,000 objects") {
        let db = Db::new();
        let table = table(&db, "items");
        put(&db, &table, (0..1_000_000).map(item));
        report.rate("iterate over 1,000,000 objects", None, || {
            timed(1_000_000, || {
                black_box(table.all(&db.read()).map(|item| item.id).sum::<u64>());
            })
        });
    }
}

#[derive(Clone)]
struct Named {
    id: u64,
    name: String,
}

/// Resident memory of a table with a million objects, inserted in random order.
const MEMORY: [(&str, usize); 3] = [
    ("memory of an object and its number as key", 0),
    ("memory of an object, as before and by unique text", 1),
    ("memory of an object, as before and by text and number", 2),
];

fn memory(report: &mut Report) {
    for (name, kind) in MEMORY {
        if !report.wanted(name) {
            continue;
        }
        // In a process of its own: memory freed by others would be used again.
        let output = std::env::current_exe()
            .and_then(|path| Command::new(path).args(["--memory", &kind.to_string()]).output())
            .expect("run the benchmark again");
        let bytes: f64 = String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse()
            .expect("a number");
        report.add(name, bytes, "B", None, false);
    }
}

/// Bytes per object, with those of the object itself: 104 here.
fn bytes_per_object(kind: usize) -> f64 {
    const ID: Index<Named, u64> = Index::new("id", |row, keys| keys.add(&row.id));
    const UNIQUE: Index<Named, str> = Index::unique("unique", |row, keys| keys.add(&row.name));
    const NAME: Index<Named, str> = Index::new("name", |row, keys| keys.add(&row.name));
    const OBJECTS: u64 = 1_000_000;
    let order = shuffled(OBJECTS);
    let db = Db::new();
    let mut builder = RwTable::builder("named").primary(ID);
    if kind > 0 {
        builder = builder.index(UNIQUE);
    }
    if kind > 1 {
        builder = builder.index(NAME);
    }
    let table = builder.build_plain(&db).expect("a fresh table");
    let before = status_mib("VmRSS:");
    for ids in order.chunks(1000) {
        let mut txn = db.write(&[&table]);
        for &id in ids {
            let name = format!("namespace-{}/service-{id}", id % 100);
            table.insert(&mut txn, Named { id, name }).expect("insert");
        }
        txn.commit();
    }
    (status_mib("VmRSS:") - before) * 1024.0 * 1024.0 / OBJECTS as f64
}

/// Where the two tasks of [`propagation`] run.
#[derive(Clone, Copy)]
enum Place {
    SameThread,
    /// As in a program: both are tasks of a runtime with several threads.
    TwoTasks,
    /// The writer is the main thread, the reader a task of a runtime, so each hears of the other by being woken.
    OtherThread,
}

/// Rounds of [`propagation`] and [`wakes`].
const ROUNDS: u64 = 5000;

/// Time from the commit of a change to its being seen by a reader, who copies it to a second table, and from there back
/// to the writer.
fn propagation(report: &mut Report) {
    const PLACES: [(Place, [&str; 2]); 3] = [
        (
            Place::SameThread,
            [
                "change propagation, same thread, p50",
                "change propagation, same thread, p99",
            ],
        ),
        (
            Place::TwoTasks,
            [
                "change propagation, two tasks of a runtime, p50",
                "change propagation, two tasks of a runtime, p99",
            ],
        ),
        (
            Place::OtherThread,
            [
                "change propagation, other thread, p50",
                "change propagation, other thread, p99",
            ],
        ),
    ];
    for (place, names) in PLACES {
        if !report.wanted(names[0]) {
            continue;
        }
        let is_other = matches!(place, Place::OtherThread);
        if is_other {
            // What the runtime and the kernel take of it.
            delays(
                report,
                [
                    "two wake-ups and no table, other thread, p50",
                    "two wake-ups and no table, other thread, p99",
                ],
                None,
                wakes(),
            );
        }
        let mut builder = match place {
            Place::SameThread => tokio::runtime::Builder::new_current_thread(),
            Place::TwoTasks | Place::OtherThread => tokio::runtime::Builder::new_multi_thread(),
        };
        let runtime = builder.enable_time().build().expect("a runtime");
        let measured = match place {
            Place::TwoTasks => runtime
                .block_on(async { tokio::spawn(copied(false)).await })
                .expect("the writer"),
            Place::SameThread | Place::OtherThread => runtime.block_on(copied(is_other)),
        };
        delays(report, names, Some([11.0, 130.0]), measured);
    }
}

/// Adds the median and the 99th percentile of delays in microseconds.
fn delays(report: &mut Report, names: [&'static str; 2], targets: Option<[f64; 2]>, mut delays: Vec<f64>) {
    delays.sort_by(f64::total_cmp);
    for (at, (name, percent)) in names.into_iter().zip([50, 99]).enumerate() {
        let target = targets.map(|targets| targets[at]);
        report.add(name, delays[delays.len() * percent / 100], "µs", target, false);
    }
}

/// Delays of [`propagation`]; with pauses now and then in which threads fall asleep.
async fn copied(with_pauses: bool) -> Vec<f64> {
    let db = Db::new();
    let (from, to) = (table(&db, "from"), table(&db, "to"));
    let copier = {
        let (db, from, to) = (db.clone(), from.clone(), to.clone());
        tokio::spawn(async move {
            let mut changes = from.follow(&db);
            loop {
                let snapshot = changes.wait(&db).await;
                let mut txn = db.write(&[&to]);
                for change in changes.next(&snapshot) {
                    if let Some(object) = change.object() {
                        to.insert(&mut txn, Item::clone(object)).expect("insert");
                    }
                }
                txn.commit();
            }
        })
    };
    let mut delays = Vec::new();
    for round in 0..ROUNDS {
        let watch = to.table_watch(&db.read());
        let start = Instant::now();
        put(&db, &from, (0..10).map(|at| item(round * 10 + at)));
        watch.closed().await;
        delays.push(start.elapsed().as_secs_f64() * 1e6);
        if with_pauses && round % 100 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    copier.abort();
    delays
}

/// The same without tables: the main thread wakes a task of a runtime, which wakes the main thread.
fn wakes() -> Vec<f64> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (there, back) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let answering = {
            let (there, back) = (Arc::clone(&there), Arc::clone(&back));
            tokio::spawn(async move {
                loop {
                    there.notified().await;
                    back.notify_one();
                }
            })
        };
        let mut delays = Vec::new();
        for round in 0..ROUNDS {
            let start = Instant::now();
            there.notify_one();
            back.notified().await;
            delays.push(start.elapsed().as_secs_f64() * 1e6);
            if round % 100 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        answering.abort();
        delays
    })
}

#[derive(Clone)]
struct Wanted {
    id: u64,
    status: Status,
}

struct Mock(u64);

macro_rules! impl_mock {
    ($($row:ty),+) => {$(
        impl BatchOps<$row> for Mock {
            fn batch(&mut self, _: &Round<'_>, _: &mut [Delete<$row>], updates: &mut [Update<$row>]) {
                self.0 += updates.len() as u64;
            }
            fn prune(
                &mut self,
                _: &Round<'_>,
                _: &mut dyn Iterator<Item = &Obj<$row>>,
            ) -> Result<(), BoxError> {
                Ok(())
            }
        }
    )+};
}

impl_mock!(Wanted, Frontend);

/// A million objects inserted in batches of 1000 until the last one is reconciled.
fn reconciler(report: &mut Report) {
    const NAMES: [&str; 2] = [
        "reconcile 1,000,000 objects, mock target",
        "reconcile 1,000,000 objects, peak memory",
    ];
    const OBJECTS: u64 = 1_000_000;
    const WANTED: Index<Wanted, u64> = Index::new("id", |wanted, keys| keys.add(&wanted.id));
    if !report.wanted(NAMES[0]) {
        return;
    }
    reset_peak();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    let took = runtime.block_on(async {
        let db = Db::new();
        let table = RwTable::<Wanted>::builder("wanted")
            .primary(WANTED)
            .build_plain(&db)
            .expect("a fresh table");
        let field = StatusField {
            get: |wanted: &Wanted| wanted.status.clone(),
            set: |wanted, status| wanted.status = status,
        };
        let reconciler = Reconciler::new(&db, table.clone(), field, Mock(0), Config::default());
        let (handle, token) = (reconciler.handle(), CancellationToken::new());
        let stop = token.clone();
        let running = tokio::spawn(async move {
            reconciler.run(&stop, &NoHealth).await;
            reconciler.into_ops()
        });
        let start = Instant::now();
        let writer = {
            let (db, table) = (db.clone(), table.clone());
            thread::spawn(move || {
                let mut last = 0;
                for batch in 0..OBJECTS / 1000 {
                    let mut txn = db.write(&[&table]);
                    for at in 0..1000 {
                        let wanted = Wanted {
                            id: batch * 1000 + at,
                            status: Status::pending(),
                        };
                        let stored = table.insert_get(&mut txn, wanted).expect("insert");
                        last = stored.revision();
                    }
                    txn.commit();
                }
                last
            })
        };
        let last = tokio::task::spawn_blocking(move || writer.join().expect("the writer"))
            .await
            .expect("joined");
        handle.wait_until_reconciled(last).await;
        let took = start.elapsed();
        token.cancel();
        let done = running.await.expect("the reconciler").0;
        assert_eq!(done, OBJECTS, "each object once");
        took
    });
    report.add(
        NAMES[0],
        OBJECTS as f64 / took.as_secs_f64() / 1e6,
        "M/s",
        0.45,
        true,
    );
    report.add(NAMES[1], peak_mib(), "MiB", 600.0, false);
}

#[derive(Clone)]
struct Frontend {
    address: (IpAddr, u16),
    service: Arc<str>,
    /// Stands for what such rows have besides.
    _rest: [u64; 16],
    status: Status,
}

const ROWS: u32 = 100_000;

/// Rows in no order, in batches of 1000.
fn frontends(db: &Db) -> (RwTable<Frontend>, Vec<Vec<Frontend>>) {
    const ADDRESS: Index<Frontend, (IpAddr, u16)> = Index::new("address", |row, keys| keys.add(&row.address));
    const SERVICE: Index<Frontend, str> = Index::new("service", |row, keys| keys.add(&row.service));
    let table = RwTable::<Frontend>::builder("frontends")
        .primary(ADDRESS)
        .index(SERVICE)
        .build_plain(db)
        .expect("a fresh table");
    let frontend = |&number: &u64| Frontend {
        address: (IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number as u32)), 80),
        service: format!("namespace-{}/service-{number}", number % 100).into(),
        _rest: [0; 16],
        status: Status::pending(),
    };
    let order = shuffled(ROWS.into());
    let batches = order.chunks(1000);
    (
        table,
        batches
            .map(|batch| batch.iter().map(frontend).collect())
            .collect(),
    )
}

fn put_frontends(db: &Db, table: &RwTable<Frontend>, batches: Vec<Vec<Frontend>>) {
    for batch in batches {
        let mut txn = db.write(&[table]);
        for row in batch {
            table.insert(&mut txn, row).expect("insert");
        }
        txn.commit();
    }
}

/// Rows as a load balancer has them, and statuses of those that are there already: what a round costs its thread.
fn statuses(report: &mut Report) {
    report.rate(
        "insert 100,000 rows of two indexes in batches of 1000",
        None,
        || {
            let db = Db::new();
            let (table, batches) = frontends(&db);
            timed(ROWS.into(), || put_frontends(&db, &table, batches))
        },
    );
    const NAME: &str = "reconcile 100,000 rows of two indexes, mock target";
    if !report.wanted(NAME) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    report.rate(NAME, None, || {
        let db = Db::new();
        let (table, batches) = frontends(&db);
        put_frontends(&db, &table, batches);
        let field = StatusField {
            get: |row: &Frontend| row.status.clone(),
            set: |row, status| row.status = status,
        };
        let config = Config {
            rounds_per_second: 1_000_000,
            ..Config::default()
        };
        let last = table.revision(&db.read());
        let reconciler = Reconciler::new(&db, table.clone(), field, Mock(0), config);
        let (handle, token) = (reconciler.handle(), CancellationToken::new());
        timed(ROWS.into(), || {
            runtime.block_on(async {
                tokio::select! {
                    () = reconciler.run(&token, &NoHealth) => {}
                    _ = handle.wait_until_reconciled(last) => {}
                }
            });
        })
    });
}

fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Highest resident memory since [`reset_peak`].
fn peak_mib() -> f64 {
    status_mib("VmHWM:")
}

/// A line of this process's status that is an amount of memory.
fn status_mib(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_default();
    line.trim()
        .trim_end_matches(" kB")
        .parse::<f64>()
        .unwrap_or_default()
        / 1024.0
}

fn main() {
    let mut json = None;
    let mut filter = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--json" => json = args.next(),
            "--bench" => {}
            "--memory" => {
                let kind = args.next().and_then(|kind| kind.parse().ok()).unwrap_or_default();
                println!("{}", bytes_per_object(kind));
                return;
            }
            other => filter = Some(other.to_owned()),
        }
    }
    let mut report = Report {
        filter,
        rows: Vec::new(),
    };
    reconciler(&mut report);
    statuses(&mut report);
    memory(&mut report);
    writes(&mut report);
    reads(&mut report);
    propagation(&mut report);
    if let Some(file) = json {
        let mut out = String::from("[\n");
        for (at, row) in report.rows.iter().enumerate() {
            let comma = if at + 1 < report.rows.len() { "," } else { "" };
            let _ = writeln!(
                out,
                "  {{\"name\": \"{}\", \"value\": {:.4}, \"unit\": \"{}\", \"target\": {}, \"more_is_better\": {}}}{comma}",
                row.name,
                row.value,
                row.unit,
                row.target
                    .map_or_else(|| "null".to_owned(), |target| target.to_string()),
                row.more
            );
        }
        out.push_str("]\n");
        if let Err(err) = std::fs::write(&file, out) {
            eprintln!("{file}: {err}");
            std::process::exit(1);
        }
    }
}
