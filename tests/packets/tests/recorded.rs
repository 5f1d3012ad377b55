// SPDX-License-Identifier: Apache-2.0

//! Recorded packets of a node with two pods: all must pass, but for differences that are meant.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

use run_packets::{FlowTable, Outcome, Report, Twins, run_file, run_file_with, take_twins};
use serde_json::{Value, json};

/// Runs the scenarios of both address families of a group; `different` are those that differ, as they are meant to.
#[track_caller]
fn check(group: &str, different: &[(&str, &str)]) {
    for family in ["v4", "v6"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/{group}-{family}.json"));
        let reports =
            run_file(&file, &[], "").unwrap_or_else(|error| panic!("{}: {error:?}", file.display()));
        assert!(!reports.is_empty(), "{} has no scenarios", file.display());
        let failed: Vec<String> = reports
            .iter()
            .filter(|report| matches!(report.outcome, Outcome::Failed(_)))
            .map(Report::to_string)
            .collect();
        assert!(failed.is_empty(), "{}", failed.join("\n"));
        let not_compared: Vec<&str> = reports
            .iter()
            .filter(|report| report.outcome == Outcome::NotCompared)
            .map(|report| report.scenario.as_str())
            .collect();
        let live: &[&str] = match (group, family) {
            ("l2-neighbour", "v4") => &["vlan"],
            _ => &[],
        };
        assert_eq!(not_compared, live, "{}", file.display());
        let found: Vec<(&str, &str)> = reports
            .iter()
            .filter_map(|report| match &report.outcome {
                Outcome::Different { name, .. } => Some((report.scenario.as_str(), *name)),
                _ => None,
            })
            .collect();
        let wanted: Vec<(&str, &str)> = different
            .iter()
            .filter(|(scenario, _)| scenario.strip_suffix("/v4").is_none_or(|_| family == "v4"))
            .filter(|(scenario, _)| scenario.strip_suffix("/v6").is_none_or(|_| family == "v6"))
            .map(|(scenario, name)| (scenario.split('/').next().unwrap_or(scenario), *name))
            .collect();
        assert_eq!(found, wanted, "{}", file.display());
    }
}

#[test]
fn pods_of_the_node_and_of_others() {
    check("pod-pod", &[("pp_expired", "expired-entries")]);
}

#[test]
fn datagrams_and_icmp() {
    check(
        "udp-icmp",
        &[
            ("icmp_frag_needed/v6", "packet-too-big"),
            ("icmp_svc_error", "errors-about-translated-flows"),
        ],
    );
}

#[test]
fn services_for_pods() {
    check("service-east-west", &[]);
}

#[test]
fn services_for_clients_outside() {
    check(
        "service-north-south",
        &[
            ("ns_icmp", "errors-about-translated-flows"),
            ("ns_ttl1/v6", "hop-limit-of-errors"),
            ("ns_trap", "nodeport-then-direct"),
        ],
    );
}

#[test]
fn services_for_clients_outside_at_xdp() {
    check(
        "xdp-north-south",
        &[
            ("xdp_ns_ttl1/v6", "hop-limit-of-errors"),
            ("xdp_ns_trap", "nodeport-then-direct"),
            ("xdp_bad_net/v4", "broken-headers"),
            ("xdp_ns_no_neighbour", "unresolved-neighbour"),
        ],
    );
}

#[test]
fn masquerade() {
    check(
        "masquerade",
        &[("mq_icmperr/v6", "errors-about-translated-flows")],
    );
}

#[test]
fn fragments() {
    check("fragments", &[]);
}

#[test]
fn broken_and_unusual_packets() {
    check(
        "malformed",
        &[
            ("bad_pod", "broken-headers"),
            ("bad_net/v4", "broken-headers"),
            ("bad_ttl/v6", "hop-limit-of-errors"),
        ],
    );
}

#[test]
fn neighbours() {
    check("l2-neighbour", &[]);
}

#[test]
fn policies() {
    check("policy", &[("pol_related", "errors-of-routers")]);
}

#[test]
fn entries_that_change_under_a_flow() {
    check("altered-state", &[]);
}

#[test]
fn marks() {
    check("marks", &[]);
}

