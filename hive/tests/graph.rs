// SPDX-License-Identifier: Apache-2.0

//! Graph: who sees what, what is constructed, what the plan refuses.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hive::{
    All, Cell, Cfg, Code, Config, Hive, Member, Members, ModulePath, Params, Report, Settings, Value,
};

#[derive(Debug)]
struct Store(&'static str);
struct Cache;
struct Clock;

trait Named: Send + Sync {
    fn name(&self) -> String;
}

impl Named for Store {
    fn name(&self) -> String {
        self.0.to_owned()
    }
}

fn store() -> Arc<Store> {
    Arc::new(Store("plain"))
}

fn use_store(_store: Arc<Store>) {}

fn use_clock(_clock: Arc<Clock>) {}

fn clock() -> Arc<Clock> {
    Arc::new(Clock)
}

#[track_caller]
fn refused(hive: Hive) -> Report {
    match hive.plan(Settings::new()) {
        Ok(_) => panic!("the plan was accepted"),
        Err(report) => report,
    }
}

#[track_caller]
fn codes(report: &Report) -> Vec<&'static str> {
    report.errors().map(|finding| finding.code.as_str()).collect()
}

#[track_caller]
fn build(hive: Hive) -> hive::Built {
    hive::testing::plan(hive, Settings::new()).build().unwrap()
}

#[test]
fn unused_constructor_is_not_run() {
    fn broken() -> Arc<Cache> {
        panic!("nothing asked for this")
    }

    let cell = Cell::module("lazy", "Lazy")
        .provide(broken)
        .provide(store)
        .run(use_store);

    build(Hive::new([cell]));
}

#[test]
fn constructor_runs_once_though_needed_by_many() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    fn counted() -> Arc<Store> {
        RUNS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Store("counted"))
    }

    let cell = Cell::module("once", "Once")
        .provide(counted)
        .run(use_store)
        .run(use_store)
        .run(use_store);
    build(Hive::new([cell]));

    assert_eq!(RUNS.load(Ordering::Relaxed), 1);
}

#[test]
fn provider_of_a_nested_module_is_visible_at_the_root() {
    let inner = Cell::module("outer", "Outer").with(Cell::module("inner", "Inner").provide(store));

    let built = build(Hive::new([inner]).root::<Arc<Store>>());

    assert_eq!(built.get::<Arc<Store>>().unwrap().0, "plain");
}

#[test]
fn private_provider_is_seen_inside_only_and_the_report_says_where_it_is() {
    let owner = Cell::module("owner", "Owner")
        .provide_private(store)
        .with(Cell::module("inside", "Inside").run(use_store));
    assert!(Hive::new([owner.clone()]).plan(Settings::new()).is_ok());

    let report = refused(Hive::new([
        owner,
        Cell::module("sibling", "Sibling").run(use_store),
    ]));

    assert_eq!(codes(&report), ["H004"]);
    let text = report.to_string();
    assert!(text.contains("private to  graph::store"), "{text}");
    assert!(text.contains("in module   owner"), "{text}");
}

#[test]
fn private_value_must_not_hide_another() {
    fn other() -> Arc<Store> {
        Arc::new(Store("private"))
    }
    let public = Cell::module("public", "Public").provide(store).run(use_store);
    let silent = Cell::module("silent", "Silent")
        .provide_private(other)
        .run(use_store);
    assert_eq!(codes(&refused(Hive::new([public, silent]))), ["H013"]);
}

#[test]
fn decorator_affects_its_subtree_composes_and_reaches_constructors_inside() {
    #[derive(Clone, Value)]
    struct Label(String);
    #[derive(Clone, Value)]
    struct Seen(String);
    fn label() -> Label {
        Label("base".into())
    }
    fn outer(label: Label) -> Label {
        Label(format!("outer({})", label.0))
    }
    fn second(label: Label) -> Label {
        Label(format!("second({})", label.0))
    }
    fn inner(label: Label) -> Label {
        Label(format!("inner({})", label.0))
    }
    fn seen(label: Label) -> Seen {
        Seen(label.0)
    }

    let cells = [
        Cell::module("base", "Base").provide(label),
        Cell::module("outer", "Outer")
            .decorate(outer)
            .decorate(second)
            .with(Cell::module("inner", "Inner").decorate(inner).provide(seen)),
    ];
    let built = build(Hive::new(cells).root::<Label>().root::<Seen>());

    assert_eq!(built.get::<Label>().unwrap().0, "base");
    assert_eq!(built.get::<Seen>().unwrap().0, "inner(second(outer(base)))");
}

