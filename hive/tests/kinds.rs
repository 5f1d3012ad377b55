// SPDX-License-Identifier: Apache-2.0

//! Every kind of value from every source: read alike, and the stronger source wins.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use hive::config::Origin;
use hive::{Cell, Config, Hive, Plan, Settings};

#[derive(Clone, Debug, Default, PartialEq)]
enum Mode {
    #[default]
    Tunnel,
    Native,
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tunnel" => Ok(Self::Tunnel),
            "native" => Ok(Self::Native),
            _ => Err(format!("`{text}` is neither tunnel nor native")),
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tunnel => "tunnel",
            Self::Native => "native",
        })
    }
}

hive::config_value!(Mode, "tunnel|native");

#[derive(Clone, Debug, Config)]
struct Kinds {
    /// A switch.
    switch: bool,
    /// A count.
    count: u32,
    /// A count above zero.
    #[config(default = 1)]
    workers: NonZeroU32,
    /// An offset.
    offset: i64,
    /// A share.
    share: f64,
    /// A text.
    text: String,
    /// A path.
    path: PathBuf,
    /// A time.
    period: Duration,
    /// An address.
    #[config(default = "0.0.0.0")]
    address: IpAddr,
    /// An address with port.
    #[config(default = "0.0.0.0:0")]
    listen: SocketAddr,
    /// Names.
    names: Vec<String>,
    /// Ports.
    ports: BTreeSet<u16>,
    /// Labels.
    labels: BTreeMap<String, String>,
    /// Maybe a limit.
    limit: Option<u16>,
    /// A mode.
    mode: Mode,
}

/// Setting, four values as users write them, the weakest source first, and how the last is shown.
const ROWS: [(&str, [&str; 4], &str); 15] = [
    ("switch", ["true", "0", "F", "T"], "true"),
    ("count", ["1", "0x10", "1_000", "010"], "8"),
    ("workers", ["2", "3", "4", "5"], "5"),
    ("offset", ["-1", "+2", "-0x3", "-4"], "-4"),
    ("share", ["0.1", "1e-2", "5", "0.25"], "0.25"),
    ("text", ["a", "b c", "d,e", "f=g"], "f=g"),
    ("path", ["/a", "b/c", "./d", "/run/x"], "/run/x"),
    ("period", ["1s", "300ms", "1h2m", "1.5s"], "1.5s"),
    (
        "address",
        ["10.0.0.1", "::1", "fe80::1", "192.168.0.1"],
        "192.168.0.1",
    ),
    (
        "listen",
        ["10.0.0.1:1", "[::1]:2", "[fe80::1]:3", "127.0.0.1:4"],
        "127.0.0.1:4",
    ),
    ("names", ["a", "a b", "a,b", "a, b"], "a,b"),
    ("ports", ["80", "80 443", "443,80", "443, 80"], "80,443"),
    (
        "labels",
        ["a=1", "a=1,b=2", "{\"a\": \"1\"}", "b=2,3,a=1"],
        "a=1,b=2,3",
    ),
    ("limit", ["1", "2", "3", "4"], "4"),
    ("mode", ["native", "tunnel", "native", "native"], "native"),
];

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn shown(settings: Settings, name: &str) -> (String, Origin) {
    let plan: Plan = hive::testing::plan(
        Hive::new([Cell::module("kinds", "Kinds").config::<Kinds>()]),
        settings,
    );
    let setting = plan
        .settings()
        .into_iter()
        .find(|setting| setting.name == name)
        .unwrap();
    (setting.value, setting.origin)
}

#[test]
fn stronger_sources_win_for_every_kind_of_value() {
    for (name, [file, directory, env, flag], last) in ROWS {
        let path = std::env::temp_dir().join(format!("hive-kinds-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let guard = Directory(path);
        fs::write(guard.0.join(name), format!("{directory}\n")).unwrap();
        let variable = format!("APP_{}", name.to_uppercase());
        let from_file = Settings::new()
            .env_prefix("APP")
            .config_text("app.yaml", format!("{name}: '{file}'\n"));
        let from_directory = from_file.clone().config_dir(&guard.0);
        let from_env = from_directory.clone().env([(variable.clone(), env)]);
        let from_flag = from_env.clone().args([format!("--{name}={flag}")]);

        let (value, origin) = shown(from_flag, name);
        assert_eq!((value.as_str(), origin), (last, Origin::Flag), "{name}");
        let origin_of = |settings| shown(settings, name).1;
        assert_eq!(origin_of(from_env), Origin::Env(variable));
        assert_eq!(origin_of(from_directory), Origin::Directory(guard.0.join(name)));
        assert!(matches!(origin_of(from_file), Origin::File { .. }), "{name}");
        assert_eq!(origin_of(Settings::new()), Origin::Default);
    }
}

#[test]
fn the_same_text_means_the_same_from_every_source() {
    for (name, texts, _) in ROWS {
        for text in texts {
            let path = std::env::temp_dir().join(format!("hive-alike-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            let guard = Directory(path);
            fs::write(guard.0.join(name), format!("{text}\n")).unwrap();
            let variable = format!("APP_{}", name.to_uppercase());
            let sources = [
                Settings::new().args([format!("--{name}={text}")]),
                Settings::new().env_prefix("APP").env([(variable, text)]),
                Settings::new().config_dir(&guard.0),
                Settings::new().config_text("app.yaml", format!("{name}: '{text}'\n")),
            ];
            let values = sources.map(|settings| shown(settings, name).0);
            assert!(
                values.iter().all(|value| *value == values[0]),
                "{name} {text:?}: {values:?}"
            );
        }
    }
}

#[test]
fn empty_variables_count_as_unset() {
    for (name, ..) in ROWS {
        let variable = format!("APP_{}", name.to_uppercase());
        let settings = Settings::new().env_prefix("APP").env([(variable, "")]);
        assert_eq!(shown(settings, name).1, Origin::Default, "{name}");
    }
}
