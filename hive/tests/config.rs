// SPDX-License-Identifier: Apache-2.0

//! Configuration: sources and their order, spelling, errors.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use hive::config::{Faults, Origin, UnknownKeys};
use hive::{Cell, Cfg, Config, Hive, Plan, Report, Settings};

#[derive(Clone, Debug, Config)]
#[config(validate = Options::check)]
struct Options {
    /// How long. Long help, e.g. for the reference.
    #[config(default = "5m")]
    stale_after: Duration,
    /// Names.
    peers: Vec<String>,
    /// Labels.
    labels: BTreeMap<String, String>,
    /// Switch.
    enable_probe: bool,
    /// Number.
    #[config(default = 10, deprecated_alias = "old-size")]
    cache_size: u16,
    /// Token.
    #[config(secret, env = "PROBE_TOKEN")]
    token: Option<String>,
    /// Going away.
    #[config(deprecated = "use `--peers`")]
    peer: String,
}

impl Options {
    fn check(&self, faults: &mut Faults) {
        if self.stale_after.is_zero() {
            faults.add("stale-after", "must not be zero");
        }
        if self.enable_probe && self.peers.is_empty() {
            faults.add("peers", "are needed by --enable-probe");
        }
    }
}

fn hive() -> Hive {
    Hive::new([Cell::module("options", "Options").config::<Options>()])
}

#[track_caller]
fn plan(settings: Settings) -> Plan {
    hive::testing::plan(hive(), settings)
}

#[track_caller]
fn options(settings: Settings) -> Options {
    plan(settings).config::<Options>().unwrap().clone()
}

