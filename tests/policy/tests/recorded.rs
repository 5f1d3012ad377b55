// SPDX-License-Identifier: Apache-2.0

//! Recorded policies: all must pass, but for faults of the recorded program.

use std::path::Path;

use run_policy::{Outcome, Report, recorded_files, run_file};

#[test]
fn recorded_scenarios_pass_but_for_recorded_faults() {
    let files = recorded_files().unwrap();
    let reports: Vec<Report> = files
        .iter()
        .flat_map(|file| run_file(file, "").unwrap())
        .collect();
    assert!(reports.len() >= 392, "only {} scenarios", reports.len());

    let failed: Vec<String> = reports
        .iter()
        .filter(|report| matches!(report.outcome, Outcome::Failed(_)))
        .map(Report::to_string)
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let different: Vec<&str> = reports
        .iter()
        .filter(|report| matches!(report.outcome, Outcome::Different { .. }))
        .map(|report| report.scenario.as_str())
        .collect();
    assert_eq!(
        different,
        [
            "ent-kube-apiserver-on-host",
            "inc-identity-relabelled",
            "inc-relabelled-deny"
        ]
    );
    let equal_in_effect: usize = reports.iter().map(|report| report.notes.len()).sum();
    assert!(equal_in_effect <= 2, "rows differ in {equal_in_effect} maps");
}

/// A difference in a row, a selection or a verdict must be found.
#[test]
fn differences_are_found() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/precedence.json");
    let text = std::fs::read_to_string(file).unwrap();
    for (from, to) in [
        ("\"FFFFFF01\",\"allow\"", "\"FFFFFFFF\",\"deny\""),
        ("[1,[10002]]", "[1,[10002,10003]]"),
        ("allow@2 allow@1", "drop allow@1"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert!(changed != text, "{from} is not there");
        let path = std::env::temp_dir().join(format!("run-policy-{}.json", std::process::id()));
        std::fs::write(&path, changed).unwrap();
        let reports = run_file(&path, "").unwrap();
        std::fs::remove_file(&path).unwrap();
        let failed = reports
            .iter()
            .filter(|report| matches!(report.outcome, Outcome::Failed(_)))
            .count();
        assert_eq!(failed, 1, "{from} became {to}");
    }
}