#[test]
fn decorating_what_nobody_provides_is_an_error() {
    fn wrap(clock: Arc<Clock>) -> Arc<Clock> {
        clock
    }

    let report = refused(Hive::new([Cell::module("wrap", "Wrap").decorate(wrap)]));

    assert_eq!(codes(&report), ["H007"]);
}

#[test]
fn decorator_that_does_not_take_what_it_gives_is_an_error() {
    let report = refused(Hive::new([Cell::module("wrap", "Wrap")
        .decorate(clock)
        .run(use_clock)]));

    assert!(codes(&report).contains(&"H007"), "{report}");
}

#[test]
fn group_members_of_unrelated_cells_come_in_the_order_of_declaration() {
    fn several() -> Members<u32> {
        Members(vec![2, 3])
    }

    let cells = [
        Cell::module("m1", "One").provide(|| Member(1u32)),
        Cell::module("m2", "Two").with(Cell::module("inner", "Inner").provide(several)),
        Cell::module("m4", "Four").provide(|| Member(4u32)),
    ];

    for _ in 0..3 {
        let built = build(Hive::new(cells.clone()).root::<All<u32>>());
        assert_eq!(built.get::<All<u32>>().unwrap().into_vec(), [1, 2, 3, 4]);
    }
}

#[test]
fn private_group_members_are_seen_inside_only() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    fn inside(all: All<u64>) {
        SEEN.store(all.len(), Ordering::Relaxed);
    }

    let owner = Cell::module("owner", "Owner")
        .provide_private(|| Member(1u64))
        .run(inside);
    let built = build(Hive::new([owner]).root::<All<u64>>());

    assert_eq!(built.get::<All<u64>>().unwrap().len(), 0);
    assert_eq!(SEEN.load(Ordering::Relaxed), 1);
}

#[test]
fn optional_is_none_only_if_nothing_provides_it() {
    static SEEN: Mutex<Option<bool>> = Mutex::new(None);
    fn optional(store: Option<Arc<Store>>) {
        *SEEN.lock().unwrap() = Some(store.is_some());
    }
    fn broken(_clock: Arc<Clock>) -> Arc<Store> {
        Arc::new(Store("needs a clock"))
    }
    let consumer = Cell::module("consumer", "Consumer").run(optional);

    build(Hive::new([consumer.clone()]));
    assert_eq!(*SEEN.lock().unwrap(), Some(false));
    build(Hive::new([
        consumer.clone(),
        Cell::module("store", "Store").provide(store),
    ]));
    assert_eq!(*SEEN.lock().unwrap(), Some(true));
    let report = refused(Hive::new([
        consumer,
        Cell::module("broken", "Broken").provide(broken),
    ]));
    assert_eq!(codes(&report), ["H003"]);
    assert!(report.to_string().contains("nothing provides `Arc<Clock>`"));
}

#[test]
fn duplicate_provider_reports_both_places() {
    let first = Cell::module("first", "First").provide(store);
    let second = Cell::module("second", "Second").provide(store).run(use_store);

    let report = refused(Hive::new([first, second]));

    assert_eq!(codes(&report), ["H005"]);
    let finding = report.errors().next().unwrap();
    let modules: Vec<_> = finding
        .involved
        .iter()
        .map(|one| one.module.to_string())
        .collect();
    assert_eq!(modules, ["first", "second"]);
    assert!(
        finding
            .involved
            .iter()
            .all(|one| one.place.unwrap().file().ends_with("graph.rs"))
    );
}