#[track_caller]
fn refused(settings: Settings) -> Report {
    hive().plan(settings).expect_err("the settings were accepted")
}

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(format!("hive-config-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        for (file, text) in files {
            fs::write(path.join(file), text).unwrap();
        }
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn flag_beats_environment_beats_directory_beats_file_beats_default() {
    let directory = Directory::new("precedence", &[("cache-size", "3")]);
    let all = Settings::new()
        .env_prefix("APP")
        .args(["--cache-size=5"])
        .env([("APP_CACHE_SIZE", "4")])
        .config_dir(&directory.0)
        .config_text("file.yaml", "cache-size: 2\n");
    let origin = |settings: Settings| {
        let plan = plan(settings);
        let setting = plan
            .settings()
            .into_iter()
            .find(|setting| setting.name == "cache-size")
            .unwrap();
        (plan.config::<Options>().unwrap().cache_size, setting.origin)
    };

    assert_eq!(origin(all.clone()), (5, Origin::Flag));
    let without_flag = Settings::new()
        .env_prefix("APP")
        .env([("APP_CACHE_SIZE", "4")])
        .config_dir(&directory.0)
        .config_text("file.yaml", "cache-size: 2\n");
    assert_eq!(origin(without_flag), (4, Origin::Env("APP_CACHE_SIZE".into())));
    let without_env = Settings::new()
        .config_dir(&directory.0)
        .config_text("file.yaml", "cache-size: 2\n");
    assert_eq!(
        origin(without_env),
        (3, Origin::Directory(directory.0.join("cache-size")))
    );
    let file = Settings::new().config_text("file.yaml", "# size\ncache-size: 2\n");
    assert_eq!(
        origin(file),
        (
            2,
            Origin::File {
                path: "file.yaml".into(),
                line: 2
            }
        )
    );
    assert_eq!(origin(Settings::new()), (10, Origin::Default));
}

#[test]
fn dashes_and_underscores_are_one_spelling() {
    assert_eq!(options(Settings::new().args(["--cache_size=1"])).cache_size, 1);
    assert_eq!(options(Settings::new().args(["--Cache-Size", "2"])).cache_size, 2);
    assert_eq!(
        options(Settings::new().config_text("f", "cache_size: 3")).cache_size,
        3
    );
    // The prefix is joined by the library; an underscore at its end is not doubled.
    for prefix in ["CILIUM", "CILIUM_"] {
        let settings = Settings::new()
            .env_prefix(prefix)
            .env([("CILIUM_CACHE_SIZE", "4")]);
        assert_eq!(options(settings).cache_size, 4);
    }
    let unrelated = Settings::new()
        .env_prefix("CILIUM")
        .env([("CACHE_SIZE", "4"), ("CILIUMCACHE_SIZE", "4")]);
    assert_eq!(options(unrelated).cache_size, 10);
}

#[test]
fn lists_are_equal_across_sources() {
    let expected = ["a", "b"];
    let directory = Directory::new("lists", &[("peers", "a b\n")]);
    for settings in [
        Settings::new().args(["--peers=a,b"]),
        Settings::new().args(["--peers", "a b"]),
        Settings::new().args(["--peers=a", "--peers=b"]),
        Settings::new().env([("PEERS", "a, b")]),
        Settings::new().config_dir(&directory.0),
        Settings::new().config_text("f", "peers: a,b\n"),
    ] {
        assert_eq!(options(settings.clone()).peers, expected, "{settings:?}");
    }
    #[cfg(feature = "yaml")]
    assert_eq!(
        options(Settings::new().config_text("f", "peers:\n- a\n- b\n")).peers,
        expected
    );
}

#[test]
fn map_values_can_contain_commas() {
    for text in ["--labels=a=1,2,b=3", r#"--labels={"a":"1,2","b":"3"}"#] {
        let labels = options(Settings::new().args([text])).labels;
        assert_eq!(labels["a"], "1,2");
        assert_eq!(labels["b"], "3");
    }
    let repeated = options(Settings::new().args(["--labels=a=1", "--labels=b=2"])).labels;
    assert_eq!(repeated.len(), 2);
    #[cfg(feature = "yaml")]
    assert_eq!(
        options(Settings::new().config_text("f", "labels:\n  a: 1,2\n  b: true\n")).labels["a"],
        "1,2"
    );
}

#[test]
fn config_directory_reads_a_mounted_config_map() {
    let directory = Directory::new("mounted", &[("enable-probe", "ignored")]);
    let data = directory.0.join("..2026_01_01");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("cache-size"), "  7\n\n").unwrap();
    fs::write(data.join("stale-after"), "1h2m3s").unwrap();
    std::os::unix::fs::symlink("..2026_01_01", directory.0.join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/cache-size", directory.0.join("cache-size")).unwrap();
    std::os::unix::fs::symlink("..data/stale-after", directory.0.join("stale-after")).unwrap();
    fs::remove_file(directory.0.join("enable-probe")).unwrap();

    let read = options(Settings::new().config_dir(&directory.0));
    assert_eq!(
        (read.cache_size, read.stale_after),
        (7, Duration::from_secs(3723))
    );

    fs::write(data.join("cache-size"), "many").unwrap();
    let report = refused(Settings::new().config_dir(&directory.0)).to_string();
    let file = directory.0.join("cache-size");
    assert!(
        report.contains(&format!(
            "(from dir {}): `many` is not a whole number",
            file.display()
        )),
        "{report}"
    );

    let report = refused(Settings::new().config_dir("/nowhere/at/all"));
    assert!(
        report
            .to_string()
            .contains("error[H020]: cannot read config directory /nowhere/at/all")
    );
}

#[test]
fn duplicate_flag_names_both_cells() {
    #[derive(Clone, Config)]
    struct Other {
        /// Size.
        cache_size: u8,
    }
    let other = Cell::module("other", "Other").config::<Other>();

    let report = hive().with(other.clone()).plan(Settings::new()).err().unwrap();

    let finding = report.errors().next().unwrap();
    assert_eq!((finding.code.as_str(), finding.involved.len()), ("H009", 2));
    assert_eq!(finding.involved[0].module.to_string(), "options");
    assert_eq!(finding.involved[1].module.to_string(), "other");
    let renamed = hive().with(other.clone().config_prefix("west"));
    let plan = hive::testing::plan(renamed, Settings::new().args(["--west-cache-size=1"]));
    assert_eq!(plan.config::<Other>().unwrap().cache_size, 1);
    let fixed = hive().with(other.config_value(Other { cache_size: 9 }));
    let plan = hive::testing::plan(fixed, Settings::new());
    assert_eq!(plan.config::<Other>().unwrap().cache_size, 9);
    assert!(
        plan.settings()
            .iter()
            .any(|setting| setting.origin == Origin::Program)
    );
}

#[test]
fn outer_cells_have_the_last_word_about_values_and_the_first_about_names() {
    #[derive(Clone, Config)]
    struct Pool {
        /// Size.
        pool_size: u8,
    }
    let inner = || Cell::module("pool", "Pool").config::<Pool>();
    let fixed = inner().config_value(Pool { pool_size: 1 });
    let fixed = Cell::group([fixed]).config_value(Pool { pool_size: 2 });
    let named = Cell::group([inner().config_prefix("inner")]).config_prefix("outer");

    let fixed = hive::testing::plan(Hive::new([fixed]), Settings::new());
    let args = Settings::new().args(["--outer-inner-pool-size=3"]);
    let named = hive::testing::plan(Hive::new([named]), args);

    assert_eq!(fixed.config::<Pool>().unwrap().pool_size, 2);
    assert_eq!(named.config::<Pool>().unwrap().pool_size, 3);
}

#[test]
fn variables_with_lower_case_letters_belong_to_others() {
    let env = |name| Settings::new().env_prefix("APP").env([(name, "9")]);

    assert_eq!(options(env("APP_CACHE_SIZE")).cache_size, 9);
    assert_eq!(options(env("APP_cache_size")).cache_size, 10);
}

#[test]
fn empty_list_in_front_of_another_adds_nothing() {
    let options = options(Settings::new().args(["--peers=", "--peers=a", "--labels=", "--labels=a=b"]));

    assert_eq!(options.peers, ["a"]);
    assert_eq!(options.labels.len(), 1);
}

#[test]
fn one_flag_in_two_spellings_is_one_flag() {
    #[derive(Clone, Config)]
    struct Dashes {
        /// Size.
        pool_size: u8,
    }
    #[derive(Clone, Config)]
    struct Underscores {
        /// Size.
        #[config(flag = "pool_size")]
        size: u8,
    }
    let cells = [
        Cell::module("dashes", "Dashes").config::<Dashes>(),
        Cell::module("underscores", "Underscores").config::<Underscores>(),
    ];

    let report = Hive::new(cells).plan(Settings::new()).err().unwrap();

    assert_eq!(report.errors().next().unwrap().code.as_str(), "H009", "{report}");
}

#[test]
fn prefixes_stand_before_old_names_too() {
    #[derive(Clone, Config)]
    struct Port {
        /// Port to listen on.
        #[config(deprecated_alias = "listen-port")]
        port: u16,
    }
    for flag in ["--north-listen-port=1", "--north-port=1"] {
        let server = Cell::module("server", "Serves")
            .config::<Port>()
            .config_prefix("north");
        let hive = Hive::new([server]).root::<Cfg<Port>>();
        let built = hive::testing::plan(hive, Settings::new().args([flag]))
            .build()
            .unwrap();
        assert_eq!(built.get::<Cfg<Port>>().unwrap().port, 1, "{flag}");
    }
    let hive = Hive::new([Cell::module("server", "Serves")
        .config::<Port>()
        .config_prefix("north")]);
    let report = hive.plan(Settings::new().args(["--port=1"])).err().unwrap();
    assert_eq!(report.errors().next().unwrap().code.as_str(), "H016", "{report}");
}

#[test]
fn all_errors_come_at_once_with_their_origin() {
    let settings = Settings::new()
        .env_prefix("APP")
        .args(["--cache-size=many", "--stael-after=1s", "--enable-probe=perhaps"])
        .env([("APP_STALE_AFTER", "5")])
        .config_text("c.yaml", "chache-size: 1\n");

    let report = refused(settings).to_string();

    for expected in [
        "unknown argument `--stael-after`\n  help: did you mean `--stale-after`?",
        "unknown setting `chache-size` (from file c.yaml:1)\n  help: did you mean `cache-size`?",
        "`cache-size` (from flag): `many` is not a whole number from 0 to 65535",
        "`enable-probe` (from flag): `perhaps` is neither true nor false",
        "`stale-after` (from env APP_STALE_AFTER): `5` is not a duration such as 300ms, 5s, 1h30m",
    ] {
        assert!(report.contains(expected), "{expected}\nis not in\n{report}");
    }
}

#[test]
fn what_is_no_text_in_a_config_directory_is_an_error_that_names_it() {
    let directory = Directory::new("odd", &[("cache-size", "7")]);
    let path = |name: &str| directory.0.join(name);
    fs::write(path("stale-after"), b"\xff\xfe").unwrap();
    fs::create_dir(path("sub")).unwrap();
    std::os::unix::fs::symlink("nowhere", path("peers")).unwrap();
    let fifo = std::process::Command::new("mkfifo")
        .arg(path("enable-probe"))
        .status()
        .unwrap();
    assert!(fifo.success());
    fs::write(directory.0.join(std::ffi::OsStr::from_bytes(b"na\xffme")), "x").unwrap();

    let report = refused(Settings::new().config_dir(&directory.0));

    let errors: Vec<_> = report.errors().map(|finding| finding.message.as_str()).collect();
    assert_eq!(errors.len(), 5, "{report}");
    for (name, what) in [
        ("stale-after", "valid UTF-8"),
        ("sub", "it is not a regular file"),
        ("peers", "No such file or directory"),
        ("enable-probe", "it is not a regular file"),
        ("na\u{fffd}me", "its name is not UTF-8"),
    ] {
        let begin = format!("cannot read config file {}: ", path(name).display());
        let error = errors.iter().find(|error| error.starts_with(&begin));
        assert!(
            error.is_some_and(|error| error.contains(what)),
            "{name}: {report}"
        );
    }
}

#[test]
fn tolerated_keys_are_warnings_and_all_others_errors() {
    let text = "operator-port: 1\nOPERATOR_NAME: x\n";
    let settings = Settings::new().config_text("shared", text);
    let tolerant = settings.clone().tolerate_keys(["operator-port", "operator-name"]);

    let warned = plan(tolerant.clone());
    let refused = refused(tolerant.config_text("own", "operator-prot: 1"));

    let warnings: Vec<_> = warned
        .report()
        .warnings()
        .map(|finding| finding.message.as_str())
        .collect();
    assert!(
        warnings.contains(&"2 unknown settings `operator-port`, `OPERATOR_NAME` (from file shared)"),
        "{warnings:?}"
    );
    let errors: Vec<_> = refused.errors().map(|finding| finding.message.as_str()).collect();
    assert_eq!(errors, ["unknown setting `operator-prot` (from file own:1)"]);
}

#[derive(Clone, Config)]
#[config(validate = Misspelt::check)]
struct Misspelt {
    /// How many.
    #[config(default = 3, flag = "queue-size")]
    size: u32,
}

impl Misspelt {
    fn check(&self, faults: &mut Faults) {
        if self.size > 3 {
            faults.add("queue-sise", "must be at most 3");
        }
    }
}

#[test]
fn fault_of_a_flag_that_is_not_declared_says_so() {
    let hive = Hive::new([Cell::module("queue", "Queue").config::<Misspelt>()]);

    let report = hive.plan(Settings::new().args(["--queue-size=4"])).unwrap_err();

    let finding = report.errors().next().unwrap();
    assert_eq!(
        finding.message,
        "must be at most 3 (reported for `--queue-sise`, which the configuration does not declare)"
    );
    assert_eq!(
        finding.help,
        ["in the program: write `faults.add(\"queue-size\", ...)`"]
    );
}

#[test]
fn wrong_title_of_a_module_does_not_hide_faults_of_its_settings() {
    let hive = Hive::new([Cell::module("queue", "Queue (new)").config::<Misspelt>()]);

    let report = hive
        .plan(Settings::new().args(["--queue-size=many"]))
        .unwrap_err();

    let codes: Vec<_> = report.errors().map(|finding| finding.code.as_str()).collect();
    assert_eq!(codes, ["H001", "H010"], "{report}");
}

#[test]
fn validation_reports_all_faults() {
    let report = refused(Settings::new().args(["--stale-after=0s", "--enable-probe"]));

    let messages: Vec<_> = report.errors().map(|finding| finding.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "`--stale-after` (from flag): must not be zero",
            "`--peers` (from default): are needed by --enable-probe"
        ]
    );
}

