// SPDX-License-Identifier: Apache-2.0

//! Tests that settings written for Cilium are accepted.

use std::collections::BTreeMap;

use hive::{Hive, Settings, config::UnknownKeys};
use serde_json::Value;
use skep_base_settings::cilium::{OPERATOR, differences};

/// What Cilium's chart writes with default values.
const DEFAULT: &str = include_str!("../../agent/src/testdata/cilium-config.yaml");

fn plan(text: &str) -> Result<hive::Plan, String> {
    let settings = Settings::new()
        .config_text("cilium-config.yaml", text)
        .unknown_keys(UnknownKeys::Ignore);
    Hive::new(crate::cells())
        .plan(settings)
        .map_err(|report| report.to_string())
}

#[test]
fn default_config_map_mounts_unchanged() {
    let plan = plan(DEFAULT).unwrap();

    let findings: Vec<_> = plan.report().findings().iter().map(ToString::to_string).collect();
    assert_eq!(findings, [""; 0]);
}

/// How the ConfigMap that the chart writes differs with other values, one set of values a line.
const OTHERS: &str = include_str!("../../agent/src/testdata/cilium-configs.json");

#[test]
fn config_maps_of_the_chart_mount_unchanged() {
    let all: BTreeMap<String, Value> = serde_json::from_str(OTHERS).unwrap();
    let refused = [("azure-ipam", "`--ipam`"), ("eks-eni", "`--ipam`")];

    for (name, difference) in &all {
        let set: BTreeMap<String, String> =
            serde_json::from_value(difference.get("set").cloned().unwrap_or_default()).unwrap_or_default();
        let unset = difference["unset"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let unset: Vec<&str> = unset.collect();
        let kept = DEFAULT.lines().filter(|line| {
            let key = line.split(": ").next().unwrap_or_default();
            !set.contains_key(key) && !unset.contains(&key)
        });
        let mut text: String = kept.map(|line| format!("{line}\n")).collect();
        text.extend(
            set.iter()
                .map(|(key, value)| format!("{key}: {}\n", Value::from(value.as_str()))),
        );

        let expected = refused.iter().find(|(refused, _)| refused == name);
        match (plan(&text).err(), expected) {
            (None, None) => {}
            (Some(error), Some((_, text))) if error.contains(text) => {}
            (found, _) => panic!("{name}: {found:?} instead of {expected:?}"),
        }
    }
}

/// Flags of Cilium's operator with their defaults.
const FLAGS: &str = include_str!("testdata/cilium-operator-flags.txt");

#[test]
fn flags_are_those_of_cilium() {
    let flags: Vec<String> = FLAGS.lines().map(|line| format!("--{line}")).collect();
    assert!(flags.len() > 130);

    let plan = Hive::new(crate::cells()).plan(Settings::new().args(flags));

    let plan = plan.unwrap_or_else(|report| panic!("{report}"));
    let findings: Vec<_> = plan.report().findings().iter().map(ToString::to_string).collect();
    assert_eq!(findings, [""; 0]);
}

#[test]
fn the_list_of_keys_is_that_of_the_declared_settings() {
    let settings = plan("").unwrap().settings().into_iter();
    let declared: Vec<_> = settings
        .filter(|setting| !setting.module.to_string().ends_with("unsupported-config"))
        .flat_map(|setting| std::iter::once(setting.name).chain(setting.aliases))
        .collect();
    assert_eq!(differences(OPERATOR, &declared), [""; 0]);
}

#[test]
fn limits_metrics_and_ports_of_agents_are_not_those_of_the_operator() {
    let text = "k8s-client-qps: \"1\"\nmetrics: +cilium_drop_count_total\nprometheus-serve-addr: \":9962\"\nenable-metrics: \"true\"\n";
    let plan = plan(text).unwrap();

    let value = |name: &str| {
        plan.settings()
            .into_iter()
            .find(|s| s.name == name)
            .map(|s| s.value)
    };
    assert_eq!(value("k8s-client-qps"), None);
    assert_eq!(value("operator-k8s-client-qps").as_deref(), Some("100"));
    assert_eq!(value("operator-prometheus-serve-addr").as_deref(), Some(":9963"));
    assert_eq!(value("prometheus-serve-addr"), None);
    assert_eq!(value("metrics"), None);
    assert_eq!(value("operator-metrics").as_deref(), Some(""));
    assert_eq!(value("metrics-sampling-interval").as_deref(), Some("5m0s"));
    assert_eq!(value("enable-metrics").as_deref(), Some("true"));
    assert_eq!(
        value("operator-api-serve-addr").as_deref(),
        Some("localhost:9234")
    );
}