#[test]
fn cycle_reports_its_path_also_among_unused_constructors() {
    fn store_of(_cache: Arc<Cache>) -> Arc<Store> {
        store()
    }
    fn cache_of(_clock: Arc<Clock>) -> Arc<Cache> {
        Arc::new(Cache)
    }
    fn clock_of(_store: Arc<Store>) -> Arc<Clock> {
        clock()
    }

    let report = refused(Hive::new([Cell::module("knot", "Knot")
        .provide(store_of)
        .provide(cache_of)
        .provide(clock_of)]));

    assert_eq!(codes(&report), ["H006"]);
    let finding = report.errors().next().unwrap();
    assert_eq!(
        finding.involved.len(),
        4,
        "three functions, and the first again: {report}"
    );
    assert_eq!(finding.involved[0].what, finding.involved[3].what);
}

#[test]
fn all_findings_come_at_once_and_nothing_is_run() {
    static RUN: AtomicUsize = AtomicUsize::new(0);
    fn counted() -> Arc<Store> {
        RUN.fetch_add(1, Ordering::Relaxed);
        store()
    }

    let report = refused(Hive::new([
        Cell::module("X", "Bad id"),
        Cell::module("one", "One").provide(counted).run(use_store),
        Cell::module("two", "Two").provide(counted),
        Cell::module("three", "Three").run(use_clock),
        Cell::module("three", "Again"),
    ]));

    assert_eq!(codes(&report), ["H001", "H002", "H005", "H003"]);
    assert!(
        report
            .to_string()
            .ends_with("4 errors, 0 warnings; no constructor was run"),
        "{report}"
    );
    assert_eq!(RUN.load(Ordering::Relaxed), 0);
}

#[test]
fn module_ids_titles_and_paths_follow_the_rules() {
    for (id, title) in [
        ("a", "Short"),
        ("A1", "Upper"),
        ("1a", "Digit"),
        ("ok", "Has. a dot"),
        ("ok", ""),
    ] {
        assert_eq!(
            codes(&refused(Hive::new([Cell::module(id, title)]))),
            ["H001"],
            "{id} {title}"
        );
    }
    const LONG: &str = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"; // 32 letters
    assert_eq!(codes(&refused(Hive::new([Cell::module(LONG, "Long")]))), ["H001"]);
    let twins = [Cell::module("twin", "One"), Cell::module("twin", "Two")];
    assert_eq!(codes(&refused(Hive::new(twins))), ["H002"]);
    let cousins = ["left", "right"].map(|id| Cell::module(id, "Side").with(Cell::module("twin", "Cousin")));
    assert!(Hive::new(cousins).plan(Settings::new()).is_ok());
}

#[test]
fn same_cells_work_in_two_hives_in_parallel() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    fn counted() -> Arc<Store> {
        RUNS.fetch_add(1, Ordering::Relaxed);
        store()
    }
    let cell = Cell::module("shared", "Shared").provide(counted);

    let stores: Vec<Arc<Store>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let cell = cell.clone();
                scope.spawn(|| {
                    build(Hive::new([cell]).root::<Arc<Store>>())
                        .get::<Arc<Store>>()
                        .unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });

    assert!(!Arc::ptr_eq(&stores[0], &stores[1]));
    assert_eq!(RUNS.load(Ordering::Relaxed), 2);
}

#[test]
fn order_is_the_same_in_every_run_and_follows_declaration() {
    fn first() {}
    fn second() {}
    fn third(_store: Arc<Store>) {}
    let cells = || {
        [
            Cell::module("m1", "One").run(first),
            Cell::module("m3", "Three").run(third),
            Cell::module("m2", "Two").run(second).provide(store),
        ]
    };
    let order = |cells: [Cell; 3]| hive::testing::plan(Hive::new(cells), Settings::new()).order();

    let text = order(cells());

    let names: Vec<_> = text
        .lines()
        .map(|line| line.split_whitespace().nth(2).unwrap().to_owned())
        .collect();
    let ends: Vec<_> = names
        .iter()
        .map(|name| name.rsplit("::").next().unwrap())
        .collect();
    assert_eq!(ends, ["first", "second", "store", "third"]);
    assert_eq!(text, order(cells()));
}

