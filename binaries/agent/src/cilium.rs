// SPDX-License-Identifier: Apache-2.0

//! Tests that settings written for Cilium are accepted.

use std::sync::Arc;

use hive::{Code, Hive, Settings};

use skep_datapath_config::cilium_keys;

/// What Cilium's chart writes with default values.
const DEFAULT: &str = include_str!("testdata/cilium-config.yaml");

fn hive() -> Hive {
    Hive::new(crate::cells(Arc::default()))
}

fn settings(text: &str) -> Settings {
    Settings::new()
        .config_text("cilium-config.yaml", text)
        .tolerate_keys(cilium_keys())
}

#[test]
fn default_config_map_mounts_unchanged() {
    assert_eq!(DEFAULT.lines().filter(|line| !line.starts_with('#')).count(), 160);

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
fn names_are_sorted_and_none_is_a_setting_of_the_agent() {
    let names: Vec<_> = cilium_keys().collect();
    assert!(names.is_sorted());

    let plan = hive()
        .plan(Settings::new())
        .unwrap_or_else(|report| panic!("{report}"));

    let settings = plan.settings();
    let own = settings
        .iter()
        .flat_map(|setting| std::iter::once(&setting.name).chain(&setting.aliases));
    let both: Vec<_> = own.filter(|name| names.contains(&name.as_str())).collect();
    assert_eq!(both, [""; 0], "have an effect");
}