#[test]
fn unknown_keys_of_files_are_errors_or_warnings_as_asked() {
    let file = Settings::new().config_text("f", "nonsense: 1");

    assert_eq!(
        refused(file.clone()).errors().next().unwrap().code.as_str(),
        "H011"
    );
    let warned = plan(file.clone().unknown_keys(UnknownKeys::Warn));
    assert!(
        warned
            .report()
            .warnings()
            .any(|finding| finding.code.as_str() == "H011")
    );
    let ignored = plan(file.unknown_keys(UnknownKeys::Ignore));
    assert!(
        ignored
            .report()
            .warnings()
            .all(|finding| finding.code.as_str() != "H011")
    );
}

#[test]
fn deprecated_names_work_and_are_reported() {
    let plan = plan(Settings::new().args(["--old-size=4", "--peer=x"]));

    assert_eq!(plan.config::<Options>().unwrap().cache_size, 4);
    let text = plan.report().to_string();
    assert!(
        text.contains("warning[H017]: `old-size` (from flag) is deprecated"),
        "{text}"
    );
    assert!(
        text.contains("help: use `cache-size`") && text.contains("help: use `--peers`"),
        "{text}"
    );
    assert_eq!(
        options(Settings::new().args(["--old-size=4", "--cache-size=5"])).cache_size,
        5
    );
}