#[test]
fn after_orders_without_a_value() {
    fn maps() {}
    let cells = [
        Cell::module("maps", "Maps").run(maps).after::<Arc<Clock>>(),
        Cell::module("mounts", "Mounts").provide(clock),
    ];

    let order = hive::testing::plan(Hive::new(cells), Settings::new()).order();

    assert!(order.lines().next().unwrap().contains("clock"), "{order}");
    assert_eq!(
        codes(&refused(Hive::new([Cell::module("maps", "Maps")
            .run(maps)
            .after::<Arc<Clock>>()]))),
        ["H003"]
    );
}

#[test]
fn parameters_and_results_can_be_structs_tuples_and_traits() {
    #[derive(Params)]
    struct Inner {
        store: Arc<Store>,
    }
    #[derive(Params)]
    struct Outer<T: Send + Sync + 'static> {
        inner: Inner,
        named: Arc<dyn Named>,
        other: Option<Arc<T>>,
        module: ModulePath,
    }
    static SEEN: Mutex<String> = Mutex::new(String::new());
    type StoreAndName = (Arc<Store>, Member<&'static str>);
    fn both() -> Result<(StoreAndName, Arc<Cache>), std::io::Error> {
        Ok(((store(), Member("listed")), Arc::new(Cache)))
    }
    fn named(store: Arc<Store>) -> Arc<dyn Named> {
        store
    }
    fn use_all(outer: Outer<Clock>, group: All<&'static str>, _cache: Arc<Cache>) {
        *SEEN.lock().unwrap() = format!(
            "{} {} {} {} {:?}",
            outer.inner.store.0,
            outer.named.name(),
            outer.other.is_some(),
            outer.module,
            &group[..]
        );
    }

    build(Hive::new([Cell::module("app", "App")
        .provide(both)
        .provide(named)
        .run(use_all)]));

    assert_eq!(*SEEN.lock().unwrap(), "plain plain false app [\"listed\"]");
}

#[test]
fn constructors_take_sixteen_parameters() {
    type S = Arc<Store>;
    #[allow(clippy::too_many_arguments, reason = "that is the point")]
    fn many(_: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S, _: S) {}

    build(Hive::new([Cell::module("many", "Many").provide(store).run(many)]));
}

#[test]
fn failing_and_panicking_constructors_are_named() {
    fn failing() -> Result<Arc<Store>, std::io::Error> {
        Err(std::io::Error::other("disk is full"))
    }
    fn panicking() -> Arc<Store> {
        panic!("no disk")
    }
    let build = |cell: Cell| {
        hive::testing::plan(Hive::new([cell]), Settings::new())
            .build()
            .unwrap_err()
            .to_string()
    };

    let failed = build(Cell::module("store", "Store").provide(failing).run(use_store));
    let panicked = build(Cell::module("store", "Store").provide(panicking).run(use_store));

    assert!(failed.contains("::failing` (hive/tests/graph.rs:"), "{failed}");
    assert!(
        failed.ends_with("in module store failed: disk is full"),
        "{failed}"
    );
    assert!(
        panicked.contains("panicked at hive/tests/graph.rs:"),
        "{panicked}"
    );
    assert!(panicked.ends_with(": no disk"), "{panicked}");
}

#[test]
fn every_module_gets_its_own_instance_of_a_per_module_value() {
    #[derive(Clone, Value)]
    struct Handle(ModulePath, Arc<Store>);
    fn handle(module: ModulePath, store: Arc<Store>) -> Handle {
        Handle(module, store)
    }
    static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
    fn look(handle: Handle, again: Handle) {
        assert_eq!(handle.0, again.0);
        SEEN.lock()
            .unwrap()
            .push(format!("{} {}", handle.0, Arc::strong_count(&handle.1) > 1));
    }

    build(Hive::new([
        Cell::module("db", "Database")
            .provide(store)
            .provide_per_module(handle),
        Cell::module("m1", "One")
            .run(look)
            .with(Cell::module("m2", "Two").run(look)),
    ]));

    assert_eq!(*SEEN.lock().unwrap(), ["m1 true", "m1.m2 true"]);
}

#[derive(Clone, Config)]
struct Switch {
    /// Turns the store on.
    enable_store: bool,
}

