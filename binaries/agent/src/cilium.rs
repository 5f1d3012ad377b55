// SPDX-License-Identifier: Apache-2.0

//! Tests that settings written for Cilium are accepted.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use hive::{Code, Hive, Program, Settings};
use serde_json::Value;

use skep_base_settings::cilium::{AGENT, differences, keys_without_effect};

/// What Cilium's chart writes with default values.
const DEFAULT: &str = include_str!("testdata/cilium-config.yaml");

/// How the ConfigMap that the chart writes differs with other values, one set of values a line.
const OTHERS: &str = include_str!("testdata/cilium-configs.json");

fn hive() -> Hive {
    Hive::new(crate::cells(Arc::default()))
}

fn settings(text: &str) -> Settings {
    Settings::new()
        .config_text("cilium-config.yaml", text)
        .tolerate_keys(keys_without_effect(AGENT))
}

#[test]
fn default_config_map_mounts_unchanged() {
    assert_eq!(DEFAULT.lines().filter(|line| !line.starts_with('#')).count(), 163);

    let plan = hive()
        .plan(settings(DEFAULT))
        .unwrap_or_else(|report| panic!("{report}"));

    let mut unknown = plan
        .report()
        .warnings()
        .filter(|finding| finding.code == Code::UnknownKey);
    let line = unknown.next().expect("one line").to_string();
    assert!(line.contains("`agent-not-ready-taint-key`"), "{line}");
    assert_eq!(unknown.count(), 0, "one line for all");
}

/// A folder with the ConfigMap as it is mounted.
fn mount(difference: &Value, more: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |key: &str, value: &str| fs::write(folder.path().join(key), value).unwrap();
    for line in DEFAULT.lines().filter(|line| !line.starts_with('#')) {
        let (key, value) = line.split_once(": ").unwrap();
        write(key, &serde_json::from_str::<String>(value).unwrap());
    }
    for (key, value) in difference["set"].as_object().into_iter().flatten() {
        write(key, value.as_str().unwrap());
    }
    for key in difference["unset"].as_array().into_iter().flatten() {
        fs::remove_file(folder.path().join(key.as_str().unwrap())).unwrap();
    }
    for (key, value) in more {
        write(key, value);
    }
    folder
}

/// `skep-agent --config-dir FOLDER hive check`; returns the exit code.
fn check(folder: &tempfile::TempDir) -> u8 {
    let program =
        Program::new("skep-agent", crate::cells(Arc::default())).tolerate_keys(keys_without_effect(AGENT));
    let folder = folder.path().to_str().unwrap();
    program.run_with(
        ["--config-dir", folder, "hive", "check"]
            .map(str::to_owned)
            .into(),
        Vec::new(),
    )
}

#[test]
fn config_maps_of_the_chart_mount_unchanged() {
    let all: BTreeMap<String, Value> = serde_json::from_str(OTHERS).unwrap();
    assert_eq!(all.len(), 73);
    let refused = [
        ("ipam-kubernetes", "`--tunnel-protocol`"),
        ("ipsec", "`--tunnel-protocol`"),
        ("extra-config-again", "unknown setting `custom-key`"),
    ];

    for (name, difference) in &all {
        let folder = mount(difference, &[]);
        let code = check(&folder);

        let Some((_, text)) = refused.iter().find(|(refused, _)| refused == name) else {
            assert_eq!(code, hive::exit::OK, "{name}");
            continue;
        };
        assert_eq!(code, hive::exit::PLAN, "{name}");
        let settings = Settings::new()
            .config_dir(folder.path())
            .tolerate_keys(keys_without_effect(AGENT));
        let errors = hive().plan(settings).unwrap_err().to_string();
        assert!(errors.contains(text), "{name}: {errors}");
    }

    // The way out for keys of one's own.
    let folder = mount(&all["extra-config-again"], &[("config-unknown", "warn")]);
    assert_eq!(check(&folder), hive::exit::OK);
}

#[test]
fn misspelt_key_ends_the_start() {
    let text = format!("{DEFAULT}\nenable-ipv44: \"true\"\n");

    let report = hive().plan(settings(&text)).expect_err("a misspelt key");

    let errors: Vec<_> = report.errors().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("unknown setting `enable-ipv44`"), "{errors:?}");
    assert!(errors[0].contains("did you mean `enable-ipv4`?"), "{errors:?}");
}

#[test]
fn both_families_off_is_an_error() {
    let report = hive()
        .plan(settings("enable-ipv4: false\nenable-ipv6: false\n"))
        .expect_err("no family");

    let text = report.to_string();
    assert!(text.contains("one address family is needed"), "{text}");
}

#[test]
fn the_list_of_keys_is_that_of_the_declared_settings() {
    let plan = hive()
        .plan(Settings::new())
        .unwrap_or_else(|report| panic!("{report}"));

    let declared: Vec<_> = plan
        .settings()
        .into_iter()
        .filter(|setting| !setting.module.to_string().ends_with("unsupported-config"))
        .flat_map(|setting| std::iter::once(setting.name).chain(setting.aliases))
        .collect();
    assert_eq!(differences(AGENT, &declared), [""; 0]);
}
