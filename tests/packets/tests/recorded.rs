// SPDX-License-Identifier: Apache-2.0

//! Recorded packets of a node with two pods: all must pass, but for differences that are meant.

use std::path::Path;

use run_packets::{Outcome, Report, run_file};

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
    check("policy", &[("pol_related/v6", "packet-too-big")]);
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