#[test]
fn secrets_are_never_shown() {
    let plan = plan(Settings::new().env([("PROBE_TOKEN", "hunter2")]));

    assert_eq!(
        plan.config::<Options>().unwrap().token.as_deref(),
        Some("hunter2")
    );
    assert!(plan.show_config().contains("***"));
    for text in [plan.show_config(), plan.tree(), plan.docs("APP"), plan.help()] {
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn arguments_are_read_as_pflag_does() {
    let read = |args: &[&str]| options(Settings::new().args(args.iter().copied()));

    assert!(read(&["--enable-probe", "--peers=a"]).enable_probe);
    assert!(!read(&["--enable-probe=false"]).enable_probe);
    assert_eq!(read(&["--cache-size", "3"]).cache_size, 3);
    assert_eq!(read(&["--cache-size=3", "--cache-size=4"]).cache_size, 4);
    let missing = refused(Settings::new().args(["--cache-size"]));
    assert!(
        missing
            .to_string()
            .contains("`cache-size` (from flag): needs a value: `--cache-size uint`"),
        "{missing}"
    );
    assert_eq!(
        refused(Settings::new().args(["word"]))
            .errors()
            .next()
            .unwrap()
            .code
            .as_str(),
        "H016"
    );
    assert!(
        refused(Settings::new().args(["-x"]))
            .to_string()
            .contains("unknown argument `-x`")
    );
    let plan = plan(
        Settings::new()
            .allow_arguments()
            .args(["status", "--cache-size=1", "--", "--brief"]),
    );
    assert_eq!(plan.arguments(), ["status", "--brief"]);
}

#[test]
fn cells_check_their_configurations_against_each_other() {
    #[derive(Clone, Config)]
    struct Limit {
        /// Largest size.
        #[config(default = 20)]
        max_size: u16,
    }
    let limit = Cell::module("limit", "Limit").config::<Limit>().check(
        |limit: &Limit, options: &Options, faults: &mut Faults| {
            if options.cache_size > limit.max_size {
                faults.add("cache-size", "must not be above --max-size");
            }
        },
    );

    let hive = hive().with(limit.clone());

    assert!(hive.clone().plan(Settings::new()).is_ok());
    let report = hive
        .plan(Settings::new().args(["--cache-size=21"]))
        .err()
        .unwrap();
    assert!(
        report
            .to_string()
            .contains("error[H015]: `--cache-size`: must not be above --max-size"),
        "{report}"
    );
    let alone = Hive::new([limit]).plan(Settings::new()).err().unwrap();
    assert_eq!(alone.errors().next().unwrap().code.as_str(), "H018");
}

#[test]
fn reference_of_flags_is_generated() {
    let docs = plan(Settings::new()).docs("APP");

    assert!(docs.contains(
        "| `--stale-after` | `APP_STALE_AFTER` | duration | `5m0s` | options | How long. Long help, e.g. for the reference. |"
    ));
    assert!(docs.contains("| `--token` | `PROBE_TOKEN` |"));
    let none = "No setting can be changed while the program runs";
    assert!(docs.contains(none), "{docs}");
    let help = plan(Settings::new()).help();
    assert!(help.contains("How long. (default 5m0s)"), "{help}");
}

#[test]
fn reads_ip_prefixes() {
    #[derive(Clone, Config)]
    struct Ranges {
        /// Prefixes.
        ranges: Vec<ipnet::IpNet>,
    }
    let cell = Cell::module("ranges", "Ranges").config::<Ranges>();
    let plan = hive::testing::plan(
        Hive::new([cell]),
        Settings::new().args(["--ranges=10.0.0.0/8,fd00::/64"]),
    );
    assert_eq!(plan.config::<Ranges>().unwrap().ranges.len(), 2);
}
