// SPDX-License-Identifier: Apache-2.0

//! The exact text of every finding, one example or more for each code.
//!
//! The texts are in `findings.expected`. After a change that is meant, run this test with `UPDATE_EXPECT=1` in
//! the environment and read the difference.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fmt::Write;
use std::sync::Arc;

use hive::config::{Faults, UnknownKeys};
use hive::{All, Cell, Cfg, Code, Config, Hive, Member, Settings};

struct Store;
struct Clock;
struct Cache;
struct Prober;
trait Storage: Send + Sync {}
impl Storage for Store {}

fn new_store() -> Arc<Store> {
    Arc::new(Store)
}
fn other_store() -> Arc<Store> {
    Arc::new(Store)
}
fn new_prober(_storage: Arc<dyn Storage>) -> Arc<Prober> {
    Arc::new(Prober)
}
fn probe(_prober: Arc<Prober>) {}
fn use_store(_store: Arc<Store>) {}
fn use_clock(_clock: Arc<Clock>) {}
fn cache_of_clock(_clock: Arc<Clock>) -> Arc<Cache> {
    Arc::new(Cache)
}
fn clock_of_cache(_cache: Arc<Cache>) -> Arc<Clock> {
    Arc::new(Clock)
}
fn decorated_store(_store: Arc<Store>) -> Arc<Store> {
    Arc::new(Store)
}

trait Command: Send + Sync {}
#[allow(
    clippy::items_after_statements,
    reason = "a type that has the name of the trait"
)]
mod other {
    #[derive(Clone, hive::Value)]
    pub(super) struct Command;
}
fn no_command() -> Member<other::Command> {
    Member(other::Command)
}
fn use_commands(_commands: All<Arc<dyn Command>>) {}

fn no_decorator(_clock: Arc<Clock>) -> (Arc<Store>, Member<&'static str>) {
    (Arc::new(Store), Member("x"))
}

#[derive(Clone, Config)]
#[config(validate = Sizes::check)]
struct Sizes {
    /// How many entries are kept.
    #[config(default = 10, deprecated_alias = "entries")]
    cache_size: u16,
    /// How long.
    #[config(default = "5m")]
    cache_age: std::time::Duration,
    /// Whether it is there.
    #[config(default = true)]
    enable_cache: bool,
    /// Goes away.
    #[config(deprecated = "nothing replaces it")]
    cache_kind: String,
    /// Token.
    #[config(secret)]
    cache_token: Option<u64>,
}

impl Sizes {
    fn check(&self, faults: &mut Faults) {
        if self.cache_size == 0 {
            faults.add("cache-size", "must not be zero");
        }
    }
}

#[derive(Clone, Config)]
struct Limits {
    /// The most entries.
    #[config(default = 100)]
    cache_limit: u16,
}

#[derive(Clone, Config)]
struct SizesAgain {
    /// How many entries are kept, said again.
    cache_size: u16,
}

struct Leader;

fn module(id: &'static str) -> Cell {
    Cell::module(id, "A module")
}

fn sizes() -> Cell {
    module("cache").config::<Sizes>()
}