fn switched() -> Cell {
    Cell::module("store", "Store")
        .config::<Switch>()
        .when(|switch: &Switch| switch.enable_store)
        .provide(store)
}

#[test]
fn disabled_cell_is_absent_and_the_report_names_the_flag() {
    static SEEN: Mutex<Vec<bool>> = Mutex::new(Vec::new());
    fn optional(store: Option<Arc<Store>>) {
        SEEN.lock().unwrap().push(store.is_some());
    }
    let hive = Hive::new([switched(), Cell::module("app", "App").run(optional)]);
    let strict = Hive::new([switched(), Cell::module("app", "App").run(use_store)]);

    for args in [vec![], vec!["--enable-store"]] {
        hive.clone()
            .plan(Settings::new().args(args))
            .unwrap()
            .build()
            .unwrap();
    }
    assert_eq!(*SEEN.lock().unwrap(), [false, true]);
    let report = refused(strict.clone());
    assert_eq!(codes(&report), ["H012"]);
    assert!(report.to_string().contains("--enable-store"), "{report}");
    assert!(strict.plan(Settings::new().args(["--enable-store"])).is_ok());
}

#[test]
fn variants_cover_every_combination_of_conditions() {
    let other = Cell::module("other", "Other").when(|switch: &Switch| !switch.enable_store);
    let hive = Hive::new([switched(), other, Cell::module("app", "App").run(use_store)]);

    let accepted: Vec<(String, bool)> = hive
        .variants()
        .into_iter()
        .map(|(name, hive)| (name, hive.plan(Settings::new()).is_ok()))
        .collect();

    let expected = [
        ("store=off other=off", false),
        ("store=on other=off", true),
        ("store=off other=on", false),
        ("store=on other=on", true),
    ];
    assert_eq!(accepted, expected.map(|(name, ok)| (name.to_owned(), ok)));
}

#[test]
fn test_overrides_replace_reconfigure_and_leave_out() {
    #[derive(Clone, Config)]
    struct Size {
        /// Size.
        #[config(default = 3)]
        size: u32,
    }
    fn fake() -> Arc<Store> {
        Arc::new(Store("fake"))
    }
    fn broken(_: Arc<Clock>) {}
    let agent = Cell::module("agent", "Agent")
        .config::<Size>()
        .with(
            Cell::module("store", "Store")
                .provide_private(store)
                .run(use_store)
                .provide(|store: Arc<Store>| Arc::new(store.0.to_owned())),
        )
        .with(Cell::module("health", "Health").run(broken));

    let built = build(
        Hive::new([agent])
            .replace(fake)
            .without("agent.health")
            .override_config(|size: &mut Size| size.size += 1)
            .root::<(Arc<String>, Cfg<Size>)>(),
    );

    let (name, size) = built.get::<(Arc<String>, Cfg<Size>)>().unwrap();
    assert_eq!((name.as_str(), size.size), ("fake", 4));
}

#[test]
fn override_that_matches_nothing_is_an_error() {
    let hive = || Hive::new([Cell::module("agent", "Agent").provide(store).library()]);

    let reports = [
        refused(hive().replace(clock)),
        refused(hive().replace(|| Member(1u8))),
        refused(hive().without("agnt")),
        refused(hive().override_config(|switch: &mut Switch| switch.enable_store = true)),
        refused(Hive::new([
            Cell::module("agent", "Agent").config_value(Switch { enable_store: true })
        ])),
        refused(Hive::new([Cell::module("agent", "Agent").config_prefix("west")])),
    ];

    for report in &reports {
        assert_eq!(codes(report), ["H008"], "{report}");
    }
    assert!(reports[2].to_string().contains("did you mean `agent`?"));
}

#[test]
fn unused_constructor_is_a_warning_unless_the_cell_is_a_library() {
    let warnings = |cell: Cell| -> Vec<Code> {
        let plan = hive::testing::plan(Hive::new([cell]), Settings::new());
        plan.report().warnings().map(|finding| finding.code).collect()
    };

    assert_eq!(
        warnings(Cell::module("store", "Store").provide(store)),
        [Code::Unused]
    );
    assert_eq!(
        warnings(Cell::module("store", "Store").provide(store).library()),
        []
    );
    let inner = Cell::module("store", "Store").provide(store);
    assert_eq!(warnings(Cell::group([inner]).library()), []);
}