#[test]
fn events_of_every_packet() {
    check("events-unaggregated", &[]);
}

#[test]
fn a_file_that_says_something_else_fails() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let text = std::fs::read_to_string(folder.join("marks-v4.json")).unwrap();
    let changed = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    // Another verdict in the first step.
    std::fs::write(changed.path(), text.replacen("\"ret\":0", "\"ret\":2", 1)).unwrap();

    let reports = run_file(changed.path(), &[folder.join("facts.json")], "mk_to_netdev").unwrap();

    let Outcome::Failed(why) = &reports[0].outcome else {
        panic!("{:?}", reports[0])
    };
    assert!(
        why.contains("step 1") && why.contains("verdict OK instead of SHOT"),
        "{why}"
    );
    assert_eq!(
        reports[1].outcome,
        Outcome::Passed,
        "the next scenario begins anew"
    );
}

/// Scenarios of ours, with options that were not recorded, and what the reference says to them.
#[test]
fn scenarios_with_other_options() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/own");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.file_name().unwrap().to_str().unwrap().starts_with("facts"))
        .collect();
    files.sort();
    let mut passed = 0;
    for file in files {
        let reports = run_file(&file, &[], "")
            .unwrap_or_else(|error| panic!("{}: {}", file.display(), error.with_causes()));
        for report in reports {
            assert_eq!(report.outcome, Outcome::Passed, "{report}");
            passed += 1;
        }
    }
    assert!(passed >= 60, "{passed} scenarios");
}

#[test]
fn a_router_may_answer_whatever_the_policy() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let text = std::fs::read_to_string(folder.join("own/policy.json")).unwrap();
    let mut group: Value = serde_json::from_str(&text).unwrap();
    // As Cilium's programs do: the policy of the pod drops the error.
    for scenario in group["scenarios"].as_array_mut().unwrap() {
        let step = &mut scenario["steps"][2];
        step["ret"] = 2.into();
        step["events"] = json!([{"hex": "0185"}]);
    }
    let changed = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    std::fs::write(changed.path(), group.to_string()).unwrap();

    let facts = ["facts.json", "facts-pol.json"].map(|name| folder.join(name));
    let reports = run_file(changed.path(), &facts, "").unwrap();

    assert!(!reports.is_empty());
    for report in reports {
        assert!(
            matches!(
                report.outcome,
                Outcome::Different {
                    step: 3,
                    name: "errors-of-routers",
                    ..
                }
            ),
            "{report}"
        );
    }
}

/// Runs scenarios with the recorded facts; returns their outcomes.
fn outcomes(scenarios: Value) -> Result<Vec<Outcome>, Box<dyn std::error::Error>> {
    let file = tempfile::NamedTempFile::with_suffix(".json")?;
    let group = json!({"format": 1, "group": "test", "scenarios": scenarios, "recorded_by": "hand"});
    std::fs::write(file.path(), group.to_string())?;
    let facts = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/facts.json");
    let reports = run_file(file.path(), &[facts], "")?;
    Ok(reports.into_iter().map(|report| report.outcome).collect())
}

/// A frame of a pod with an ethertype that is dropped.
const UNKNOWN: &str = "7eaded74e4fc56cf58685bd688b54500002812344000400613190a0100a50a0100dd";