type Case = (Code, &'static str, Hive, Settings);

fn cases() -> Vec<Case> {
    let mut cases = graph_cases();
    cases.extend(settings_cases());
    cases
}

fn graph_cases() -> Vec<Case> {
    let case = |code, what, cells: Vec<Cell>| (code, what, Hive::new(cells), Settings::new());
    let health = module("health").provide(new_prober).run(probe);
    let writer = module("writer").provide_private(new_store);
    let probing = module("probing").config::<Sizes>();
    let switched = probing
        .provide(new_store)
        .when(|sizes: &Sizes| sizes.enable_cache);
    let off = Settings::new().args(["--enable-cache=false"]);
    let used = module("app").run(use_store);
    vec![
        case(
            Code::BadModule,
            "ids and titles",
            vec![module("Bad Id"), Cell::module("good", "No, (really)!")],
        ),
        case(
            Code::DuplicateModule,
            "one path twice",
            vec![module("agent").with(module("one")).with(module("one"))],
        ),
        case(
            Code::Missing,
            "a trait that an object might implement",
            vec![module("agent").with(health).provide(new_store)],
        ),
        case(
            Code::Missing,
            "a value that is there under a trait",
            vec![
                module("app").run(use_store),
                module("storage")
                    .provide(|| -> Arc<dyn Storage> { Arc::new(Store) })
                    .library(),
            ],
        ),
        case(
            Code::Missing,
            "a configuration that is not declared",
            vec![module("app").run(|_: Cfg<Limits>| ())],
        ),
        case(
            Code::Private,
            "private to a sibling",
            vec![writer.clone().library(), used.clone()],
        ),
        case(
            Code::DuplicateProvider,
            "two modules, one type",
            vec![
                module("first").provide(new_store),
                module("second").provide(other_store),
                used.clone(),
            ],
        ),
        case(
            Code::DuplicateProvider,
            "one configuration, two cells",
            vec![
                module("first").config::<Limits>(),
                module("second").config::<Limits>().config_prefix("second"),
            ],
        ),
        case(
            Code::DuplicateProvider,
            "two scopes of one name",
            vec![Cell::scope::<Leader>("one", []), Cell::scope::<Leader>("two", [])],
        ),
        case(
            Code::Cycle,
            "two that need each other",
            vec![
                module("clock").provide(clock_of_cache),
                module("cache").provide(cache_of_clock),
                module("app").run(use_clock),
            ],
        ),
        case(
            Code::BadDecorator,
            "gives what it does not take",
            vec![
                module("store")
                    .provide(new_store)
                    .decorate(no_decorator)
                    .run(use_store),
            ],
        ),
        case(
            Code::BadDecorator,
            "of what is not provided",
            vec![module("store").decorate(decorated_store)],
        ),
        (
            Code::BadOverride,
            "each way to change nothing",
            Hive::new([
                module("app").with(module("health")).config_prefix("west"),
                module("value").config_value(Limits { cache_limit: 1 }),
            ])
            .replace(new_store)
            .override_config(|_: &mut Limits| ())
            .without("app.helth")
            .force_condition("probe", true),
            Settings::new(),
        ),
        case(
            Code::Misplaced,
            "calls that are about no function",
            vec![
                module("first").after::<Arc<Store>>().run(|| ()),
                module("second").after::<Arc<Store>>(),
            ],
        ),
        (
            Code::Disabled,
            "by a setting",
            Hive::new([switched, used.clone()]),
            off,
        ),
        case(
            Code::Shadowing,
            "of a public value",
            vec![
                module("base").provide(new_store),
                module("inner").provide_private(other_store).run(use_store),
            ],
        ),
        case(
            Code::Unused,
            "a constructor and a decorator",
            vec![module("store").provide(new_store).decorate(decorated_store)],
        ),
        case(
            Code::MissingConfig,
            "of a condition and of a check",
            vec![
                module("probe").when(|limits: &Limits| limits.cache_limit > 0),
                sizes().check(|_: &Sizes, _: &Limits, _: &mut Faults| ()),
            ],
        ),
        case(
            Code::WrongMember,
            "of a group with another element type",
            vec![
                module("base").provide(no_command),
                module("shell").run(use_commands),
            ],
        ),
        case(
            Code::ScopeEscape,
            "an object of a scope",
            vec![
                Cell::scope::<Leader>("leader", [module("store").provide(new_store)]),
                used,
            ],
        ),
    ]
}

fn settings_cases() -> Vec<Case> {
    let case = |code, what, settings: Settings| (code, what, Hive::new([sizes()]), settings);
    let checked = sizes()
        .config::<Limits>()
        .check(|sizes: &Sizes, limits: &Limits, faults| {
            if sizes.cache_size > limits.cache_limit {
                faults.add("cache-size", "must not be above --cache-limit");
            }
        });
    vec![
        (
            Code::DuplicateFlag,
            "two cells, one flag",
            Hive::new([sizes(), module("second").config::<SizesAgain>()]),
            Settings::new(),
        ),
        case(
            Code::BadValue,
            "from every source, and a secret",
            Settings::new()
                .env_prefix("APP")
                .args(["--cache-size=many", "--cache-token=hunter2"])
                .env([("APP_ENABLE_CACHE", "perhaps")])
                .config_text("app.yaml", "# ages\ncache-age: 5\n"),
        ),
        case(
            Code::BadValue,
            "a flag without its value",
            Settings::new().args(["--cache-size"]),
        ),
        case(
            Code::UnknownKey,
            "in a file",
            Settings::new().config_text("app.yaml", "cache-sise: 5\nentirely-different: 1\n"),
        ),
        case(
            Code::UnknownKey,
            "as a warning",
            Settings::new()
                .config_text("app.yaml", "cache-sise: 5\n")
                .unknown_keys(UnknownKeys::Warn),
        ),
        case(
            Code::Invalid,
            "a value that is not valid",
            Settings::new().args(["--cache-size=0"]),
        ),
        (
            Code::Invalid,
            "values that do not fit together",
            Hive::new([checked]),
            Settings::new().args(["--cache-size=200"]),
        ),
        case(
            Code::UnknownFlag,
            "misspelt, short, a stray word, and the value of a switch",
            Settings::new().args(["--cahce-size=1", "-v", "serve", "--enable-cache", "false"]),
        ),
        case(
            Code::Deprecated,
            "an old name and an old setting",
            Settings::new().args(["--entries=5", "--cache-kind=lru"]),
        ),
        case(
            Code::BadSource,
            "a directory and files",
            Settings::new()
                .config_dir("/nowhere/config.d")
                .config_file("/nowhere/app.yaml")
                .config_text("broken.yaml", "no setting at all\n"),
        ),
    ]
}

/// What the reader of config files says of one without settings: another one without the feature `yaml`.
const NO_SETTINGS: &str = if cfg!(feature = "yaml") {
    "expected a map of settings"
} else {
    "line 1: expected `key: value`"
};

/// The line numbers of this file come and go.
fn without_lines(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("findings.rs:") {
        let (before, after) = rest.split_at(at + "findings.rs:".len());
        out.push_str(before);
        out.push_str("LINE");
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    out.push_str(rest);
    out
}

#[test]
fn every_finding_reads_as_agreed() {
    let mut text = String::new();
    for (code, what, hive, settings) in cases() {
        let report = match hive.plan(settings) {
            Ok(plan) => plan.report().clone(),
            Err(report) => report,
        };
        assert!(
            report.findings().iter().any(|finding| finding.code == code),
            "{code:?}, {what}: {report}"
        );
        let _ = writeln!(text, "# {code} {code:?}: {what}\n\n{report}\n");
    }
    let text = without_lines(&text).replace(NO_SETTINGS, "<no settings>");

    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/findings.expected");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    for (number, (new, old)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(
            new,
            old,
            "line {} of findings.expected; if this is meant, run with UPDATE_EXPECT=1",
            number + 1
        );
    }
    assert_eq!(text.lines().count(), expected.lines().count());
}

#[test]
fn every_code_has_an_example() {
    let cases = cases();
    for code in Code::ALL {
        assert!(cases.iter().any(|(of, ..)| of == code), "{code:?}");
    }
}