#[test]
fn what_a_cell_of_the_catalogue_keeps_to_itself_is_no_hint() {
    struct Hidden;
    fn hiding_cell() -> Cell {
        Cell::module("hiding", "Keeps it").provide_private(|| Arc::new(Hidden))
    }
    hive::catalogue!(hiding_cell);

    let report = refused(Hive::new([Cell::module("app", "App").run(|_: Arc<Hidden>| ())]));

    assert_eq!(codes(&report), ["H003"]);
    assert!(!report.to_string().contains("hiding_cell"), "{report}");
}

#[test]
fn report_of_a_missing_value_looks_as_agreed() {
    trait EndpointStore: Send + Sync {}
    fn start_probing(_prober: Arc<Prober>) {}
    struct Prober;
    fn prober(_store: Arc<dyn EndpointStore>) -> Arc<Prober> {
        Arc::new(Prober)
    }
    struct MemoryEndpointStore;
    fn memory() -> Arc<MemoryEndpointStore> {
        Arc::new(MemoryEndpointStore)
    }

    let health = Cell::module("health", "Health")
        .provide(prober)
        .run(start_probing);
    let agent = Cell::module("agent", "Agent").with(health).provide(memory);
    let report = refused(Hive::new([agent]));

    let text = report.to_string();
    let expected = "error[H003]: nothing provides `Arc<dyn EndpointStore>`\n  \
        needed by   graph::report_of_a_missing_value_looks_as_agreed::prober   hive/tests/graph.rs:LINE\n  \
        in module   agent.health\n  \
        wanted via  agent.health run `graph::report_of_a_missing_value_looks_as_agreed::start_probing`\n  \
        help: if `MemoryEndpointStore` implements it, add a constructor that turns `Arc<MemoryEndpointStore>` into `Arc<dyn EndpointStore>`\n";
    let line = text
        .split("graph.rs:")
        .nth(1)
        .and_then(|rest| rest.split('\n').next())
        .unwrap();
    assert!(text.starts_with(&expected.replace("LINE", line)), "{text}");
    assert!(report.to_json().contains("\"code\": \"H003\""));
    assert!(report.to_json().contains("\"file\": \"hive/tests/graph.rs\""));
}

#[test]
fn near_misses_name_wrappers_and_catalogue_cells() {
    struct Catalogued;
    fn catalogued() -> Arc<Catalogued> {
        Arc::new(Catalogued)
    }
    fn catalogue_cell() -> Cell {
        Cell::module("catalogued", "Is in the catalogue").provide(catalogued)
    }
    hive::catalogue!(catalogue_cell);
    fn wants(_: Arc<Catalogued>) {}
    fn wants_named(_: Arc<dyn Named>) {}

    let report = refused(Hive::new([Cell::module("app", "App").run(wants)]));
    assert!(
        report
            .to_string()
            .contains("graph::catalogue_cell` provides it; add"),
        "{report}"
    );
    assert!(hive::testing::in_catalogue(&catalogue_cell()));

    fn catalogue_group() -> Cell {
        Cell::group([catalogue_cell(), Cell::group([Cell::module("second", "Second")])])
    }
    hive::catalogue!(catalogue_group);
    let plan = hive::testing::plan(Hive::new([catalogue_cell().library()]), Settings::new());
    let catalogue = plan.catalogue();
    assert!(
        catalogue.contains("used  graph::catalogue_cell   catalogued (Is in the catalogue)\n"),
        "{catalogue}"
    );
    assert!(
        catalogue.contains("-     graph::catalogue_group  catalogued, second\n"),
        "{catalogue}"
    );

    let members =
        Cell::module("members", "Members").provide(|| Member::<Arc<dyn Named>>(Arc::new(Store("x"))));
    let report = refused(Hive::new([
        members.library(),
        Cell::module("app", "App").run(wants_named),
    ]));
    assert!(report.to_string().contains("members of the group"), "{report}");
}