#[test]
fn what_cannot_be_done_fails_its_scenario_alone() {
    let works = json!({"name": "works", "steps": [
        {"program": "cil_from_netdev", "dev": "eth0", "ret": 0, "packet_in": format!("{:0<120}", "3a114eeef2b20aded3fb87f088b5"),
            "metrics": [{"key": "03:01 000000000000", "count": 1, "bytes": 60}]},
    ]});
    let step = |step: Value| json!({"name": "fails", "steps": [step]});

    let outcomes = outcomes(json!([
        step(json!({"program": "cil_from_netdev", "dev": "eth0", "ret": 0, "packet_in": "3a114eee"})),
        works,
        step(json!({"program": "cil_from_netdev", "dev": "eth1", "ret": 0, "packet_in": UNKNOWN})),
        step(json!({"program": "cil_from_netdev", "dev": "eth0", "ret": 0, "packet_in": "3a114eeg"})),
        step(json!({"program": "cil_from_nowhere", "dev": "eth0", "ret": 0, "packet_in": UNKNOWN})),
        step(json!({"user_space_write": {"map": "cilium_colours", "key": "00", "value": "00"}})),
        step(json!({"user_space_write": {"map": "cilium_lxc", "key": "00", "value": "00"}})),
        works,
    ]))
    .unwrap();

    let texts = [
        "step 1 cil_from_netdev\n    cannot run a packet of 4 bytes",
        "",
        "the facts have no device eth1",
        "step 1 is no step of this format",
        "the facts have no program cil_from_nowhere",
        "the facts have no map cilium_colours",
        "cilium_lxc has no entries with a key of 1 and a value of 1 bytes",
        "",
    ];
    assert_eq!(outcomes.len(), texts.len());
    for (outcome, text) in outcomes.iter().zip(texts) {
        match outcome {
            Outcome::Failed(why) => assert!(!text.is_empty() && why.contains(text), "{why}"),
            passed => assert!(*passed == Outcome::Passed && text.is_empty(), "{passed:?}"),
        }
    }
}

#[test]
fn fields_may_be_null_or_missing() {
    let steps = json!([
        {"note": null, "program": null, "ctx_in": null, "map_changes": null},
        {"program": "cil_from_container", "dev": "p1", "ifindex": null, "attach": "p1 host-side veth, tcx ingress",
            "ctx_in": {"mark": null, "cb": null}, "packet_in": UNKNOWN.to_uppercase(), "packet_out": null, "ret": 2, "ret_name": "TC_ACT_SHOT",
            "metrics": [{"key": "8b02000000000000", "reason": 139, "count": 1, "bytes": 34}], "events": [{"hex": null}]},
    ]);
    let [Outcome::Failed(why)] = &outcomes(json!([{"name": "null", "steps": steps}])).unwrap()[..] else {
        panic!("an event is none")
    };
    assert!(why.contains("step 2 is no step of this format"), "{why}");

    let mut steps = steps;
    steps[1]["events"] = Value::Null;
    let [Outcome::Failed(why)] = &outcomes(json!([{"name": "null", "steps": steps}])).unwrap()[..] else {
        panic!("there is an event")
    };
    assert!(why.contains("events") && why.contains("instead of none"), "{why}");
    assert!(
        !why.contains("packet\n") && !why.contains("verdict") && !why.contains("counters"),
        "{why}"
    );
}

#[test]
fn broken_files_are_named() {
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    std::fs::write(
        file.path(),
        "{\"format\": 2, \"group\": \"x\", \"scenarios\": []}",
    )
    .unwrap();
    let error = run_file(file.path(), &[], "").unwrap_err();
    assert!(error.to_string().ends_with("has format 2, known is 1"), "{error}");

    std::fs::write(file.path(), "{").unwrap();
    let error = run_file(file.path(), &[], "").unwrap_err();
    assert!(
        error.to_string().ends_with("is no file of this format"),
        "{error}"
    );
}

/// Every scenario with a flow table: what was recorded holds, and packets of known flows have the same effects by the table.
fn with_flow_table(table: FlowTable) -> Twins {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut files: Vec<PathBuf> = [folder.clone(), folder.join("own")]
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter(|path| {
            !path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("facts"))
        })
        .collect();
    files.sort();
    take_twins();
    let mut failed = Vec::new();
    for file in files {
        let reports = run_file_with(&file, &[], "", table)
            .unwrap_or_else(|error| panic!("{}: {error:?}", file.display()));
        failed.extend(
            reports
                .iter()
                .filter(|report| matches!(report.outcome, Outcome::Failed(_)))
                .map(Report::to_string),
        );
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    take_twins()
}

#[test]
fn a_cold_flow_table_changes_nothing() {
    with_flow_table(FlowTable::Cold);
}

#[test]
fn a_warm_flow_table_changes_nothing() {
    with_flow_table(FlowTable::Warm);
}

#[test]
fn twins_have_the_same_effects() {
    let twins = with_flow_table(FlowTable::Twins);

    println!("{twins:?}");
    assert!(twins.hits * 2 > twins.compared, "{twins:?}");
}
